// Each portable attention kernel as a Kernel of dispatch.h: its tensors, functional, tuning keys, grid and arguments.
#pragma once

#include "attn_bwd_dk_dv.shim.h"
#include "attn_bwd_dq.shim.h"
#include "attn_bwd_preprocess.shim.h"
#include "attn_fwd.shim.h"
#include "backend.h"
#include "flash/attn_bwd_hopper.h"
#include "flash/attn_bwd_hopper_split.h"
#include "flash/attn_fwd_hopper.h"
#include "flash/problem.h"

namespace aotriton::v2::inline abi1::flash {

inline constexpr const KernelInfo* kKernels[] = {&attn_fwd_info,
                                                 &attn_fwd_hopper_info,
                                                 &attn_bwd_preprocess_info,
                                                 &attn_bwd_dk_dv_info,
                                                 &attn_bwd_dq_info,
                                                 &attn_bwd_hopper_prepare_info,
                                                 &attn_bwd_hopper_info,
                                                 &attn_bwd_hopper_finish_info,
                                                 &attn_bwd_hopper_dk_dv_info,
                                                 &attn_bwd_hopper_dq_info};

// Defined in <operator>.backends.cc, which is generated.
extern const OperatorInfo attn_fwd_operator, attn_bwd_operator;

// What these refer to must outlive them.
struct AttnFwd {
  using Functional = AttnFwdFunctional;
  using Psels = AttnFwdPsels;
  static const KernelInfo& info() { return attn_fwd_info; }

  const Problem& problem;
  const Tensor<4>&q, &k, &v, &out;
  const Tensor<3>& logsumexp;

  Addressing addressing(Addressing aligned) const {
    return usable_addressing(aligned, {&q, &k, &v, &out}, {&logsumexp});
  }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), problem.causal, addressing};
  }
  AttnFwdKeys keys(int multiprocessors) const {
    return {problem.seqlen_q, problem.seqlen_k,
            waves(problem.batch, problem.heads_q, problem.seqlen_q, multiprocessors)};
  }
  Grid grid(const Psels& psels, int) const {
    return {ceil_div(problem.seqlen_q, psels.BLOCK_M), problem.heads_q, problem.batch};
  }
  AttnFwdArguments arguments() const {
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
            .head_dim = problem.head_dim};
  }
};

struct AttnBwdPreprocess {
  using Functional = AttnBwdPreprocessFunctional;
  using Psels = AttnBwdPreprocessPsels;
  static const KernelInfo& info() { return attn_bwd_preprocess_info; }

  const Problem& problem;
  const Tensor<4>&out, &dout;
  const Tensor<3>& delta;

  Addressing addressing(Addressing aligned) const { return usable_addressing(aligned, {&out, &dout}, {&delta}); }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), addressing};
  }
  AttnBwdPreprocessKeys keys(int) const { return {problem.seqlen_q}; }
  Grid grid(const Psels& psels, int) const {
    return {ceil_div(problem.seqlen_q, psels.BLOCK_M), problem.heads_q, problem.batch};
  }
  AttnBwdPreprocessArguments arguments() const {
    return {.Out = out,
            .DO = dout,
            .Delta = delta,
            .num_heads_q = problem.heads_q,
            .max_seqlen_q = problem.seqlen_q,
            .head_dim = problem.head_dim};
  }
};

struct AttnBwdDkDv {
  using Functional = AttnBwdDkDvFunctional;
  using Psels = AttnBwdDkDvPsels;
  static const KernelInfo& info() { return attn_bwd_dk_dv_info; }

  const Problem& problem;
  const Tensor<4>&q, &k, &v, &dout, &dk, &dv;
  const Tensor<3>&logsumexp, &delta;

  Addressing addressing(Addressing aligned) const {
    return usable_addressing(aligned, {&q, &k, &v, &dout, &dk, &dv}, {&logsumexp, &delta});
  }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), problem.causal, addressing};
  }
  AttnBwdDkDvKeys keys(int multiprocessors) const {
    return {problem.seqlen_q, problem.seqlen_k,
            waves(problem.batch, problem.heads_k, problem.seqlen_k, multiprocessors)};
  }
  Grid grid(const Psels& psels, int) const {
    return {ceil_div(problem.seqlen_k, psels.BLOCK_N), problem.heads_k, problem.batch};
  }
  AttnBwdDkDvArguments arguments() const {
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

struct AttnBwdDq {
  using Functional = AttnBwdDqFunctional;
  using Psels = AttnBwdDqPsels;
  static const KernelInfo& info() { return attn_bwd_dq_info; }

  const Problem& problem;
  const Tensor<4>&q, &k, &v, &dout, &dq;
  const Tensor<3>&logsumexp, &delta;

  Addressing addressing(Addressing aligned) const {
    return usable_addressing(aligned, {&q, &k, &v, &dout, &dq}, {&logsumexp, &delta});
  }
  Functional functional(Addressing addressing) const {
    return {problem.dtype, padded_head_dim(problem.head_dim), problem.causal, addressing};
  }
  AttnBwdDqKeys keys(int multiprocessors) const {
    return {problem.seqlen_q, problem.seqlen_k,
            waves(problem.batch, problem.heads_q, problem.seqlen_q, multiprocessors)};
  }
  Grid grid(const Psels& psels, int) const {
    return {ceil_div(problem.seqlen_q, psels.BLOCK_M), problem.heads_q, problem.batch};
  }
  AttnBwdDqArguments arguments() const {
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
