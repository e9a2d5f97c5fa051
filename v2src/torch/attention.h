// Attention on torch's tensors, as the operators and SDPA call it: results are made here.
#pragma once

#include "torch/tensor.h"

namespace aotriton_torch {

// What a forward was given and has made, and its parameters, which point into that.
struct Forward {
  Tensor q, k, v, out, logsumexp;
  aotriton_attn_fwd_params params;
};
Forward forward_of(const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> sm_scale, bool causal);

struct Backward {
  Tensor q, k, v, out, dout, logsumexp, dq, dk, dv;
  aotriton_attn_bwd_params params;
};
Backward backward_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& dout,
                     const Tensor& logsumexp, std::optional<double> sm_scale, bool causal, bool deterministic);

// Computes it, on the GPU or the CPU that the tensors are on. After an error nothing was computed, unless it is
// AOTRITON_DRIVER_FAILED.
aotriton_error compute(const Forward& call, const std::string& hints);
aotriton_error compute(const Backward& call, const std::string& hints);

}  // namespace aotriton_torch
