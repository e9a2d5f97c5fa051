// attn_bwd: from its parameters to operands, and what it asks of them.
#include <algorithm>
#include <cinttypes>

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
  call->set_whole(skip_gradients, p.skip_gradients);
  call->workspace = p.workspace;
  call->workspace_size = p.workspace_size;
  return Error::success;
}

using AttnBwd = COperator<aotriton_attn_bwd_params, attn_bwd_operator, kFields, kMoving, bind>;

bool skips(const aotriton_attn_bwd_params* params) noexcept {
  return params && params->size > offsetof(aotriton_attn_bwd_params, skip_gradients) && params->skip_gradients;
}

// A call that does without gradients: those that have no memory begin the workspace, as kernels that compute others as
// well write all of them.
class Skipping {
 public:
  Error read(const aotriton_attn_bwd_params* given) noexcept {
    VersionedParams<aotriton_attn_bwd_params> params;
    AOTRITON_TRY(params.read(attn_bwd_operator.name, kFields, given));
    own_ = *params;
    own_.size = sizeof own_;
    struct {
      int bit;
      const char* name;
      const aotriton_tensor4& like;
      aotriton_tensor4& result;
    } const all[] = {{AOTRITON_SKIP_DQ, "dq", own_.q, own_.dq},
                     {AOTRITON_SKIP_DK, "dk", own_.k, own_.dk},
                     {AOTRITON_SKIP_DV, "dv", own_.v, own_.dv}};
    for (const auto& [bit, name, like, result] : all) {
      if (!(own_.skip_gradients & bit) || result.data) continue;
      result = like;
      result.data = nullptr;
      int64_t bytes = 1;
      bool counted = true;
      for (int i = 4; i-- > 0;) {
        result.strides[i] = bytes;  // so far it counts elements
        counted &= !__builtin_mul_overflow(bytes, std::max<int64_t>(like.sizes[i], 0), &bytes);
      }
      counted &= !__builtin_mul_overflow(bytes, bytes_of(static_cast<DType>(like.dtype)), &bytes);
      constexpr auto kAlignment = static_cast<int64_t>(kWorkspaceAlignment);
      places_[count_++] = {&result, bytes_};
      if (!counted || __builtin_add_overflow(bytes_, bytes, &bytes_) || bytes_ > INT64_MAX - kAlignment)
        return fail(Error::not_supported, "attn_bwd: %s is skipped, and of more bytes than 63 bits count", name);
      bytes_ = (bytes_ + kAlignment - 1) & -kAlignment;
    }
    return Error::success;
  }

  // Takes their memory from the workspace, which the call has no more then.
  Error place() noexcept {
    if (!bytes_) return Error::success;
    const auto needed = static_cast<size_t>(bytes_);
    if (!own_.workspace)
      return fail(Error::null_pointer,
                  "attn_bwd: skipped gradients without memory need a workspace, and none is given");
    if (own_.workspace_size < needed)
      return fail(Error::workspace_too_small,
                  "attn_bwd: workspace has %zu bytes, %zu are needed for skipped gradients without memory",
                  own_.workspace_size, needed);
    auto* const begin = static_cast<char*>(own_.workspace);
    for (size_t i = 0; i < count_; ++i) places_[i].result->data = begin + places_[i].offset;
    own_.workspace_size -= needed;
    own_.workspace = own_.workspace_size ? begin + needed : nullptr;
    return Error::success;
  }

  const aotriton_attn_bwd_params* params() const noexcept { return &own_; }
  size_t bytes() const noexcept { return static_cast<size_t>(bytes_); }

 private:
  aotriton_attn_bwd_params own_;
  struct {
    aotriton_tensor4* result;
    int64_t offset;
  } places_[3];
  size_t count_ = 0;
  int64_t bytes_ = 0;
};

// Calls body(parameters, bytes of skipped gradients without memory), which returns an error of c.h.
template <class Body>
aotriton_error with_room(const aotriton_attn_bwd_params* params, bool placed, Body&& body) noexcept {
  if (!skips(params)) [[likely]]
    return body(params, size_t{0});
  Skipping skipping;
  Error error = skipping.read(params);
  if (error == Error::success && placed) error = skipping.place();
  if (error != Error::success) return static_cast<aotriton_error>(error);
  return body(skipping.params(), skipping.bytes());
}

}  // namespace

[[gnu::hot]] Error check_attn_bwd(Call& call) noexcept {
  const bool of_bias = call[dbias].data != nullptr;
  if (of_bias && !call[bias].data) return fail(Error::null_pointer, "attn_bwd: dbias is given, bias is not");
  if (call[dsinks].data && !call[sinks].data)
    return fail(Error::null_pointer, "attn_bwd: dsinks is given, sinks is not");
  constexpr int64_t kAll = AOTRITON_SKIP_DQ | AOTRITON_SKIP_DK | AOTRITON_SKIP_DV;
  if (const int64_t skipped = call.scalars[skip_gradients].whole; skipped & ~kAll)
    return fail(Error::invalid_argument, "attn_bwd: skip_gradients is %" PRId64 ", which must be from 0 to %" PRId64,
                skipped, kAll);
  return check_attention(call, kIndices, of_bias ? kDbias : 0);
}

}  // namespace aotriton::v2::inline abi1::flash

using namespace aotriton::v2::flash;
using Params = aotriton_attn_bwd_params;

extern "C" {

aotriton_error aotriton_attn_bwd(const Params* params, void* stream) {
  return with_room(params, true, [&](const Params* own, size_t) { return AttnBwd::run(own, stream); });
}

aotriton_error aotriton_attn_bwd_workspace_size(const Params* params, void* stream, size_t* bytes) {
  return with_room(params, false, [&](const Params* own, size_t skipped) {
    const aotriton_error error = AttnBwd::workspace_size(own, stream, bytes);
    if (error == AOTRITON_SUCCESS) *bytes += skipped;
    return error;
  });
}

int aotriton_attn_bwd_supported(const Params* params, void* stream) {
  int supported = 0;
  with_room(params, false, [&](const Params* own, size_t) {
    supported = AttnBwd::supported(own, stream);
    return AOTRITON_SUCCESS;
  });
  return supported;
}

aotriton_error aotriton_attn_bwd_hint_outcomes(const Params* params, void* stream, aotriton_hint_outcome* outcomes,
                                               size_t* count) {
  return with_room(params, false,
                   [&](const Params* own, size_t) { return AttnBwd::hint_outcomes(own, stream, outcomes, count); });
}

aotriton_error aotriton_attn_bwd_preload(const Params* params, void* stream) {
  return with_room(params, false, [&](const Params* own, size_t) { return AttnBwd::preload(own, stream); });
}

aotriton_error aotriton_attn_bwd_prepare(const Params* params, void* stream, aotriton_prepared** prepared) {
  return with_room(params, false, [&](const Params* own, size_t) { return AttnBwd::prepare(own, stream, prepared); });
}

aotriton_error aotriton_explain_attn_bwd(const Params* params, const char* device, int32_t multiprocessors,
                                         aotriton_kernel_choice* kernels, size_t* count) {
  return with_room(params, false, [&](const Params* own, size_t) {
    return AttnBwd::explain(own, device, multiprocessors, kernels, count);
  });
}

}  // extern "C"
