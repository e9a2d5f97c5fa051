#include "torch/attention.h"

#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <type_traits>

#include "torch/hints.h"
#include "torch/reference.h"

namespace aotriton_torch {

namespace {

constexpr int64_t kSkipAll = AOTRITON_SKIP_DQ | AOTRITON_SKIP_DK | AOTRITON_SKIP_DV;

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

const void* number_at(const char* op, const char* name, const Tensor& q, const Maybe& tensor) {
  if (!tensor) return nullptr;
  const int32_t type = scalar_type(*tensor);
  if (tensor->numel() != 1 || (type != aoti_torch_dtype_int64() && type != aoti_torch_dtype_uint64()))
    fail(std::string(op) + ": " + name + " must be one number of int64, in a tensor");
  require_one_device(op, {{"q", q}, {name, *tensor}});
  return tensor->data_ptr();
}

// [total, heads, head_dim] of packed sequences as the view has it: one batch, heads first. Others as view_of.
aotriton_tensor4 rows_view_of(const Tensor& tensor) {
  if (tensor.dim() != 3) return view_of<aotriton_tensor4>(tensor);
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  return {tensor.data_ptr(),
          dtype_of(tensor),
          {1, sizes[1], sizes[0], sizes[2]},
          {sizes[0] * strides[0], strides[1], strides[0], strides[2]}};
}

// Tensors whose last dimension is not contiguous are replaced by copies; not scales, which may be one number by strides
// of 0.
void set_features(const char* op, const Tensor& q, Features& given, aotriton_attn_features& features) {
  const auto set_strided = [&](const char* name, const Maybe& tensor, auto& view) {
    if (!tensor) return;
    require_rank(op, name, *tensor, std::size(view.sizes));
    require_one_device(op, {{"q", q}, {name, *tensor}});
    view = given_view_of<std::remove_reference_t<decltype(view)>>(*tensor);
  };
  const auto set = [&](const char* name, Maybe& tensor, auto& view) {
    set_strided(name, tensor, view);
    if (!tensor || tensor->stride(-1) == 1) return;
    tensor = with_contiguous_rows(*tensor);
    set_strided(name, tensor, view);
  };
  set("bias", given.bias, features.bias);
  set("alibi_slopes", given.alibi_slopes, features.alibi_slopes);
  set("sinks", given.sinks, features.sinks);
  set("cu_seqlens_q", given.cu_seqlens_q, features.cu_seqlens_q);
  set("cu_seqlens_k", given.cu_seqlens_k, features.cu_seqlens_k);
  set("seqused_q", given.seqused_q, features.seqused_q);
  set("seqused_k", given.seqused_k, features.seqused_k);
  set("block_table", given.block_table, features.block_table);
  set_strided("q_descale", given.q_descale, features.q_descale);
  set_strided("k_descale", given.k_descale, features.k_descale);
  set_strided("v_descale", given.v_descale, features.v_descale);
  features.dropout_seed = number_at(op, "dropout_seed", q, given.dropout_seed);
  features.dropout_offset = number_at(op, "dropout_offset", q, given.dropout_offset);
  if (given.dropout_state) {
    require_one_device(op, {{"q", q}, {"dropout_state", *given.dropout_state}});
    features.dropout_seed = features.dropout_offset = given.dropout_state->data_ptr();
  }
  features.max_seqlen_q = given.max_seqlen_q;
  features.max_seqlen_k = given.max_seqlen_k;
  features.softcap = static_cast<float>(given.softcap);
  features.dropout = static_cast<float>(given.dropout);
}

std::vector<int64_t> logsumexp_sizes(const Tensor& q) {
  if (q.dim() == 3) return {q.size(1), q.size(0)};
  return {q.size(0), q.size(1), q.size(2)};
}

// Packed sequences may come as [total, heads, head_dim]: a view in torch costs the host as much as a launch does.
int64_t rank_of(const Tensor& q, const Features& features) {
  return (features.cu_seqlens_q || features.cu_seqlens_k) && q.dim() == 3 ? 3 : 4;
}

// As q, with the head dim of v. Where that is another one, its dimensions lie in the order of q's. Of queries of 8 bits
// it is bfloat16.
Tensor out_of(const Tensor& q, const Tensor& v) {
  const int32_t own = scalar_type(q);
  const bool narrow = own == aoti_torch_dtype_float8_e4m3fn() || own == aoti_torch_dtype_float8_e4m3fnuz();
  if (v.size(-1) == q.size(-1) && !narrow) return empty_as(q);
  std::vector<int64_t> sizes(q.sizes().begin(), q.sizes().end());
  sizes.back() = v.size(-1);
  return empty_in_order(sizes, q, narrow ? aoti_torch_dtype_bfloat16() : own);
}

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

Forward forward_of(const Tensor& q, const Tensor& k, const Tensor& v, Scale sm_scale, const Mask& mask,
                   const Features& features) {
  const int64_t rank = rank_of(q, features), rank_of_keys = features.block_table ? 4 : rank;
  require_rank("attn_fwd", "q", q, rank);
  require_rank("attn_fwd", "k", k, rank_of_keys);
  require_rank("attn_fwd", "v", v, rank_of_keys);
  require_one_device("attn_fwd", {{"q", q}, {"k", k}, {"v", v}});
  for (const Named& one : {Named{"k", k}, {"v", v}})
    if (features.block_table && one.tensor.numel() && one.tensor.size(3) > 1 && one.tensor.stride(3) != 1)
      fail(std::string("attn_fwd: with block_table, the last dimension of ") + one.name +
           " must be contiguous: no call copies all pages");
  const Tensor rows = with_contiguous_rows(q);
  Forward call = {rows,
                  with_contiguous_rows(k),
                  with_contiguous_rows(v),
                  out_of(rows, v),
                  empty(logsumexp_sizes(q), aoti_torch_dtype_float32(), q),
                  features,
                  {}};
  call.params.size = sizeof call.params;
  call.params.q = rows_view_of(call.q);
  call.params.k = rows_view_of(call.k);
  call.params.v = rows_view_of(call.v);
  call.params.out = rows_view_of(call.out);
  call.params.logsumexp = view_of<aotriton_tensor3>(call.logsumexp);
  set_scale(sm_scale, call.params);
  set_mask(mask, call.params);
  set_features("attn_fwd", q, call.features, call.params.features);
  return call;
}

Backward backward_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& dout,
                     const Tensor& logsumexp, Scale sm_scale, const Mask& mask, bool deterministic,
                     const Features& features, const Asked& asked) {
  if (asked.skip_gradients < 0 || asked.skip_gradients > kSkipAll)
    fail("attn_bwd: skip_gradients is " + std::to_string(asked.skip_gradients) + ", which must be from 0 to 7");
  const int64_t rank = rank_of(q, features);
  for (const Named& one : {Named{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"dout", dout}})
    require_rank("attn_bwd", one.name, one.tensor, rank);
  require_rank("attn_bwd", "logsumexp", logsumexp, rank - 1);
  require_one_device("attn_bwd",
                     {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"dout", dout}, {"logsumexp", logsumexp}});
  const Tensor rows_q = with_contiguous_rows(q), rows_k = with_contiguous_rows(k), rows_v = with_contiguous_rows(v);
  const auto wanted = [&](int64_t skip, const Tensor& like) {
    return asked.skip_gradients & skip ? empty({0}, scalar_type(like), like) : empty_as(like);
  };
  Backward call = {rows_q,
                   rows_k,
                   rows_v,
                   with_contiguous_rows(out),
                   with_contiguous_rows(dout),
                   logsumexp.is_contiguous() ? logsumexp : torch::stable::contiguous(logsumexp),
                   wanted(AOTRITON_SKIP_DQ, rows_q),
                   wanted(AOTRITON_SKIP_DK, rows_k),
                   wanted(AOTRITON_SKIP_DV, rows_v),
                   {},
                   {},
                   features,
                   {}};
  call.params.size = sizeof call.params;
  call.params.q = rows_view_of(call.q);
  call.params.k = rows_view_of(call.k);
  call.params.v = rows_view_of(call.v);
  call.params.out = rows_view_of(call.out);
  call.params.dout = rows_view_of(call.dout);
  call.params.logsumexp = view_of<aotriton_tensor3>(call.logsumexp);
  if (!(asked.skip_gradients & AOTRITON_SKIP_DQ)) call.params.dq = rows_view_of(call.dq);
  if (!(asked.skip_gradients & AOTRITON_SKIP_DK)) call.params.dk = rows_view_of(call.dk);
  if (!(asked.skip_gradients & AOTRITON_SKIP_DV)) call.params.dv = rows_view_of(call.dv);
  call.params.skip_gradients = static_cast<uint8_t>(asked.skip_gradients);
  set_scale(sm_scale, call.params);
  set_mask(mask, call.params);
  set_features("attn_bwd", q, call.features, call.params.features);
  call.params.deterministic = deterministic;
  if (asked.dbias) {
    if (!features.bias) fail("attn_bwd: dbias is asked for, and bias is not given");
    call.dbias = empty({q.size(0), q.size(1), q.size(2), k.size(2)}, scalar_type(q), q);
    call.params.dbias = view_of<aotriton_tensor4>(*call.dbias);
  }
  if (asked.dsinks) {
    if (!features.sinks) fail("attn_bwd: dsinks is asked for, and sinks is not given");
    call.dsinks = empty({q.size(1)}, aoti_torch_dtype_float32(), q);
    call.params.dsinks = view_of<aotriton_tensor1>(*call.dsinks);
  }
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
                                            int64_t window_right, int64_t skip_gradients,
                                            std::optional<bool> deterministic, const std::string& hints) {
  const Mask mask = mask_of("attn_bwd", causal, causal_variant, window_left, window_right);
  const Backward call =
      backward_of(q, k, v, out, dout, logsumexp, sm_scale, mask,
                  deterministic ? *deterministic : deterministic_algorithms(), {}, {.skip_gradients = skip_gradients});
  raise_if(compute(call, hints));
  return {call.dq, call.dk, call.dv};
}

std::tuple<Tensor, Tensor> attn_fwd_features(const Tensor& q, const Tensor& k, const Tensor& v, const Maybe& bias,
                                             const Maybe& alibi_slopes, const Maybe& sinks, const Maybe& cu_seqlens_q,
                                             const Maybe& cu_seqlens_k, const Maybe& seqused_q, const Maybe& seqused_k,
                                             const Maybe& dropout_seed, const Maybe& dropout_offset,
                                             const Maybe& block_table, const Maybe& k_descale, const Maybe& v_descale,
                                             const Maybe& q_descale, int64_t max_seqlen_q, int64_t max_seqlen_k,
                                             double softcap, double dropout, Scale sm_scale, bool causal,
                                             const std::string& causal_variant, int64_t window_left,
                                             int64_t window_right, const std::string& hints) {
  const Mask mask = mask_of("attn_fwd", causal, causal_variant, window_left, window_right);
  const Features features = {bias,      alibi_slopes, sinks,          cu_seqlens_q, cu_seqlens_k, seqused_q,
                             seqused_k, dropout_seed, dropout_offset, max_seqlen_q, max_seqlen_k, softcap,
                             dropout,   block_table,  k_descale,      v_descale,    q_descale};
  const Forward call = forward_of(q, k, v, sm_scale, mask, features);
  raise_if(compute(call, hints));
  return {call.out, call.logsumexp};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> attn_bwd_features(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& dout, const Tensor& logsumexp,
    const Maybe& bias, const Maybe& alibi_slopes, const Maybe& sinks, const Maybe& cu_seqlens_q,
    const Maybe& cu_seqlens_k, const Maybe& seqused_q, const Maybe& seqused_k, const Maybe& dropout_seed,
    const Maybe& dropout_offset, int64_t max_seqlen_q, int64_t max_seqlen_k, double softcap, double dropout,
    Scale sm_scale, bool causal, const std::string& causal_variant, int64_t window_left, int64_t window_right,
    int64_t skip_gradients, bool dbias, bool dsinks, std::optional<bool> deterministic, const std::string& hints) {
  const Mask mask = mask_of("attn_bwd", causal, causal_variant, window_left, window_right);
  const Features features = {bias,         alibi_slopes, sinks,        cu_seqlens_q,   cu_seqlens_k,
                             seqused_q,    seqused_k,    dropout_seed, dropout_offset, max_seqlen_q,
                             max_seqlen_k, softcap,      dropout};
  const Backward call = backward_of(q, k, v, out, dout, logsumexp, sm_scale, mask,
                                    deterministic ? *deterministic : deterministic_algorithms(), features,
                                    {dbias, dsinks, skip_gradients});
  raise_if(compute(call, hints));
  const auto or_empty = [&](const Maybe& made, int32_t dtype) { return made ? *made : empty({0}, dtype, q); };
  return {call.dq, call.dk, call.dv, or_empty(call.dbias, scalar_type(q)),
          or_empty(call.dsinks, aoti_torch_dtype_float32())};
}

}  // namespace aotriton_torch
