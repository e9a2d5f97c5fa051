// From a dispatch and the call's hints to the dispatch that the hints leave, and what became of each of them.
#pragma once

#include "select.h"

namespace aotriton::v2::inline abi1 {

// Narrows what was dispatched for the call, which has hints. What was chosen stays where the hints allow it.
// not_supported, with what is in the way of each backend, where those that must be followed leave nothing.
Error narrow(Call& call, Backends among, By by, Dispatch* dispatch) noexcept;

}  // namespace aotriton::v2::inline abi1
