// From a call and a GPU to the backend that serves it and the entry that won for each of its kernels.
#pragma once

#include "archs.h"
#include "call.h"

namespace aotriton::v2::inline abi1 {

// The GPU that a call runs on, or is explained for.
struct Place {
  int arch;  // place in kArchs
  int multiprocessors;

  const ArchInfo& info() const noexcept { return kArchs[arch]; }
};

// One cell of one kernel's table.
struct Selection {
  const KernelInfo* kernel;
  const Lut* lut;
  int godel_number;
  size_t cell;
  int64_t keys[kMaxKeys];

  const Entry& entry() const noexcept { return lut->entries[lut->index[cell]]; }
};

struct Dispatch {
  const OperatorInfo* info;
  Place place;
  size_t backend;
  const float* times;  // of the backends in this cell; null where they were not compared
  Selection kernels[kMaxKernels];

  const BackendInfo& chosen() const noexcept { return info->backends[backend]; }
};

// Which backends a call may get. `without_workspace` keeps to those that need none if the first one is one of them.
enum class Backends { all, first, without_workspace };

// unknown_arch, no_winner or not_supported where the first backend, which serves all that the build covers, does not.
Error dispatch(Call& call, const Place& place, Dispatch* dispatch, Backends among = Backends::all) noexcept;

// How the kernel reaches its tensors as they lie: the arch's fast way where they allow it. Null data counts as aligned.
Addressing usable_addressing(const KernelInfo& kernel, const Call& call, const Place& place) noexcept;

// Why a backend cannot serve a call: in constant text, and which of its kernels cannot. `choice` where that has no
// value for the call.
struct Unserved {
  const char* why;  // null: it can
  const KernelInfo* kernel;
  const ChoiceInfo* choice;
};

// Whether the backend can serve a call that was dispatched, and then what its kernels would run.
Unserved examine(const BackendInfo& backend, const Call& call, const Place& place, Selection* selections) noexcept;

// The value of a choice of the kernel that images have which serve the call, and the call's own, which may be smaller.
// False where there is none.
bool rounded(const KernelInfo& kernel, const ChoiceInfo& choice, const Call& call, const Place& place,
             int64_t* of_image, int64_t* of_call = nullptr) noexcept;

// Why the kernel cannot serve the call, or null. `psels` may be null.
const char* refusal(const KernelInfo& kernel, const Environment& environment) noexcept;

// The digit of a choice; -1 where the call has no value of it.
int digit(const ChoiceInfo& choice, const Environment& environment) noexcept;

// The place of `arch`, with `multiprocessors` where that is not 0; unknown_arch, null_pointer or invalid_argument.
Error find_place(const char* who, const char* arch, int multiprocessors, Place* place) noexcept;

// Sets the sizes that the chosen backend derives.
Error derive_sizes(Call& call, const Dispatch& dispatch) noexcept;

}  // namespace aotriton::v2::inline abi1
