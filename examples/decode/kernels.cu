// A warp has a row. Arithmetic is in float32.
#include <cmath>

#include "kernels.h"

namespace {

constexpr int kWarp = 32;

__device__ float wide(bfloat16 value) { return __uint_as_float(static_cast<uint32_t>(value) << 16); }

__device__ bfloat16 rounded(float value) {
  const uint32_t bits = __float_as_uint(value);
  return static_cast<bfloat16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

__global__ void embed_row(const int32_t* tokens, const bfloat16* embedding, float* residual) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < kHidden; i += kWarp)
    residual[row * kHidden + i] = wide(embedding[tokens[row] * kHidden + i]);
}

__global__ void add_and_norm_row(const bfloat16* x, float* residual, const bfloat16* weight, bfloat16* normed) {
  const int begin = blockIdx.x * kHidden;
  float squares = 0;
  for (int i = threadIdx.x; i < kHidden; i += kWarp) {
    if (x) residual[begin + i] += wide(x[begin + i]);
    squares += residual[begin + i] * residual[begin + i];
  }
  for (int step = kWarp / 2; step; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  const float scale = rsqrtf(squares / kHidden + kEpsilon);
  for (int i = threadIdx.x; i < kHidden; i += kWarp)
    normed[begin + i] = rounded(residual[begin + i] * scale * wide(weight[i]));
}

__global__ void silu_and_gate_row(const bfloat16* gate_up, bfloat16* inner) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < kInner; i += kWarp) {
    const float gate = wide(gate_up[row * 2 * kInner + i]), up = wide(gate_up[row * 2 * kInner + kInner + i]);
    inner[row * kInner + i] = rounded(gate / (1 + expf(-gate)) * up);
  }
}

__global__ void choose_token(const bfloat16* logits, const int32_t* starts, Progress progress) {
  const bfloat16* const row = logits + (starts[blockIdx.x + 1] - 1) * kVocabulary;
  Choice best{0, -INFINITY};
  for (int i = threadIdx.x; i < kVocabulary; i += kWarp)
    if (wide(row[i]) > best.logit) best = {i, wide(row[i])};
  for (int step = kWarp / 2; step; step /= 2) {
    const Choice other{__shfl_xor_sync(~0u, best.token, step), __shfl_xor_sync(~0u, best.logit, step)};
    if (other.logit > best.logit || (other.logit == best.logit && other.token < best.token)) best = other;
  }
  if (threadIdx.x == 0) progress.choices[*progress.step * gridDim.x + blockIdx.x] = best;
}

__global__ void advance_sequences(Progress progress) {
  const int z = threadIdx.x, step = *progress.step;
  const bool ends = progress.keys[z] == progress.limits[z];
  progress.tokens[z] = ends ? progress.firsts[z] : progress.choices[step * blockDim.x + z].token;
  progress.keys[z] = ends ? 1 : progress.keys[z] + 1;
  __syncthreads();  // all have read the step
  if (z == 0) *progress.step = step + 1;
}

}  // namespace

cudaError_t embed(const int32_t* tokens, const bfloat16* embedding, float* residual, int rows, cudaStream_t stream) {
  embed_row<<<rows, kWarp, 0, stream>>>(tokens, embedding, residual);
  return cudaGetLastError();
}

cudaError_t add_and_norm(const bfloat16* x, float* residual, const bfloat16* weight, bfloat16* normed, int rows,
                         cudaStream_t stream) {
  add_and_norm_row<<<rows, kWarp, 0, stream>>>(x, residual, weight, normed);
  return cudaGetLastError();
}

cudaError_t silu_and_gate(const bfloat16* gate_up, bfloat16* inner, int rows, cudaStream_t stream) {
  silu_and_gate_row<<<rows, kWarp, 0, stream>>>(gate_up, inner);
  return cudaGetLastError();
}

cudaError_t choose(const bfloat16* logits, const int32_t* starts, const Progress& progress, int batch,
                   cudaStream_t stream) {
  choose_token<<<batch, kWarp, 0, stream>>>(logits, starts, progress);
  return cudaGetLastError();
}

cudaError_t advance(const Progress& progress, int batch, cudaStream_t stream) {
  advance_sequences<<<1, batch, 0, stream>>>(progress);
  return cudaGetLastError();
}
