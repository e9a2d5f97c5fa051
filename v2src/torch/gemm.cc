#include "torch/gemm.h"

#include "torch/hints.h"
#include "torch/reference.h"

namespace aotriton_torch {

namespace {

int32_t activation_of(const std::string& name) {
  if (name == "none") return AOTRITON_NO_ACTIVATION;
  if (name == "relu") return AOTRITON_RELU;
  if (name == "gelu") return AOTRITON_GELU;
  if (name == "silu") return AOTRITON_SILU;
  fail("gemm: activation is \"" + name + "\", which must be none, relu, gelu or silu");
}

}  // namespace

Tensor gemm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, double alpha,
            const std::string& activation, const std::string& hints) {
  const int64_t rank = a.dim();
  if (rank != 2 && rank != 3) fail("gemm: a has " + std::to_string(rank) + " dimensions, which must be 2 or 3");
  require_rank("gemm", "b", b, rank);
  require_one_device("gemm", {{"a", a}, {"b", b}, {"bias", bias ? *bias : a}});
  std::vector<int64_t> sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = b.size(-1);
  const Tensor d = empty(sizes, scalar_type(a), a);
  aotriton_gemm_params params = {};
  params.size = sizeof params;
  params.a = view_of<aotriton_tensor3>(a);
  params.b = view_of<aotriton_tensor3>(b);
  params.d = view_of<aotriton_tensor3>(d);
  std::optional<Tensor> row;
  if (bias) {
    require_rank("gemm", "bias", *bias, 1);
    row = with_contiguous_rows(*bias);
    params.bias = view_of<aotriton_tensor1>(*row);
  }
  params.alpha = static_cast<float>(alpha);
  params.activation = activation_of(activation);
  const Hints told("gemm", hints);
  params.hints = told.get();
  if (a.is_cuda()) {
    raise_if(run(params, a, aotriton_gemm_workspace_size, aotriton_gemm));
  } else {
    raise_if(check_as_on_gpu(params, aotriton_explain_gemm));
    reference(params);
  }
  return d;
}

}  // namespace aotriton_torch
