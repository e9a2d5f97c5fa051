// Attention, forward and backward, and what appends to the keys and values that it reads. C++17.
#pragma once

#include <aotriton/operator.h>

namespace aotriton::v2 {
inline namespace abi1 {

// What the fields mean stands in c.h; here sm_scale begins as AOTRITON_DEFAULT_SCALE, and is what a program sets it to,
// 0 as well.
struct attn_fwd_params : aotriton_attn_fwd_params {
  attn_fwd_params() noexcept : aotriton_attn_fwd_params{} {
    size = sizeof(aotriton_attn_fwd_params);
    sm_scale = AOTRITON_DEFAULT_SCALE;
    scale_given = 1;
  }
};

struct attn_bwd_params : aotriton_attn_bwd_params {
  attn_bwd_params() noexcept : aotriton_attn_bwd_params{} {
    size = sizeof(aotriton_attn_bwd_params);
    sm_scale = AOTRITON_DEFAULT_SCALE;
    scale_given = 1;
  }
};

struct kv_append_params : aotriton_kv_append_params {
  kv_append_params() noexcept : aotriton_kv_append_params{} { size = sizeof(aotriton_kv_append_params); }
};

AOTRITON_OPERATOR(attn_fwd)
AOTRITON_OPERATOR(attn_bwd)
AOTRITON_OPERATOR(kv_append)

}  // namespace abi1
}  // namespace aotriton::v2
