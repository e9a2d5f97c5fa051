// The operators that are fuzzed, each through its public functions. To add one: how a draft's tensors and scalars stand
// in its parameters, in their order; what suits its sizes; and what an accepted call must not be.
#pragma once

#include <aotriton/flash.h>
#include <aotriton/gemm.h>

#include <functional>
#include <memory>

#include "fuzz/draft.h"
#include "program/registry.h"
#include "scale.h"

namespace fuzz {

// What can be done with a draft. Each makes parameters of it.
struct Operator {
  const OperatorInfo* info;
  std::function<Error(Draft&, Stream)> run;
  std::function<Error(Draft&, Stream, size_t*)> workspace_size;
  std::function<bool(Draft&, Stream)> supported;
  std::function<Error(Draft&, Stream, PreparedCall*)> prepare;
  std::function<Error(Draft&, const char*, int, Explanation*)> explain;
  std::function<Error(Draft&, Chance&, Stream)>
      run_damaged;  // with one bit of the parameters turned; the draft follows

  void (*suit)(Draft&, Chance&);           // sizes and scalars that the operator takes
  const char* (*objection)(const Draft&);  // to a call that was accepted; null where there is none
  bool (*lacks)(const Draft&, size_t);     // whether a call may come without memory of an operand; null: of none
};

template <class Params, class Run, class WorkspaceSize, class Exchange>
Operator make_operator(const char* name, Run run, WorkspaceSize workspace_size, Exchange exchange) {
  const auto filled = [exchange](Draft& draft) {
    Params params;
    draft.reading = false;
    exchange(draft, params);
    params.hints = draft.hints ? &*draft.hints : nullptr;
    return params;
  };
  Operator made = {};
  made.info = find_operator(name);
  made.run = [=](Draft& draft, Stream stream) { return run(filled(draft), stream); };
  made.workspace_size = [=](Draft& draft, Stream stream, size_t* bytes) {
    return workspace_size(filled(draft), stream, bytes);
  };
  made.supported = [=](Draft& draft, Stream stream) { return supported(filled(draft), stream); };
  made.prepare = [=](Draft& draft, Stream stream, PreparedCall* call) { return prepare(filled(draft), stream, call); };
  made.explain = [=](Draft& draft, const char* arch, int multiprocessors, Explanation* explanation) {
    return explain(filled(draft), arch, multiprocessors, explanation);
  };
  made.run_damaged = [=](Draft& draft, Chance& chance, Stream stream) {
    // In memory of its own, so that a read beyond it is seen. The size in front stays right, and so does the pointer to
    // hints behind: what it points at is read.
    const std::unique_ptr<Params> params(new Params(filled(draft)));
    const size_t byte = sizeof(size_t) + chance.below(offsetof(Params, hints) - sizeof(size_t));
    reinterpret_cast<unsigned char*>(params.get())[byte] ^= static_cast<unsigned char>(1u << chance.below(8));
    draft.reading = true;
    exchange(draft, *params);
    return run(*params, stream);
  };
  return made;
}

// Of functions as AOTRITON_OPERATOR and the generator make them, in this namespace.
#define FUZZ_OPERATOR(NAMESPACE, NAME, EXCHANGE) \
  make_operator<NAMESPACE::NAME##_params>(#NAME, NAMESPACE::NAME, NAMESPACE::NAME##_workspace_size, EXCHANGE)

inline int64_t likely_length(Chance& chance) {
  static constexpr int64_t kValues[] = {
      0,    1,    2,    3,    64,    127,   128,     129,     512,     513,
      2048, 2049, 8192, 8193, 10000, 65535, 1 << 20, 1 << 27, 1 << 30, INT32_MAX - 1023};
  return chance.percent(70) ? chance.between(1, 300) : chance.one_of(kValues);
}

// Sizes by the indices that flash's operators share.
inline void suit_attention(Draft& draft, Chance& chance) {
  enum { batch, heads_q, seqlen_q, head_dim, heads_k, seqlen_k, head_dim_v };
  enum { sm_scale, causal, causal_variant, window_left, window_right, deterministic = 16 };
  static constexpr int64_t kGroups[] = {1, 1, 2, 4, 8};
  draft.sizes[batch] = chance.percent(95) ? chance.between(1, 8) : chance.between(0, 100000);
  draft.sizes[heads_k] = chance.percent(97) ? chance.between(1, 8) : chance.between(0, 100000);
  draft.sizes[heads_q] = draft.sizes[heads_k] * chance.one_of(kGroups);
  draft.sizes[seqlen_q] = likely_length(chance);
  draft.sizes[seqlen_k] = chance.percent(60) ? draft.sizes[seqlen_q] : likely_length(chance);
  const int64_t step = chance.percent(85) ? 8 : 1, most = chance.percent(85) ? 256 : 512;
  draft.sizes[head_dim] = step * chance.between(chance.percent(90) ? 5 : 1, most / step);
  draft.sizes[head_dim_v] = chance.percent(75) ? draft.sizes[head_dim] : step * chance.between(1, most / step);
  draft.real[sm_scale] = chance.percent(90) ? 0.125f : wild_real(chance);
  draft.whole[causal] = chance.percent(50);
  draft.whole[causal_variant] = chance.percent(50);
  for (const int side : {window_left, window_right})
    draft.whole[side] = chance.percent(70) ? -1 : chance.percent(80) ? chance.between(0, 300) : likely_length(chance);
  draft.whole[deterministic] = chance.percent(30);
}

inline const char* object_to_attention(const Draft& draft) {
  const float scale = draft.real[0];
  if (scale != AOTRITON_DEFAULT_SCALE && (!(scale >= 0) || !std::isfinite(scale * 1.4426950408889634f)))
    return "its sm_scale is no number to scale by";
  const auto& q = draft.tensors[0];
  const auto& k = draft.tensors[1];
  if (k.sizes[1] ? q.sizes[1] % k.sizes[1] : q.sizes[1]) return "its heads do not fit together";
  for (const int64_t head_dim : {q.sizes[3], draft.tensors[2].sizes[3]})
    if (head_dim < 1 || head_dim > 512) return "one of its head dims is not from 1 to 512";
  return draft.whole[2] < 0 || draft.whole[2] > 1 ? "its causal_variant is none" : nullptr;
}

template <class Params>
void exchange_numbers(Draft& draft, Params& p) {
  draft.exchange_whole(1, p.causal);
  draft.exchange_whole(2, p.features.causal_variant);
  draft.exchange_whole(3, p.features.window_left);
  draft.exchange_whole(4, p.features.window_right);
  p.features.windowed = 1;
  draft.exchange(draft.real[5], p.features.softcap);
  draft.exchange(draft.real[6], p.features.dropout);
  draft.exchange(draft.whole[7], p.features.max_seqlen_q);
  draft.exchange(draft.whole[8], p.features.max_seqlen_k);
}

inline Operator attn_fwd() {
  Operator made = FUZZ_OPERATOR(aotriton::v2, attn_fwd, [](Draft& draft, attn_fwd_params& p) {
    draft.exchange_tensors(p.q, p.k, p.v, p.out, p.logsumexp);
    draft.exchange(draft.real[0], p.sm_scale);
    p.scale_given = 1;
    exchange_numbers(draft, p);
    draft.exchange(draft.workspace, p.workspace);
    draft.exchange(draft.workspace_size, p.workspace_size);
  });
  made.suit = suit_attention;
  made.objection = object_to_attention;
  return made;
}

inline Operator attn_bwd() {
  Operator made = FUZZ_OPERATOR(aotriton::v2, attn_bwd, [](Draft& draft, attn_bwd_params& p) {
    draft.exchange_tensors(p.q, p.k, p.v, p.out, p.dout, p.logsumexp, p.dq, p.dk, p.dv);
    draft.exchange(draft.real[0], p.sm_scale);
    exchange_numbers(draft, p);
    draft.exchange_whole(16, p.deterministic);
    draft.exchange_whole(17, p.skip_gradients);
    draft.exchange(draft.workspace, p.workspace);
    draft.exchange(draft.workspace_size, p.workspace_size);
  });
  made.suit = [](Draft& draft, Chance& chance) {
    suit_attention(draft, chance);
    draft.whole[17] = chance.percent(80) ? 0 : chance.between(0, 7);
  };
  made.objection = [](const Draft& draft) -> const char* {
    if (draft.whole[17] & ~7) return "its skip_gradients is none";
    return object_to_attention(draft);
  };
  made.lacks = [](const Draft& draft, size_t slot) {
    constexpr size_t kDq = 6;  // and dk and dv behind it, as their bits are
    return slot >= kDq && slot < kDq + 3 && !draft.tensors[slot].data && (draft.whole[17] >> (slot - kDq) & 1);
  };
  return made;
}

inline Operator gemm() {
  Operator made = FUZZ_OPERATOR(aotriton::v2, gemm, [](Draft& draft, gemm_params& p) {
    draft.exchange_tensors(p.a, p.b, p.d, p.bias);
    draft.exchange(draft.real[0], p.alpha);
    draft.exchange_whole(1, p.activation);
    draft.exchange(draft.workspace, p.workspace);
    draft.exchange(draft.workspace_size, p.workspace_size);
  });
  made.suit = [](Draft& draft, Chance& chance) {
    enum { batch, m, k, n };
    draft.sizes[batch] = chance.percent(95) ? chance.between(0, 4) : likely_length(chance);
    for (const int size : {m, k, n})
      draft.sizes[size] = chance.percent(70) ? 8 * chance.between(1, 600) : likely_length(chance);
    draft.real[0] = 1;
    draft.whole[1] = chance.between(0, 3);
  };
  made.objection = [](const Draft& draft) -> const char* {
    if (!std::isfinite(draft.real[0]) || draft.real[0] == 0) return "its alpha is no number to scale by";
    return draft.whole[1] < 0 || draft.whole[1] > 3 ? "its activation is none" : nullptr;
  };
  return made;
}

// Its features, angles among them, are left out, and without angles nothing is done with q.
inline Operator kv_append() {
  Operator made = FUZZ_OPERATOR(aotriton::v2, kv_append, [](Draft& draft, kv_append_params& p) {
    draft.exchange_tensors(p.k, p.v, p.k_cache, p.v_cache, p.seqused_k, p.q);
    draft.exchange_whole(0, p.rotary_interleaved);
  });
  made.suit = [](Draft& draft, Chance& chance) {
    enum { batch, heads_k, seqlen_new, head_dim, head_dim_v, sequences, seqlen_k, heads_q };
    draft.sizes[batch] = draft.sizes[sequences] = chance.percent(95) ? chance.between(0, 8) : likely_length(chance);
    draft.sizes[heads_k] = chance.between(1, 8);
    draft.sizes[heads_q] = chance.between(1, 64);
    for (const int size : {head_dim, head_dim_v}) draft.sizes[size] = chance.between(1, 600);
    for (const int size : {seqlen_new, seqlen_k}) draft.sizes[size] = likely_length(chance);
  };
  made.objection = [](const Draft& draft) -> const char* {
    if (draft.tensors[5].data) return "it has queries and no angles";
    return draft.tensors[0].sizes[0] == draft.tensors[4].sizes[0] ? nullptr : "its lengths are of other sequences";
  };
  return made;
}

// Of the made-up family.
inline Operator scale() {
  Operator made = FUZZ_OPERATOR(toy, scale, [](Draft& draft, toy::scale_params& p) {
    draft.exchange_tensors(p.x, p.w, p.bias, p.y);
    draft.exchange(draft.real[0], p.factor);
    draft.exchange_whole(1, p.times);
    draft.exchange(draft.workspace, p.workspace);
    draft.exchange(draft.workspace_size, p.workspace_size);
  });
  made.suit = [](Draft& draft, Chance& chance) {
    enum { batch, heads, rows, width, taps };
    draft.sizes[batch] = chance.between(1, 8);
    draft.sizes[heads] = chance.percent(95) ? chance.between(1, 8) : chance.between(0, 70000);
    draft.sizes[rows] = likely_length(chance);
    draft.sizes[width] = chance.percent(80) ? 8 * chance.between(1, 8) : chance.between(0, 70);
    draft.sizes[taps] = chance.between(0, 40);
    draft.real[0] = 2;
    draft.whole[1] = chance.percent(80) ? 1 : chance.between(-1, 102);
  };
  made.objection = [](const Draft& draft) -> const char* {
    for (const int64_t size : draft.tensors[3].sizes)
      if (!size) return nullptr;  // no kernel was asked
    return draft.whole[1] > 100 ? "its times are more than its guard allows" : nullptr;
  };
  return made;
}

inline std::vector<Operator> operators() { return {attn_fwd(), attn_bwd(), kv_append(), gemm(), scale()}; }

}  // namespace fuzz
