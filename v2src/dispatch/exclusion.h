// AOTRITON_EXCLUDE: images, backends and kernels that the process must not use, with commas between their names.
#pragma once

#include <atomic>

namespace aotriton::v2::inline abi1 {

// Null until the variable is read, which is once.
inline std::atomic<const char*> excluded_names{nullptr};

const char* read_exclusion() noexcept;

// The names; empty where nothing is excluded. The first call prints them to stderr.
inline const char* exclusion() noexcept {
  const char* const names = excluded_names.load(std::memory_order_acquire);
  return names ? names : read_exclusion();
}

}  // namespace aotriton::v2::inline abi1
