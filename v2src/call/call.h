// One call of an operator: its tensors, sizes and scalars by number, from whichever interface they came.
#pragma once

#include <aotriton/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "program/program.h"

namespace aotriton::v2::inline abi1 {

// A tensor of a call. Sizes and strides are the caller's, of as many dimensions as the operand has.
struct View {
  void* data;
  DType dtype;
  const int64_t* sizes;
  const int64_t* strides;

  // One that the caller did not give.
  static View none() noexcept { return {nullptr, DType::none, nullptr, nullptr}; }

  template <class CTensor>
  static View of(const CTensor& tensor) noexcept {
    return {tensor.data, static_cast<DType>(tensor.dtype), tensor.sizes, tensor.strides};
  }
};

union Scalar {
  int64_t whole;  // of i32 and boolean
  float real;     // of fp32; the rest of the bytes is zero
};

enum class Data : bool { needed, optional };  // optional: of an explanation or a query, which need not have memory yet

struct Call {
  explicit Call(const OperatorInfo& operator_info) noexcept : info(&operator_info) {
    for (size_t slot = 0; slot < kMaxOperands; ++slot) from[slot] = static_cast<uint8_t>(slot);
  }

  const OperatorInfo* info;
  bool plain = false;  // no operand beyond the plain ones is given, and the views of those are check_call's to set
  bool empty;          // a size is 0, and nothing is to be launched; as type and sizes, check_call works it out
  DType dtype;
  int64_t sizes[kMaxSizes];
  Scalar scalars[kMaxScalars];
  View views[kMaxOperands];  // by slot; those of the workspace are the runner's to fill
  // What follows is worked out by check_call (call/checks.h).
  int64_t extents[kMaxOperands];  // bytes from the first to the last element, by slot; 0 of what is not given or empty
  int64_t dims[kMaxOperands][2]
              [kMaxRank];         // sizes and strides of tensors that are not as the caller gave them, by slot
  uint8_t from[kMaxOperands];     // which of the caller's pointers a slot has: its own, unless checks swap some
  bool suited = false;            // all strides that kernels follow are known to suit every way of addressing
  uint32_t misaligned = 0;        // of the caller's operands, those that count as misaligned wherever they are, as bits
  bool by_pointer = false;        // kernels that are steered take pointers, wherever tensors are
  uint8_t one_place[2] = {0, 0};  // of the caller's operands, two that kernels take for one: they must begin together
  bool whole = false;             // the call is not to be made in chunks
  void* workspace = nullptr;
  size_t workspace_size = 0;
  const aotriton_hints* hints = nullptr;  // of this library's size; null: none
  aotriton_hints own_hints;               // what `hints` may point at; see take_hints

  const View& operator[](size_t slot) const noexcept { return views[slot]; }
  void set_real(size_t index, float value) noexcept {
    scalars[index].whole = 0;
    scalars[index].real = value;
  }
  void set_whole(size_t index, int64_t value) noexcept { scalars[index].whole = value; }
};

// Makes the operands that are features ones that are not given.
inline void leave_out_features(Call& call) noexcept {
  std::fill(call.views + call.info->plain_operands(), call.views + call.info->operands.size(), View::none());
}

// Whether some operands have pages: the caller gives a block table.
inline bool is_paged(const Call& call) noexcept {
  return call.info->block_table != kNoNumber && call[call.info->block_table].data;
}

// The numbers of the sizes of an operand.
constexpr std::span<const uint8_t> dims_of(const OperandInfo& operand, bool paged) noexcept {
  return paged && !operand.paged_dims.empty() ? operand.paged_dims : operand.dims;
}

// Bytes of one element; 0 of none.
inline constexpr int8_t kBytesOf[] = {0, 2, 2, 4, 4, 8, 1, 1, 1, 1, 1, 1};
constexpr int64_t bytes_of(DType dtype) noexcept {
  const auto number = static_cast<size_t>(dtype);
  return number < sizeof kBytesOf ? kBytesOf[number] : 0;
}

const char* dtype_name(DType dtype) noexcept;

inline constexpr int64_t kMapStrideLimit = int64_t{1} << 40;  // bytes: strides of a tensor map are smaller
inline constexpr uintptr_t kWorkspaceAlignment = 256;         // bytes, of the workspace and of each tensor in it

// `alignment` is a power of two.
inline bool aligned_to(const void* data, uintptr_t alignment) noexcept {
  return (reinterpret_cast<uintptr_t>(data) & (alignment - 1)) == 0;
}

// Whether the last dimension but one of a strided operand is the contiguous one. A dimension of size 1 is if need be.
inline bool transposed(const OperandInfo& operand, const View& view) noexcept {
  const size_t rank = operand.dims.size();
  if (operand.layout != Layout::strided || rank < 2 || !view.sizes) return false;
  const auto contiguous = [&](size_t dim) { return view.sizes[dim] == 1 || view.strides[dim] == 1; };
  return !contiguous(rank - 1) && contiguous(rank - 2);
}

// Bytes from the first to the last element, of which there must be one, or -1 where that overflows.
int64_t extent(const OperandInfo& operand, const View& view) noexcept;

// Makes the view of a workspace tensor, contiguous and without data, whose sizes are known. Its elements, or -1 where
// there are more than 63 bits count.
int64_t shape_tensor(Call& call, size_t slot) noexcept;

// The same of all workspace tensors, but for those that have a derived size, which are not given then. False where one
// has more elements than 63 bits count.
bool shape_workspace(Call& call) noexcept;

// Whether two ranges of memory share a byte. Neither is empty, or wraps around.
inline bool ranges_overlap(const void* a, int64_t bytes_a, const void* b, int64_t bytes_b) noexcept {
  // Without a branch, which addresses would make unpredictable.
  const auto from_a = reinterpret_cast<uintptr_t>(a), from_b = reinterpret_cast<uintptr_t>(b);
  return (from_b - from_a < static_cast<uintptr_t>(bytes_a)) | (from_a - from_b < static_cast<uintptr_t>(bytes_b));
}

}  // namespace aotriton::v2::inline abi1
