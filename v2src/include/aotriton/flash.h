// Attention, forward and backward.
#pragma once

#include <aotriton/explain.h>
#include <aotriton/types.h>

#include <cstddef>

namespace aotriton::v2::inline abi1 {

// out = softmax(sm_scale * q k^T) v, and optionally logsumexp = log(sum(exp(sm_scale * q k^T))).
// q, out: [batch, heads_q, seqlen_q, head_dim]; k, v: [batch, heads_k, seqlen_k, head_dim]; heads_q a multiple of
// heads_k. float16 or bfloat16, one type for all; head_dim 8 to 256 in steps of 8; any strides with a contiguous last
// dimension. logsumexp: [batch, heads_q, seqlen_q] float32, contiguous, 16-byte aligned; not written where data is
// null. causal: query i sees keys 0..i; needs seqlen_q == seqlen_k. sm_scale: finite, not negative.
struct attn_fwd_params {
  Tensor<4> q, k, v, out;
  Tensor<3> logsumexp;
  float sm_scale = 0;
  bool causal = false;
};

// Gradients of attn_fwd. dout, dq as q; dk, dv as k; out and logsumexp as attn_fwd wrote them.
// deterministic: the same bits every time; without it, a backend may add to dq in an order that varies.
struct attn_bwd_params {
  Tensor<4> q, k, v, out, dout;
  Tensor<3> logsumexp;
  Tensor<4> dq, dk, dv;
  float sm_scale = 0;
  bool causal = false;
  void* workspace = nullptr;  // device memory, 256-byte aligned, as large as attn_bwd_workspace_size says
  size_t workspace_size = 0;  // bytes
  bool deterministic = false;
};

// Both launch on `stream` and return without waiting. After an error nothing was launched, unless the error is
// driver_failed from a later kernel of attn_bwd.
AOTRITON_API Error attn_fwd(const attn_fwd_params& params, Stream stream) noexcept;
AOTRITON_API Error attn_bwd(const attn_bwd_params& params, Stream stream) noexcept;

// Bytes of workspace that attn_bwd needs for these shapes, fewer where it is to be deterministic. Data pointers are not
// looked at.
AOTRITON_API Error attn_bwd_workspace_size(const attn_bwd_params& params, size_t* bytes) noexcept;

// What these calls would run on `arch` with that many multiprocessors (0: the arch's usual product).
// Null data pointers count as aligned.
AOTRITON_API Error explain(const attn_fwd_params& params, const char* arch, int multiprocessors,
                           Explanation* explanation) noexcept;
AOTRITON_API Error explain(const attn_bwd_params& params, const char* arch, int multiprocessors,
                           Explanation* explanation) noexcept;

}  // namespace aotriton::v2::inline abi1
