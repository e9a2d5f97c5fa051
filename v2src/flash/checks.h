// The checks that forward and backward share: what attention asks beyond tensors that fit together.
#pragma once

#include "call/call.h"

namespace aotriton::v2::inline abi1::flash {

// The indices of an operator's sizes and scalars that the checks are about.
struct Indices {
  size_t heads_q, heads_k, seqlen_q, seqlen_k, head_dim;                              // sizes
  size_t sm_scale, causal, causal_variant, window_left, window_right, level, lo, hi;  // scalars
  int64_t most_head_dim, multiple_of_head_dim;  // what kernels serve, by their description
};

// The scale of parameters of c.h, kNotGiven where these say so.
template <class Params>
float scale_of(const Params& p) noexcept {
  return p.sm_scale == AOTRITON_DEFAULT_SCALE || (p.sm_scale == 0 && !p.scale_given) ? kNotGiven : p.sm_scale;
}

// Sets sm_scale where the caller left it to the library, and makes the level of what the caller asks for: causal or
// not, where nothing else is hidden, or the band that every row sees, [row + lo, row + hi], with causal 0 then.
//
// A scale of 0 is every kernel's to compute. Those that hide scores, the forward's and Hopper's of dk and dv, take
// 1e-30 instead, as 0 times minus infinity is no number: weights are even to their last bit where scores are below
// 1e22. The others hide weights, and multiply by 0. None divides by it, and all multiply dq and dk by it, which makes
// them 0.
Error check_attention(Call& call, const Indices& indices) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
