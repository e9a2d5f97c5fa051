// One compiled kernel: embedded bytes, what a launch needs to know of them, and the handles it has on each device.
#pragma once

#include <aotriton/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace aotriton::v2::inline abi1 {

inline constexpr int kMaxDevices = 16;
inline constexpr int kMaxDescriptors = 8;

// How the compiler wants one TMA descriptor encoded; dimensions innermost last, as in the kernel's source.
struct DescriptorLayout {
  uint8_t rank;
  uint8_t swizzle;    // CUtensorMapSwizzle
  uint16_t block[4];  // box sizes
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
  DescriptorLayout descriptors[kMaxDescriptors];   // one for each descriptor argument, in argument order
  std::atomic<void*> functions[kMaxDevices] = {};  // CUfunction or hipFunction_t by device slot; null until loaded
  void* modules[kMaxDevices] = {};                 // what the functions are in; only touched under the load lock
};

}  // namespace aotriton::v2::inline abi1
