// torch.ops.aotriton: the operators for tensors of a GPU, and of a CPU, where reference.cc computes.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "torch/attention.h"
#include "torch/counts.h"
#include "torch/gemm.h"
#include "torch/hints.h"
#include "torch/sdpa.h"

namespace aotriton_torch {

namespace {

using Scale = std::optional<double>;

std::tuple<Tensor, Tensor> attn_fwd(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, bool causal,
                                    const std::string& hints) {
  const Forward call = forward_of(q, k, v, sm_scale, causal);
  raise_if(compute(call, hints));
  return {call.out, call.logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> attn_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                            const Tensor& dout, const Tensor& logsumexp, Scale sm_scale, bool causal,
                                            std::optional<bool> deterministic, const std::string& hints) {
  const Backward call = backward_of(q, k, v, out, dout, logsumexp, sm_scale, causal,
                                    deterministic ? *deterministic : deterministic_algorithms());
  raise_if(compute(call, hints));
  return {call.dq, call.dk, call.dv};
}

// The same pair as torch's operator for backends of others, whose derivative is in C++ already: attention.py calls it
// where a gradient is recorded. It has no hints. What it hands from forward to backward beside out and logsumexp, and
// the gradient of a bias, is undefined here.
using Recorded = std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t, int64_t, Tensor, Tensor, Tensor>;

Recorded recorded_fwd(const Tensor& q, const Tensor& k, const Tensor& v, std::optional<Tensor> bias, double dropout_p,
                      bool causal, bool return_debug_mask, Scale sm_scale) {
  if (bias || dropout_p != 0 || return_debug_mask) fail("attn_fwd: a bias, dropout or a debug mask is asked for");
  auto [out, logsumexp] = attn_fwd(q, k, v, sm_scale, causal, "");
  return {out, logsumexp, Tensor(), Tensor(), q.size(2), k.size(2), Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> recorded_bwd(
    const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& /* bias */,
    const std::vector<bool>& /* which gradients are wanted: the kernels make all */, const Tensor& out,
    const Tensor& logsumexp, const Tensor& /* cum_seq_q */, const Tensor& /* cum_seq_k */, int64_t /* max_q */,
    int64_t /* max_k */, double /* dropout_p */, bool causal, const Tensor& /* philox_seed */,
    const Tensor& /* philox_offset */, Scale sm_scale) {
  auto [dq, dk, dv] = attn_bwd(q, k, v, out, dout, logsumexp, sm_scale, causal, std::nullopt, "");
  return {dq, dk, dv, Tensor()};
}

void implement_recorded(torch::stable::detail::StableLibrary& m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_BOX(recorded_fwd));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_BOX(recorded_bwd));
}

constexpr const char* kSchemas[] = {
    "attn_fwd(Tensor q, Tensor k, Tensor v, *, float? sm_scale=None, bool causal=False, str hints=\"\") "
    "-> (Tensor out, Tensor logsumexp)",
    "attn_bwd(Tensor q, Tensor k, Tensor v, Tensor out, Tensor dout, Tensor logsumexp, *, float? sm_scale=None, "
    "bool causal=False, bool? deterministic=None, str hints=\"\") -> (Tensor dq, Tensor dk, Tensor dv)",
    "gemm(Tensor a, Tensor b, Tensor? bias=None, *, float alpha=1.0, str activation=\"none\", str hints=\"\") "
    "-> Tensor",
};

// Each operator has a twin: autograd's kernel of the first, which is Python, calls the second, which has none. To call
// the first one past autograd would cost the host as much again.
std::string twin_of(const char* name_or_schema) { return std::string(1, '_').append(name_or_schema); }

void implement(torch::stable::detail::StableLibrary& m) {
  for (const bool twin : {false, true}) {
    const auto name = [&](const char* of) { return twin ? twin_of(of) : of; };
    m.impl(name("attn_fwd").c_str(), TORCH_BOX(attn_fwd));
    m.impl(name("attn_bwd").c_str(), TORCH_BOX(attn_bwd));
    m.impl(name("gemm").c_str(), TORCH_BOX(gemm));
  }
}

}  // namespace

STABLE_TORCH_LIBRARY(aotriton, m) {
  for (const char* schema : kSchemas) {
    m.def(schema);
    m.def(twin_of(schema).c_str());
  }
  m.def("_activate(str dispatch_key) -> ()");
  m.def("_restore() -> ()");
  m.def("_counted() -> str");
  m.def("_enter_region(str hints) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(aotriton, CUDA, m) { implement(m); }

STABLE_TORCH_LIBRARY_IMPL(aotriton, CPU, m) { implement(m); }

STABLE_TORCH_LIBRARY_IMPL(aten, CUDA, m) { implement_recorded(m); }

STABLE_TORCH_LIBRARY_IMPL(aten, CPU, m) { implement_recorded(m); }

STABLE_TORCH_LIBRARY_IMPL(aotriton, CompositeExplicitAutograd, m) {
  m.impl("_activate", TORCH_BOX(activate));
  m.impl("_restore", TORCH_BOX(restore));
  m.impl("_counted", TORCH_BOX(counted));
  m.impl("_enter_region", TORCH_BOX(enter_region));
}

}  // namespace aotriton_torch
