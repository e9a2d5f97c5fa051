// The Hopper forward as a Kernel of dispatch.h: each multiprocessor has one program, which takes tile after tile.
#pragma once

#include <algorithm>

#include "attn_fwd_hopper.shim.h"
#include "flash/problem.h"

namespace aotriton::v2::inline abi1::flash {

// What this refers to must outlive it.
struct AttnFwdHopper {
  using Functional = AttnFwdHopperFunctional;
  using Psels = AttnFwdHopperPsels;
  static const KernelInfo& info() { return attn_fwd_hopper_info; }

  const Problem& problem;
  const Tensor<4>&q, &k, &v, &out;
  const Tensor<3>& logsumexp;

  // It counts tiles in 32 bits, most of them where each has one consumer, and a round of programs beyond the last.
  bool serves() const { return tiles(1) <= INT32_MAX / 2; }

  Addressing addressing(Addressing aligned) const {
    return usable_addressing(aligned, {&q, &k, &v, &out}, {&logsumexp});
  }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), problem.causal, addressing};
  }
  AttnFwdHopperKeys keys(int multiprocessors) const {
    return {problem.seqlen_q, problem.seqlen_k,
            waves(problem.batch, problem.heads_q, problem.seqlen_q, multiprocessors)};
  }
  Grid grid(const Psels& psels, int multiprocessors) const {
    return {std::min<int64_t>(tiles(psels.CONSUMERS), multiprocessors), 1, 1};
  }
  AttnFwdHopperArguments arguments() const {
    return {.Q = q,
            .K = k,
            .V = v,
            .Out = out,
            .L = logsumexp,
            .store_lse = logsumexp.data != nullptr,
            .sm_scale = problem.sm_scale,
            .num_heads_q = problem.heads_q,
            .num_heads_k = problem.heads_k,
            .max_seqlen_q = problem.seqlen_q,
            .max_seqlen_k = problem.seqlen_k,
            .head_dim = problem.head_dim,
            .batch = problem.batch};
  }

 private:
  int64_t tiles(int consumers) const {
    return ceil_div(problem.seqlen_q, 64 * consumers) * problem.heads_q * problem.batch;
  }
};

}  // namespace aotriton::v2::inline abi1::flash
