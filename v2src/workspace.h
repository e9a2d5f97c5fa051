// From a call and a backend to the workspace: the sizes that the backend derives, and where its tensors lie.
#pragma once

#include "call.h"

namespace aotriton::v2::inline abi1 {

struct Workspace {
  size_t bytes;
  size_t offsets[kMaxOperands];  // by slot
};

// Sets the sizes that the backend derives from these psels, of its kernel `psels_of`, and the views of its workspace
// tensors, one behind the other. not_supported where something does not fit in 63 bits.
Error lay_out(Call& call, const BackendInfo& backend, const int32_t* psels, int multiprocessors,
              Workspace* workspace) noexcept;

}  // namespace aotriton::v2::inline abi1
