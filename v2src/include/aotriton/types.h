// Types that every operator shares: errors, element types, tensors and streams.
#pragma once

#include <cstdint>

#define AOTRITON_API __attribute__((visibility("default")))

namespace aotriton::v2::inline abi1 {

enum class Error : int32_t {
  success = 0,
  null_pointer,         // a required tensor has no data
  invalid_shape,        // sizes that do not fit together, or are not positive
  invalid_stride,       // a last dimension that is not contiguous, or a layout that no kernel can address
  invalid_dtype,        // an element type that the operator does not take
  misaligned_pointer,   // data that is not aligned to its element, or not as much as the header asks for
  invalid_argument,     // a number or a name that means nothing here, such as a sm_scale that is not finite
  not_supported,        // valid, but no kernel does it
  no_driver,            // neither libcuda.so.1 nor libamdhip64.so with a device was found
  no_context,           // the stream names no device, or no device is current
  unknown_arch,         // the device's architecture is not in this build
  no_winner,            // the functional is not in this build's coverage
  not_loaded,           // the stream is capturing and the image is not loaded yet: call preload() first
  workspace_too_small,  // the workspace is missing or smaller than the query said
  damaged_image,        // the embedded image could not be unpacked
  driver_failed,        // the driver returned an error; the message quotes it
};

// Name of the error, as in the enumeration; never null.
AOTRITON_API const char* error_name(Error error) noexcept;

// What went wrong in this thread's last call that did not succeed, naming the argument; never null.
AOTRITON_API const char* last_error_message() noexcept;

enum class DType : int32_t { none = 0, float16, bfloat16, float32 };

// A strided view of device memory. Strides are in elements.
template <int Rank>
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::none;
  int64_t sizes[Rank] = {};
  int64_t strides[Rank] = {};
};

// A CUstream or hipStream_t; null is the (legacy) default stream of the current device.
struct Stream {
  void* handle = nullptr;
};

}  // namespace aotriton::v2::inline abi1
