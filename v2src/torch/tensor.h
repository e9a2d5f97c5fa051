// torch's tensors as the views that the C interface takes, and the little else that the operators ask of torch.
//
// Everything goes through torch's stable ABI, so that one binary serves several releases of torch, with or without
// CUDA.
#pragma once

#include <aotriton/c.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace aotriton_torch {

using torch::stable::Tensor;
using Maybe = std::optional<Tensor>;

// torch makes RuntimeError of it.
[[noreturn]] inline void fail(const std::string& message) { throw std::runtime_error(message); }

// Fails with what the library says of its last error.
inline void raise_if(aotriton_error error) {
  if (error != AOTRITON_SUCCESS) fail(aotriton_last_error_message());
}

void require_rank(const char* op, const char* name, const Tensor& tensor, int64_t rank);

// All on the first one's device: torch calls an operator where only one of its tensors is.
struct Named {
  const char* name;
  const Tensor& tensor;
};
void require_one_device(const char* op, std::initializer_list<Named> tensors);

int32_t scalar_type(const Tensor& tensor);  // as aoti_torch_dtype_float32() names it
aotriton_dtype dtype_of(const Tensor& tensor);

// The tensor, of the view's rank or one less, which counts as a batch of one.
template <class View>
View view_of(const Tensor& tensor) {
  View view = {tensor.data_ptr(), dtype_of(tensor), {}, {}};
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const size_t missing = std::size(view.sizes) - sizes.size();
  if (missing) view.sizes[0] = 1;
  for (size_t i = 0; i < sizes.size(); ++i) view.sizes[missing + i] = sizes[i], view.strides[missing + i] = strides[i];
  return view;
}

// The same of an operand that a call may leave out. torch gives tensors without elements no address, and c.h takes
// one without for not given.
template <class View>
View given_view_of(const Tensor& tensor) {
  alignas(16) static char no_elements;
  View view = view_of<View>(tensor);
  if (!view.data) view.data = &no_elements;
  return view;
}

// The tensor, or a copy whose last dimension is contiguous.
Tensor with_contiguous_rows(const Tensor& tensor);

// As torch.empty_like: strides of a tensor without gaps are kept.
Tensor empty_as(const Tensor& tensor);

// Of other sizes and the same type, without gaps; dimensions lie in memory in the order of those of `like`.
Tensor empty_in_order(const std::vector<int64_t>& sizes, const Tensor& like, int32_t dtype);

// Contiguous, on the device of `like`; `dtype` as aoti_torch_dtype_float32() names it.
Tensor empty(const std::vector<int64_t>& sizes, int32_t dtype, const Tensor& like);

// Makes a CUDA tensor's device the current one while it lives.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const Tensor& tensor);
  void* stream() const { return stream_; }  // torch's current one

  // A thread that torch made, such as autograd's, has no context before something calls CUDA's runtime: then it gets
  // the device's own, and keeps it, as the runtime would have it.
  void make_context_current() const;

 private:
  int32_t index_;
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};

// What torch.are_deterministic_algorithms_enabled() says.
bool deterministic_algorithms();

// Runs the call on torch's current stream, with a workspace of torch's where it needs one.
template <class Params>
aotriton_error run(Params params, const Tensor& like, aotriton_error (*workspace_size)(const Params*, void*, size_t*),
                   aotriton_error (*launch)(const Params*, void*)) {
  const OnDeviceOf device(like);
  size_t bytes = 0;
  aotriton_error error = workspace_size(&params, device.stream(), &bytes);
  if (error == AOTRITON_NO_CONTEXT) {
    device.make_context_current();
    error = workspace_size(&params, device.stream(), &bytes);
  }
  if (error != AOTRITON_SUCCESS) return error;
  std::optional<Tensor> workspace;
  if (bytes) {
    workspace = empty({static_cast<int64_t>(bytes)}, aoti_torch_dtype_uint8(), like);
    params.workspace = workspace->data_ptr();
    params.workspace_size = bytes;
  }
  return launch(&params, device.stream());
}

// The same of an operator that never needs one.
template <class Params>
aotriton_error run(const Params& params, const Tensor& like, aotriton_error (*launch)(const Params*, void*)) {
  const OnDeviceOf device(like);
  const aotriton_error error = launch(&params, device.stream());
  if (error != AOTRITON_NO_CONTEXT) return error;
  device.make_context_current();
  return launch(&params, device.stream());
}

// What the library would say of the call on a GPU; for tensors of a CPU, on which it does not compute.
template <class Params>
aotriton_error check_as_on_gpu(const Params& params, aotriton_error (*explain)(const Params*, const char*, int32_t,
                                                                               aotriton_kernel_choice*, size_t*)) {
  aotriton_kernel_choice kernels[8] = {};
  kernels[0].size = sizeof kernels[0];
  size_t count = std::size(kernels);
  const aotriton_error error = explain(&params, "sm_90", 0, kernels, &count);
  // What this build has images for is of no interest here.
  return error == AOTRITON_UNKNOWN_ARCH || error == AOTRITON_NO_WINNER ? AOTRITON_SUCCESS : error;
}

}  // namespace aotriton_torch
