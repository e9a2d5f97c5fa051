// Launches of one kernel with an image that is not in the archive, for the tuner. They take the road of dispatch: the
// same checks, arguments, grid and launch; only the selection is the caller's.
#pragma once

#include <aotriton/flash.h>

#include <cstdint>

#include "archs.h"
#include "lut.h"

namespace aotriton::v2::inline abi1::flash {

// An image and the functional that it was compiled for. An image that is too small for the head dim, or of another
// dtype, arch, causal or addressing than the tensors allow, is refused with invalid_argument.
struct Candidate {
  const char* kernel = nullptr;
  const char* arch = nullptr;
  DType T = DType::none;
  int32_t BLOCK_DMODEL = 0;
  bool CAUSAL = false;  // ignored by a kernel that has no such choice
  Addressing ADDRESSING = Addressing::general;
  int32_t psels[kMaxPsels] = {};  // in the order of KernelInfo::psels
  Image image = {};
};

// The kernel's description; null where there is none of this name.
const KernelInfo* find_kernel(const char* name) noexcept;

// Tensors as in attn_fwd_params and attn_bwd_params; delta as logsumexp. launch_attn_fwd takes the kernels of every
// backend of attn_fwd.
Error launch_attn_fwd(Candidate& candidate, const attn_fwd_params& params, Stream stream) noexcept;
Error launch_attn_bwd_preprocess(Candidate& candidate, const Tensor<4>& out, const Tensor<4>& dout,
                                 const Tensor<3>& delta, Stream stream) noexcept;
Error launch_attn_bwd_dk_dv(Candidate& candidate, const Tensor<4>& q, const Tensor<4>& k, const Tensor<4>& v,
                            const Tensor<4>& dout, const Tensor<3>& logsumexp, const Tensor<3>& delta,
                            const Tensor<4>& dk, const Tensor<4>& dv, float sm_scale, bool causal,
                            Stream stream) noexcept;
Error launch_attn_bwd_dq(Candidate& candidate, const Tensor<4>& q, const Tensor<4>& k, const Tensor<4>& v,
                         const Tensor<4>& dout, const Tensor<3>& logsumexp, const Tensor<3>& delta, const Tensor<4>& dq,
                         float sm_scale, bool causal, Stream stream) noexcept;

// `dq_sum`: fp32 [batch, heads_q, seqlen_q, head_dim], contiguous, 256-byte aligned. attn_bwd_hopper adds to it.
Error launch_attn_bwd_hopper_prepare(Candidate& candidate, const Tensor<4>& out, const Tensor<4>& dout,
                                     const Tensor<3>& delta, void* dq_sum, Stream stream) noexcept;
Error launch_attn_bwd_hopper(Candidate& candidate, const Tensor<4>& q, const Tensor<4>& k, const Tensor<4>& v,
                             const Tensor<4>& dout, const Tensor<3>& logsumexp, const Tensor<3>& delta,
                             const Tensor<4>& dk, const Tensor<4>& dv, void* dq_sum, float sm_scale, bool causal,
                             Stream stream) noexcept;
Error launch_attn_bwd_hopper_finish(Candidate& candidate, void* dq_sum, const Tensor<4>& dq, float sm_scale,
                                    Stream stream) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
