// torch.ops.aotriton: the operators for tensors of a GPU, and of a CPU, where reference.cc computes.
#include <torch/csrc/stable/library.h>

#include "torch/append.h"
#include "torch/attention.h"
#include "torch/counts.h"
#include "torch/gemm.h"
#include "torch/hints.h"
#include "torch/sdpa.h"

namespace aotriton_torch {

namespace {

const std::string kTensors =
    "Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sinks=None, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? dropout_seed=None, "
    "Tensor? dropout_offset=None, ";
const std::string kNumbers = "*, SymInt max_seqlen_q=0, SymInt max_seqlen_k=0, float softcap=0.0, float dropout=0.0, ";
const std::string kMask =
    "float? sm_scale=None, bool causal=False, str causal_variant=\"top_left\", int window_left=-1, "
    "int window_right=-1, ";

// attn_fwd and attn_bwd have two overloads: one without features, whose calls cost the host less, and one with them.
const std::string kSchemas[] = {
    "attn_fwd(Tensor q, Tensor k, Tensor v, *, " + kMask + "str hints=\"\") -> (Tensor out, Tensor logsumexp)",
    "attn_bwd(Tensor q, Tensor k, Tensor v, Tensor out, Tensor dout, Tensor logsumexp, *, " + kMask +
        "int skip_gradients=0, bool? deterministic=None, str hints=\"\") -> (Tensor dq, Tensor dk, Tensor dv)",
    "attn_fwd.features(Tensor q, Tensor k, Tensor v, " + kTensors +
        "Tensor? block_table=None, Tensor? k_descale=None, Tensor? v_descale=None, Tensor? q_descale=None, " +
        kNumbers + kMask + "str hints=\"\") -> (Tensor out, Tensor logsumexp)",
    "attn_bwd.features(Tensor q, Tensor k, Tensor v, Tensor out, Tensor dout, Tensor logsumexp, " + kTensors +
        kNumbers + kMask +
        "int skip_gradients=0, bool dbias=False, bool dsinks=False, bool? deterministic=None, str hints=\"\") "
        "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks)",
    "kv_append(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor seqused_k, Tensor(c!)? q=None, "
    "Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? cu_seqlens_k=None, Tensor? block_table=None, "
    "Tensor? k_descale=None, Tensor? v_descale=None, *, bool rotary_interleaved=False, str hints=\"\") -> ()",
    "gemm(Tensor a, Tensor b, Tensor? bias=None, *, float alpha=1.0, str activation=\"none\", str hints=\"\") "
    "-> Tensor",
};

// Each operator has a twin: autograd's kernel in Python of the first one calls the second, which has none. To call
// the first one past autograd would cost the host as much again.
std::string twin_of(const std::string& name_or_schema) { return "_" + name_or_schema; }

void implement(torch::stable::detail::StableLibrary& m) {
  for (const bool twin : {false, true}) {
    const auto name = [&](const char* of) { return twin ? twin_of(of) : std::string(of); };
    m.impl(name("attn_fwd").c_str(), TORCH_BOX(attn_fwd));
    m.impl(name("attn_bwd").c_str(), TORCH_BOX(attn_bwd));
    m.impl(name("attn_fwd.features").c_str(), TORCH_BOX(attn_fwd_features));
    m.impl(name("attn_bwd.features").c_str(), TORCH_BOX(attn_bwd_features));
    m.impl(name("kv_append").c_str(), TORCH_BOX(kv_append));
    m.impl(name("gemm").c_str(), TORCH_BOX(gemm));
  }
}

}  // namespace

STABLE_TORCH_LIBRARY(aotriton, m) {
  for (const std::string& schema : kSchemas) {
    m.def(schema.c_str());
    m.def(twin_of(schema).c_str());
  }
  m.def("_activate(str dispatch_key) -> ()");
  m.def("_restore() -> ()");
  m.def("_counted() -> str");
  m.def("_enter_region(str hints) -> ()");
  m.def("_within(str hints) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(aotriton, CUDA, m) { implement(m); }

STABLE_TORCH_LIBRARY_IMPL(aotriton, CPU, m) { implement(m); }

STABLE_TORCH_LIBRARY_IMPL(aotriton, CompositeExplicitAutograd, m) {
  m.impl("_activate", TORCH_BOX(activate));
  m.impl("_restore", TORCH_BOX(restore));
  m.impl("_counted", TORCH_BOX(counted));
  m.impl("_enter_region", TORCH_BOX(enter_region));
  m.impl("_within", TORCH_BOX(within));
}

}  // namespace aotriton_torch
