// The checks of whole calls, which dispatch and explicit candidates share.
#pragma once

#include <aotriton/flash.h>

#include "flash/problem.h"
#include "lut.h"

namespace aotriton::v2::inline abi1::flash {

Error check_attn_fwd(const attn_fwd_params& params, Data data, Problem* problem) noexcept;
Error check_attn_bwd(const attn_bwd_params& params, Data data, Problem* problem) noexcept;

// The arch to explain for, with `multiprocessors` where that is not 0; unknown_arch or invalid_argument.
Error find_arch(const KernelInfo& kernel, const char* arch, int multiprocessors, ArchInfo* found) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
