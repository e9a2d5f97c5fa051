// Keys and values of new tokens into a cache, on torch's tensors.
#pragma once

#include "torch/tensor.h"

namespace aotriton_torch {

// As aotriton_kv_append, on the GPU or the CPU that the tensors are on. What is written, the caches and q, must have a
// contiguous last dimension: a copy would be written in its place. Others are copied where they have none, but not
// scales, which may have any strides.
void kv_append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const Tensor& seqused_k,
               const Maybe& q, const Maybe& rotary_cos, const Maybe& rotary_sin, const Maybe& cu_seqlens_k,
               const Maybe& block_table, const Maybe& k_descale, const Maybe& v_descale, bool rotary_interleaved,
               const std::string& hints);

}  // namespace aotriton_torch
