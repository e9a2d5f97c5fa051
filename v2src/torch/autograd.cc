// attn_fwd for torch's autograd, without a line of Python: autograd's kernel of it calls torch's operator for backends
// of others, _scaled_dot_product_fused_attention_overrideable, whose derivative torch has in C++, and whose kernels are
// here.
//
// The stable ABI's own way to call an operator makes a line of log of every exception, and loses it; one of Python's,
// by which checkpointing stops early, has to come through. So the operator is called by its name in C++.
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <tuple>
#include <utility>

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

using FusedBackward = std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor>(
    const AtenTensorOpaque& dout, const AtenTensorOpaque& q, const AtenTensorOpaque& k, const AtenTensorOpaque& v,
    const AtenTensorOpaque& bias, std::array<bool, 4> wanted, const AtenTensorOpaque& out,
    const AtenTensorOpaque& logsumexp, const AtenTensorOpaque& cum_seq_q, const AtenTensorOpaque& cum_seq_k,
    const int64_t& max_q, const int64_t& max_k,  // where torch has c10::SymInt, which the caller keeps
    double dropout_p, bool causal, const AtenTensorOpaque& philox_seed, const AtenTensorOpaque& philox_offset,
    Scale scale);
extern "C" __attribute__((weak)) FusedBackward torch_fused_backward asm(
    "_ZN2at4_ops57_scaled_dot_product_fused_attention_overrideable_backward4callERKNS_6TensorES4_S4_S4_S4_St5arrayIbLm"
    "4EES4_S4_S4_S4_N3c106SymIntES8_dbS4_S4_St8optionalIdE");

// c10::impl::ExcludeDispatchKeyGuard.
struct Excluded {
  void* thread;
  uint64_t keys;
};
extern "C" __attribute__((weak)) void exclude(Excluded* guard, uint64_t keys) asm(
    "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE");
extern "C" __attribute__((weak)) void include_again(Excluded* guard) asm("_ZN3c104impl23ExcludeDispatchKeyGuardD1Ev");

// While it lives, this thread's calls go past autograd.
class PastAutograd {
 public:
  PastAutograd() { exclude(&excluded_, c10::autograd_dispatch_keyset_with_ADInplaceOrView.raw_repr()); }
  PastAutograd(const PastAutograd&) = delete;
  ~PastAutograd() { include_again(&excluded_); }

 private:
  Excluded excluded_;
};

// Another release of torch may have other classes. There autograd's kernel is the one in Python.
bool is_release_of_build() { return aoti_torch_abi_version() >> 48 == TORCH_ABI_VERSION >> 48; }

// Of a mask, what torch's operator has no argument for, as a number that is not less than zero: the variant, and the
// window. That counts as open from 2^30 - 1 keys on, since beyond 2^62 torch takes numbers for pointers.
constexpr int kWindowBits = 30;
constexpr int64_t kOpen = (int64_t{1} << kWindowBits) - 1;

int64_t packed(const Mask& mask) {
  const auto side = [](int64_t keys) { return keys < 0 || keys >= kOpen ? kOpen : keys; };
  return (mask.bottom_right ? int64_t{1} << 2 * kWindowBits : 0) | side(mask.window_left) << kWindowBits |
         side(mask.window_right);
}

Mask unpacked(bool causal, int64_t number) {
  const auto side = [](int64_t keys) { return keys == kOpen ? -1 : keys; };
  return {causal, (number >> 2 * kWindowBits) != 0, side(number >> kWindowBits & kOpen), side(number & kOpen)};
}

const char* variant_of(const Mask& mask) { return mask.bottom_right ? "bottom_right" : "top_left"; }

thread_local Mask asked;  // by a forward, of the operator that it calls

// While it lives, the forward of torch's operator is asked for this mask.
class Asking {
 public:
  explicit Asking(const Mask& mask) : before_(std::exchange(asked, mask)) {}
  Asking(const Asking&) = delete;
  ~Asking() { asked = before_; }

 private:
  Mask before_;
};

std::tuple<Tensor, Tensor> autograd_fwd(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, bool causal,
                                        const std::string& causal_variant, int64_t window_left, int64_t window_right,
                                        const std::string& hints) {
  const Asking asking(mask_of("attn_fwd", causal, causal_variant, window_left, window_right));
  std::optional<Region> told;  // the operator has no argument for them
  if (!hints.empty()) told.emplace(hints);
  Results found = torch_fused_attention(*q.get(), *k.get(), *v.get(), NoBias(), 0.0, causal, false, sm_scale);
  return {std::get<0>(found).take(), std::get<1>(found).take()};
}

// In the place of max_q and max_k, of which the kernels have no need, the backward finds what the forward was told: the
// number of its hints, and of its mask, which are less than zero.
using Recorded = std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t, int64_t, Tensor, Tensor, Tensor>;

Recorded recorded_fwd(const Tensor& q, const Tensor& k, const Tensor& v, std::optional<Tensor> bias, double dropout_p,
                      bool causal, bool return_debug_mask, Scale scale) {
  if (bias || dropout_p != 0 || return_debug_mask) fail("attn_fwd: a bias, dropout or a debug mask is asked for");
  const Mask mask = std::exchange(asked, {});
  auto [out, logsumexp] = attn_fwd(q, k, v, scale, causal, variant_of(mask), mask.window_left, mask.window_right, "");
  const int64_t hints = number_of_region();
  const int64_t max_k = mask.bottom_right || mask.windowed() ? -1 - packed(mask) : k.size(2);
  return {out, logsumexp, Tensor(), Tensor(), hints ? -hints : q.size(2), max_k, Tensor(), Tensor(), Tensor()};
}

Mask mask_of_backward(bool causal, int64_t max_k) {
  return max_k < 0 ? unpacked(causal, -1 - max_k) : Mask{.causal = causal};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> recorded_bwd(
    const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& /* bias */,
    const std::vector<bool>& /* which gradients are wanted: the kernels make all */, const Tensor& out,
    const Tensor& logsumexp, const Tensor& /* cum_seq_q */, const Tensor& /* cum_seq_k */, int64_t max_q, int64_t max_k,
    double /* dropout_p */, bool causal, const Tensor& /* philox_seed */, const Tensor& /* philox_offset */,
    Scale scale) {
  const std::string hints = max_q < 0 ? region_of_number(-max_q) : "";
  const Mask mask = mask_of_backward(causal, max_k);
  auto [dq, dk, dv] = attn_bwd(q, k, v, out, dout, logsumexp, scale, causal, variant_of(mask), mask.window_left,
                               mask.window_right, std::nullopt, hints);
  return {dq, dk, dv, Tensor()};
}

// torch.ops.aotriton.attn_bwd, whose autograd is Python.
std::tuple<Tensor, Tensor, Tensor> recorded_again(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& logsumexp, Scale scale,
                                                  const Mask& mask, const std::string& hints) {
  using torch::stable::detail::from, torch::stable::detail::to;
  std::array<StableIValue, 13> stack = {from(q),
                                        from(k),
                                        from(v),
                                        from(out),
                                        from(dout),
                                        from(logsumexp),
                                        from(scale),
                                        from(mask.causal),
                                        from(std::string(variant_of(mask))),
                                        from(mask.window_left),
                                        from(mask.window_right),
                                        from(std::optional<bool>()),
                                        from(hints)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aotriton::attn_bwd", "", stack.data(), TORCH_ABI_VERSION));
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<Tensor>(stack[2])};
}

// Autograd's kernel of the backward. torch's own, of a gradient that is recorded in turn, makes a node that fails by
// the name of torch's operator, which nobody has called.
std::tuple<Tensor, Tensor, Tensor, Tensor> autograd_bwd(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                        const Tensor& v, const Tensor& bias,
                                                        const std::vector<bool>& wanted, const Tensor& out,
                                                        const Tensor& logsumexp, const Tensor& cum_seq_q,
                                                        const Tensor& cum_seq_k, int64_t max_q, int64_t max_k,
                                                        double dropout_p, bool causal, const Tensor& philox_seed,
                                                        const Tensor& philox_offset, Scale scale) {
  if (aoti_torch_grad_mode_is_enabled()) {
    const std::string hints = max_q < 0 ? region_of_number(-max_q) : "";
    const Mask mask = mask_of_backward(causal, max_k);
    auto [dq, dk, dv] = recorded_again(dout, q, k, v, out, logsumexp, scale, mask, hints);
    return {dq, dk, dv, Tensor()};
  }
  const PastAutograd past;
  auto found = torch_fused_backward(*dout.get(), *q.get(), *k.get(), *v.get(), *bias.get(),
                                    {wanted[0], wanted[1], wanted[2], wanted[3]}, *out.get(), *logsumexp.get(),
                                    *cum_seq_q.get(), *cum_seq_k.get(), max_q, max_k, dropout_p, causal,
                                    *philox_seed.get(), *philox_offset.get(), scale);
  return {std::get<0>(found).take(), std::get<1>(found).take(), std::get<2>(found).take(), std::get<3>(found).take()};
}

void implement_recorded(torch::stable::detail::StableLibrary& m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_BOX(recorded_fwd));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_BOX(recorded_bwd));
}

void implement_autograd(torch::stable::detail::StableLibrary& m) {
  if (torch_fused_attention && is_release_of_build()) m.impl("attn_fwd", TORCH_BOX(autograd_fwd));
}

void implement_recorded_autograd(torch::stable::detail::StableLibrary& m) {
  if (torch_fused_backward && exclude && include_again && is_release_of_build())
    m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_BOX(autograd_bwd));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aten, CUDA, m) { implement_recorded(m); }

STABLE_TORCH_LIBRARY_IMPL(aten, CPU, m) { implement_recorded(m); }

STABLE_TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) { implement_recorded_autograd(m); }

STABLE_TORCH_LIBRARY_IMPL(aten, AutogradCPU, m) { implement_recorded_autograd(m); }

STABLE_TORCH_LIBRARY_IMPL(aotriton, AutogradCUDA, m) { implement_autograd(m); }

STABLE_TORCH_LIBRARY_IMPL(aotriton, AutogradCPU, m) { implement_autograd(m); }

}  // namespace aotriton_torch
