// Filters the candidates of a dispatch by the call's hints and by AOTRITON_EXCLUDE.
#pragma once

#include "dispatch/select.h"

namespace aotriton::v2::inline abi1 {

// Replaces what was dispatched by the best candidate that the call's hints and the process's exclusion allow, and
// writes the outcome of each hint. What was dispatched stays where it is allowed. not_supported, with the reason for
// each backend, where the hints that must be followed allow no candidate. `survey` is the call's; `refused` are the
// backends, as bits, of which a launch cannot be made.
Error filter_by_hints(Survey& survey, Call& call, Backends among, By by, unsigned refused, Dispatch* dispatch) noexcept;

// The backends, as bits, whose workspace exceeds the limit of the call's hints with any of their images.
unsigned beyond_limit(Call& call, int multiprocessors) noexcept;

}  // namespace aotriton::v2::inline abi1
