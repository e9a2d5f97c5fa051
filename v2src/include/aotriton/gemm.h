// Matrix products. C++17.
#pragma once

#include <aotriton/operator.h>

namespace aotriton::v2 {
inline namespace abi1 {

enum class Activation : int32_t {
  none = AOTRITON_NO_ACTIVATION,
  relu = AOTRITON_RELU,
  gelu = AOTRITON_GELU,
  silu = AOTRITON_SILU,
};

// What the fields mean stands in c.h; here alpha begins as 1.
struct gemm_params : aotriton_gemm_params {
  gemm_params() noexcept : aotriton_gemm_params{} {
    size = sizeof(aotriton_gemm_params);
    alpha = 1;
  }
};

AOTRITON_OPERATOR(gemm)

}  // namespace abi1
}  // namespace aotriton::v2
