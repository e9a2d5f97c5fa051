// Attention on torch's tensors, as the operators, autograd and SDPA call it: results are made here.
#pragma once

#include <tuple>

#include "torch/tensor.h"

namespace aotriton_torch {

// Which keys a row sees, as in c.h. A window is open at a side where that is negative.
struct Mask {
  bool causal = false;
  bool bottom_right = false;
  int64_t window_left = -1, window_right = -1;

  bool windowed() const { return window_left >= 0 || window_right >= 0; }
};

// What else a call may have, as in c.h.
struct Features {
  Maybe bias = {}, alibi_slopes = {}, sinks = {}, cu_seqlens_q = {}, cu_seqlens_k = {}, seqused_q = {}, seqused_k = {};
  Maybe dropout_seed = {}, dropout_offset = {};
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  double softcap = 0, dropout = 0;
  Maybe block_table = {}, k_descale = {}, v_descale = {}, q_descale = {};
  Maybe dropout_state = {};  // whose first number is both the seed and the offset
};

// The operators' kernels: out and logsumexp; dq, dk and dv, of which those that `skip_gradients` names, as in c.h, have
// no elements. `deterministic`: by default, what torch is told to be.
using Scale = std::optional<double>;
std::tuple<Tensor, Tensor> attn_fwd(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, bool causal,
                                    const std::string& causal_variant, int64_t window_left, int64_t window_right,
                                    const std::string& hints);
std::tuple<Tensor, Tensor, Tensor> attn_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                            const Tensor& dout, const Tensor& logsumexp, Scale sm_scale, bool causal,
                                            const std::string& causal_variant, int64_t window_left,
                                            int64_t window_right, int64_t skip_gradients,
                                            std::optional<bool> deterministic, const std::string& hints);

// The same with features. The backward's last results are dbias and dsinks, without elements where they are not asked
// for.
std::tuple<Tensor, Tensor> attn_fwd_features(const Tensor& q, const Tensor& k, const Tensor& v, const Maybe& bias,
                                             const Maybe& alibi_slopes, const Maybe& sinks, const Maybe& cu_seqlens_q,
                                             const Maybe& cu_seqlens_k, const Maybe& seqused_q, const Maybe& seqused_k,
                                             const Maybe& dropout_seed, const Maybe& dropout_offset,
                                             const Maybe& block_table, const Maybe& k_descale, const Maybe& v_descale,
                                             const Maybe& q_descale, int64_t max_seqlen_q, int64_t max_seqlen_k,
                                             double softcap, double dropout, Scale sm_scale, bool causal,
                                             const std::string& causal_variant, int64_t window_left,
                                             int64_t window_right, const std::string& hints);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> attn_bwd_features(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& dout, const Tensor& logsumexp,
    const Maybe& bias, const Maybe& alibi_slopes, const Maybe& sinks, const Maybe& cu_seqlens_q,
    const Maybe& cu_seqlens_k, const Maybe& seqused_q, const Maybe& seqused_k, const Maybe& dropout_seed,
    const Maybe& dropout_offset, int64_t max_seqlen_q, int64_t max_seqlen_k, double softcap, double dropout,
    Scale sm_scale, bool causal, const std::string& causal_variant, int64_t window_left, int64_t window_right,
    int64_t skip_gradients, bool dbias, bool dsinks, std::optional<bool> deterministic, const std::string& hints);

// Fails where the variant is none of c.h's.
Mask mask_of(const char* op, bool causal, const std::string& causal_variant, int64_t window_left, int64_t window_right);

// What a forward was given and has made, and its parameters, which point into that.
struct Forward {
  Tensor q, k, v, out, logsumexp;
  Features features;
  aotriton_attn_fwd_params params;
};
Forward forward_of(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, const Mask& mask,
                   const Features& features = {});

struct Backward {
  Tensor q, k, v, out, dout, logsumexp, dq, dk, dv;
  Maybe dbias, dsinks;
  Features features;
  aotriton_attn_bwd_params params;
};
struct Asked {  // beside dq, dk and dv, without those to skip
  bool dbias = false, dsinks = false;
  int64_t skip_gradients = 0;
};
Backward backward_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& dout,
                     const Tensor& logsumexp, Scale sm_scale, const Mask& mask, bool deterministic,
                     const Features& features = {}, const Asked& asked = {});

// Computes it, on the GPU or the CPU that the tensors are on. After an error nothing was computed, unless it is
// AOTRITON_DRIVER_FAILED.
aotriton_error compute(const Forward& call, const std::string& hints);
aotriton_error compute(const Backward& call, const std::string& hints);

}  // namespace aotriton_torch
