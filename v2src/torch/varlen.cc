// Sequences of different lengths, one after the other, as torch's varlen_attn and its nested tensors call them: in the
// place of torch's kernels of FlashAttention.
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "torch/counts.h"
#include "torch/doors.h"

// torch's own kernels, as sdpa.cc has them.
extern "C" {
__attribute__((weak)) AOTITorchError aoti_torch_cuda__flash_attention_forward(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle* cum_seq_q,
    AtenTensorHandle* cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p, int32_t is_causal,
    int32_t return_debug_mask, double* scale, int64_t* window_size_left, int64_t* window_size_right,
    AtenTensorHandle* seqused_k, AtenTensorHandle* alibi_slopes, AtenTensorHandle* out, AtenTensorHandle* logsumexp,
    AtenTensorHandle* rng_state, AtenTensorHandle* unused, AtenTensorHandle* debug_mask);
__attribute__((weak)) AOTITorchError aoti_torch_cuda__flash_attention_forward_v2(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle* cum_seq_q,
    AtenTensorHandle* cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p, int32_t is_causal,
    int32_t return_debug_mask, double* scale, int64_t* window_size_left, int64_t* window_size_right,
    AtenTensorHandle* seqused_k, AtenTensorHandle* alibi_slopes, AtenTensorHandle* block_table, int64_t* num_splits,
    AtenTensorHandle* out, AtenTensorHandle* logsumexp, AtenTensorHandle* rng_state, AtenTensorHandle* unused,
    AtenTensorHandle* debug_mask);
__attribute__((weak)) AOTITorchError aoti_torch_cuda__flash_attention_backward(
    AtenTensorHandle grad_out, AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
    AtenTensorHandle out, AtenTensorHandle logsumexp, AtenTensorHandle cum_seq_q, AtenTensorHandle cum_seq_k,
    int64_t max_q, int64_t max_k, double dropout_p, int32_t is_causal, AtenTensorHandle rng_state,
    AtenTensorHandle unused, double* scale, int64_t* window_size_left, int64_t* window_size_right, AtenTensorHandle* dq,
    AtenTensorHandle* dk, AtenTensorHandle* dv);

// Builds of torch for ROCm have it.
__attribute__((weak)) int hipGetDeviceCount(int* count);
}

namespace aotriton_torch {

namespace {

using Window = std::optional<int64_t>;

Mask mask_of_varlen(bool is_causal, const Window& left, const Window& right) {
  return {
      .causal = is_causal, .bottom_right = true, .window_left = left.value_or(-1), .window_right = right.value_or(-1)};
}

// In torch's kernels for ROCm logsumexp lies otherwise.
std::string reason_of_layout() { return hipGetDeviceCount ? "the layout of logsumexp on ROCm" : ""; }

using Results = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// As torch 2.12 and newer call it. `why` it cannot run here, if that is known.
Results forward_or(std::string why, const Tensor& query, const Tensor& key, const Tensor& value, const Maybe& cum_seq_q,
                   const Maybe& cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p, bool is_causal,
                   bool return_debug_mask, Scale scale, Window left, Window right, const Maybe& seqused_k,
                   const Maybe& alibi_slopes, const Maybe& block_table, std::optional<int64_t> num_splits) {
  const bool dense = !cum_seq_q || !(cum_seq_k || block_table);  // from torch's own kernel of SDPA
  why = dense               ? "no cum_seq"
        : return_debug_mask ? "return_debug_mask"
        : alibi_slopes      ? "alibi_slopes"  // which a backward does not see
        : why.empty()       ? reason_of_layout()
                            : why;
  if (why.empty()) {
    Features features = {.cu_seqlens_q = cum_seq_q,
                         .cu_seqlens_k = block_table ? Maybe() : cum_seq_k,
                         .seqused_k = seqused_k,
                         .max_seqlen_q = max_q,
                         .max_seqlen_k = max_k,
                         .block_table = block_table};
    const int32_t seeds = aoti_torch_dtype_uint64();
    const Tensor state = state_of(dropout_p, {2}, aoti_torch_dtype_int64(), seeds, query, features);
    // A page of torch's has its rows first, and then their heads.
    const auto rows = [&](Tensor given) { return block_table ? torch::stable::transpose(given, 1, 2) : given; };
    const Forward call =
        forward_of(query, rows(key), rows(value), scale, mask_of_varlen(is_causal, left, right), features);
    // One split is how torch asks for the same bits in every batch.
    why = reason(compute(call, num_splits == 1 ? "batch_invariant=1" : ""));
    if (why.empty()) {
      count("forward", "aotriton", "");
      return {call.out, call.logsumexp, state, empty({}, seeds, query), empty({0}, scalar_type(query), query)};
    }
  }
  const bool newer = aoti_torch_cuda__flash_attention_forward_v2;
  require_own_kernel(query, newer || aoti_torch_cuda__flash_attention_forward, dense ? "" : "forward", why);
  AtenTensorHandle made[5], starts_q, starts_k, used, slopes, table;
  AtenTensorHandle *of_q = handle_of(cum_seq_q, &starts_q), *of_k = handle_of(cum_seq_k, &starts_k);
  AtenTensorHandle *of_used = handle_of(seqused_k, &used), *of_slopes = handle_of(alibi_slopes, &slopes);
  double* factor = scale ? &*scale : nullptr;
  int64_t *before = left ? &*left : nullptr, *after = right ? &*right : nullptr;
  TORCH_ERROR_CODE_CHECK(
      newer
          ? aoti_torch_cuda__flash_attention_forward_v2(
                query.get(), key.get(), value.get(), of_q, of_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
                factor, before, after, of_used, of_slopes, handle_of(block_table, &table),
                num_splits ? &*num_splits : nullptr, &made[0], &made[1], &made[2], &made[3], &made[4])
          : aoti_torch_cuda__flash_attention_forward(
                query.get(), key.get(), value.get(), of_q, of_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
                factor, before, after, of_used, of_slopes, &made[0], &made[1], &made[2], &made[3], &made[4]));
  return {Tensor(made[0]), Tensor(made[1]), Tensor(made[2]), Tensor(made[3]), Tensor(made[4])};
}

// As torch 2.11 calls it, which may ask for a gradient that would not see seqused_k.
Results forward(const Tensor& query, const Tensor& key, const Tensor& value, const Maybe& cum_seq_q,
                const Maybe& cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p, bool is_causal,
                bool return_debug_mask, Scale scale, const Window& left, const Window& right, const Maybe& seqused_k,
                const Maybe& alibi_slopes) {
  return forward_or(seqused_k ? "seqused_k" : "", query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                    is_causal, return_debug_mask, scale, left, right, seqused_k, alibi_slopes, {}, {});
}

Results forward_v2(const Tensor& query, const Tensor& key, const Tensor& value, const Maybe& cum_seq_q,
                   const Maybe& cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p, bool is_causal,
                   bool return_debug_mask, Scale scale, const Window& left, const Window& right, const Maybe& seqused_k,
                   const Maybe& alibi_slopes, const Maybe& block_table, std::optional<int64_t> num_splits) {
  return forward_or("", query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
                    scale, left, right, seqused_k, alibi_slopes, block_table, num_splits);
}

// The operator has more arguments since torch 2.12.
void boxed_forward(StableIValue* stack, uint64_t arguments, uint64_t results) {
  constexpr uint64_t kOf211 = 15;
  (arguments == kOf211 ? TORCH_BOX(forward) : TORCH_BOX(forward_v2))(stack, arguments, results);
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                            const Tensor& cum_seq_q, const Tensor& cum_seq_k, int64_t max_q,
                                            int64_t max_k, double dropout_p, bool is_causal, const Tensor& rng_state,
                                            const Tensor& unused, Scale scale, const Window& window_size_left,
                                            const Window& window_size_right) {
  const bool dense = !cum_seq_q.defined() || !cum_seq_k.defined();
  std::string why = dense ? "no cum_seq"
                    : dropout_p != 0 && scalar_type(rng_state) != aoti_torch_dtype_int64()
                        ? "the forward, with dropout, was torch's own"
                        : reason_of_layout();
  if (why.empty()) {
    Features features = {
        .cu_seqlens_q = cum_seq_q, .cu_seqlens_k = cum_seq_k, .max_seqlen_q = max_q, .max_seqlen_k = max_k};
    set_dropout(dropout_p, rng_state, features);
    const Backward call = backward_of(query, key, value, out, grad_out, logsumexp, scale,
                                      mask_of_varlen(is_causal, window_size_left, window_size_right),
                                      deterministic_algorithms(), features);
    why = reason(compute(call, ""));
    if (why.empty()) {
      count("backward", "aotriton", "");
      return {call.dq, call.dk, call.dv};
    }
    require_no_dropout(dropout_p, why);
  }
  require_own_kernel(query, aoti_torch_cuda__flash_attention_backward, dense ? "" : "backward", why);
  AtenTensorHandle made[3];
  Window left = window_size_left, right = window_size_right;
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda__flash_attention_backward(
      grad_out.get(), query.get(), key.get(), value.get(), out.get(), logsumexp.get(), cum_seq_q.get(), cum_seq_k.get(),
      max_q, max_k, dropout_p, is_causal, rng_state.get(), unused.get(), scale ? &*scale : nullptr,
      left ? &*left : nullptr, right ? &*right : nullptr, &made[0], &made[1], &made[2]));
  return {Tensor(made[0]), Tensor(made[1]), Tensor(made[2])};
}

}  // namespace

void take_varlen(torch::stable::detail::StableLibrary& library) {
  library.impl("_flash_attention_forward", boxed_forward);
  library.impl("_flash_attention_backward", TORCH_BOX(backward));
}

}  // namespace aotriton_torch
