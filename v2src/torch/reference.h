// The operators on host memory, as their formulas read: what tensors of a CPU get.
//
// Sums are of fp32, results are rounded once. The parameters were checked.
#pragma once

#include <aotriton/c.h>

namespace aotriton_torch {

void reference(const aotriton_attn_fwd_params& params);
void reference(const aotriton_attn_bwd_params& params);
void reference(const aotriton_kv_append_params& params);
void reference(const aotriton_gemm_params& params);

}  // namespace aotriton_torch
