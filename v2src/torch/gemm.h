// Matrix products on torch's tensors.
#pragma once

#include "torch/tensor.h"

namespace aotriton_torch {

// activation(alpha a b + bias), contiguous: [m, n], or [batch, m, n] where a and b have three dimensions. `activation`:
// none, relu, gelu or silu.
Tensor gemm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, double alpha,
            const std::string& activation, const std::string& hints);

}  // namespace aotriton_torch
