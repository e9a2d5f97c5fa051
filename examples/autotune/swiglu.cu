// out = gate / (1 + exp(-gate)) * up. A thread has WIDTH elements, which it reads and writes at once.
#include <cuda_bf16.h>

struct alignas(2 * WIDTH) Pack {
  __nv_bfloat16 of[WIDTH];
};

__device__ __nv_bfloat16 swiglu_of(__nv_bfloat16 gate, __nv_bfloat16 up) {
  const float wide = __bfloat162float(gate);
  return __float2bfloat16(wide / (1 + expf(-wide)) * __bfloat162float(up));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    swiglu(const __nv_bfloat16* gate, const __nv_bfloat16* up, __nv_bfloat16* out, long long count) {
  const long long first = (blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x) * WIDTH;
  if (first + WIDTH <= count) {
    const Pack a = *reinterpret_cast<const Pack*>(gate + first), b = *reinterpret_cast<const Pack*>(up + first);
    Pack made;
    for (int i = 0; i < WIDTH; ++i) made.of[i] = swiglu_of(a.of[i], b.of[i]);
    *reinterpret_cast<Pack*>(out + first) = made;
  } else {
    for (long long i = first; i < count; ++i) out[i] = swiglu_of(gate[i], up[i]);
  }
}
