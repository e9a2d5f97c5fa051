#include "flash/candidate.h"

#include <cstring>

#include "dispatch.h"
#include "flash/checks.h"
#include "flash/kernels.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

template <class Kernel>
Error check_fit(const Candidate& candidate, const Kernel& kernel, const Device& device) {
  const char* const name = candidate.image.name;
  if (strcmp(candidate.kernel, Kernel::info().name))
    return fail(Error::invalid_argument, "%s: is an image of %s, not of %s", name, candidate.kernel,
                Kernel::info().name);
  if (strcmp(candidate.arch, device.arch->arch))
    return fail(Error::invalid_argument, "%s: is for %s, the device is %s", name, candidate.arch, device.arch->arch);
  const auto called = kernel.functional(kernel.addressing(device.arch->aligned));
  if (called.T != candidate.T)
    return fail(Error::invalid_argument, "%s: is for %s, the tensors are %s", name, dtype_name(candidate.T),
                dtype_name(called.T));
  if (kernel.problem.head_dim > candidate.BLOCK_DMODEL)
    return fail(Error::invalid_argument, "%s: is for head dims up to %d, the tensors have %d", name,
                candidate.BLOCK_DMODEL, kernel.problem.head_dim);
  if constexpr (requires { called.CAUSAL; })
    if (called.CAUSAL != candidate.CAUSAL)
      return fail(Error::invalid_argument, "%s: has CAUSAL=%s, the call has not", name,
                  candidate.CAUSAL ? "True" : "False");
  if constexpr (requires { kernel.serves(); })
    if (!kernel.serves()) return fail(Error::not_supported, "%s: can not run this very call", name);
  if (candidate.ADDRESSING != Addressing::general && candidate.ADDRESSING != called.ADDRESSING)
    return fail(Error::invalid_argument, "%s: has ADDRESSING=%s, the tensors' layout allows %s", name,
                addressing_name(candidate.ADDRESSING), addressing_name(called.ADDRESSING));
  return Error::success;
}

template <class Kernel>
Error launch_candidate(Candidate& candidate, const Kernel& kernel, Stream stream) {
  const char* const name = candidate.image.name;
  return on_device(name, stream, [&](const Device& device) {
    AOTRITON_TRY(check_fit(candidate, kernel, device));
    Prepared prepared;
    AOTRITON_TRY(prepared.prepare(kernel, device, candidate.image, candidate.psels, stream));
    return prepared.submit(device, stream);
  });
}

}  // namespace

const KernelInfo* find_kernel(const char* name) noexcept {
  for (const KernelInfo* kernel : kKernels)
    if (!strcmp(kernel->name, name)) return kernel;
  return nullptr;
}

Error launch_attn_fwd(Candidate& candidate, const attn_fwd_params& params, Stream stream) noexcept {
  Problem problem;
  AOTRITON_TRY(check_attn_fwd(params, Data::checked, &problem));
  const auto& [q, k, v, out, logsumexp, sm_scale, causal] = params;
  if (!strcmp(candidate.kernel, attn_fwd_hopper_info.name))
    return launch_candidate(candidate, AttnFwdHopper{problem, q, k, v, out, logsumexp}, stream);
  return launch_candidate(candidate, AttnFwd{problem, q, k, v, out, logsumexp}, stream);
}

Error launch_attn_bwd_preprocess(Candidate& candidate, const Tensor<4>& out, const Tensor<4>& dout,
                                 const Tensor<3>& delta, Stream stream) noexcept {
  const Operand operands[] = {{"out", out, Side::query, Access::read}, {"dout", dout, Side::query, Access::read}};
  const RowOperand rows[] = {{"delta", delta}};
  Problem problem;
  AOTRITON_TRY(check_problem("attn_bwd_preprocess", operands, rows, 0, false, Data::checked, &problem));
  return launch_candidate(candidate, AttnBwdPreprocess{problem, out, dout, delta}, stream);
}

Error launch_attn_bwd_dk_dv(Candidate& candidate, const Tensor<4>& q, const Tensor<4>& k, const Tensor<4>& v,
                            const Tensor<4>& dout, const Tensor<3>& logsumexp, const Tensor<3>& delta,
                            const Tensor<4>& dk, const Tensor<4>& dv, float sm_scale, bool causal,
                            Stream stream) noexcept {
  const Operand operands[] = {{"q", q, Side::query, Access::read},  {"k", k, Side::key, Access::read},
                              {"v", v, Side::key, Access::read},    {"dout", dout, Side::query, Access::read},
                              {"dk", dk, Side::key, Access::write}, {"dv", dv, Side::key, Access::write}};
  const RowOperand rows[] = {{"logsumexp", logsumexp}, {"delta", delta}};
  Problem problem;
  AOTRITON_TRY(check_problem("attn_bwd_dk_dv", operands, rows, sm_scale, causal, Data::checked, &problem));
  if (!strcmp(candidate.kernel, attn_bwd_hopper_dk_dv_info.name))
    return launch_candidate(candidate, AttnBwdHopperDkDv{problem, q, k, v, dout, dk, dv, logsumexp, delta}, stream);
  return launch_candidate(candidate, AttnBwdDkDv{problem, q, k, v, dout, dk, dv, logsumexp, delta}, stream);
}

Error launch_attn_bwd_dq(Candidate& candidate, const Tensor<4>& q, const Tensor<4>& k, const Tensor<4>& v,
                         const Tensor<4>& dout, const Tensor<3>& logsumexp, const Tensor<3>& delta, const Tensor<4>& dq,
                         float sm_scale, bool causal, Stream stream) noexcept {
  const Operand operands[] = {{"q", q, Side::query, Access::read},
                              {"k", k, Side::key, Access::read},
                              {"v", v, Side::key, Access::read},
                              {"dout", dout, Side::query, Access::read},
                              {"dq", dq, Side::query, Access::write}};
  const RowOperand rows[] = {{"logsumexp", logsumexp}, {"delta", delta}};
  Problem problem;
  AOTRITON_TRY(check_problem("attn_bwd_dq", operands, rows, sm_scale, causal, Data::checked, &problem));
  if (!strcmp(candidate.kernel, attn_bwd_hopper_dq_info.name))
    return launch_candidate(candidate, AttnBwdHopperDq{problem, q, k, v, dout, dq, logsumexp, delta}, stream);
  return launch_candidate(candidate, AttnBwdDq{problem, q, k, v, dout, dq, logsumexp, delta}, stream);
}

Error launch_attn_bwd_hopper_prepare(Candidate& candidate, const Tensor<4>& out, const Tensor<4>& dout,
                                     const Tensor<3>& delta, void* dq_sum, Stream stream) noexcept {
  const Operand operands[] = {{"out", out, Side::query, Access::read}, {"dout", dout, Side::query, Access::read}};
  const RowOperand rows[] = {{"delta", delta}};
  Problem problem;
  AOTRITON_TRY(check_problem("attn_bwd_hopper_prepare", operands, rows, 0, false, Data::checked, &problem));
  const Tensor<4> sum = query_sum(problem, dq_sum);
  return launch_candidate(candidate, AttnBwdHopperPrepare{problem, out, dout, delta, sum}, stream);
}

Error launch_attn_bwd_hopper(Candidate& candidate, const Tensor<4>& q, const Tensor<4>& k, const Tensor<4>& v,
                             const Tensor<4>& dout, const Tensor<3>& logsumexp, const Tensor<3>& delta,
                             const Tensor<4>& dk, const Tensor<4>& dv, void* dq_sum, float sm_scale, bool causal,
                             Stream stream) noexcept {
  const Operand operands[] = {{"q", q, Side::query, Access::read},  {"k", k, Side::key, Access::read},
                              {"v", v, Side::key, Access::read},    {"dout", dout, Side::query, Access::read},
                              {"dk", dk, Side::key, Access::write}, {"dv", dv, Side::key, Access::write}};
  const RowOperand rows[] = {{"logsumexp", logsumexp}, {"delta", delta}};
  Problem problem;
  AOTRITON_TRY(check_problem("attn_bwd_hopper", operands, rows, sm_scale, causal, Data::checked, &problem));
  const Tensor<4> sum = query_sum(problem, dq_sum);
  return launch_candidate(candidate, AttnBwdHopper{problem, q, k, v, dout, dk, dv, sum, logsumexp, delta}, stream);
}

Error launch_attn_bwd_hopper_finish(Candidate& candidate, void* dq_sum, const Tensor<4>& dq, float sm_scale,
                                    Stream stream) noexcept {
  const Operand operands[] = {{"dq", dq, Side::query, Access::write}};
  Problem problem;
  AOTRITON_TRY(check_problem("attn_bwd_hopper_finish", operands, {}, sm_scale, false, Data::checked, &problem));
  const Tensor<4> sum = query_sum(problem, dq_sum);
  return launch_candidate(candidate, AttnBwdHopperFinish{problem, sum, dq}, stream);
}

}  // namespace aotriton::v2::inline abi1::flash
