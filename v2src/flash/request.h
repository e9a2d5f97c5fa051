// From sizes alone to an explanation: the call that contiguous tensors of these sizes would make.
#pragma once

#include <aotriton/explain.h>
#include <aotriton/types.h>

#include <cstdint>

namespace aotriton::v2::inline abi1::flash {

struct ExplainRequest {
  const char* op = nullptr;     // "attn_fwd" or "attn_bwd"
  const char* arch = nullptr;   // such as "sm_90"
  const char* dtype = nullptr;  // "fp16" or "bf16"
  int64_t batch = 0, heads = 0, heads_k = 0, seqlen_q = 0, seqlen_k = 0, head_dim = 0;
  bool causal = false;
  int multiprocessors = 0;  // 0: the arch's usual product
};

// invalid_argument for an op or a dtype that is unknown; else as aotriton::v2::explain.
Error explain(const ExplainRequest& request, Explanation* explanation) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
