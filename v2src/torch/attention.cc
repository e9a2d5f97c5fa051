#include "torch/attention.h"

#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <limits>

#include "torch/hints.h"
#include "torch/reference.h"

namespace aotriton_torch {

namespace {

// One that says in c.h that none is given is refused as any other negative one.
template <class Params>
void set_scale(Scale given, Params& params) {
  if (!given) return;
  params.sm_scale = static_cast<float>(*given);
  if (params.sm_scale == AOTRITON_DEFAULT_SCALE) params.sm_scale = -INFINITY;
  params.scale_given = 1;
}

template <class Params>
void set_mask(const Mask& mask, Params& params) {
  params.causal = mask.causal;
  params.features.causal_variant = mask.bottom_right ? AOTRITON_CAUSAL_BOTTOM_RIGHT : AOTRITON_CAUSAL_TOP_LEFT;
  params.features.windowed = mask.windowed();
  if (!mask.windowed()) return;
  params.features.window_left = mask.window_left;
  params.features.window_right = mask.window_right;
}

std::vector<int64_t> logsumexp_sizes(const Tensor& q) { return {q.size(0), q.size(1), q.size(2)}; }

// On the tensors' GPU by the library's functions of the operator, or as the formula reads, where they would not refuse.
template <class Call, class WorkspaceSize, class Launch, class Explain>
aotriton_error compute_as(const char* op, const Call& call, const std::string& hints, WorkspaceSize workspace_size,
                          Launch launch, Explain explain) {
  const Hints told(op, hints);
  auto params = call.params;
  params.hints = told.get();
  if (call.q.is_cuda()) return run(params, call.q, workspace_size, launch);
  const aotriton_error error = check_as_on_gpu(params, explain);
  if (error == AOTRITON_SUCCESS) reference(params);
  return error;
}

}  // namespace

Mask mask_of(const char* op, bool causal, const std::string& causal_variant, int64_t window_left,
             int64_t window_right) {
  const bool bottom_right = causal_variant == "bottom_right";
  if (!bottom_right && causal_variant != "top_left")
    fail(std::string(op) + ": causal_variant is '" + causal_variant + "', which must be one of top_left, bottom_right");
  return {causal, bottom_right, window_left, window_right};
}

Forward forward_of(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, const Mask& mask) {
  require_rank("attn_fwd", "q", q, 4);
  require_rank("attn_fwd", "k", k, 4);
  require_rank("attn_fwd", "v", v, 4);
  require_one_device("attn_fwd", {{"q", q}, {"k", k}, {"v", v}});
  const Tensor rows = with_contiguous_rows(q);
  Forward call = {rows,
                  with_contiguous_rows(k),
                  with_contiguous_rows(v),
                  empty_as(rows),
                  empty(logsumexp_sizes(q), aoti_torch_dtype_float32(), q),
                  {}};
  call.params.size = sizeof call.params;
  call.params.q = view_of<aotriton_tensor4>(call.q);
  call.params.k = view_of<aotriton_tensor4>(call.k);
  call.params.v = view_of<aotriton_tensor4>(call.v);
  call.params.out = view_of<aotriton_tensor4>(call.out);
  call.params.logsumexp = view_of<aotriton_tensor3>(call.logsumexp);
  set_scale(sm_scale, call.params);
  set_mask(mask, call.params);
  return call;
}

Backward backward_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& dout,
                     const Tensor& logsumexp, Scale sm_scale, const Mask& mask, bool deterministic) {
  for (const Named& one : {Named{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"dout", dout}})
    require_rank("attn_bwd", one.name, one.tensor, 4);
  require_rank("attn_bwd", "logsumexp", logsumexp, 3);
  require_one_device("attn_bwd",
                     {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"dout", dout}, {"logsumexp", logsumexp}});
  const Tensor rows_q = with_contiguous_rows(q), rows_k = with_contiguous_rows(k), rows_v = with_contiguous_rows(v);
  Backward call = {rows_q,
                   rows_k,
                   rows_v,
                   with_contiguous_rows(out),
                   with_contiguous_rows(dout),
                   logsumexp.is_contiguous() ? logsumexp : torch::stable::contiguous(logsumexp),
                   empty_as(rows_q),
                   empty_as(rows_k),
                   empty_as(rows_v),
                   {}};
  call.params.size = sizeof call.params;
  call.params.q = view_of<aotriton_tensor4>(call.q);
  call.params.k = view_of<aotriton_tensor4>(call.k);
  call.params.v = view_of<aotriton_tensor4>(call.v);
  call.params.out = view_of<aotriton_tensor4>(call.out);
  call.params.dout = view_of<aotriton_tensor4>(call.dout);
  call.params.logsumexp = view_of<aotriton_tensor3>(call.logsumexp);
  call.params.dq = view_of<aotriton_tensor4>(call.dq);
  call.params.dk = view_of<aotriton_tensor4>(call.dk);
  call.params.dv = view_of<aotriton_tensor4>(call.dv);
  set_scale(sm_scale, call.params);
  set_mask(mask, call.params);
  call.params.deterministic = deterministic;
  return call;
}

aotriton_error compute(const Forward& call, const std::string& hints) {
  return compute_as("attn_fwd", call, hints, aotriton_attn_fwd_workspace_size, aotriton_attn_fwd,
                    aotriton_explain_attn_fwd);
}

aotriton_error compute(const Backward& call, const std::string& hints) {
  return compute_as("attn_bwd", call, hints, aotriton_attn_bwd_workspace_size, aotriton_attn_bwd,
                    aotriton_explain_attn_bwd);
}

std::tuple<Tensor, Tensor> attn_fwd(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, bool causal,
                                    const std::string& causal_variant, int64_t window_left, int64_t window_right,
                                    const std::string& hints) {
  const Mask mask = mask_of("attn_fwd", causal, causal_variant, window_left, window_right);
  const Forward call = forward_of(q, k, v, sm_scale, mask);
  raise_if(compute(call, hints));
  return {call.out, call.logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> attn_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                            const Tensor& dout, const Tensor& logsumexp, Scale sm_scale, bool causal,
                                            const std::string& causal_variant, int64_t window_left,
                                            int64_t window_right, std::optional<bool> deterministic,
                                            const std::string& hints) {
  const Mask mask = mask_of("attn_bwd", causal, causal_variant, window_left, window_right);
  const Backward call = backward_of(q, k, v, out, dout, logsumexp, sm_scale, mask,
                                    deterministic ? *deterministic : deterministic_algorithms());
  raise_if(compute(call, hints));
  return {call.dq, call.dk, call.dv};
}

}  // namespace aotriton_torch
