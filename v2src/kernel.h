// From a kernel's arguments to one launch: each argument's bytes as the compiled kernel takes them.
#pragma once

#include <aotriton/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device.h"
#include "image.h"

namespace aotriton::v2::inline abi1 {

struct Grid {
  int64_t x, y, z;
};

// The arguments of one launch, collected in kernel order, in storage of its own.
class ArgumentList {
 public:
  // Both must outlive the list.
  ArgumentList(const Driver& driver, const Image& image) noexcept : driver_(driver), image_(image) {}
  ArgumentList(const ArgumentList&) = delete;
  ArgumentList& operator=(const ArgumentList&) = delete;

  // A descriptor where the image takes descriptors and the argument has a block, else the data pointer.
  template <int Rank>
  void tensor(const Tensor<Rank>& tensor, bool has_block) noexcept {
    if (has_block && image_.descriptor_count > 0)
      descriptor(Rank, tensor.data, tensor.dtype, tensor.sizes, tensor.strides);
    else
      value(tensor.data);
  }

  // A number or a pointer. A kernel may take an integer narrower than it is given, a stride as i32 where tensors are
  // small: the driver reads the leading bytes, which on the little-endian hosts of both vendors are the low ones.
  template <class Scalar>
  void value(Scalar scalar) noexcept {
    if (void* place = reserve(sizeof scalar, alignof(Scalar))) memcpy(place, &scalar, sizeof scalar);
  }

  // Adds what every kernel takes after its own arguments. The first error met by any call, or success.
  Error finish() noexcept;

  void** pointers() noexcept { return pointers_; }
  const uint16_t* sizes() const noexcept { return sizes_; }
  int count() const noexcept { return count_; }

 private:
  static constexpr int kMaxArguments = 128;
  static constexpr size_t kMaxBytes = 4096;  // what a CUDA kernel can take

  void* reserve(size_t size, size_t alignment) noexcept;
  void descriptor(int rank, void* data, DType dtype, const int64_t* sizes, const int64_t* strides) noexcept;

  const Driver& driver_;
  const Image& image_;
  Error error_ = Error::success;
  int count_ = 0;
  int descriptors_ = 0;
  size_t used_ = 0;
  void* pointers_[kMaxArguments];
  uint16_t sizes_[kMaxArguments];
  alignas(64) unsigned char storage_[kMaxBytes];
};

// Launches the finished list; driver_failed names the image.
Error launch(const Device& device, const Image& image, void* function, const Grid& grid, ArgumentList& arguments,
             Stream stream) noexcept;

}  // namespace aotriton::v2::inline abi1
