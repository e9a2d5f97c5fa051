// The checks that forward and backward share: what attention asks beyond tensors that fit together.
#pragma once

#include "call/call.h"
#include "flash.shared.h"  // bits of features, levels, and what no kernel has together: rules/flash/features.py

namespace aotriton::v2::inline abi1::flash {

// The indices of what both operators have.
struct Indices {
  size_t q, bias, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, dropout_seed,
      dropout_offset;                                                                                // operands
  size_t batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim, head_dim_v, one, starts, sequences;  // sizes
  size_t sm_scale, causal, causal_variant, window_left, window_right, softcap, dropout, max_seqlen_q, max_seqlen_k,
      level, lo, hi, features, longest_q, longest_k, packed_sequences, self_attention;  // scalars
  int64_t most_head_dim;         // what kernels serve, by their description
  int64_t multiple_of_head_dim;  // what they assume where tensors are aligned
  // Of the forward.
  size_t block_table = kAbsent, pages = kAbsent, page_size = kAbsent, pages_of_sequence = kAbsent;
  size_t k = kAbsent, v = kAbsent, q_descale = kAbsent, k_descale = kAbsent, v_descale = kAbsent;

  static constexpr size_t kAbsent = SIZE_MAX;
};

// The same names in the namespace of an operator's indices, as Indices; the arguments are those of the forward.
#define AOTRITON_ATTENTION_INDICES(...) \
  {q,                                   \
   bias,                                \
   alibi_slopes,                        \
   sinks,                               \
   cu_seqlens_q,                        \
   cu_seqlens_k,                        \
   seqused_q,                           \
   seqused_k,                           \
   dropout_seed,                        \
   dropout_offset,                      \
   batch,                               \
   heads_q,                             \
   heads_k,                             \
   seqlen_q,                            \
   seqlen_k,                            \
   head_dim,                            \
   head_dim_v,                          \
   one,                                 \
   starts,                              \
   sequences,                           \
   sm_scale,                            \
   causal,                              \
   causal_variant,                      \
   window_left,                         \
   window_right,                        \
   softcap,                             \
   dropout,                             \
   max_seqlen_q,                        \
   max_seqlen_k,                        \
   level,                               \
   lo,                                  \
   hi,                                  \
   features,                            \
   longest_q,                           \
   longest_k,                           \
   packed_sequences,                    \
   self_attention,                      \
   kMost_head_dim,                      \
   kMultiple_head_dim __VA_OPT__(, ) __VA_ARGS__}

// The scale of parameters of c.h, kNotGiven where these say so.
template <class Params>
float scale_of(const Params& p) noexcept {
  return p.sm_scale == AOTRITON_DEFAULT_SCALE || (p.sm_scale == 0 && !p.scale_given) ? kNotGiven : p.sm_scale;
}

// Sets sm_scale where the caller left it to the library, and what kernels are passed of the features that the caller
// asks for: the level, the band and the lengths (see band.h). `of_backward`: the features that only the backward has.
//
// A scale of 0 is every kernel's to compute. Those that hide scores, the forward's and Hopper's of dk and dv, take
// 1e-30 instead, as 0 times minus infinity is no number: weights are even to their last bit where scores are below
// 1e22. The others hide weights, and multiply by 0. All multiply dq and dk by it, which makes them 0. One divides by
// it: see attn_fwd.cc.
Error check_attention(Call& call, const Indices& indices, int64_t of_backward = 0) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
