#include "torch/tensor.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "driver/driver.h"

// Only builds of torch for CUDA or ROCm have it: libtorch_cuda's, of the stable ABI.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

// The stable ABI does not tell, so at::globalContext().deterministicAlgorithms() is asked under its own name.
extern "C" {
__attribute__((weak)) const void* torch_global_context() asm("_ZN2at13globalContextEv");
__attribute__((weak)) bool torch_deterministic_algorithms(const void* context) asm(
    "_ZNK2at7Context23deterministicAlgorithmsEv");
}

namespace aotriton_torch {

void require_rank(const char* op, const char* name, const Tensor& tensor, int64_t rank) {
  if (tensor.dim() != rank)
    fail(std::string(op) + ": " + name + " has " + std::to_string(tensor.dim()) + " dimensions, which must be " +
         std::to_string(rank));
}

void require_one_device(const char* op, std::initializer_list<Named> tensors) {
  const Named& first = *tensors.begin();
  const bool cpu = first.tensor.is_cpu();
  const auto index = first.tensor.get_device_index();
  for (const Named& one : tensors)
    if (one.tensor.is_cpu() != cpu || one.tensor.get_device_index() != index)
      fail(std::string(op) + ": " + one.name + " is on another device than " + first.name);
}

int32_t scalar_type(const Tensor& tensor) {
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

aotriton_dtype dtype_of(const Tensor& tensor) {
  const int32_t dtype = scalar_type(tensor);
  if (dtype == aoti_torch_dtype_float16()) return AOTRITON_FLOAT16;
  if (dtype == aoti_torch_dtype_bfloat16()) return AOTRITON_BFLOAT16;
  if (dtype == aoti_torch_dtype_float32()) return AOTRITON_FLOAT32;
  if (dtype == aoti_torch_dtype_int32()) return AOTRITON_INT32;
  if (dtype == aoti_torch_dtype_int64()) return AOTRITON_INT64;
  if (dtype == aoti_torch_dtype_float8_e4m3fn()) return AOTRITON_FLOAT8_E4M3FN;
  if (dtype == aoti_torch_dtype_float8_e4m3fnuz()) return AOTRITON_FLOAT8_E4M3FNUZ;
  return AOTRITON_NO_DTYPE;
}

Tensor with_contiguous_rows(const Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : torch::stable::contiguous(tensor);
}

namespace {

// Whether the elements fill a piece of memory, each place once.
bool is_dense(const Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (const size_t dim : order) {
    if (sizes[dim] < 2) continue;
    if (strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

// Whether strides alone say in which order the dimensions lie in memory.
bool has_one_order(const Tensor& tensor) {
  const auto given = tensor.strides();
  std::vector<int64_t> strides(given.begin(), given.end());
  std::sort(strides.begin(), strides.end());
  return strides.front() > 0 && std::adjacent_find(strides.begin(), strides.end()) == strides.end();
}

Tensor allocate(const int64_t* sizes, const int64_t* strides, size_t rank, int32_t dtype, const Tensor& like) {
  int32_t type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &type));
  AtenTensorHandle made;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(rank), sizes, strides, dtype, type,
                                                  like.get_device_index(), &made));
  return Tensor(made);
}

}  // namespace

// The same, without a way through torch's dispatcher, which costs as much as a launch.
Tensor empty_as(const Tensor& tensor) {
  const int32_t dtype = scalar_type(tensor);
  if (is_dense(tensor))
    return allocate(tensor.sizes().data(), tensor.strides().data(), tensor.sizes().size(), dtype, tensor);
  const auto sizes = tensor.sizes();
  if (has_one_order(tensor)) return empty_in_order({sizes.begin(), sizes.end()}, tensor, dtype);
  return torch::stable::empty_like(tensor);
}

Tensor empty_in_order(const std::vector<int64_t>& sizes, const Tensor& like, int32_t dtype) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return like.stride(a) > like.stride(b); });
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0; step *= std::max<int64_t>(sizes[order[i]], 1)) strides[order[i]] = step;
  return allocate(sizes.data(), strides.data(), sizes.size(), dtype, like);
}

Tensor empty(const std::vector<int64_t>& sizes, int32_t dtype, const Tensor& like) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  return allocate(sizes.data(), strides.data(), sizes.size(), dtype, like);
}

OnDeviceOf::OnDeviceOf(const Tensor& tensor) : index_(tensor.get_device_index()), guard_(index_) {
  if (!aoti_torch_get_current_cuda_stream) fail("aotriton: this build of torch has no CUDA");
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream_));
}

void OnDeviceOf::make_context_current() const {
  using namespace aotriton::v2;
  const Driver* const found = driver();
  if (!found) fail(last_error_message());
  void* context;
  Status status = found->primary_context(index_, &context);
  if (!status) status = found->enter(context);
  if (status)
    raise_if(
        static_cast<aotriton_error>(driver_failure(*found, status, "aotriton", "make the tensors' device current")));
}

// Without an answer, yes: that is slower, and never wrong.
bool deterministic_algorithms() {
  if (!torch_global_context || !torch_deterministic_algorithms) return true;
  return torch_deterministic_algorithms(torch_global_context());
}

}  // namespace aotriton_torch
