// The part of attention's parameters that forward and backward share: from c.h's struct to a call.
#pragma once

#include <aotriton/c.h>

#include <cstdint>
#include <span>

#include "base/error.h"
#include "flash/checks.h"

namespace aotriton::v2::inline abi1::flash {

// not_supported where a byte is not zero: a later version may have made a field of it.
Error check_reserved(const char* op, std::span<const uint8_t> reserved) noexcept;

// Sets the views and the scalars of all features. not_supported, with the name of the first feature that is asked for
// and that no kernel has; invalid_argument where a window is given that does not count.
Error bind_features(const aotriton_attn_features& features, const Indices& indices, Call* call) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
