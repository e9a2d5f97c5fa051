// The numbers of a kernel's launch: its grid and whole-number arguments. No driver is needed, so that a query refuses
// what a call would.
#pragma once

#include "call/gpu.h"
#include "dispatch/misfit.h"

namespace aotriton::v2::inline abi1 {

// One kernel's launch. Without programs nothing is launched, and `numbers` is not set.
struct KernelPlan {
  bool has_programs;
  uint32_t grid[3];
  int64_t numbers[kMaxNumbers];  // i32, i64 and packed arguments, in their order
  size_t scratch;                // where its scratch memory begins in the workspace, of an image that needs any
};

// The launch of a kernel whose operands and derived sizes are set. `steps`: the values of the operator's steps for the
// call, or null.
Misfit plan_kernel(const Call& call, const KernelInfo& kernel, const Image& image, const int32_t* tunables,
                   const Gpu& gpu, const Values* steps, KernelPlan* plan) noexcept;

}  // namespace aotriton::v2::inline abi1
