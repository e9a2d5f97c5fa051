// Attention, forward and backward. C++17.
#pragma once

#include <aotriton/operator.h>

namespace aotriton::v2 {
inline namespace abi1 {

// What the fields mean stands in c.h.
struct attn_fwd_params : aotriton_attn_fwd_params {
  attn_fwd_params() noexcept : aotriton_attn_fwd_params{} { size = sizeof(aotriton_attn_fwd_params); }
};

struct attn_bwd_params : aotriton_attn_bwd_params {
  attn_bwd_params() noexcept : aotriton_attn_bwd_params{} { size = sizeof(aotriton_attn_bwd_params); }
};

AOTRITON_OPERATOR(attn_fwd)
AOTRITON_OPERATOR(attn_bwd)

}  // namespace abi1
}  // namespace aotriton::v2
