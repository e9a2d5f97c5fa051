// The workspace of a backend: what its tensors and its images' scratch memory need, and where they lie. The sizes of
// tensors are described in rules/.
#pragma once

#include "dispatch/launch_plan.h"

namespace aotriton::v2::inline abi1 {

struct Workspace {
  size_t bytes;
  size_t offsets[kMaxOperands];  // by slot
};

// Bytes of workspace that the backend's tensors need with these tunables, of its kernel `tunables_of`; the most there
// can be where they do not fit in 63 bits. Sets the sizes that the backend derives. Counting ends beyond `limit`.
size_t workspace_bytes(Call& call, const BackendInfo& backend, const int32_t* tunables, int multiprocessors,
                       size_t limit = SIZE_MAX) noexcept;

// Whether the backend needs a workspace for the call: tensors of it may have no elements. One whose sizes follow
// tunables always counts as if it did.
inline bool needs_workspace(Call& call, const BackendInfo& backend, int multiprocessors) noexcept {
  return !backend.workspace.empty() &&
         (backend.sizes_follow_tunables || workspace_bytes(call, backend, nullptr, multiprocessors, 0));
}

// Sets the sizes that the backend derives from these tunables, of its kernel `tunables_of`, and the views of its
// workspace tensors, one behind the other.
Misfit lay_out(Call& call, const BackendInfo& backend, const int32_t* tunables, int multiprocessors,
               Workspace* workspace) noexcept;

// Puts the scratch memory of a planned launch, so many bytes for each of its programs as the image says, behind what
// the workspace has. Nothing where the image needs none.
Misfit add_scratch(const Image& image, KernelPlan* plan, Workspace* workspace) noexcept;

}  // namespace aotriton::v2::inline abi1
