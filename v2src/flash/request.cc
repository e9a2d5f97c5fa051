#include "flash/request.h"

#include <aotriton/flash.h>

#include <cstring>

#include "error.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

// Sizes stay as they are where their product overflows: the checks that follow name the one that is too large.
Tensor<4> contiguous(DType dtype, int64_t batch, int64_t heads, int64_t seqlen, int64_t head_dim) {
  Tensor<4> tensor = {nullptr, dtype, {batch, heads, seqlen, head_dim}, {0, 0, 0, 1}};
  for (int i = 2; i >= 0; --i)
    if (__builtin_mul_overflow(tensor.strides[i + 1], tensor.sizes[i + 1], &tensor.strides[i])) tensor.strides[i] = 1;
  return tensor;
}

}  // namespace

Error explain(const ExplainRequest& r, Explanation* explanation) noexcept {
  const DType dtype = !strcmp(r.dtype, "fp16")   ? DType::float16
                      : !strcmp(r.dtype, "bf16") ? DType::bfloat16
                                                 : DType::none;
  if (dtype == DType::none) return fail(Error::invalid_argument, "explain: dtype is %s: use fp16 or bf16", r.dtype);
  const Tensor<4> q = contiguous(dtype, r.batch, r.heads, r.seqlen_q, r.head_dim);
  const Tensor<4> k = contiguous(dtype, r.batch, r.heads_k, r.seqlen_k, r.head_dim);
  const Tensor<4> as_rows = contiguous(DType::float32, r.batch, r.heads, r.seqlen_q, 1);
  Tensor<3> rows = {nullptr, DType::float32, {r.batch, r.heads, r.seqlen_q}, {}};
  memcpy(rows.strides, as_rows.strides, sizeof rows.strides);
  if (!strcmp(r.op, "attn_fwd"))
    return explain(attn_fwd_params{q, k, k, q, rows, 1.0f, r.causal}, r.arch, r.multiprocessors, explanation);
  if (!strcmp(r.op, "attn_bwd"))
    return explain(attn_bwd_params{q, k, k, q, q, rows, q, k, k, 1.0f, r.causal}, r.arch, r.multiprocessors,
                   explanation);
  return fail(Error::invalid_argument, "explain: op is %s: use attn_fwd or attn_bwd", r.op);
}

}  // namespace aotriton::v2::inline abi1::flash
