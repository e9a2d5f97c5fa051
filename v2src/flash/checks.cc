#include "flash/checks.h"

#include <aotriton/c.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "base/error.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

constexpr int64_t kPlain = 0, kBanded = 2;  // levels, as rules/flash/common.py has them

Error set_level(Call& call, const Indices& p) {
  constexpr int64_t kFar = int64_t{1} << 60;  // beyond what kernels count, and within what is added up here
  const int64_t seqlen_q = std::min(call.sizes[p.seqlen_q], kFar), seqlen_k = std::min(call.sizes[p.seqlen_k], kFar);
  const int64_t left = call.scalars[p.window_left].whole, right = call.scalars[p.window_right].whole;
  const int64_t variant = call.scalars[p.causal_variant].whole;
  const bool causal = call.scalars[p.causal].whole != 0, windowed = left >= 0 || right >= 0;
  if (variant < AOTRITON_CAUSAL_TOP_LEFT || variant > AOTRITON_CAUSAL_BOTTOM_RIGHT)
    return fail(Error::invalid_argument, "%s: causal_variant is %" PRId64 ", which is none of those in c.h",
                call.info->name, variant);
  const auto set = [&](int64_t level, bool triangle, int64_t lo, int64_t hi) {
    call.set_whole(p.level, level);
    call.set_whole(p.causal, triangle);
    call.set_whole(p.lo, lo);
    call.set_whole(p.hi, hi);
    return Error::success;
  };
  if (!windowed && (!causal || call.sizes[p.seqlen_q] == call.sizes[p.seqlen_k])) [[likely]]
    return set(kPlain, causal, 0, 0);
  // A row's own key is the one of its number, or as far from the last key as the row is from the last row. Numbers that
  // reach beyond both sequences say no more than those that reach their ends.
  const int64_t own = variant == AOTRITON_CAUSAL_BOTTOM_RIGHT ? seqlen_k - seqlen_q : 0;
  const int64_t most = std::max(seqlen_q, seqlen_k);
  const int64_t behind = causal ? 0 : right < 0 ? most : std::min(right, most);
  const int64_t before = left < 0 ? most : std::min(left, most);
  const int64_t lo = std::clamp(own - before, -seqlen_q, seqlen_k), hi = std::clamp(own + behind, -seqlen_q, seqlen_k);
  const bool no_lower = lo <= 1 - seqlen_q;
  if (no_lower && hi >= seqlen_k - 1) return set(kPlain, false, 0, 0);
  if (no_lower && hi == 0 && seqlen_q == seqlen_k) return set(kPlain, true, 0, 0);
  return set(kBanded, false, lo, hi);
}

}  // namespace

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
  AOTRITON_TRY(set_level(call, p));
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
