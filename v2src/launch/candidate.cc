#include "launch/candidate.h"

#include <cinttypes>

#include "base/error.h"
#include "call/checks.h"
#include "dispatch/select.h"
#include "launch/memo.h"

namespace aotriton::v2::inline abi1 {

namespace {

// Whether a call with this value of a choice may run an image with that one.
bool fits(const ChoiceInfo& choice, size_t of_image, int64_t value) {
  const int64_t compiled = choice.values[of_image];
  const bool any_strides = choice.of_addressing() && compiled == static_cast<int64_t>(Addressing::general);
  return any_strides || (choice.round_up ? value <= compiled : value == compiled);
}

Error check_fit(const Candidate& candidate, const Call& call, const Device& device) {
  const char* const name = candidate.image.name;
  if (candidate.arch != device.facts.gpu.arch)
    return fail(Error::invalid_argument, "%s: is for %s, the device is %s", name, kArchs[candidate.arch].arch,
                device.arch().arch);
  const KernelInfo& kernel = *candidate.kernel;
  for (size_t slot = 0; slot < call.info->slots(); ++slot)
    if (kernel.uses.all >> slot & 1 && !call[slot].sizes && !call.info->slot(slot).optional)
      return fail(Error::null_pointer, "%s: %s is not given", name, call.info->slot(slot).name);
  const Gpu& gpu = device.facts.gpu;
  const Environment environment = {&call, candidate.tunables, gpu.multiprocessors,
                                   static_cast<int>(Survey(call, gpu).addressing(kernel))};
  for (size_t i = 0; i < kernel.choices.size(); ++i) {
    const ChoiceInfo& choice = kernel.choices[i];
    int64_t value;
    if (evaluate(choice.value, environment, &value) && fits(choice, candidate.values[i], value)) continue;
    return fail(Error::invalid_argument, "%s: has %s=%s, the call has %" PRId64, name, choice.name,
                choice.texts[candidate.values[i]], value);
  }
  if (const char* why = refusal(kernel, environment)) return fail(Error::not_supported, "%s: %s", name, why);
  return Error::success;
}

}  // namespace

Error run(Candidate& candidate, Call& call, Stream stream) noexcept {
  const MemoOfCall own;
  if (!own.get()) return fail(Error::out_of_memory, "%s: no memory", candidate.image.name);
  const Key key(call);
  const Result<CheckedCall> checked = check_call(call, Data::needed, true);
  AOTRITON_TRY(checked.error());
  return on_device(candidate.image.name, stream, [&](const Device& device) {
    AOTRITON_TRY(check_fit(candidate, call, device));
    const Result<BuiltCall> built =
        own.get()->builder.build(*checked, device, *candidate.kernel, candidate.image, candidate.tunables, stream);
    AOTRITON_TRY(built.error());
    Prepared* const prepared = built->finish(key);
    if (!prepared) return fail(Error::out_of_memory, "%s: no memory", candidate.image.name);
    const Contexts entered = {device.contexts.of_stream, device.contexts.of_stream, device.contexts.id};
    const Error error = prepared->launch(entered, stream);
    Prepared::destroy(prepared);
    return error;
  });
}

Error workspace_size(Candidate& candidate, Call& call, Stream stream, size_t* bytes) noexcept {
  *bytes = 0;
  if (!candidate.image.global_scratch) return Error::success;
  const Result<CheckedCall> checked = check_call(call, Data::needed, true);
  AOTRITON_TRY(checked.error());
  return on_device(candidate.image.name, stream, [&](const Device& device) {
    AOTRITON_TRY(check_fit(candidate, call, device));
    KernelPlan plan;
    Workspace workspace;
    workspace.bytes = 0;
    Misfit misfit =
        plan_kernel(call, *candidate.kernel, candidate.image, candidate.tunables, device.facts.gpu, nullptr, &plan);
    if (!misfit) misfit = add_scratch(candidate.image, &plan, &workspace);
    *bytes = workspace.bytes;
    return misfit ? refuse(call, misfit) : Error::success;
  });
}

}  // namespace aotriton::v2::inline abi1
