// From a checked call to a prepared one: each kernel's arguments as the compiled kernel takes them.
#pragma once

#include <aotriton/explain.h>

#include <cstddef>
#include <cstdint>

#include "dispatch/chunks.h"
#include "dispatch/select.h"
#include "launch/prepared.h"

namespace aotriton::v2::inline abi1 {

// A prepared call under construction. Large: it belongs in memory that stays.
class Builder {
 public:
  // What the dispatched call needs on the device, loaded and in place.
  Error prepare(const Call& call, const Device& device, const Dispatch& dispatch, Stream stream) noexcept;

  // The same for one kernel with this image. All its operands are given.
  Error prepare(const Call& call, const Device& device, const KernelInfo& kernel, Image& image, const int32_t* psels,
                Stream stream) noexcept;

  // A call that is run as these parts, of which the second is null where all pieces are alike. They are its own then.
  Error prepare_parts(const Call& call, const Device& device, const Pieces& pieces,
                      Prepared* const (&parts)[2]) noexcept;

  // A call that launches nothing.
  void prepare_empty(const Call& call, const Device& device) noexcept;

  // The prepared call, to be destroyed by Prepared::destroy; null where there is no memory. `key` must have been
  // written. `recycled`: one that is no longer wanted, in whose block the new one may be, or null.
  Prepared* finish(Prepared* recycled = nullptr) const noexcept;

  Key key;

 private:
  static constexpr size_t kMaxArguments = 512;  // of all kernels
  static constexpr size_t kMaxPlaces = 256;
  static constexpr size_t kMaxKernelBytes = 4096;  // what a CUDA kernel can take
  static constexpr size_t kMaxBytes = 4 * kMaxKernelBytes;

  void begin(const Call& call, const Device& device) noexcept;
  Error add(const Call& call, const Device& device, const KernelInfo& kernel, const KernelPlan& plan, Image& image,
            Stream stream) noexcept;
  Error add_argument(const Call& call, const Argument& argument, const Image& image, const int64_t** number) noexcept;
  Error add_map(const OperandInfo& operand, const View& view, int64_t packed, const Image& image) noexcept;
  void note_place(const Call& call, size_t slot, bool map) noexcept;
  bool has_room(size_t arguments, size_t end) noexcept;
  void note(size_t begin, size_t size) noexcept;
  template <class Number>
  void append(Number number) noexcept;
  template <class Number>
  void put(Number number) noexcept;

  Prepared made_;  // but for what stands behind one
  PreparedLaunch launches_[kMaxKernels];
  void* data_[kMaxOperands + 1];
  int64_t extents_[kMaxOperands];
  int64_t part_steps_[kMaxOperands];
  size_t kernel_begin_;  // of the kernel's bytes
  uint32_t byte_count_;
  int descriptors_;  // that the kernel took so far
  bool overflow_;
  const size_t* offsets_of_workspace_;  // by slot
  uint32_t offsets_[kMaxArguments];     // into bytes_
  uint16_t sizes_[kMaxArguments];
  PointerPlace places_[kMaxPlaces];
  alignas(64) unsigned char bytes_[kMaxBytes];
};

}  // namespace aotriton::v2::inline abi1
