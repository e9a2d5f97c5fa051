// One compiled kernel: embedded bytes, what a launch needs to know of them, and its handle in each context.
#pragma once

#include <aotriton/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace aotriton::v2::inline abi1 {

inline constexpr int kMaxDescriptors = 16;

// How the compiler wants one TMA descriptor encoded; dimensions innermost last, as in the kernel's source.
struct DescriptorLayout {
  uint8_t rank;
  uint8_t swizzle;    // CUtensorMapSwizzle
  uint16_t block[5];  // box sizes
};

// What checks of an image's results on one product found, each against a high-precision reference: none was wrong.
struct Certificate {
  uint8_t product;    // of the arch, by number
  uint16_t problems;  // that were checked
  uint32_t checks;    // of them, some more than once
  uint32_t day;       // of the last check: 20261124
  float error;        // the largest one, relative to the result
  float allowed;      // by the check that found it
};

// Where the image is loaded. `id` is written last and read first, so a reader sees whole handles only.
struct ImageHandle {
  std::atomic<uint64_t> id;  // of the context; 0: of none
  void* context;
  void* module;
  void* function;  // CUfunction or hipFunction_t
  ImageHandle* next;
};

struct Image {
  const char* name;   // also the image's key in the tuning database
  const char* entry;  // function symbol inside the binary
  const unsigned char* data;
  uint32_t size;                // bytes at data
  uint32_t unpacked_size;       // bytes after zlib inflation; equal to size where the image is stored plainly
  const Image* base = nullptr;  // of the same unpacked size and without a base: data is how the image differs from it
  uint32_t shared;              // dynamic shared memory, bytes
  uint32_t global_scratch;      // bytes of scratch memory per program
  uint16_t threads;             // per program
  uint8_t level = 0;            // of its functional: which arguments of its kernel it takes
  uint16_t descriptor_count;
  const DescriptorLayout* descriptors;          // one for each descriptor argument, in argument order
  std::span<const Certificate> certificates{};  // one for each product that it was checked on; empty: compiled only
  std::atomic<ImageHandle*> handles{nullptr};   // grows at the front, and never shrinks
  std::atomic<bool> damaged{false};             // it was found not to unpack
};

// That of the product, or else the one of the most problems; null where the image was compiled only.
inline const Certificate* certificate_of(const Image& image, int product) noexcept {
  const Certificate* best = nullptr;
  for (const Certificate& one : image.certificates) {
    if (one.product == product) return &one;
    if (!best || one.problems > best->problems) best = &one;
  }
  return best;
}

}  // namespace aotriton::v2::inline abi1
