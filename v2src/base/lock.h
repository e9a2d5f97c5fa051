// The one lock of the library: what a call does once, opening a driver, meeting a device, loading an image, is done by
// one thread at a time. A warm call never takes it.
#pragma once

#include <mutex>

namespace aotriton::v2::inline abi1 {

// A child of fork() finds it free.
std::mutex& slow_path() noexcept;

}  // namespace aotriton::v2::inline abi1
