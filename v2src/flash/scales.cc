#include "flash/scales.h"

#include "base/error.h"

namespace aotriton::v2::inline abi1::flash {

Error check_scales(const Call& call, size_t k, size_t v, size_t k_descale, size_t v_descale) noexcept {
  const OperatorInfo& info = *call.info;
  const DType of_k = call[k].dtype, of_v = call[v].dtype;
  if (of_k != of_v)
    return fail(Error::invalid_dtype, "%s: %s has dtype %s, %s has %s", info.name, info.operands[k].name,
                dtype_name(of_k), info.operands[v].name, dtype_name(of_v));
  for (const size_t slot : {k_descale, v_descale})
    if (call[slot].data && of_k == call.dtype)
      return fail(Error::invalid_argument, "%s: %s is given, and %s has dtype %s, which has no scale", info.name,
                  info.operands[slot].name, info.operands[k].name, dtype_name(of_k));
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1::flash
