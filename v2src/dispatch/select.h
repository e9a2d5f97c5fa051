// Selects the backend that serves a call on a GPU, and an entry for each of its kernels.
#pragma once

#include "call/checks.h"
#include "dispatch/launch_plan.h"
#include "dispatch/survey.h"
#include "dispatch/workspace.h"

namespace aotriton::v2::inline abi1 {

// What one kernel runs for a call: the fastest entry by predicted time, or else the one that won the call's cell.
struct Selection {
  const KernelInfo* kernel;
  const Lut* lut;
  const ProductTable* table;  // of the GPU's product
  int godel_number;
  size_t chosen;       // an entry
  float predicted_us;  // of that entry; 0 where it is not known
  int64_t keys[kMaxKeys];

  const Entry& entry() const noexcept { return lut->entries[chosen]; }
  const Cost* cost() const noexcept { return table->costs.empty() ? nullptr : &table->costs[chosen]; }
  size_t cell() const noexcept { return lut->cell(keys); }
  const Origin& origin() const noexcept { return table->origin(cell()); }
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
  Gpu gpu;
  size_t backend;
  float predicted_us;  // of all kernels of the backend; 0 where it is not known, or the cell decided
  By by;               // what decided
  bool constrained;    // it is another one than without the call's hints
  bool limited;        // by their limit of the workspace, whether that is kept or not
  size_t hint_count;   // of what follows: what became of each hint
  aotriton_hint_outcome hints[AOTRITON_MOST_OUTCOMES];
  Selection kernels[kMaxKernels];
  Workspace workspace;
  KernelPlan plans[kMaxKernels];  // of the kernels' launches

  const BackendInfo& chosen() const noexcept { return info->backends[backend]; }
};

// Which backends a call may get. `without_workspace` keeps to those that need none if the first one is one of them;
// `within_limit` to those of which the call's hints do not say that whichever images they run need more workspace.
enum class Backends { all, without_workspace, within_limit };

// A checked call and the dispatch that serves it: the call's derived sizes and the views of its workspace tensors are
// those of the dispatch. It refers to both.
class ChosenCall {
 public:
  const Call& call() const noexcept { return *call_; }
  const Dispatch& dispatch() const noexcept { return *dispatch_; }

 private:
  friend Result<ChosenCall> dispatch(CheckedCall call, const Gpu& gpu, Dispatch* made, Backends among, By by,
                                     bool worded) noexcept;
  friend Result<ChosenCall> lay_out(CheckedCall call, const Dispatch& dispatch) noexcept;
  friend class ChunkedCall;

  ChosenCall(const Call& call, const Dispatch& dispatch) noexcept : call_(&call), dispatch_(&dispatch) {}

  const Call* call_;
  const Dispatch* dispatch_;
};

// Chooses what serves the call, and plans its launches, in *made: the best backend of which every launch can be made.
// unknown_arch, no_winner or not_supported where no backend serves the call: the message is about the first one, which
// serves the most. Where it is not to be `worded`, it may be not_supported without a message: of a trial, whose refusal
// nobody reads.
Result<ChosenCall> dispatch(CheckedCall call, const Gpu& gpu, Dispatch* made, Backends among = Backends::all,
                            By by = By::time, bool worded = true) noexcept;

// Sets the derived sizes and workspace views of a call that differs from the dispatched one in its data alone.
Result<ChosenCall> lay_out(CheckedCall call, const Dispatch& dispatch) noexcept;

// Why a backend cannot serve a call: in constant text, and which of its kernels cannot. `choice` where that has no
// value for the call.
struct Unserved {
  const char* why;  // null: it can
  const KernelInfo* kernel;
  const ChoiceInfo* choice;
};

// Whether the backend can serve a call, and then what its kernels would run, of the entries that the filter allows.
Unserved examine(const BackendInfo& backend, Survey& survey, Selection* selections, By by = By::time,
                 const EntryFilter* filter = nullptr) noexcept;

// Microseconds of the backends in the lead's cell, as measured; null where they were not compared.
const float* times_in_cell(Survey& survey) noexcept;

// Predicted microseconds of a backend's kernels together; 0 where one of them is not known.
float predicted(const BackendInfo& backend, const Selection* selections) noexcept;

// Predicted microseconds of what the selection runs for the surveyed call, whatever chose it; 0 where that is not
// known.
float predicted(const Selection& selection, const Survey& survey) noexcept;

}  // namespace aotriton::v2::inline abi1
