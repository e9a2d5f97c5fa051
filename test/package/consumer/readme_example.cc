#include <aotriton/flash.h>

#include <cstdio>

// out = softmax(q k^T / 8) v, causal; bfloat16 in device memory: batch 2, heads 16, seqlen 1024, head_dim 64.
bool attention(void* q, void* k, void* v, void* out, void* stream) {
  using namespace aotriton::v2;
  auto tensor = [](void* data) {
    return Tensor<4>{data, DType::bfloat16, {2, 16, 1024, 64}, {16 * 1024 * 64, 1024 * 64, 64, 1}};
  };
  attn_fwd_params params;
  params.q = tensor(q);
  params.k = tensor(k);
  params.v = tensor(v);
  params.out = tensor(out);
  params.sm_scale = 0.125f;
  params.causal = true;
  const Error error = attn_fwd(params, Stream{stream});  // a CUstream, cudaStream_t or hipStream_t
  if (error != Error::success) std::fprintf(stderr, "%s: %s\n", error_name(error), last_error_message());
  return error == Error::success;
}
