// The kernels that the Hopper backward has at head dim 256, each a Kernel of dispatch.h.
#pragma once

#include "attn_bwd_hopper_dk_dv.shim.h"
#include "attn_bwd_hopper_dq.shim.h"
#include "flash/problem.h"

namespace aotriton::v2::inline abi1::flash {

// What these refer to must outlive them.
struct AttnBwdHopperDkDv {
  using Functional = AttnBwdHopperDkDvFunctional;
  using Psels = AttnBwdHopperDkDvPsels;
  static const KernelInfo& info() { return attn_bwd_hopper_dk_dv_info; }

  const Problem& problem;
  const Tensor<4>&q, &k, &v, &dout, &dk, &dv;
  const Tensor<3>&logsumexp, &delta;

  Addressing addressing(Addressing aligned) const {
    return usable_addressing(aligned, {&q, &k, &v, &dout, &dk, &dv}, {&logsumexp, &delta});
  }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), problem.causal, addressing};
  }
  AttnBwdHopperDkDvKeys keys(int multiprocessors) const {
    return {problem.seqlen_q, problem.seqlen_k,
            waves(problem.batch, problem.heads_k, problem.seqlen_k, multiprocessors)};
  }
  Grid grid(const Psels&, int) const { return {ceil_div(problem.seqlen_k, 64), problem.heads_k, problem.batch}; }
  AttnBwdHopperDkDvArguments arguments() const {
    return {.Q = q,
            .K = k,
            .V = v,
            .DO = dout,
            .DK = dk,
            .DV = dv,
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

struct AttnBwdHopperDq {
  using Functional = AttnBwdHopperDqFunctional;
  using Psels = AttnBwdHopperDqPsels;
  static const KernelInfo& info() { return attn_bwd_hopper_dq_info; }

  const Problem& problem;
  const Tensor<4>&q, &k, &v, &dout, &dq;
  const Tensor<3>&logsumexp, &delta;

  Addressing addressing(Addressing aligned) const {
    return usable_addressing(aligned, {&q, &k, &v, &dout, &dq}, {&logsumexp, &delta});
  }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), problem.causal, addressing};
  }
  AttnBwdHopperDqKeys keys(int multiprocessors) const {
    return {problem.seqlen_q, problem.seqlen_k,
            waves(problem.batch, problem.heads_q, problem.seqlen_q, multiprocessors)};
  }
  Grid grid(const Psels&, int) const { return {ceil_div(problem.seqlen_q, 128), problem.heads_q, problem.batch}; }
  AttnBwdHopperDqArguments arguments() const {
    return {.Q = q,
            .K = k,
            .V = v,
            .DO = dout,
            .DQ = dq,
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

}  // namespace aotriton::v2::inline abi1::flash
