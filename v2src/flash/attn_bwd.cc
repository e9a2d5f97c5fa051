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
  AOTRITON_TRY(check_problem("attn_bwd", operands, rows, params.sm_scale, params.causal, data, problem));
  problem->deterministic = params.deterministic;
  return Error::success;
}

namespace {

// Where things lie in the workspace: delta, and behind it the sum of dq that a backend may want.
struct Workspace {
  size_t dq_sum, size;
};

Error workspace_of(const Problem& problem, Workspace* workspace) {
  int64_t delta, sum, size;
  AOTRITON_TRY(row_bytes("attn_bwd", problem, &delta));
  workspace->dq_sum = workspace->size = static_cast<size_t>(delta);
  if (problem.deterministic) return Error::success;
  if (__builtin_add_overflow(delta, 255, &size) || __builtin_mul_overflow(delta, problem.head_dim, &sum) ||
      __builtin_add_overflow(size / 256 * 256, sum, &size))
    return fail(Error::not_supported, "attn_bwd: batch x heads x seqlen x head_dim overflows 63 bits");
  workspace->dq_sum = static_cast<size_t>(size - sum);
  workspace->size = static_cast<size_t>(size);
  return Error::success;
}

Error check_workspace(const attn_bwd_params& params, size_t needed) {
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

auto hopper(const attn_bwd_params& p, const Problem& problem, const Tensor<3>& delta, const Tensor<4>& dq_sum) {
  return std::tuple(AttnBwdHopperPrepare{problem, p.out, p.dout, delta, dq_sum},
                    AttnBwdHopper{problem, p.q, p.k, p.v, p.dout, p.dk, p.dv, dq_sum, p.logsumexp, delta},
                    AttnBwdHopperFinish{problem, dq_sum, p.dq});
}

auto hopper_split(const attn_bwd_params& p, const Problem& problem, const Tensor<3>& delta) {
  return std::tuple(AttnBwdPreprocess{problem, p.out, p.dout, delta},
                    AttnBwdHopperDkDv{problem, p.q, p.k, p.v, p.dout, p.dk, p.dv, p.logsumexp, delta},
                    AttnBwdHopperDq{problem, p.q, p.k, p.v, p.dout, p.dq, p.logsumexp, delta});
}

}  // namespace

}  // namespace flash

using namespace flash;

Error attn_bwd_workspace_size(const attn_bwd_params& params, size_t* bytes) noexcept {
  if (!bytes) return fail(Error::null_pointer, "attn_bwd_workspace_size: bytes is null");
  Problem problem;
  AOTRITON_TRY(check_attn_bwd(params, Data::ignored, &problem));
  Workspace workspace;
  AOTRITON_TRY(workspace_of(problem, &workspace));
  *bytes = workspace.size;
  return Error::success;
}

Error attn_bwd(const attn_bwd_params& params, Stream stream) noexcept {
  Problem problem;
  AOTRITON_TRY(check_attn_bwd(params, Data::checked, &problem));
  Workspace workspace;
  AOTRITON_TRY(workspace_of(problem, &workspace));
  AOTRITON_TRY(check_workspace(params, workspace.size));
  const Tensor<3> delta = row_tensor(problem, params.workspace);
  const Tensor<4> dq_sum = query_sum(problem, static_cast<char*>(params.workspace) + workspace.dq_sum);
  return on_device("attn_bwd", stream, [&](const Device& device) {
    return run_operator(attn_bwd_operator, device, stream, portable(params, problem, delta),
                        hopper(params, problem, delta, dq_sum), hopper_split(params, problem, delta));
  });
}

Error explain(const attn_bwd_params& params, const char* arch, int multiprocessors, Explanation* explanation) noexcept {
  if (!explanation) return fail(Error::null_pointer, "explain: explanation is null");
  *explanation = {};
  Problem problem;
  AOTRITON_TRY(check_attn_bwd(params, Data::ignored, &problem));
  ArchInfo found;
  AOTRITON_TRY(find_arch(attn_bwd_preprocess_info, arch, multiprocessors, &found));
  const Tensor<3> delta = row_tensor(problem, nullptr);
  const Tensor<4> dq_sum = query_sum(problem, nullptr);
  return explain_operator(attn_bwd_operator, found, explanation, portable(params, problem, delta),
                          hopper(params, problem, delta, dq_sum), hopper_split(params, problem, delta));
}

}  // namespace aotriton::v2::inline abi1
