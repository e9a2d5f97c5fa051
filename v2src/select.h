// From a call and a GPU to the backend that serves it and the entry that won for each of its kernels.
#pragma once

#include "call.h"
#include "place.h"
#include "workspace.h"

namespace aotriton::v2::inline abi1 {

// What one kernel runs for a call: the fastest entry by predicted time, or else the one that won the call's cell.
struct Selection {
  const KernelInfo* kernel;
  const Lut* lut;
  const Decisions* decisions;  // of the place's product
  int godel_number;
  size_t cell;
  size_t chosen;       // an entry
  float predicted_us;  // of that entry; 0 where it is not known
  int64_t keys[kMaxKeys];

  const Entry& entry() const noexcept { return lut->entries[chosen]; }
  const Cost* cost() const noexcept { return decisions->costs.empty() ? nullptr : &decisions->costs[chosen]; }
  const Evidence& evidence() const noexcept { return decisions->evidence[cell]; }
};

// Which of a kernel's entries may serve.
class EntryFilter {
 public:
  virtual bool allows(const KernelInfo& kernel, const Entry& entry) const noexcept = 0;

 protected:
  ~EntryFilter() = default;
};

// What decides: predicted times, where there are any, or the call's cell alone.
enum class By { time, cell };

struct Dispatch {
  const OperatorInfo* info;
  Place place;
  size_t backend;
  const float* times;  // of the backends in this cell, as measured; null where they were not compared
  float predicted_us;  // of all kernels of the backend; 0 where it is not known, or the cell decided
  By by;               // what decided
  bool narrowed;       // to another one than without the call's hints
  bool limited;        // by their limit of the workspace, whether that is kept or not
  size_t hint_count;   // of what follows: what became of each hint
  aotriton_hint_outcome hints[AOTRITON_MOST_OUTCOMES];
  Selection kernels[kMaxKernels];

  const BackendInfo& chosen() const noexcept { return info->backends[backend]; }
};

// Which backends a call may get. `without_workspace` keeps to those that need none if the first one is one of them.
enum class Backends { all, first, without_workspace };

// unknown_arch, no_winner or not_supported where the first backend, which serves all that the build covers, does not.
Error dispatch(Call& call, const Place& place, Dispatch* dispatch, Backends among = Backends::all,
               By by = By::time) noexcept;

// How the kernel reaches its tensors as they lie: the arch's fast way where they allow it. Null data counts as aligned.
Addressing usable_addressing(const KernelInfo& kernel, const Call& call, const Place& place) noexcept;

// Why a backend cannot serve a call: in constant text, and which of its kernels cannot. `choice` where that has no
// value for the call.
struct Unserved {
  const char* why;  // null: it can
  const KernelInfo* kernel;
  const ChoiceInfo* choice;
};

// Whether the backend can serve a call that was dispatched, and then what its kernels would run, of the entries that
// the filter allows.
Unserved examine(const BackendInfo& backend, const Call& call, const Place& place, Selection* selections,
                 By by = By::time, const EntryFilter* filter = nullptr) noexcept;

// Predicted microseconds of a backend's kernels together; 0 where one of them is not known.
float predicted(const BackendInfo& backend, const Selection* selections) noexcept;

// The value of a choice of the kernel that images have which serve the call, and the call's own, which may be smaller.
// False where there is none.
bool rounded(const KernelInfo& kernel, const ChoiceInfo& choice, const Call& call, const Place& place,
             int64_t* of_image, int64_t* of_call = nullptr) noexcept;

// Why the kernel cannot serve the call, or null. `psels` may be null.
const char* refusal(const KernelInfo& kernel, const Environment& environment) noexcept;

// The digit of a choice; -1 where the call has no value of it.
int digit(const ChoiceInfo& choice, const Environment& environment) noexcept;

// As lay_out() of workspace.h, of the chosen backend.
Error lay_out(Call& call, const Dispatch& dispatch, Workspace* workspace) noexcept;

}  // namespace aotriton::v2::inline abi1
