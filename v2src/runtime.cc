#include <aotriton/runtime.h>

#include "error.h"
#include "flash/kernels.h"
#include "load.h"
#include "lookup.h"

#ifndef AOTRITON_VERSION
#error "AOTRITON_VERSION must be defined as \"major.minor.patch\""
#endif

namespace aotriton::v2::inline abi1 {

Error preload(Stream stream) noexcept {
  return on_device("preload", stream, [&](const Device& device) {
    for (const KernelInfo* kernel : flash::kKernels) {
      const KernelTable* table = find_table(*kernel, device.arch->arch);
      if (!table) return unknown_arch(*kernel, device.arch->arch);
      for (Image* image : table->images) {
        void* function;
        AOTRITON_TRY(load_image(device, *image, stream, &function));
      }
    }
    return Error::success;
  });
}

const char* version() noexcept { return AOTRITON_VERSION; }

}  // namespace aotriton::v2::inline abi1
