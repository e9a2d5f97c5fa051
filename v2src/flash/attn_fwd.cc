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

Error bind(const aotriton_attn_fwd_params& p, Call* call) noexcept {
  AOTRITON_TRY(check_reserved("attn_fwd", p.reserved));
  AOTRITON_TRY(check_features("attn_fwd", p.features));
  AOTRITON_TRY(check_v_head_dim("attn_fwd", p.q, p.v, p.out));
  call->views[q] = View::of(p.q);
  call->views[k] = View::of(p.k);
  call->views[v] = View::of(p.v);
  call->views[out] = View::of(p.out);
  call->views[logsumexp] = View::of(p.logsumexp);
  call->set_real(sm_scale, scale_of(p));
  call->set_whole(causal, p.causal != 0);
  call->set_whole(causal_variant, p.features.causal_variant);
  call->set_whole(window_left, p.features.windowed ? p.features.window_left : -1);
  call->set_whole(window_right, p.features.windowed ? p.features.window_right : -1);
  for (const size_t made : {level, lo, hi}) call->set_whole(made, 0);  // by the checks
  call->workspace = p.workspace;
  call->workspace_size = p.workspace_size;
  return Error::success;
}

}  // namespace

Error check_attn_fwd(Call& call) noexcept {
  return check_attention(call, {heads_q, heads_k, seqlen_q, seqlen_k, head_dim, sm_scale, causal, causal_variant,
                                window_left, window_right, level, lo, hi, kMost_head_dim, kMultiple_head_dim});
}

}  // namespace aotriton::v2::inline abi1::flash

using namespace aotriton::v2::flash;
AOTRITON_C_OPERATOR(attn_fwd, kFields)
