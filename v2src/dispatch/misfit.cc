#include "dispatch/misfit.h"

#include <cinttypes>

#include "base/error.h"

namespace aotriton::v2::inline abi1 {

Error refuse(const Call& call, const Misfit& misfit) noexcept {
  const char* const name = call.info->name;
  switch (misfit.what) {
    case Misfit::derived_size:
      return fail(Error::not_supported, "%s: %s does not fit in 63 bits", name, call.info->sizes[misfit.detail]);
    case Misfit::workspace:
      return fail(Error::not_supported, "%s: the workspace overflows 63 bits", name);
    case Misfit::programs:
      return fail(Error::not_supported, "%s: more than %" PRId64 " programs of %s along %c", name,
                  kMostPrograms[misfit.detail], misfit.kernel->name, "xyz"[misfit.detail]);
    case Misfit::threads:
      return fail(Error::not_supported, "%s: HIP has more threads of %s along x than can be launched", name,
                  misfit.kernel->name);
    case Misfit::tensor_map:
      return fail(Error::not_supported, "%s: %s of the workspace is larger than a tensor map describes", name,
                  call.info->slot(misfit.detail).name);
    case Misfit::number:
      return fail(Error::not_supported, "%s: a size is beyond what kernels count in %d bits", name, misfit.detail);
    case Misfit::many_numbers:
      return fail(Error::not_supported, "%s: %s takes too many arguments", name, misfit.kernel->name);
    case Misfit::none:
      break;
  }
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
