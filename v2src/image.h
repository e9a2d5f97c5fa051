// One compiled kernel: embedded bytes, what a launch needs to know of them, and its handle in each context.
#pragma once

#include <aotriton/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace aotriton::v2::inline abi1 {

inline constexpr int kMaxDescriptors = 16;

// How the compiler wants one TMA descriptor encoded; dimensions innermost last, as in the kernel's source.
struct DescriptorLayout {
  uint8_t rank;
  uint8_t swizzle;    // CUtensorMapSwizzle
  uint16_t block[5];  // box sizes
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
  uint32_t size;            // bytes at data
  uint32_t unpacked_size;   // bytes after zlib inflation; equal to size where the image is stored plainly
  uint32_t shared;          // dynamic shared memory, bytes
  uint32_t global_scratch;  // bytes per program
  uint16_t threads;         // per program
  uint16_t descriptor_count;
  const DescriptorLayout* descriptors;         // one for each descriptor argument, in argument order
  std::atomic<ImageHandle*> handles{nullptr};  // grows at the front, and never shrinks
  std::atomic<bool> damaged{false};            // it was found not to unpack
};

}  // namespace aotriton::v2::inline abi1
