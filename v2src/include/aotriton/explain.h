// Which kernel a call gets, and why: answered from the built-in tables, without a GPU. C++17.
#pragma once

#include <aotriton/types.h>

namespace aotriton::v2 {
inline namespace abi1 {

// Where a winner comes from. Only `measured` was timed on this arch, for this functional and bin, with this very image.
enum class Provenance : uint8_t {
  measured = AOTRITON_MEASURED,
  borrowed = AOTRITON_BORROWED,
  predicted = AOTRITON_PREDICTED,
  imported = AOTRITON_IMPORTED,
};

inline const char* provenance_name(Provenance provenance) noexcept {
  switch (provenance) {
    case Provenance::measured:
      return "measured";
    case Provenance::borrowed:
      return "borrowed";
    case Provenance::predicted:
      return "predicted";
    case Provenance::imported:
      return "imported";
  }
  return "unknown";
}

using TuningKeyValue = aotriton_tuning_key;
using RunnerUp = aotriton_runner_up;
using BackendTime = aotriton_backend_time;
using BackendState = aotriton_backend_state;
using Padding = aotriton_padding;
using KernelChoice = aotriton_kernel_choice;

inline constexpr size_t kMaxKernels = 8;  // of a backend

struct Explanation {
  size_t kernel_count = 0;
  KernelChoice kernels[kMaxKernels] = {};  // in launch order
};

}  // namespace abi1
}  // namespace aotriton::v2
