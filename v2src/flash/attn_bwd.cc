// attn_bwd: from its parameters to operands, and what it asks of them.
#include "attn_bwd.operator.h"
#include "flash/checks.h"
#include "flash/features.h"
#include "launch/c_operator.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

using namespace attn_bwd_call;

constexpr Field kFields[] = {
    AOTRITON_FIELD(aotriton_attn_bwd_params, size),
    AOTRITON_FIELD(aotriton_attn_bwd_params, q),
    AOTRITON_FIELD(aotriton_attn_bwd_params, k),
    AOTRITON_FIELD(aotriton_attn_bwd_params, v),
    AOTRITON_FIELD(aotriton_attn_bwd_params, out),
    AOTRITON_FIELD(aotriton_attn_bwd_params, dout),
    AOTRITON_FIELD(aotriton_attn_bwd_params, logsumexp),
    AOTRITON_FIELD(aotriton_attn_bwd_params, dq),
    AOTRITON_FIELD(aotriton_attn_bwd_params, dk),
    AOTRITON_FIELD(aotriton_attn_bwd_params, dv),
    AOTRITON_FIELD(aotriton_attn_bwd_params, sm_scale),
    AOTRITON_FIELD(aotriton_attn_bwd_params, causal),
    AOTRITON_FIELD(aotriton_attn_bwd_params, deterministic),
    AOTRITON_FIELD(aotriton_attn_bwd_params, skip_gradients),
    AOTRITON_FIELD(aotriton_attn_bwd_params, scale_given),
    AOTRITON_FIELD(aotriton_attn_bwd_params, workspace),
    AOTRITON_FIELD(aotriton_attn_bwd_params, workspace_size),
    AOTRITON_FIELD(aotriton_attn_bwd_params, features),
    AOTRITON_FIELD(aotriton_attn_bwd_params, dbias),
    AOTRITON_FIELD(aotriton_attn_bwd_params, dsinks),
    AOTRITON_FIELD(aotriton_attn_bwd_params, hints),
};
static_assert(are_all(kFields, sizeof(aotriton_attn_bwd_params)));

constexpr MovingPointer kMoving[] = {
    AOTRITON_MOVING(aotriton_attn_bwd_params, q),    AOTRITON_MOVING(aotriton_attn_bwd_params, k),
    AOTRITON_MOVING(aotriton_attn_bwd_params, v),    AOTRITON_MOVING(aotriton_attn_bwd_params, out),
    AOTRITON_MOVING(aotriton_attn_bwd_params, dout), AOTRITON_MOVING(aotriton_attn_bwd_params, logsumexp),
    AOTRITON_MOVING(aotriton_attn_bwd_params, dq),   AOTRITON_MOVING(aotriton_attn_bwd_params, dk),
    AOTRITON_MOVING(aotriton_attn_bwd_params, dv),
};

constexpr Indices kIndices = AOTRITON_ATTENTION_INDICES();

[[gnu::hot]] Error bind(const aotriton_attn_bwd_params& p, Call* call) noexcept {
  AOTRITON_TRY(bind_features(p.features, kIndices, call));
  if (p.skip_gradients)
    return fail(Error::not_supported, "attn_bwd: no kernel has skip_gradients yet; served without it");
  call->views[q] = View::of(p.q);
  call->views[k] = View::of(p.k);
  call->views[v] = View::of(p.v);
  call->views[out] = View::of(p.out);
  call->views[dout] = View::of(p.dout);
  call->views[logsumexp] = View::of(p.logsumexp);
  call->views[dq] = View::of(p.dq);
  call->views[dk] = View::of(p.dk);
  call->views[dv] = View::of(p.dv);
  if (call->plain && (p.dbias.data || p.dsinks.data)) [[unlikely]] {
    call->plain = false;
    leave_out_features(*call);
  }
  if (p.dbias.data) call->views[dbias] = View::of(p.dbias);
  if (p.dsinks.data) call->views[dsinks] = View::of(p.dsinks);
  call->set_real(sm_scale, scale_of(p));
  call->set_whole(causal, p.causal != 0);
  call->set_whole(deterministic, p.deterministic != 0);
  call->workspace = p.workspace;
  call->workspace_size = p.workspace_size;
  return Error::success;
}

using AttnBwd = COperator<aotriton_attn_bwd_params, attn_bwd_operator, kFields, kMoving, bind>;

}  // namespace

[[gnu::hot]] Error check_attn_bwd(Call& call) noexcept {
  const bool of_bias = call[dbias].data != nullptr;
  if (of_bias && !call[bias].data) return fail(Error::null_pointer, "attn_bwd: dbias is given, bias is not");
  if (call[dsinks].data && !call[sinks].data)
    return fail(Error::null_pointer, "attn_bwd: dsinks is given, sinks is not");
  return check_attention(call, kIndices, of_bias ? kDbias : 0);
}

}  // namespace aotriton::v2::inline abi1::flash

using aotriton::v2::flash::AttnBwd;

extern "C" {

aotriton_error aotriton_attn_bwd(const aotriton_attn_bwd_params* params, void* stream) {
  return AttnBwd::run(params, stream);
}

aotriton_error aotriton_attn_bwd_workspace_size(const aotriton_attn_bwd_params* params, void* stream, size_t* bytes) {
  return AttnBwd::workspace_size(params, stream, bytes);
}

int aotriton_attn_bwd_supported(const aotriton_attn_bwd_params* params, void* stream) {
  return AttnBwd::supported(params, stream);
}

aotriton_error aotriton_attn_bwd_hint_outcomes(const aotriton_attn_bwd_params* params, void* stream,
                                               aotriton_hint_outcome* outcomes, size_t* count) {
  return AttnBwd::hint_outcomes(params, stream, outcomes, count);
}

aotriton_error aotriton_attn_bwd_preload(const aotriton_attn_bwd_params* params, void* stream) {
  return AttnBwd::preload(params, stream);
}

aotriton_error aotriton_attn_bwd_prepare(const aotriton_attn_bwd_params* params, void* stream,
                                         aotriton_prepared** prepared) {
  return AttnBwd::prepare(params, stream, prepared);
}

aotriton_error aotriton_explain_attn_bwd(const aotriton_attn_bwd_params* params, const char* device,
                                         int32_t multiprocessors, aotriton_kernel_choice* kernels, size_t* count) {
  return AttnBwd::explain(params, device, multiprocessors, kernels, count);
}

}  // extern "C"
