// The one lock of the library. Opening a driver, reading a device's properties and loading an image happen once, by one
// thread at a time. A warm call never takes the lock.
#pragma once

#include <mutex>

namespace aotriton::v2::inline abi1 {

// A child of fork() finds it free.
std::mutex& slow_path() noexcept;

}  // namespace aotriton::v2::inline abi1
