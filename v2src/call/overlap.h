// Whether strided tensors share memory with themselves or with each other.
#pragma once

#include <cstdint>

namespace aotriton::v2::inline abi1 {

// The bytes of a strided tensor: runs of `width` bytes, repeated. Strides are in bytes.
struct Footprint {
  uintptr_t begin;
  int64_t width;
  int rank;
  int64_t sizes[4], strides[4];
};

// Bytes from the first to behind the last one. Neither may overflow.
int64_t extent(const Footprint& footprint) noexcept;

// Whether two elements of the tensor may be one. It may say yes of interleaved layouts in which none are.
bool overlaps_itself(const Footprint& footprint) noexcept;

// Whether the two share a byte. Tensors whose strides have nothing in common may be said to.
bool overlap(const Footprint& a, const Footprint& b) noexcept;

}  // namespace aotriton::v2::inline abi1
