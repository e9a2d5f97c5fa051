// From a checked call to a prepared one: each kernel's arguments as the compiled kernel takes them.
#pragma once

#include <aotriton/explain.h>

#include <cstddef>
#include <cstdint>

#include "pieces.h"
#include "prepared.h"
#include "select.h"
#include "workspace.h"

namespace aotriton::v2::inline abi1 {

// A prepared call under construction. Large: it belongs in memory that stays.
class Builder {
 public:
  // What the call needs on the device, loaded and in place. The call's sizes are set; its workspace tensors become set.
  Error prepare(Call& call, const Device& device, const Dispatch& dispatch, Stream stream) noexcept;

  // The same for one kernel with this image. All its operands are given.
  Error prepare(Call& call, const Device& device, const KernelInfo& kernel, Image& image, const int32_t* psels,
                Stream stream) noexcept;

  // Bytes of workspace that the dispatch needs.
  Error workspace_size(Call& call, const Dispatch& dispatch, size_t* bytes) noexcept;

  // A call that is run as these parts, of which the second is null where all pieces are alike. They are its own then.
  Error prepare_parts(const Call& call, const Device& device, const Pieces& pieces,
                      Prepared* const (&parts)[2]) noexcept;

  // A call that launches nothing.
  void prepare_empty(const Call& call, const Device& device) noexcept;

  // The prepared call, to be destroyed by Prepared::destroy; null where there is no memory. Before it, the call's key
  // and pointers must have been kept.
  Prepared* finish() const noexcept;

  // Keeps the key of the call as it was given, before its checks put in what was left to them.
  void keep_key(const Call& call) noexcept;

 private:
  static constexpr size_t kMaxArguments = 512;  // of all kernels
  static constexpr size_t kMaxPlaces = 256;
  static constexpr size_t kMaxKernelBytes = 4096;  // what a CUDA kernel can take
  static constexpr size_t kMaxBytes = 4 * kMaxKernelBytes;

  void begin(const Call& call, const Device& device) noexcept;
  Error place_workspace(Call& call, const Dispatch& dispatch) noexcept;
  Error add(const Call& call, const Device& device, const KernelInfo& kernel, Image& image, const int32_t* psels,
            Stream stream) noexcept;
  Error add_argument(const Call& call, const Argument& argument, const Environment& environment,
                     const Image& image) noexcept;
  Error add_map(const OperandInfo& operand, const View& view, int64_t packed, const Image& image) noexcept;
  Error number(const Call& call, const Argument& argument, const Environment& environment, int64_t* value) noexcept;
  Error add_number(const Call& call, const Argument& argument, const Environment& environment) noexcept;
  void note_place(const Call& call, size_t slot, bool map) noexcept;
  void* reserve(size_t size, size_t alignment) noexcept;
  template <class Number>
  void put(Number number) noexcept;

  Prepared made_;
  size_t kernel_begin_;  // of the kernel's bytes
  int descriptors_;      // that the kernel took so far
  bool overflow_;
  Workspace workspace_;
  size_t offsets_[kMaxArguments];  // into bytes_
  uint16_t sizes_[kMaxArguments];
  PointerPlace places_[kMaxPlaces];
  alignas(64) unsigned char bytes_[kMaxBytes];
};

}  // namespace aotriton::v2::inline abi1
