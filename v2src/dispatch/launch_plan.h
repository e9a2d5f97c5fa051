// The numbers of a call's launches: the sizes that the backend derives, the offsets of its workspace tensors, each
// kernel's grid and whole-number arguments. No driver is needed, so that a query refuses what a call would.
#pragma once

#include "call/call.h"
#include "call/gpu.h"

namespace aotriton::v2::inline abi1 {

struct Workspace {
  size_t bytes;
  size_t offsets[kMaxOperands];  // by slot
};

// One kernel's launch. Without programs nothing is launched, and `numbers` is not set.
struct KernelPlan {
  bool has_programs;
  uint32_t grid[3];
  int64_t numbers[kMaxNumbers];  // i32, i64 and packed arguments, in their order
};

// Why a launch cannot be made.
struct Misfit {
  enum What : uint8_t { none, derived_size, workspace, programs, threads, tensor_map, number, many_numbers };
  What what = none;
  uint8_t detail = 0;                  // the size by number, the axis, the slot, or the bits
  const KernelInfo* kernel = nullptr;  // of programs, threads and many_numbers

  explicit operator bool() const noexcept { return what != none; }
};

// Bytes of workspace that the backend needs with these psels, of its kernel `psels_of`; the most there can be where
// they do not fit in 63 bits. Sets the sizes that the backend derives. Counting ends beyond `limit`.
size_t workspace_bytes(Call& call, const BackendInfo& backend, const int32_t* psels, int multiprocessors,
                       size_t limit = SIZE_MAX) noexcept;

// Sets the sizes that the backend derives from these psels, of its kernel `psels_of`, and the views of its workspace
// tensors, one behind the other.
Misfit lay_out(Call& call, const BackendInfo& backend, const int32_t* psels, int multiprocessors,
               Workspace* workspace) noexcept;

// The launch of a kernel whose operands and derived sizes are set. `steps`: the values of the operator's steps for the
// call, or null.
Misfit plan_kernel(const Call& call, const KernelInfo& kernel, const Image& image, const int32_t* psels, const Gpu& gpu,
                   const Values* steps, KernelPlan* plan) noexcept;

// not_supported, with the reason.
Error refuse(const Call& call, const Misfit& misfit) noexcept;

}  // namespace aotriton::v2::inline abi1
