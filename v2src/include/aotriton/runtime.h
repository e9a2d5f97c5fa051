// What a program may do before its first call: load images ahead of graph capture and of latency-critical work. C++17.
#pragma once

#include <aotriton/types.h>

namespace aotriton::v2 {
inline namespace abi1 {

// Loads every image of this build that fits the stream's device. Afterwards no call on that device loads or locks.
inline Error preload(Stream stream) noexcept { return static_cast<Error>(aotriton_preload(stream.handle)); }

// "major.minor.patch" of this library; never null.
inline const char* version() noexcept { return aotriton_version(); }

}  // namespace abi1
}  // namespace aotriton::v2
