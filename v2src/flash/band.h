// The level of a call, and the band: which keys a row sees.
#pragma once

#include "flash/checks.h"

namespace aotriton::v2::inline abi1::flash {

// Makes the level of what the caller asks for: causal or not, where nothing else is hidden and the call has no
// features, nor a type or head dims that take images with features; else the band that every row sees, [row + lo, row +
// hi], with causal 0 then. invalid_argument for a causal_variant that is none.
Error set_level(Call& call, const Indices& indices, int64_t features) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
