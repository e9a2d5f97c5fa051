// Keys and values of 8 bits, and what multiplies them: what attention's forward and the append to a cache ask of them.
#pragma once

#include "call/call.h"

namespace aotriton::v2::inline abi1::flash {

// Both have one type, and only those of 8 bits have scales. `k`, `v`, `k_descale`, `v_descale`: their slots.
Error check_scales(const Call& call, size_t k, size_t v, size_t k_descale, size_t v_descale) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
