// gemm: from its parameters to operands, and what it asks of them.
#include <cmath>
#include <utility>

#include "gemm.operator.h"
#include "launch/c_operator.h"

namespace aotriton::v2::inline abi1::gemm {

namespace {

using namespace gemm_call;

constexpr Field kFields[] = {
    AOTRITON_FIELD(aotriton_gemm_params, size),
    AOTRITON_FIELD(aotriton_gemm_params, a),
    AOTRITON_FIELD(aotriton_gemm_params, b),
    AOTRITON_FIELD(aotriton_gemm_params, d),
    AOTRITON_FIELD(aotriton_gemm_params, bias),
    AOTRITON_FIELD(aotriton_gemm_params, alpha),
    AOTRITON_FIELD(aotriton_gemm_params, activation),
    AOTRITON_FIELD(aotriton_gemm_params, workspace),
    AOTRITON_FIELD(aotriton_gemm_params, workspace_size),
    AOTRITON_FIELD(aotriton_gemm_params, hints),
};
static_assert(are_all(kFields, sizeof(aotriton_gemm_params)));

constexpr MovingPointer kMoving[] = {
    AOTRITON_MOVING(aotriton_gemm_params, a),
    AOTRITON_MOVING(aotriton_gemm_params, b),
    AOTRITON_MOVING(aotriton_gemm_params, d),
    AOTRITON_MOVING(aotriton_gemm_params, bias),
};

Error bind(const aotriton_gemm_params& p, Call* call) noexcept {
  call->views[a] = View::of(p.a);
  call->views[b] = View::of(p.b);
  call->views[d] = View::of(p.d);
  call->views[bias] = View::of(p.bias);
  call->set_real(alpha, p.alpha);
  call->set_whole(activation, p.activation);
  call->set_whole(swapped, 0);
  call->workspace = p.workspace;
  call->workspace_size = p.workspace_size;
  return Error::success;
}

using Gemm = COperator<aotriton_gemm_params, gemm_operator, kFields, kMoving, bind>;

// The view with its last two dimensions exchanged.
void transpose(Call& call, size_t slot) {
  View& view = call.views[slot];
  auto& [sizes, strides] = call.dims[slot];
  constexpr int kOrder[] = {0, 2, 1};
  for (int i = 0; i < 3; ++i) sizes[i] = view.sizes[kOrder[i]], strides[i] = view.strides[kOrder[i]];
  view.sizes = sizes;
  view.strides = strides;
}

// d = a b by columns is dᵀ = bᵀ aᵀ by rows, which kernels write. A single column is taken as one, not as rows of one
// element each.
void make_rows_contiguous(Call& call) {
  const View& result = call[d];
  const bool column = result.sizes[2] == 1 && result.sizes[1] > 1 && result.strides[1] == 1;
  const bool by_columns = column || transposed(call.info->operands[d], result);
  call.set_whole(swapped, by_columns);
  if (!by_columns) return;
  for (const size_t slot : {a, b, d}) transpose(call, slot);
  std::swap(call.views[a].data, call.views[b].data);
  std::swap(call.views[a].sizes, call.views[b].sizes);
  std::swap(call.views[a].strides, call.views[b].strides);
  std::swap(call.extents[a], call.extents[b]);
  std::swap(call.from[a], call.from[b]);
  std::swap(call.sizes[m], call.sizes[n]);
}

}  // namespace

Error check_gemm(Call& call) noexcept {
  const float scale = call.scalars[alpha].real;
  if (!std::isfinite(scale) || scale == 0)
    return fail(Error::invalid_argument, "gemm: alpha is %g, which must be finite, and not 0",
                static_cast<double>(scale));
  const int64_t function = call.scalars[activation].whole;
  if (function < AOTRITON_NO_ACTIVATION || function > AOTRITON_SILU)
    return fail(Error::invalid_argument, "gemm: activation is %lld, which is none of those in c.h",
                static_cast<long long>(function));
  make_rows_contiguous(call);
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1::gemm

using aotriton::v2::gemm::Gemm;

extern "C" {

aotriton_error aotriton_gemm(const aotriton_gemm_params* params, void* stream) { return Gemm::run(params, stream); }

aotriton_error aotriton_gemm_workspace_size(const aotriton_gemm_params* params, void* stream, size_t* bytes) {
  return Gemm::workspace_size(params, stream, bytes);
}

int aotriton_gemm_supported(const aotriton_gemm_params* params, void* stream) {
  return Gemm::supported(params, stream);
}

aotriton_error aotriton_gemm_hint_outcomes(const aotriton_gemm_params* params, void* stream,
                                           aotriton_hint_outcome* outcomes, size_t* count) {
  return Gemm::hint_outcomes(params, stream, outcomes, count);
}

aotriton_error aotriton_gemm_preload(const aotriton_gemm_params* params, void* stream) {
  return Gemm::preload(params, stream);
}

aotriton_error aotriton_gemm_prepare(const aotriton_gemm_params* params, void* stream, aotriton_prepared** prepared) {
  return Gemm::prepare(params, stream, prepared);
}

aotriton_error aotriton_explain_gemm(const aotriton_gemm_params* params, const char* device, int32_t multiprocessors,
                                     aotriton_kernel_choice* kernels, size_t* count) {
  return Gemm::explain(params, device, multiprocessors, kernels, count);
}

}  // extern "C"
