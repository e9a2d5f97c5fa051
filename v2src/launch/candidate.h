// Launches of one kernel with an image that is not in the archive, for the tuner. They take the road of dispatch: the
// same checks, arguments, grid and launch; only the choice is the caller's.
#pragma once

#include <aotriton/types.h>

#include <cstdint>

#include "archs.h"
#include "call/call.h"

namespace aotriton::v2::inline abi1 {

// An image and what it was compiled for. The descriptions must outlive it.
struct Candidate {
  const KernelInfo* kernel = nullptr;
  int arch = 0;                         // index in kArchs
  size_t values[kMaxChoices] = {};      // of each choice of the kernel, by index among its values
  int32_t tunables[kMaxTunables] = {};  // in the order of KernelInfo::tunables
  Image image = {};
};

// invalid_argument where the image is for another arch, or for other values of the choices than the call has: an image
// for wider tensors than the call's, or for any strides, may run. The call has the operands that the kernel takes, the
// sizes that a backend would derive, and those that no operand has; its other sizes are 0. Its workspace is the image's
// scratch memory: workspace_too_small where that lacks.
Error run(Candidate& candidate, Call& call, Stream stream) noexcept;

// Bytes of workspace that such a launch needs; 0 where the image needs no scratch memory.
Error workspace_size(Candidate& candidate, Call& call, Stream stream, size_t* bytes) noexcept;

}  // namespace aotriton::v2::inline abi1
