// Types that every operator shares: errors, element types, tensors, streams and prepared calls. C++17.
#pragma once

#include <aotriton/c.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace aotriton::v2 {
inline namespace abi1 {

// As AOTRITON_NULL_POINTER and so on in c.h, which says what each means.
enum class [[nodiscard]] Error : int32_t {
  success = AOTRITON_SUCCESS,
  null_pointer = AOTRITON_NULL_POINTER,
  invalid_shape = AOTRITON_INVALID_SHAPE,
  invalid_stride = AOTRITON_INVALID_STRIDE,
  invalid_dtype = AOTRITON_INVALID_DTYPE,
  misaligned_pointer = AOTRITON_MISALIGNED_POINTER,
  invalid_argument = AOTRITON_INVALID_ARGUMENT,
  not_supported = AOTRITON_NOT_SUPPORTED,
  no_driver = AOTRITON_NO_DRIVER,
  no_context = AOTRITON_NO_CONTEXT,
  unknown_arch = AOTRITON_UNKNOWN_ARCH,
  no_winner = AOTRITON_NO_WINNER,
  not_loaded = AOTRITON_NOT_LOADED,
  workspace_too_small = AOTRITON_WORKSPACE_TOO_SMALL,
  damaged_image = AOTRITON_DAMAGED_IMAGE,
  driver_failed = AOTRITON_DRIVER_FAILED,
  out_of_memory = AOTRITON_OUT_OF_MEMORY,
};

inline const char* error_name(Error error) noexcept { return aotriton_error_name(static_cast<aotriton_error>(error)); }
inline const char* last_error_message() noexcept { return aotriton_last_error_message(); }

enum class DType : int32_t {
  none = AOTRITON_NO_DTYPE,
  float16 = AOTRITON_FLOAT16,
  bfloat16 = AOTRITON_BFLOAT16,
  float32 = AOTRITON_FLOAT32,
  int32 = AOTRITON_INT32,
  int64 = AOTRITON_INT64,
  boolean = AOTRITON_BOOL,
  int8 = AOTRITON_INT8,
  uint8 = AOTRITON_UINT8,
  float8_e4m3fn = AOTRITON_FLOAT8_E4M3FN,
  float8_e5m2 = AOTRITON_FLOAT8_E5M2,
  float8_e4m3fnuz = AOTRITON_FLOAT8_E4M3FNUZ,
};

namespace detail {
template <int Rank>
struct CTensor;
template <>
struct CTensor<1> {
  using type = aotriton_tensor1;
};
template <>
struct CTensor<2> {
  using type = aotriton_tensor2;
};
template <>
struct CTensor<3> {
  using type = aotriton_tensor3;
};
template <>
struct CTensor<4> {
  using type = aotriton_tensor4;
};
}  // namespace detail

// A strided view of device memory, outermost dimension first. Strides are in elements. Null data: not given.
template <int Rank>
struct Tensor : detail::CTensor<Rank>::type {
  using C = typename detail::CTensor<Rank>::type;

  Tensor() noexcept : C{} {}
  Tensor(const C& tensor) noexcept : C(tensor) {}
  Tensor(void* data, DType dtype, const int64_t (&sizes)[Rank], const int64_t (&strides)[Rank]) noexcept : C{} {
    this->data = data;
    this->dtype = static_cast<aotriton_dtype>(dtype);
    for (int i = 0; i < Rank; ++i) this->sizes[i] = sizes[i], this->strides[i] = strides[i];
  }
};

// What the caller wishes of a call; c.h says what the fields mean. `params.hints = &own` gives them to it.
struct hints : aotriton_hints {
  hints() noexcept : aotriton_hints{} { size = sizeof(aotriton_hints); }

  // Adds what the text says, such as "schedule=dfs deterministic".
  Error parse(const char* text) noexcept { return static_cast<Error>(aotriton_parse_hints(text, this)); }
};

// What became of each hint of a call.
struct HintOutcomes {
  size_t count = 0;
  aotriton_hint_outcome list[AOTRITON_MOST_OUTCOMES] = {};
};

// A CUstream, cudaStream_t or hipStream_t; null is the default stream of the current device.
struct Stream {
  void* handle = nullptr;
};

// A call that was checked, dispatched and loaded for the device of a stream, to be launched again and again with other
// pointers. One thread at a time may use it.
class PreparedCall {
 public:
  PreparedCall() noexcept = default;
  PreparedCall(PreparedCall&& other) noexcept : prepared_(std::exchange(other.prepared_, nullptr)) {}
  PreparedCall& operator=(PreparedCall&& other) noexcept {
    std::swap(prepared_, other.prepared_);
    return *this;
  }
  ~PreparedCall() { aotriton_destroy(prepared_); }

  // The operands' data, in the order of the parameter struct, and of the workspace, which comes last. Each must be as
  // aligned as the one that the call was prepared with, up to 16 bytes; what was null stays null.
  Error launch(std::initializer_list<void*> pointers, Stream stream) noexcept {
    return launch(pointers.begin(), pointers.size(), stream);
  }
  Error launch(void* const* pointers, size_t count, Stream stream) noexcept {
    return static_cast<Error>(aotriton_launch(prepared_, pointers, count, stream.handle));
  }

  // For the functions that prepare.
  aotriton_prepared** reset() noexcept {
    aotriton_destroy(std::exchange(prepared_, nullptr));
    return &prepared_;
  }

 private:
  aotriton_prepared* prepared_ = nullptr;
};

}  // namespace abi1
}  // namespace aotriton::v2
