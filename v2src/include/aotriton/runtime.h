// What a program may do before its first call: load images ahead of graph capture and of latency-critical work.
#pragma once

#include <aotriton/types.h>

namespace aotriton::v2::inline abi1 {

// Loads every image of this build that fits the stream's device. Afterwards no call on that device loads, allocates or
// locks. At most 16 devices (CUDA: contexts) in one process; images stay loaded as long as their context lives.
AOTRITON_API Error preload(Stream stream) noexcept;

// "major.minor.patch" of this library; never null.
AOTRITON_API const char* version() noexcept;

}  // namespace aotriton::v2::inline abi1
