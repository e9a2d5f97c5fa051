#include "flash/checks.h"

#include <cinttypes>
#include <cmath>

#include "base/error.h"

namespace aotriton::v2::inline abi1::flash {

Error check_attention(Call& call, const Indices& p) noexcept {
  const char* const op = call.info->name;
  const int64_t *const sizes = call.sizes, head_dim = sizes[p.head_dim];
  if (sizes[p.heads_k] ? sizes[p.heads_q] % sizes[p.heads_k] : sizes[p.heads_q])
    return fail(Error::invalid_shape, "%s: q has %" PRId64 " heads, which must be a multiple of the %" PRId64 " of k",
                op, sizes[p.heads_q], sizes[p.heads_k]);
  if (head_dim < 1 || head_dim % p.multiple_of_head_dim || head_dim > p.most_head_dim)
    return fail(Error::not_supported,
                "%s: q has head_dim %" PRId64 ", which must be a multiple of %" PRId64 " up to %" PRId64, op, head_dim,
                p.multiple_of_head_dim, p.most_head_dim);
  if (call.scalars[p.causal].whole && sizes[p.seqlen_q] != sizes[p.seqlen_k])
    return fail(Error::not_supported, "%s: causal needs equal seqlens, q has %" PRId64 ", k has %" PRId64, op,
                sizes[p.seqlen_q], sizes[p.seqlen_k]);
  constexpr float kLog2E = 1.4426950408889634f;  // kernels multiply by it
  const float scale = call.scalars[p.sm_scale].real;
  if (!is_given(scale)) {
    call.set_real(p.sm_scale, static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))));
    return Error::success;
  }
  if (!(scale >= 0) || !std::isfinite(scale * kLog2E))
    return fail(Error::invalid_argument, "%s: sm_scale is %g, which must be finite, and not negative", op,
                static_cast<double>(scale));
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1::flash
