#include <cinttypes>

#include "dispatch.h"
#include "flash/checks.h"
#include "flash/kernels.h"

namespace aotriton::v2::inline abi1 {

namespace flash {

Error check_attn_bwd(const attn_bwd_params& params, Data data, Problem* problem) noexcept {
  const Operand operands[] = {
      {"q", params.q, Side::query, Access::read},       {"k", params.k, Side::key, Access::read},
      {"v", params.v, Side::key, Access::read},         {"out", params.out, Side::query, Access::read},
      {"dout", params.dout, Side::query, Access::read}, {"dq", params.dq, Side::query, Access::write},
      {"dk", params.dk, Side::key, Access::write},      {"dv", params.dv, Side::key, Access::write}};
  const RowOperand rows[] = {{"logsumexp", params.logsumexp}};
  return check_problem("attn_bwd", operands, rows, params.sm_scale, params.causal, data, problem);
}

namespace {

// Bytes of delta, all that the workspace holds.
Error workspace_bytes(const Problem& problem, size_t* bytes) {
  int64_t delta;
  AOTRITON_TRY(row_bytes("attn_bwd", problem, &delta));
  *bytes = static_cast<size_t>(delta);
  return Error::success;
}

Error check_workspace(const attn_bwd_params& params, const Problem& problem) {
  size_t needed;
  AOTRITON_TRY(workspace_bytes(problem, &needed));
  if (!params.workspace)
    return fail(Error::workspace_too_small, "attn_bwd: workspace is null, %zu bytes are needed", needed);
  if (params.workspace_size < needed)
    return fail(Error::workspace_too_small, "attn_bwd: workspace has %zu bytes, %zu are needed", params.workspace_size,
                needed);
  if (reinterpret_cast<uintptr_t>(params.workspace) % 256)
    return fail(Error::misaligned_pointer, "attn_bwd: workspace is at %p, which must be 256-byte aligned",
                params.workspace);
  return Error::success;
}

// The portable backend of one call, with `delta` in the workspace.
auto portable(const attn_bwd_params& p, const Problem& problem, const Tensor<3>& delta) {
  return std::tuple(AttnBwdPreprocess{problem, p.out, p.dout, delta},
                    AttnBwdDkDv{problem, p.q, p.k, p.v, p.dout, p.dk, p.dv, p.logsumexp, delta},
                    AttnBwdDq{problem, p.q, p.k, p.v, p.dout, p.dq, p.logsumexp, delta});
}

}  // namespace

}  // namespace flash

using namespace flash;

Error attn_bwd_workspace_size(const attn_bwd_params& params, size_t* bytes) noexcept {
  if (!bytes) return fail(Error::null_pointer, "attn_bwd_workspace_size: bytes is null");
  Problem problem;
  AOTRITON_TRY(check_attn_bwd(params, Data::ignored, &problem));
  return workspace_bytes(problem, bytes);
}

Error attn_bwd(const attn_bwd_params& params, Stream stream) noexcept {
  Problem problem;
  AOTRITON_TRY(check_attn_bwd(params, Data::checked, &problem));
  AOTRITON_TRY(check_workspace(params, problem));
  const Tensor<3> delta = row_tensor(problem, params.workspace);
  return on_device("attn_bwd", stream, [&](const Device& device) {
    return run_operator(attn_bwd_operator, device, stream, portable(params, problem, delta));
  });
}

Error explain(const attn_bwd_params& params, const char* arch, int multiprocessors, Explanation* explanation) noexcept {
  if (!explanation) return fail(Error::null_pointer, "explain: explanation is null");
  *explanation = {};
  Problem problem;
  AOTRITON_TRY(check_attn_bwd(params, Data::ignored, &problem));
  ArchInfo found;
  AOTRITON_TRY(find_arch(attn_bwd_preprocess_info, arch, multiprocessors, &found));
  const Tensor<3> delta = row_tensor(problem, params.workspace);
  return explain_operator(attn_bwd_operator, found, explanation, portable(params, problem, delta));
}

}  // namespace aotriton::v2::inline abi1
