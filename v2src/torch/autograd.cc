// attn_fwd for torch's autograd, without a line of Python: autograd's kernel of it calls torch's operator for backends
// of others, _scaled_dot_product_fused_attention_overrideable, whose derivative torch has in C++, and whose kernels are
// here.
//
// The stable ABI's own way to call an operator makes a line of log of every exception, and loses it; one of Python's,
// by which checkpointing stops early, has to come through. So the operator is called by its name in C++.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "torch/attention.h"
#include "torch/hints.h"

namespace aotriton_torch {

namespace {

// torch's own class of tensors, which a handle points to: one pointer. Autograd's operator makes them here.
class TorchTensor {
 public:
  TorchTensor(const TorchTensor&) = delete;
  ~TorchTensor() {}  // not trivial, as torch's, which decides how a function returns it

  // The tensor, which may be taken once. Where it is not, it has to be undefined: nothing is freed then.
  Tensor take() { return Tensor(reinterpret_cast<AtenTensorHandle>(new void*(tensor_))); }

 private:
  void* tensor_;
};

using Results = std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor, int64_t, int64_t, TorchTensor,
                           TorchTensor, TorchTensor>;
using NoBias = std::optional<void*>;  // where torch has std::optional<at::Tensor>

using FusedAttention = Results(const AtenTensorOpaque& q, const AtenTensorOpaque& k, const AtenTensorOpaque& v,
                               const NoBias& bias, double dropout_p, bool causal, bool return_debug_mask, Scale scale);
extern "C" __attribute__((weak)) FusedAttention torch_fused_attention asm(
    "_ZN2at4_ops48_scaled_dot_product_fused_attention_overrideable4callERKNS_6TensorES4_S4_RKSt8optionalIS2_EdbbS5_"
    "IdE");

// Another release of torch may have other classes. There autograd's kernel is the one in Python.
bool is_release_of_build() { return aoti_torch_abi_version() >> 48 == TORCH_ABI_VERSION >> 48; }

std::tuple<Tensor, Tensor> autograd_fwd(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, bool causal,
                                        const std::string& hints) {
  std::optional<Region> told;  // the operator has no argument for them
  if (!hints.empty()) told.emplace(hints);
  Results found = torch_fused_attention(*q.get(), *k.get(), *v.get(), NoBias(), 0.0, causal, false, sm_scale);
  return {std::get<0>(found).take(), std::get<1>(found).take()};
}

// In the place of max_q, of which the kernels have no need, the backward finds what the forward was told: the number of
// its hints, which is less than zero.
using Recorded = std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t, int64_t, Tensor, Tensor, Tensor>;

Recorded recorded_fwd(const Tensor& q, const Tensor& k, const Tensor& v, std::optional<Tensor> bias, double dropout_p,
                      bool causal, bool return_debug_mask, Scale scale) {
  if (bias || dropout_p != 0 || return_debug_mask) fail("attn_fwd: a bias, dropout or a debug mask is asked for");
  auto [out, logsumexp] = attn_fwd(q, k, v, scale, causal, "");
  const int64_t hints = number_of_region();
  return {out, logsumexp, Tensor(), Tensor(), hints ? -hints : q.size(2), k.size(2), Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> recorded_bwd(
    const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& /* bias */,
    const std::vector<bool>& /* which gradients are wanted: the kernels make all */, const Tensor& out,
    const Tensor& logsumexp, const Tensor& /* cum_seq_q */, const Tensor& /* cum_seq_k */, int64_t max_q,
    int64_t /* max_k */, double /* dropout_p */, bool causal, const Tensor& /* philox_seed */,
    const Tensor& /* philox_offset */, Scale scale) {
  const std::string hints = max_q < 0 ? region_of_number(-max_q) : "";
  auto [dq, dk, dv] = attn_bwd(q, k, v, out, dout, logsumexp, scale, causal, std::nullopt, hints);
  return {dq, dk, dv, Tensor()};
}

void implement_recorded(torch::stable::detail::StableLibrary& m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_BOX(recorded_fwd));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_BOX(recorded_bwd));
}

void implement_autograd(torch::stable::detail::StableLibrary& m) {
  if (torch_fused_attention && is_release_of_build()) m.impl("attn_fwd", TORCH_BOX(autograd_fwd));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aten, CUDA, m) { implement_recorded(m); }

STABLE_TORCH_LIBRARY_IMPL(aten, CPU, m) { implement_recorded(m); }

STABLE_TORCH_LIBRARY_IMPL(aotriton, AutogradCUDA, m) { implement_autograd(m); }

STABLE_TORCH_LIBRARY_IMPL(aotriton, AutogradCPU, m) { implement_autograd(m); }

}  // namespace aotriton_torch
