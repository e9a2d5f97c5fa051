// What concerns no operator in particular: prepared calls, preloading, numbers in device memory, the version.
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

Error write_int64(int64_t* memory, const int64_t* values, size_t count, Stream stream) {
  if (!count) return Error::success;
  if (!memory || !values) return fail(Error::null_pointer, "write_int64: %s is null", memory ? "values" : "memory");
  if (reinterpret_cast<uintptr_t>(memory) % sizeof *memory)
    return fail(Error::misaligned_pointer, "write_int64: memory is at %p, which must be 8-byte aligned",
                static_cast<void*>(memory));
  return on_device("write_int64", stream, [&](const Device& device) {
    const Driver& driver = *device.driver;
    for (size_t i = 0; i < count; ++i)
      for (int half = 0; half < 2; ++half) {  // drivers fill with 32 bits at most
        const auto bits = static_cast<uint32_t>(static_cast<uint64_t>(values[i]) >> (32 * half));
        uint32_t* const to = reinterpret_cast<uint32_t*>(memory + i) + half;
        if (const Status status = driver.fill(to, bits, sizeof bits, 1, 1, 0, stream.handle))
          return driver_failure(driver, status, "write_int64", "write a number");
      }
    return Error::success;
  });
}

}  // namespace

}  // namespace aotriton::v2::inline abi1

using namespace aotriton::v2;

extern "C" {

const char* aotriton_version(void) { return AOTRITON_VERSION; }

aotriton_error aotriton_preload(void* stream) { return static_cast<aotriton_error>(preload_all({stream})); }

aotriton_error aotriton_write_int64(int64_t* memory, const int64_t* values, size_t count, void* stream) {
  return static_cast<aotriton_error>(write_int64(memory, values, count, {stream}));
}

aotriton_error aotriton_launch(aotriton_prepared* prepared, void* const* pointers, size_t count, void* stream) {
  return static_cast<aotriton_error>(launch(reinterpret_cast<Prepared*>(prepared), pointers, count, {stream}));
}

void aotriton_destroy(aotriton_prepared* prepared) { Prepared::destroy(reinterpret_cast<Prepared*>(prepared)); }

}  // extern "C"
