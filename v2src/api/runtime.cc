// What concerns no operator in particular: prepared calls, preloading, the version.
#include <aotriton/c.h>

#include "base/error.h"
#include "launch/load.h"
#include "launch/run.h"
#include "program/registry.h"

#ifndef AOTRITON_VERSION
#error "AOTRITON_VERSION must be defined as \"major.minor.patch\""
#endif

namespace aotriton::v2::inline abi1 {

namespace {

Error preload_kernel(const Device& device, const KernelInfo& kernel, Stream stream) {
  const auto arch = static_cast<size_t>(device.facts.gpu.arch);
  const KernelTable* table = arch < kernel.tables.size() ? kernel.tables[arch] : nullptr;
  if (!table) return Error::success;
  for (Image* image : table->images) {
    void* function;
    AOTRITON_TRY(load_image(device, *image, stream, &function));
  }
  return Error::success;
}

Error preload_all(Stream stream) {
  return on_device("preload", stream, [&](const Device& device) {
    Error error = Error::success;
    any_operator([&](const OperatorInfo& info) {
      for (const BackendInfo& backend : info.backends)
        for (const KernelInfo* kernel : backend.kernels)
          if (error == Error::success) error = preload_kernel(device, *kernel, stream);
      return error != Error::success;
    });
    return error;
  });
}

}  // namespace

}  // namespace aotriton::v2::inline abi1

using namespace aotriton::v2;

extern "C" {

const char* aotriton_version(void) { return AOTRITON_VERSION; }

aotriton_error aotriton_preload(void* stream) { return static_cast<aotriton_error>(preload_all({stream})); }

aotriton_error aotriton_launch(aotriton_prepared* prepared, void* const* pointers, size_t count, void* stream) {
  return static_cast<aotriton_error>(launch(reinterpret_cast<Prepared*>(prepared), pointers, count, {stream}));
}

void aotriton_destroy(aotriton_prepared* prepared) { Prepared::destroy(reinterpret_cast<Prepared*>(prepared)); }

}  // extern "C"
