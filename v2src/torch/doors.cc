#include "torch/doors.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <vector>

#include "torch/counts.h"

namespace aotriton_torch {

std::string reason(aotriton_error error) {
  if (error == AOTRITON_DRIVER_FAILED) raise_if(error);
  return error == AOTRITON_SUCCESS ? "" : aotriton_last_error_message();
}

void require_own_kernel(const Tensor& query, bool exists, const char* op, const std::string& why) {
  if (*op) count(op, "torch", why);
  if (!query.is_cuda() || !exists) fail("torch has no kernel of its own for this device: " + why);
}

AtenTensorHandle* handle_of(const Maybe& tensor, AtenTensorHandle* handle) {
  if (!tensor) return nullptr;
  *handle = tensor->get();
  return handle;
}

void set_dropout(double dropout, const Tensor& state, Features& features) {
  if (dropout == 0) return;
  features.dropout = dropout;
  features.dropout_state = state;
}

Tensor state_of(double dropout, const std::vector<int64_t>& sizes, int32_t ours, int32_t torchs, const Tensor& like,
                Features& features) {
  using torch::stable::detail::from;
  const Tensor state = empty(sizes, dropout == 0 ? torchs : ours, like);
  set_dropout(dropout, state, features);
  if (dropout == 0) return state;
  // The generator fills int64 alone.
  const Tensor numbers =
      torch::stable::from_blob(state.data_ptr(), {1}, {1}, state.device(), torch::headeronly::ScalarType::Long);
  std::array<StableIValue, 2> stack = {from(numbers), from(std::nullopt)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::random_", "", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);  // the handle is the caller's
  return state;
}

void require_no_dropout(double dropout, const std::string& why) {
  if (dropout != 0) fail("the forward, with dropout, was aotriton's, whose backward cannot run: " + why);
}

Maybe expanded(const Maybe& bias, const Tensor& query, const Tensor& key) {
  using torch::stable::detail::from;
  if (!bias) return bias;
  const std::vector<int64_t> sizes = {query.size(0), query.size(1), query.size(2), key.size(2)};
  const auto given = bias->sizes();
  if (std::equal(given.begin(), given.end(), sizes.begin(), sizes.end())) return bias;
  std::array<StableIValue, 3> stack = {from(*bias), from(sizes), from(false)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::expand", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace aotriton_torch
