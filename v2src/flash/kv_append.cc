// kv_append: from its parameters to operands, and what it asks of them.
#include <cinttypes>

#include "flash/features.h"
#include "flash/scales.h"
#include "kv_append.operator.h"
#include "launch/c_operator.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

using namespace kv_append_call;

constexpr Field kFields[] = {
    AOTRITON_FIELD(aotriton_kv_append_params, size),
    AOTRITON_FIELD(aotriton_kv_append_params, k),
    AOTRITON_FIELD(aotriton_kv_append_params, v),
    AOTRITON_FIELD(aotriton_kv_append_params, k_cache),
    AOTRITON_FIELD(aotriton_kv_append_params, v_cache),
    AOTRITON_FIELD(aotriton_kv_append_params, seqused_k),
    AOTRITON_FIELD(aotriton_kv_append_params, q),
    AOTRITON_FIELD(aotriton_kv_append_params, rotary_cos),
    AOTRITON_FIELD(aotriton_kv_append_params, rotary_sin),
    AOTRITON_FIELD(aotriton_kv_append_params, cu_seqlens_k),
    AOTRITON_FIELD(aotriton_kv_append_params, block_table),
    AOTRITON_FIELD(aotriton_kv_append_params, rotary_interleaved),
    AOTRITON_FIELD(aotriton_kv_append_params, reserved),
    AOTRITON_FIELD(aotriton_kv_append_params, hints),
    AOTRITON_FIELD(aotriton_kv_append_params, k_descale),
    AOTRITON_FIELD(aotriton_kv_append_params, v_descale),
};
static_assert(are_all(kFields, sizeof(aotriton_kv_append_params)));

constexpr MovingPointer kMoving[] = {
    AOTRITON_MOVING(aotriton_kv_append_params, k),       AOTRITON_MOVING(aotriton_kv_append_params, v),
    AOTRITON_MOVING(aotriton_kv_append_params, k_cache), AOTRITON_MOVING(aotriton_kv_append_params, v_cache),
    AOTRITON_MOVING(aotriton_kv_append_params, q),
};

Error bind(const aotriton_kv_append_params& p, Call* call) noexcept {
  AOTRITON_TRY(check_reserved("kv_append", p.reserved));
  call->views[k] = View::of(p.k);
  call->views[v] = View::of(p.v);
  call->views[k_cache] = View::of(p.k_cache);
  call->views[v_cache] = View::of(p.v_cache);
  call->views[seqused_k] = View::of(p.seqused_k);
  call->views[q] = View::of(p.q);
  call->views[rotary_cos] = View::of(p.rotary_cos);
  call->views[rotary_sin] = View::of(p.rotary_sin);
  call->views[cu_seqlens_k] = View::of(p.cu_seqlens_k);
  call->views[block_table] = View::of(p.block_table);
  call->views[k_descale] = View::of(p.k_descale);
  call->views[v_descale] = View::of(p.v_descale);
  call->set_whole(rotary_interleaved, p.rotary_interleaved != 0);
  return Error::success;
}

using KvAppend = COperator<aotriton_kv_append_params, kv_append_operator, kFields, kMoving, bind>;

}  // namespace

Error check_kv_append(Call& call) noexcept {
  const auto given = [&](size_t slot) { return call[slot].data != nullptr; };
  const char* const op = call.info->name;
  int64_t* const sizes = call.sizes;
  int64_t count = sizes[batch];
  if (given(cu_seqlens_k)) {
    if (sizes[batch] != 1)
      return fail(Error::invalid_shape, "%s: with cu_seqlens_k, k has batch %" PRId64 ", which must be 1", op,
                  sizes[batch]);
    count = sizes[starts] - 1;
  }
  if (sizes[sequences] != count)
    return fail(Error::invalid_shape, "%s: seqused_k has %" PRId64 " lengths, there are %" PRId64 " sequences", op,
                sizes[sequences], count);
  if (given(rotary_cos) != given(rotary_sin))
    return fail(Error::null_pointer, "%s: %s is given, %s is not", op, given(rotary_cos) ? "rotary_cos" : "rotary_sin",
                given(rotary_cos) ? "rotary_sin" : "rotary_cos");
  if (given(q) && !given(rotary_cos))
    return fail(Error::null_pointer, "%s: q is given, rotary_cos is not, and nothing else is done with q", op);
  if (sizes[rotary_pairs] > sizes[head_dim] / 2)
    return fail(Error::invalid_shape, "%s: rotary_cos has rotary_pairs %" PRId64 ", too many for head_dim %" PRId64, op,
                sizes[rotary_pairs], sizes[head_dim]);
  AOTRITON_TRY(check_scales(call, k_cache, v_cache, k_descale, v_descale));
  if (!given(block_table)) sizes[page_size] = sizes[seqlen_k];  // a sequence is a page
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1::flash

using aotriton::v2::flash::KvAppend;

extern "C" {

aotriton_error aotriton_kv_append(const aotriton_kv_append_params* params, void* stream) {
  return KvAppend::run(params, stream);
}

aotriton_error aotriton_kv_append_workspace_size(const aotriton_kv_append_params* params, void* stream, size_t* bytes) {
  return KvAppend::workspace_size(params, stream, bytes);
}

int aotriton_kv_append_supported(const aotriton_kv_append_params* params, void* stream) {
  return KvAppend::supported(params, stream);
}

aotriton_error aotriton_kv_append_hint_outcomes(const aotriton_kv_append_params* params, void* stream,
                                                aotriton_hint_outcome* outcomes, size_t* count) {
  return KvAppend::hint_outcomes(params, stream, outcomes, count);
}

aotriton_error aotriton_kv_append_preload(const aotriton_kv_append_params* params, void* stream) {
  return KvAppend::preload(params, stream);
}

aotriton_error aotriton_kv_append_prepare(const aotriton_kv_append_params* params, void* stream,
                                          aotriton_prepared** prepared) {
  return KvAppend::prepare(params, stream, prepared);
}

aotriton_error aotriton_explain_kv_append(const aotriton_kv_append_params* params, const char* device,
                                          int32_t multiprocessors, aotriton_kernel_choice* kernels, size_t* count) {
  return KvAppend::explain(params, device, multiprocessors, kernels, count);
}

}  // extern "C"
