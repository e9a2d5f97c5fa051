// attn_fwd: from its parameters to operands, and what it asks of them.
#include "attn_fwd.operator.h"
#include "flash/checks.h"
#include "flash/features.h"
#include "launch/c_operator.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

using namespace attn_fwd_call;

constexpr Field kFields[] = {
    AOTRITON_FIELD(aotriton_attn_fwd_params, size),        AOTRITON_FIELD(aotriton_attn_fwd_params, q),
    AOTRITON_FIELD(aotriton_attn_fwd_params, k),           AOTRITON_FIELD(aotriton_attn_fwd_params, v),
    AOTRITON_FIELD(aotriton_attn_fwd_params, out),         AOTRITON_FIELD(aotriton_attn_fwd_params, logsumexp),
    AOTRITON_FIELD(aotriton_attn_fwd_params, sm_scale),    AOTRITON_FIELD(aotriton_attn_fwd_params, causal),
    AOTRITON_FIELD(aotriton_attn_fwd_params, scale_given), AOTRITON_FIELD(aotriton_attn_fwd_params, reserved),
    AOTRITON_FIELD(aotriton_attn_fwd_params, workspace),   AOTRITON_FIELD(aotriton_attn_fwd_params, workspace_size),
    AOTRITON_FIELD(aotriton_attn_fwd_params, features),    AOTRITON_FIELD(aotriton_attn_fwd_params, hints),
};
static_assert(are_all(kFields, sizeof(aotriton_attn_fwd_params)));

constexpr MovingPointer kMoving[] = {
    AOTRITON_MOVING(aotriton_attn_fwd_params, q),         AOTRITON_MOVING(aotriton_attn_fwd_params, k),
    AOTRITON_MOVING(aotriton_attn_fwd_params, v),         AOTRITON_MOVING(aotriton_attn_fwd_params, out),
    AOTRITON_MOVING(aotriton_attn_fwd_params, logsumexp),
};

constexpr Indices kIndices =
    AOTRITON_ATTENTION_INDICES(block_table, pages, page_size, pages_of_sequence, k, v, q_descale, k_descale, v_descale);

[[gnu::hot]] Error bind(const aotriton_attn_fwd_params& p, Call* call) noexcept {
  AOTRITON_TRY(check_reserved("attn_fwd", p.reserved));
  AOTRITON_TRY(bind_features(p.features, kIndices, call));
  call->views[q] = View::of(p.q);
  call->views[k] = View::of(p.k);
  call->views[v] = View::of(p.v);
  call->views[out] = View::of(p.out);
  call->views[logsumexp] = View::of(p.logsumexp);
  call->set_real(sm_scale, scale_of(p));
  call->set_whole(causal, p.causal != 0);
  call->set_whole(batch_invariant, 0);  // unless a hint asks for it
  call->workspace = p.workspace;
  call->workspace_size = p.workspace_size;
  return Error::success;
}

// Hopper's kernel with ALiBi divides slopes by the scale, and takes no scale below 1e-30. With this one, too, scores
// below 1e20 make weights that are even to their last bit.
constexpr float kLeastWithAlibi = 1e-29f;

using AttnFwd = COperator<aotriton_attn_fwd_params, attn_fwd_operator, kFields, kMoving, bind>;

}  // namespace

[[gnu::hot]] Error check_attn_fwd(Call& call) noexcept {
  AOTRITON_TRY(check_attention(call, kIndices));
  if (call.views[alibi_slopes].data && call.scalars[sm_scale].real < kLeastWithAlibi)
    call.set_real(sm_scale, kLeastWithAlibi);
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1::flash

using aotriton::v2::flash::AttnFwd;

extern "C" {

aotriton_error aotriton_attn_fwd(const aotriton_attn_fwd_params* params, void* stream) {
  return AttnFwd::run(params, stream);
}

aotriton_error aotriton_attn_fwd_workspace_size(const aotriton_attn_fwd_params* params, void* stream, size_t* bytes) {
  return AttnFwd::workspace_size(params, stream, bytes);
}

int aotriton_attn_fwd_supported(const aotriton_attn_fwd_params* params, void* stream) {
  return AttnFwd::supported(params, stream);
}

aotriton_error aotriton_attn_fwd_hint_outcomes(const aotriton_attn_fwd_params* params, void* stream,
                                               aotriton_hint_outcome* outcomes, size_t* count) {
  return AttnFwd::hint_outcomes(params, stream, outcomes, count);
}

aotriton_error aotriton_attn_fwd_preload(const aotriton_attn_fwd_params* params, void* stream) {
  return AttnFwd::preload(params, stream);
}

aotriton_error aotriton_attn_fwd_prepare(const aotriton_attn_fwd_params* params, void* stream,
                                         aotriton_prepared** prepared) {
  return AttnFwd::prepare(params, stream, prepared);
}

aotriton_error aotriton_explain_attn_fwd(const aotriton_attn_fwd_params* params, const char* device,
                                         int32_t multiprocessors, aotriton_kernel_choice* kernels, size_t* count) {
  return AttnFwd::explain(params, device, multiprocessors, kernels, count);
}

}  // extern "C"
