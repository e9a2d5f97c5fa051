// Builds a prepared call: loads its images, and writes each kernel's arguments as the compiled kernel takes them.
#pragma once

#include <aotriton/explain.h>

#include <cstddef>
#include <cstdint>

#include "dispatch/chunks.h"
#include "dispatch/select.h"
#include "launch/prepared.h"

namespace aotriton::v2::inline abi1 {

class Builder;

// A call that a builder has built, and holds until it builds another one.
class BuiltCall {
 public:
  // The prepared call, to be destroyed by Prepared::destroy; null where there is no memory. `recycled`: one that is no
  // longer used, whose block the new one may take, or null.
  Prepared* finish(const Key& key, Prepared* recycled = nullptr) const noexcept;

 private:
  friend class Builder;

  explicit BuiltCall(const Builder& builder) noexcept : builder_(&builder) {}

  const Builder* builder_;
};

// Large: it belongs in memory that stays.
class Builder {
 public:
  // A chosen call, with its images loaded on the device and its arguments written.
  Result<BuiltCall> build(ChosenCall chosen, const Device& device, Stream stream) noexcept;

  // The same of one kernel with this image. All operands of the kernel are given.
  Result<BuiltCall> build(CheckedCall call, const Device& device, const KernelInfo& kernel, Image& image,
                          const int32_t* psels, Stream stream) noexcept;

  // A call in chunks, which takes these prepared ones; the second is null where all chunks are alike.
  Result<BuiltCall> build_chunks(const ChunkedCall& chunks, const Device& device,
                                 Prepared* const (&prepared)[2]) noexcept;

  // A call that launches nothing.
  BuiltCall build_empty(CheckedCall call, const Device& device) noexcept;

 private:
  friend class BuiltCall;

  static constexpr size_t kMaxPointers = kMaxKernels * (kMaxOperands + 4);  // a kernel may take an operand twice
  static constexpr size_t kMaxKernelBytes = 4096;                           // what a CUDA kernel can take
  static constexpr size_t kMaxBytes = 4 * kMaxKernelBytes;
  // Whether an argument had room is seen when it is written. A tensor map is the largest one, with its sizes and
  // strides.
  static constexpr size_t kMoreArguments = 1 + 2 * (kMaxRank + 1) + 2;
  static constexpr size_t kMoreBytes = alignof(TensorMap) + sizeof(TensorMap) + 8 * kMoreArguments;

  struct Cursor;

  void begin(const Call& call, const Device& device) noexcept;
  Error add(const Call& call, const Device& device, const KernelInfo& kernel, const KernelPlan& plan, Image& image,
            bool early, Stream stream) noexcept;
  Error add_argument(const Call& call, const Argument& argument, const Image& image, Cursor& cursor) noexcept;
  Error add_map(const Argument& argument, const OperandInfo& operand, const View& view, int64_t of_box,
                const Image& image, Cursor& cursor) noexcept;

  Prepared made_;  // but for what stands behind one
  PreparedLaunch launches_[kMaxKernels];
  void* data_[kMaxOperands + 1];
  int64_t extents_[kMaxOperands];
  int64_t chunk_strides_[kMaxOperands];
  size_t byte_count_;
  const size_t* offsets_of_workspace_;                // by slot
  uint32_t offsets_[kMaxArguments + kMoreArguments];  // into bytes_
  uint16_t sizes_[kMaxArguments + kMoreArguments];
  PointerArgument pointers_[kMaxPointers + 1];
  alignas(64) unsigned char bytes_[kMaxBytes + kMoreBytes];
};

}  // namespace aotriton::v2::inline abi1
