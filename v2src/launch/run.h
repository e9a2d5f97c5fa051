// Runs, prepares and explains a call of any operator.
#pragma once

#include <aotriton/types.h>

#include "call/call.h"
#include "dispatch/select.h"
#include "launch/prepared.h"

namespace aotriton::v2::inline abi1 {

// Launches. A call that differs from one of this thread's last ones in nothing but its pointers is not checked,
// dispatched or built again; nothing is allocated or locked then. `layout` and `params`: of what the call was
// made; null where that does not say all of it.
Error run(Call& call, Stream stream, const ParamsLayout* layout = nullptr, const void* params = nullptr) noexcept;

// Launches a call with these parameters, if it is the thread's last one of the operator but for what may differ, and
// sets *error. False where it is not, or may not have its pointers.
bool run_again(const ParamsLayout& layout, const void* params, Stream stream, Error* error) noexcept;

// The call, to be launched again and again, and to be destroyed by Prepared::destroy.
Error prepare(Call& call, Stream stream, Prepared** prepared) noexcept;

// Launches with these pointers, one for each operand and one for the workspace.
Error launch(Prepared* prepared, void* const* pointers, size_t count, Stream stream) noexcept;

// Bytes of workspace that the call needs on the stream's device; where data is not given, wherever it will be.
Error workspace_size(Call& call, Stream stream, size_t* bytes) noexcept;

// Whether the stream's device can run the call; the error says why not.
Error supported(Call& call, Stream stream) noexcept;

// What becomes of each of the call's hints on the stream's device. There is room for *count, which becomes their
// number.
Error hint_outcomes(Call& call, Stream stream, aotriton_hint_outcome* outcomes, size_t* count) noexcept;

// Loads what the call needs.
Error preload(Call& call, Stream stream) noexcept;

// The kernels that the call would run on a GPU, see find_gpu() and c.h.
Error explain(Call& call, const char* arch, const char* product, int multiprocessors, aotriton_kernel_choice* kernels,
              size_t* count, By by = By::time) noexcept;

}  // namespace aotriton::v2::inline abi1
