// What concerns no operator: loading images ahead of graph capture and of latency-critical work, numbers of the host in
// device memory, the version. C++17.
#pragma once

#include <aotriton/types.h>

namespace aotriton::v2 {
inline namespace abi1 {

// Loads every image of this build that fits the stream's device. Afterwards no call on that device loads or locks.
inline Error preload(Stream stream) noexcept { return static_cast<Error>(aotriton_preload(stream.handle)); }

// Writes numbers of the host to 8-byte aligned device memory, in the order of the stream, such as dropout's seed and
// offset; see c.h.
inline Error write_int64(int64_t* memory, const int64_t* values, size_t count, Stream stream) noexcept {
  return static_cast<Error>(aotriton_write_int64(memory, values, count, stream.handle));
}

// "major.minor.patch" of this library; never null.
inline const char* version() noexcept { return aotriton_version(); }

}  // namespace abi1
}  // namespace aotriton::v2
