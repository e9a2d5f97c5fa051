// From a dispatch and the call's hints to the dispatch that the hints leave, and what became of each of them.
#pragma once

#include "dispatch/select.h"

namespace aotriton::v2::inline abi1 {

// Narrows what was dispatched for the call, which has hints, or whose process leaves something out. What was chosen
// stays where they allow it. not_supported, with what is in the way of each backend, where those that must be followed
// leave nothing.
// `survey` is the call's, and `refused` has the backends, as bits, of which a launch cannot be made.
Error narrow(Survey& survey, Call& call, Backends among, By by, unsigned refused, Dispatch* dispatch) noexcept;

// The backends, as bits, whose workspace is beyond the limit of the call's hints whichever images they run.
unsigned beyond_limit(Call& call, int multiprocessors) noexcept;

}  // namespace aotriton::v2::inline abi1
