// The Hopper backward's kernels, each a Kernel of dispatch.h. They add up dq in fp32, in the caller's workspace.
#pragma once

#include "attn_bwd_hopper.shim.h"
#include "attn_bwd_hopper_finish.shim.h"
#include "attn_bwd_hopper_prepare.shim.h"
#include "flash/problem.h"

namespace aotriton::v2::inline abi1::flash {

// What these refer to must outlive them.
struct AttnBwdHopperPrepare {
  using Functional = AttnBwdHopperPrepareFunctional;
  using Psels = AttnBwdHopperPreparePsels;
  static const KernelInfo& info() { return attn_bwd_hopper_prepare_info; }

  const Problem& problem;
  const Tensor<4>&out, &dout;
  const Tensor<3>& delta;
  const Tensor<4>& dq_sum;

  Addressing addressing(Addressing aligned) const { return usable_addressing(aligned, {&out, &dout}, {&delta}); }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), addressing};
  }
  AttnBwdHopperPrepareKeys keys(int) const { return {problem.seqlen_q}; }
  Grid grid(const Psels& psels, int) const {
    return {ceil_div(problem.seqlen_q, psels.BLOCK_M), problem.heads_q, problem.batch};
  }
  AttnBwdHopperPrepareArguments arguments() const {
    return {.Out = out,
            .DO = dout,
            .Delta = delta,
            .DQSum = dq_sum,
            .num_heads_q = problem.heads_q,
            .max_seqlen_q = problem.seqlen_q,
            .head_dim = problem.head_dim};
  }
};

struct AttnBwdHopper {
  using Functional = AttnBwdHopperFunctional;
  using Psels = AttnBwdHopperPsels;
  static const KernelInfo& info() { return attn_bwd_hopper_info; }

  const Problem& problem;
  const Tensor<4>&q, &k, &v, &dout, &dk, &dv, &dq_sum;
  const Tensor<3>&logsumexp, &delta;

  // Programs add to dq in any order.
  bool serves() const { return !problem.deterministic; }

  Addressing addressing(Addressing aligned) const {
    return usable_addressing(aligned, {&q, &k, &v, &dout, &dk, &dv}, {&logsumexp, &delta});
  }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), problem.causal, addressing};
  }
  AttnBwdHopperKeys keys(int multiprocessors) const {
    return {problem.seqlen_q, problem.seqlen_k,
            waves(problem.batch, problem.heads_k, problem.seqlen_k, multiprocessors)};
  }
  Grid grid(const Psels&, int) const { return {ceil_div(problem.seqlen_k, 128), problem.heads_k, problem.batch}; }
  AttnBwdHopperArguments arguments() const {
    return {.Q = q,
            .K = k,
            .V = v,
            .DO = dout,
            .DK = dk,
            .DV = dv,
            .DQSum = dq_sum,
            .L = logsumexp,
            .Delta = delta,
            .sm_scale = problem.sm_scale,
            .num_heads_q = problem.heads_q,
            .num_heads_k = problem.heads_k,
            .max_seqlen_q = problem.seqlen_q,
            .max_seqlen_k = problem.seqlen_k,
            .head_dim = problem.head_dim};
  }
};

struct AttnBwdHopperFinish {
  using Functional = AttnBwdHopperFinishFunctional;
  using Psels = AttnBwdHopperFinishPsels;
  static const KernelInfo& info() { return attn_bwd_hopper_finish_info; }

  const Problem& problem;
  const Tensor<4>&dq_sum, &dq;

  Addressing addressing(Addressing aligned) const { return usable_addressing(aligned, {&dq}, {}); }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), addressing};
  }
  AttnBwdHopperFinishKeys keys(int) const { return {problem.seqlen_q}; }
  Grid grid(const Psels& psels, int) const {
    return {ceil_div(problem.seqlen_q, psels.BLOCK_M), problem.heads_q, problem.batch};
  }
  AttnBwdHopperFinishArguments arguments() const {
    return {.DQSum = dq_sum,
            .DQ = dq,
            .sm_scale = problem.sm_scale,
            .max_seqlen_q = problem.seqlen_q,
            .head_dim = problem.head_dim};
  }
};

}  // namespace aotriton::v2::inline abi1::flash
