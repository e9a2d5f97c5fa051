// The checks that forward and backward share: what attention asks beyond tensors that fit together.
#pragma once

#include "call.h"

namespace aotriton::v2::inline abi1::flash {

// Where an operator has the numbers that the checks are about.
struct Places {
  size_t heads_q, heads_k, seqlen_q, seqlen_k, head_dim;  // sizes
  size_t sm_scale, causal;                                // scalars
};

// Sets sm_scale where the caller left it to the library.
Error check_attention(Call& call, const Places& places) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
