#include "dispatch.h"
#include "flash/checks.h"
#include "flash/kernels.h"

namespace aotriton::v2::inline abi1 {

namespace flash {

Error check_attn_fwd(const attn_fwd_params& params, Data data, Problem* problem) noexcept {
  const Operand operands[] = {{"q", params.q, Side::query, Access::read},
                              {"k", params.k, Side::key, Access::read},
                              {"v", params.v, Side::key, Access::read},
                              {"out", params.out, Side::query, Access::write}};
  const RowOperand rows[] = {{"logsumexp", params.logsumexp}};
  const size_t row_count = params.logsumexp.data ? 1 : 0;
  AOTRITON_TRY(check_problem("attn_fwd", operands, {rows, row_count}, params.sm_scale, params.causal, data, problem));
  int64_t bytes;
  return row_bytes("attn_fwd", *problem, &bytes);
}

namespace {

// A call of one kernel, which is a whole backend.
template <class Kernel>
std::tuple<Kernel> backend(const attn_fwd_params& p, const Problem& problem) {
  return {Kernel{problem, p.q, p.k, p.v, p.out, p.logsumexp}};
}

}  // namespace

}  // namespace flash

using namespace flash;

Error attn_fwd(const attn_fwd_params& params, Stream stream) noexcept {
  Problem problem;
  AOTRITON_TRY(check_attn_fwd(params, Data::checked, &problem));
  return on_device("attn_fwd", stream, [&](const Device& device) {
    return run_operator(attn_fwd_operator, device, stream, backend<AttnFwd>(params, problem),
                        backend<AttnFwdHopper>(params, problem));
  });
}

Error explain(const attn_fwd_params& params, const char* arch, int multiprocessors, Explanation* explanation) noexcept {
  if (!explanation) return fail(Error::null_pointer, "explain: explanation is null");
  *explanation = {};
  Problem problem;
  AOTRITON_TRY(check_attn_fwd(params, Data::ignored, &problem));
  ArchInfo found;
  AOTRITON_TRY(find_arch(attn_fwd_info, arch, multiprocessors, &found));
  return explain_operator(attn_fwd_operator, found, explanation, backend<AttnFwd>(params, problem),
                          backend<AttnFwdHopper>(params, problem));
}

}  // namespace aotriton::v2::inline abi1
