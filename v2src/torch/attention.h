// Attention on torch's tensors, as the operators, autograd and SDPA call it: results are made here.
#pragma once

#include <tuple>

#include "torch/tensor.h"

namespace aotriton_torch {

// The operators' kernels: out and logsumexp; dq, dk and dv. `deterministic`: by default, what torch is told to be.
using Scale = std::optional<double>;
std::tuple<Tensor, Tensor> attn_fwd(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, bool causal,
                                    const std::string& hints);
std::tuple<Tensor, Tensor, Tensor> attn_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                            const Tensor& dout, const Tensor& logsumexp, Scale sm_scale, bool causal,
                                            std::optional<bool> deterministic, const std::string& hints);

// What a forward was given and has made, and its parameters, which point into that.
struct Forward {
  Tensor q, k, v, out, logsumexp;
  aotriton_attn_fwd_params params;
};
Forward forward_of(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, bool causal);

struct Backward {
  Tensor q, k, v, out, dout, logsumexp, dq, dk, dv;
  aotriton_attn_bwd_params params;
};
Backward backward_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& dout,
                     const Tensor& logsumexp, Scale sm_scale, bool causal, bool deterministic);

// Computes it, on the GPU or the CPU that the tensors are on. After an error nothing was computed, unless it is
// AOTRITON_DRIVER_FAILED.
aotriton_error compute(const Forward& call, const std::string& hints);
aotriton_error compute(const Backward& call, const std::string& hints);

}  // namespace aotriton_torch
