#include "flash/band.h"

#include <aotriton/c.h>

#include <algorithm>
#include <cinttypes>

#include "base/error.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

constexpr int64_t kMostColumns = 128;  // as MOST_COLUMNS of tritonsrc/flash/lib/sequence.py

}  // namespace

[[gnu::hot]] Error set_level(Call& call, const Indices& x, int64_t features) noexcept {
  constexpr int64_t kFar = int64_t{1} << 60;  // beyond what kernels count, and within what is added up here
  const int64_t seqlen_q = std::min(call.scalars[x.longest_q].whole, kFar);
  const int64_t seqlen_k = std::min(call.scalars[x.longest_k].whole, kFar);
  const int64_t left = call.scalars[x.window_left].whole, right = call.scalars[x.window_right].whole;
  const int64_t variant = call.scalars[x.causal_variant].whole;
  const bool causal = call.scalars[x.causal].whole != 0, windowed = left >= 0 || right >= 0;
  if (variant < AOTRITON_CAUSAL_TOP_LEFT || variant > AOTRITON_CAUSAL_BOTTOM_RIGHT)
    return fail(Error::invalid_argument, "%s: causal_variant is %" PRId64 ", which is none of those in c.h",
                call.info->name, variant);
  const auto set = [&](int64_t level, bool triangle, int64_t lo, int64_t hi) {
    call.set_whole(x.level, level);
    call.set_whole(x.causal, triangle);
    call.set_whole(x.lo, lo);
    call.set_whole(x.hi, hi);
    call.set_whole(x.features, features & ~kFp8Keys);  // images and tables know from the type
    return Error::success;
  };
  const int64_t head_dim = call.sizes[x.head_dim], head_dim_v = call.sizes[x.head_dim_v];
  // Of fp32, and of head dims that are not as plain images have them, there are images with features only.
  const bool plain = !features && call.dtype != DType::float32 && head_dim == head_dim_v && head_dim <= kMostPlain &&
                     head_dim % x.multiple_of_head_dim == 0;
  if (plain && !windowed && (!causal || seqlen_q == seqlen_k)) [[likely]]
    return set(kPlain, causal, 0, 0);
  // A row's own key is the one of its number, or as far from the last key as the row is from the last row. Numbers that
  // reach beyond both sequences say no more than those that reach their ends. Where lengths are in device memory, the
  // kernel finds the last key.
  const bool last = variant == AOTRITON_CAUSAL_BOTTOM_RIGHT && (causal || windowed);
  const bool found_by_kernel = features & kOfLengths;
  const int64_t own = last && !found_by_kernel ? seqlen_k - seqlen_q : 0;
  const int64_t most = std::max(seqlen_q, seqlen_k);
  const int64_t behind = causal ? 0 : right < 0 ? most : std::min(right, most);
  const int64_t before = left < 0 ? most : std::min(left, most);
  const int64_t level = features & kPages ? kPaged : features & kOfFull ? kFull : kGeneral;
  const int64_t widest = std::max(head_dim, head_dim_v);
  if (level == kFull && widest > kMostPlain) call.misaligned |= 1u << call.from[x.q];  // there are no other images
  if (found_by_kernel) {
    if (last) features |= kOwnLast;
    // A descriptor ends where the tensor does, not where a sequence does. Images of the portable kernels with most to
    // do have no registers to see to that, and take pointers.
    call.by_pointer = level == kFull || widest > kMostColumns;
    return set(level, false, -before, behind);
  }
  const int64_t lo = std::clamp(own - before, -seqlen_q, seqlen_k), hi = std::clamp(own + behind, -seqlen_q, seqlen_k);
  if (!plain) return set(level, false, lo, hi);
  const bool no_lower = lo <= 1 - seqlen_q;
  if (no_lower && hi >= seqlen_k - 1) return set(kPlain, false, 0, 0);
  if (no_lower && hi == 0 && seqlen_q == seqlen_k) return set(kPlain, true, 0, 0);
  return set(kBanded, false, lo, hi);
}

}  // namespace aotriton::v2::inline abi1::flash
