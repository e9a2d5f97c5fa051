// Results of a call that has nothing to compute.
#pragma once

#include "call/call.h"
#include "driver/driver.h"

namespace aotriton::v2::inline abi1 {

// Fills the results of a call with a size of 0.
Error fill_results(const Call& call, const Driver& driver, Stream stream) noexcept;

}  // namespace aotriton::v2::inline abi1
