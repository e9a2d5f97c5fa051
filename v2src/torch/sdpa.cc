#include "torch/sdpa.h"

#include <torch/csrc/stable/ops.h>

#include <limits>
#include <memory>
#include <tuple>

#include "torch/counts.h"
#include "torch/doors.h"

// torch's own kernels, without a way through its dispatcher, which would lead back here. Of the interface that compiled
// models (AOTInductor) are linked with, so as stable as that; only builds for CUDA or ROCm have them.
extern "C" {
__attribute__((weak)) AOTITorchError aoti_torch_cuda__scaled_dot_product_flash_attention(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, double dropout_p, int32_t is_causal,
    int32_t return_debug_mask, double* scale, AtenTensorHandle* out, AtenTensorHandle* logsumexp,
    AtenTensorHandle* cum_seq_q, AtenTensorHandle* cum_seq_k, int64_t* max_q, int64_t* max_k,
    AtenTensorHandle* rng_state, AtenTensorHandle* unused, AtenTensorHandle* debug_mask);
__attribute__((weak)) AOTITorchError aoti_torch_cuda__scaled_dot_product_flash_attention_backward(
    AtenTensorHandle grad_out, AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
    AtenTensorHandle out, AtenTensorHandle logsumexp, AtenTensorHandle cum_seq_q, AtenTensorHandle cum_seq_k,
    int64_t max_q, int64_t max_k, double dropout_p, int32_t is_causal, AtenTensorHandle philox_seed,
    AtenTensorHandle philox_offset, double* scale, AtenTensorHandle* dq, AtenTensorHandle* dk, AtenTensorHandle* dv);
__attribute__((weak)) AOTITorchError aoti_torch_cuda__scaled_dot_product_cudnn_attention(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle* attn_bias,
    int32_t compute_logsumexp, double dropout_p, int32_t is_causal, int32_t return_debug_mask, double* scale,
    AtenTensorHandle* out, AtenTensorHandle* logsumexp, AtenTensorHandle* cum_seq_q, AtenTensorHandle* cum_seq_k,
    int64_t* max_q, int64_t* max_k, AtenTensorHandle* philox_seed, AtenTensorHandle* philox_offset,
    AtenTensorHandle* debug_mask);
__attribute__((weak)) AOTITorchError aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward(
    AtenTensorHandle grad_out, AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
    AtenTensorHandle out, AtenTensorHandle logsumexp, AtenTensorHandle philox_seed, AtenTensorHandle philox_offset,
    AtenTensorHandle attn_bias, AtenTensorHandle cum_seq_q, AtenTensorHandle cum_seq_k, int64_t max_q, int64_t max_k,
    double dropout_p, int32_t is_causal, double* scale, AtenTensorHandle* dq, AtenTensorHandle* dk,
    AtenTensorHandle* dv);
__attribute__((weak)) AOTITorchError aoti_torch_cuda__scaled_dot_product_efficient_attention(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle* attn_bias,
    int32_t compute_logsumexp, double dropout_p, int32_t is_causal, double* scale, AtenTensorHandle* out,
    AtenTensorHandle* logsumexp, AtenTensorHandle* philox_seed, AtenTensorHandle* philox_offset);
__attribute__((weak)) AOTITorchError aoti_torch_cuda__scaled_dot_product_efficient_attention_backward(
    AtenTensorHandle grad_out, AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
    AtenTensorHandle attn_bias, AtenTensorHandle out, AtenTensorHandle logsumexp, AtenTensorHandle philox_seed,
    AtenTensorHandle philox_offset, double dropout_p, const int32_t* grad_input_mask, int64_t grad_input_mask_len,
    int32_t is_causal, double* scale, AtenTensorHandle* dq, AtenTensorHandle* dk, AtenTensorHandle* dv,
    AtenTensorHandle* dbias);

// Builds of torch for ROCm have it.
__attribute__((weak)) int hipGetDeviceCount(int* count);

// What the user has left of SDPA's backends, by torch.backends.cuda and sdpa_kernel. Not of a stable interface: a
// release of torch without them has all of them on, as far as is seen here.
__attribute__((weak)) void* torch_context() asm("_ZN2at13globalContextEv");
__attribute__((weak)) bool flash_is_enabled(const void* context) asm("_ZNK2at7Context19userEnabledFlashSDPEv");
}

// torch's handler of warnings, of the thread; null where a release of torch has another one.
__attribute__((weak)) void* warning_handler() asm("_ZN3c1012WarningUtils19get_warning_handlerEv");
__attribute__((weak)) void set_warning_handler(void* handler) asm(
    "_ZN3c1012WarningUtils19set_warning_handlerEPNS_14WarningHandlerE");

namespace aotriton_torch {

namespace {

// Drops torch's warnings of this thread while it lives. Taking the place of a kernel, which is what the caller asked
// for, makes the dispatcher warn in seven lines.
class Quiet {
 public:
  Quiet() {
    if (!warning_handler || !set_warning_handler || aoti_torch_abi_version() >> 48 != TORCH_ABI_VERSION >> 48) return;
    before_ = warning_handler();
    set_warning_handler(&handler_);
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  ~Quiet() {
    if (before_) set_warning_handler(before_);
  }

 private:
  struct Handler {  // as c10::WarningHandler lays out its virtual functions
    virtual ~Handler() = default;
    virtual void process(const void* /* warning */) {}
  };
  Handler handler_;
  void* before_ = nullptr;
};

constexpr const char* kDropoutOfTorch = "the forward, with dropout, was torch's own";

// Whether the user lets SDPA take its flash backend, which is what this library takes the place of.
bool flash_is_wanted() { return !torch_context || !flash_is_enabled || flash_is_enabled(torch_context()); }

// The seed and the offset of a forward's dropout, of int64 where torch's forward drew them, and where there is none. Of
// what is drawn here the seed is all that counts.
std::pair<Tensor, Tensor> seed_and_offset(double dropout, const Tensor& like, Features& features) {
  const Tensor seed = state_of(dropout, {}, aoti_torch_dtype_uint64(), aoti_torch_dtype_int64(), like, features);
  return {seed, empty({}, scalar_type(seed), like)};
}

// Why a backward cannot take what a forward dropped.
const char* reason_of_seed(double dropout, const Tensor& seed) {
  return dropout != 0 && scalar_type(seed) != aoti_torch_dtype_uint64() ? kDropoutOfTorch : "";
}

using SdpaResults = std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t, int64_t, Tensor, Tensor, Tensor>;

// What SDPA gives its flash backend. Of unequal lengths that is causal only where it comes from causal_lower_right, as
// torch's own kernel takes it.
Mask mask_of_flash(bool is_causal) { return {.causal = is_causal, .bottom_right = true}; }

SdpaResults flash_forward(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool is_causal,
                          bool return_debug_mask, std::optional<double> scale) {
  std::string why = return_debug_mask ? "return_debug_mask" : "";
  if (why.empty()) {
    Features features;
    const int32_t seeds = aoti_torch_dtype_uint64();
    const Tensor state = state_of(dropout_p, {2}, aoti_torch_dtype_int64(), seeds, query, features);
    const Forward call = forward_of(query, key, value, scale, mask_of_flash(is_causal), features);
    why = reason(compute(call, ""));
    if (why.empty()) {
      count("forward", "aotriton", "");
      return {call.out, call.logsumexp,          Tensor(),
              Tensor(), query.size(2),           key.size(2),
              state,    empty({}, seeds, query), empty({0}, scalar_type(query), query)};
    }
  }
  require_own_kernel(query, aoti_torch_cuda__scaled_dot_product_flash_attention, "forward", why);
  AtenTensorHandle made[7];
  int64_t max_q, max_k;
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda__scaled_dot_product_flash_attention(
      query.get(), key.get(), value.get(), dropout_p, is_causal, return_debug_mask, scale ? &*scale : nullptr, &made[0],
      &made[1], &made[2], &made[3], &max_q, &max_k, &made[4], &made[5], &made[6]));
  return {Tensor(made[0]), Tensor(made[1]), Tensor(made[2]), Tensor(made[3]), max_q,
          max_k,           Tensor(made[4]), Tensor(made[5]), Tensor(made[6])};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                                  const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                                  const Tensor& cum_seq_q, const Tensor& cum_seq_k, int64_t max_q,
                                                  int64_t max_k, double dropout_p, bool is_causal,
                                                  const Tensor& philox_seed, const Tensor& philox_offset,
                                                  std::optional<double> scale) {
  std::string why = dropout_p != 0 && scalar_type(philox_seed) != aoti_torch_dtype_int64() ? kDropoutOfTorch : "";
  if (why.empty()) {
    Features features;
    set_dropout(dropout_p, philox_seed, features);
    const Backward call = backward_of(query, key, value, out, grad_out, logsumexp, scale, mask_of_flash(is_causal),
                                      deterministic_algorithms(), features);
    why = reason(compute(call, ""));
    if (why.empty()) {
      count("backward", "aotriton", "");
      return {call.dq, call.dk, call.dv};
    }
    require_no_dropout(dropout_p, why);
  }
  require_own_kernel(query, aoti_torch_cuda__scaled_dot_product_flash_attention_backward, "backward", why);
  AtenTensorHandle made[3];
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda__scaled_dot_product_flash_attention_backward(
      grad_out.get(), query.get(), key.get(), value.get(), out.get(), logsumexp.get(), cum_seq_q.get(), cum_seq_k.get(),
      max_q, max_k, dropout_p, is_causal, philox_seed.get(), philox_offset.get(), scale ? &*scale : nullptr, &made[0],
      &made[1], &made[2]));
  return {Tensor(made[0]), Tensor(made[1]), Tensor(made[2])};
}

// What SDPA gives cuDNN, which it prefers on Hopper. Its log-sum-exp has a last dimension of 1, and of unequal lengths
// causal is the upper left triangle, as SDPA's is_causal.
SdpaResults cudnn_forward(const Tensor& query, const Tensor& key, const Tensor& value, std::optional<Tensor> attn_bias,
                          bool compute_logsumexp, double dropout_p, bool is_causal, bool return_debug_mask,
                          std::optional<double> scale) {
  std::string why = return_debug_mask ? "return_debug_mask" : flash_is_wanted() ? "" : "the flash backend is disabled";
  if (why.empty()) {
    Features features = {.bias = expanded(attn_bias, query, key)};
    const auto [seed, offset] = seed_and_offset(dropout_p, query, features);
    const Forward call = forward_of(query, key, value, scale, {.causal = is_causal}, features);
    why = reason(compute(call, ""));
    if (why.empty()) {
      count("forward", "aotriton", "");
      return {call.out,      torch::stable::unsqueeze(call.logsumexp, 3),
              Tensor(),      Tensor(),
              query.size(2), key.size(2),
              seed,          offset,
              Tensor()};
    }
  }
  require_own_kernel(query, aoti_torch_cuda__scaled_dot_product_cudnn_attention, "forward", why);
  AtenTensorHandle made[7], bias;
  int64_t max_q, max_k;
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda__scaled_dot_product_cudnn_attention(
      query.get(), key.get(), value.get(), handle_of(attn_bias, &bias), compute_logsumexp, dropout_p, is_causal,
      return_debug_mask, scale ? &*scale : nullptr, &made[0], &made[1], &made[2], &made[3], &max_q, &max_k, &made[4],
      &made[5], &made[6]));
  return {Tensor(made[0]), Tensor(made[1]), Tensor(made[2]), Tensor(made[3]), max_q,
          max_k,           Tensor(made[4]), Tensor(made[5]), Tensor(made[6])};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                                  const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                                  const Tensor& philox_seed, const Tensor& philox_offset,
                                                  const Tensor& attn_bias, const Tensor& cum_seq_q,
                                                  const Tensor& cum_seq_k, int64_t max_q, int64_t max_k,
                                                  double dropout_p, bool is_causal, std::optional<double> scale) {
  std::string why = reason_of_seed(dropout_p, philox_seed);
  if (why.empty()) {
    Features features;
    if (attn_bias.defined()) features.bias = expanded(attn_bias, query, key);
    set_dropout(dropout_p, philox_seed, features);
    const Backward call = backward_of(query, key, value, out, grad_out, torch::stable::squeeze(logsumexp, 3), scale,
                                      {.causal = is_causal}, deterministic_algorithms(), features);
    why = reason(compute(call, ""));
    if (why.empty()) {
      count("backward", "aotriton", "");
      return {call.dq, call.dk, call.dv};
    }
    require_no_dropout(dropout_p, why);
  }
  require_own_kernel(query, aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward, "backward", why);
  AtenTensorHandle made[3];
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward(
      grad_out.get(), query.get(), key.get(), value.get(), out.get(), logsumexp.get(), philox_seed.get(),
      philox_offset.get(), attn_bias.get(), cum_seq_q.get(), cum_seq_k.get(), max_q, max_k, dropout_p, is_causal,
      scale ? &*scale : nullptr, &made[0], &made[1], &made[2]));
  return {Tensor(made[0]), Tensor(made[1]), Tensor(made[2])};
}

// What SDPA gives its memory-efficient backend: with a mask it runs here. Without, it has a type or a head dim that
// neither of the others takes, or the user wants that backend, which it goes on to.
//
// Its results lie as [batch, seqlen, heads, head_dim], and rows of its log-sum-exp are padded to a multiple of 32, with
// infinity, by which a backward's weights are zero.
Tensor heads_within_rows(const Tensor& made) {
  if (made.stride(3) == 1 && made.stride(1) == made.size(3) && made.stride(2) == made.size(3) * made.size(1) &&
      made.stride(0) == made.stride(2) * made.size(2))
    return made;
  return torch::stable::transpose(
      empty({made.size(0), made.size(2), made.size(1), made.size(3)}, scalar_type(made), made), 1, 2);
}

int64_t padded(int64_t rows, int64_t to) { return (rows + to - 1) / to * to; }

Tensor padded_logsumexp(const Tensor& logsumexp) {
  const int64_t rows = logsumexp.size(2), wanted = hipGetDeviceCount ? rows : padded(rows, 32);
  if (rows == wanted) return logsumexp;
  Tensor all = empty({logsumexp.size(0), logsumexp.size(1), wanted}, aoti_torch_dtype_float32(), logsumexp);
  torch::stable::fill_(all, std::numeric_limits<double>::infinity());
  Tensor own = torch::stable::narrow(all, 2, 0, rows);
  torch::stable::copy_(own, logsumexp);
  return all;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_forward(const Tensor& query, const Tensor& key,
                                                             const Tensor& value, std::optional<Tensor> attn_bias,
                                                             bool compute_logsumexp, double dropout_p, bool is_causal,
                                                             std::optional<double> scale) {
  const aotriton_dtype dtype = dtype_of(query);
  std::string why = !flash_is_wanted()                                        ? "the flash backend is disabled"
                    : dtype != AOTRITON_FLOAT16 && dtype != AOTRITON_BFLOAT16 ? "neither float16 nor bfloat16"
                    : attn_bias ? ""
                                : "SDPA chose its memory-efficient backend";
  if (why.empty()) {
    Features features = {.bias = expanded(attn_bias, query, key)};
    const auto [seed, offset] = seed_and_offset(dropout_p, query, features);
    Forward call = forward_of(query, key, value, scale, {.causal = is_causal}, features);
    call.out = heads_within_rows(call.out);
    call.params.out = view_of<aotriton_tensor4>(call.out);
    why = reason(compute(call, ""));
    if (why.empty()) {
      count("forward", "aotriton", "");
      return {call.out,
              compute_logsumexp ? padded_logsumexp(call.logsumexp)
                                : empty({query.size(0), query.size(1), 0}, aoti_torch_dtype_float32(), query),
              seed, offset};
    }
  }
  require_own_kernel(query, aoti_torch_cuda__scaled_dot_product_efficient_attention, "forward", why);
  AtenTensorHandle made[4], bias;
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda__scaled_dot_product_efficient_attention(
      query.get(), key.get(), value.get(), handle_of(attn_bias, &bias), compute_logsumexp, dropout_p, is_causal,
      scale ? &*scale : nullptr, &made[0], &made[1], &made[2], &made[3]));
  return {Tensor(made[0]), Tensor(made[1]), Tensor(made[2]), Tensor(made[3])};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& attn_bias,
    const Tensor& out, const Tensor& logsumexp, const Tensor& philox_seed, const Tensor& philox_offset,
    double dropout_p, const std::vector<bool>& grad_input_mask, bool is_causal, std::optional<double> scale) {
  std::string why =
      attn_bias.defined() ? reason_of_seed(dropout_p, philox_seed) : "SDPA chose its memory-efficient backend";
  if (why.empty()) {
    Features features = {.bias = expanded(attn_bias, query, key)};
    set_dropout(dropout_p, philox_seed, features);
    Tensor all_rows = logsumexp;
    Backward call = backward_of(query, key, value, out, grad_out, torch::stable::narrow(all_rows, 2, 0, query.size(2)),
                                scale, {.causal = is_causal}, deterministic_algorithms(), features);
    const auto place = [](Tensor& made, aotriton_tensor4& view) {
      made = heads_within_rows(made);
      view = view_of<aotriton_tensor4>(made);
    };
    place(call.dq, call.params.dq);
    place(call.dk, call.params.dk);
    place(call.dv, call.params.dv);
    // What is not asked for is not computed; torch foretells a tensor of it all the same.
    constexpr uint8_t kSkips[] = {AOTRITON_SKIP_DQ, AOTRITON_SKIP_DK, AOTRITON_SKIP_DV};
    for (int i = 0; i < 3; ++i)
      if (!grad_input_mask[i]) call.params.skip_gradients |= kSkips[i];
    Tensor dbias;
    if (grad_input_mask[3]) {  // rows are padded here, too
      const int64_t keys = key.size(2);
      dbias = empty({query.size(0), query.size(1), query.size(2), padded(keys, 16)}, scalar_type(query), query);
      dbias = torch::stable::narrow(dbias, 3, 0, keys);
      call.params.dbias = view_of<aotriton_tensor4>(dbias);
    }
    why = reason(compute(call, ""));
    if (why.empty()) {
      count("backward", "aotriton", "");
      return {call.dq, call.dk, call.dv, dbias};
    }
    require_no_dropout(dropout_p, why);
  }
  require_own_kernel(query, aoti_torch_cuda__scaled_dot_product_efficient_attention_backward, "backward", why);
  AtenTensorHandle made[4];
  const int32_t wanted[] = {grad_input_mask[0], grad_input_mask[1], grad_input_mask[2], grad_input_mask[3]};
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda__scaled_dot_product_efficient_attention_backward(
      grad_out.get(), query.get(), key.get(), value.get(), attn_bias.get(), out.get(), logsumexp.get(),
      philox_seed.get(), philox_offset.get(), dropout_p, wanted, 4, is_causal, scale ? &*scale : nullptr, &made[0],
      &made[1], &made[2], &made[3]));
  return {Tensor(made[0]), Tensor(made[1]), Tensor(made[2]), Tensor(made[3])};
}

std::unique_ptr<torch::stable::detail::StableLibrary> taken;

}  // namespace

void activate(const std::string& dispatch_key) {
  using torch::stable::detail::StableLibrary;
  const Quiet quiet;
  taken =
      std::make_unique<StableLibrary>(StableLibrary::Kind::IMPL, "aten", dispatch_key.c_str(), "libaotriton_torch", 0);
  taken->impl("_scaled_dot_product_flash_attention", TORCH_BOX(flash_forward));
  taken->impl("_scaled_dot_product_flash_attention_backward", TORCH_BOX(flash_backward));
  taken->impl("_scaled_dot_product_cudnn_attention", TORCH_BOX(cudnn_forward));
  taken->impl("_scaled_dot_product_cudnn_attention_backward", TORCH_BOX(cudnn_backward));
  taken->impl("_scaled_dot_product_efficient_attention", TORCH_BOX(efficient_forward));
  taken->impl("_scaled_dot_product_efficient_attention_backward", TORCH_BOX(efficient_backward));
  take_varlen(*taken);
}

void restore() { taken.reset(); }

}  // namespace aotriton_torch
