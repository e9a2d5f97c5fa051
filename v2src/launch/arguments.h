// Builds a prepared call: loads its images, and writes each kernel's arguments as the compiled kernel takes them.
#pragma once

#include <aotriton/explain.h>

#include <cstddef>
#include <cstdint>

#include "dispatch/chunks.h"
#include "dispatch/select.h"
#include "launch/argument_layout.h"
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

// Keeps how the arguments of its last calls lie: it belongs in memory that stays.
class Builder {
 public:
  Builder() noexcept = default;
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  ~Builder();

  // A chosen call, with its images loaded on the device and its arguments written.
  Result<BuiltCall> build(ChosenCall chosen, const Device& device, Stream stream) noexcept;

  // The same of one kernel with this image. All operands of the kernel are given.
  Result<BuiltCall> build(CheckedCall call, const Device& device, const KernelInfo& kernel, Image& image,
                          const int32_t* tunables, Stream stream) noexcept;

  // A call in chunks, which takes these prepared ones; the second is null where all chunks are alike.
  Result<BuiltCall> build_chunks(const ChunkedCall& chunks, const Device& device,
                                 Prepared* const (&prepared)[2]) noexcept;

  // A call that launches nothing.
  BuiltCall build_empty(CheckedCall call, const Device& device) noexcept;

 private:
  friend class BuiltCall;

  static constexpr size_t kLayouts = 8;  // as a thread has operators in turn, and images of each

  void begin(const Call& call, const Device& device) noexcept;
  // Notes that the call needs so many bytes of workspace, which must be there.
  Error take_workspace(const Call& call, size_t bytes) noexcept;
  // `of_program`: kernels and images are a program's, which are there until the process ends.
  Error write(const Call& call, const Device& device, std::span<const Part> parts, bool of_program,
              const size_t* offsets, Stream stream) noexcept;
  // The layout of these launches, kept or new.
  Error find_layout(const Call& call, std::span<const Part> parts, const Driver& driver) noexcept;
  Error lay_out(const Call& call, std::span<const Part> parts, bool in_workspace, const Driver& driver,
                ArgumentLayout** place) noexcept;

  Prepared made_;                           // but for what stands behind one
  ArgumentLayout* layout_;                  // of its launches; null where it has none
  ArgumentLayout* layouts_[kLayouts] = {};  // the last one that was used comes first
  ArgumentLayout* own_ = nullptr;           // of what is not a program's: others may come to its addresses
  uint32_t laid_out_ = 0;                   // so far
  void* data_[kMaxOperands + 1];
  int64_t extents_[kMaxOperands];
  int64_t chunk_strides_[kMaxOperands];
};

}  // namespace aotriton::v2::inline abi1
