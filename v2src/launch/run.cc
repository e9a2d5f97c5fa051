#include "launch/run.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/abi.h"
#include "base/error.h"
#include "call/checks.h"
#include "dispatch/chunks.h"
#include "dispatch/exclusion.h"
#include "dispatch/explain.h"
#include "dispatch/select.h"
#include "launch/load.h"
#include "launch/memo.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr Field kChoiceFields[] = {
    AOTRITON_FIELD(aotriton_kernel_choice, size),
    AOTRITON_FIELD(aotriton_kernel_choice, kernel),
    AOTRITON_FIELD(aotriton_kernel_choice, arch),
    AOTRITON_FIELD(aotriton_kernel_choice, functional),
    AOTRITON_FIELD(aotriton_kernel_choice, godel_number),
    AOTRITON_FIELD(aotriton_kernel_choice, key_count),
    AOTRITON_FIELD(aotriton_kernel_choice, keys),
    AOTRITON_FIELD(aotriton_kernel_choice, image),
    AOTRITON_FIELD(aotriton_kernel_choice, tunables),
    AOTRITON_FIELD(aotriton_kernel_choice, compile_options),
    AOTRITON_FIELD(aotriton_kernel_choice, provenance),
    AOTRITON_FIELD(aotriton_kernel_choice, median_us),
    AOTRITON_FIELD(aotriton_kernel_choice, source),
    AOTRITON_FIELD(aotriton_kernel_choice, runners_up),
    AOTRITON_FIELD(aotriton_kernel_choice, runner_up_count),
    AOTRITON_FIELD(aotriton_kernel_choice, backend_count),
    AOTRITON_FIELD(aotriton_kernel_choice, backend),
    AOTRITON_FIELD(aotriton_kernel_choice, backends),
    AOTRITON_FIELD(aotriton_kernel_choice, backend_states),
    AOTRITON_FIELD(aotriton_kernel_choice, paddings),
    AOTRITON_FIELD(aotriton_kernel_choice, padding_count),
    AOTRITON_FIELD(aotriton_kernel_choice, exact_product),
    AOTRITON_FIELD(aotriton_kernel_choice, product),
    AOTRITON_FIELD(aotriton_kernel_choice, shape),
    AOTRITON_FIELD(aotriton_kernel_choice, measured),
    AOTRITON_FIELD(aotriton_kernel_choice, low_us),
    AOTRITON_FIELD(aotriton_kernel_choice, high_us),
    AOTRITON_FIELD(aotriton_kernel_choice, predicted_us),
    AOTRITON_FIELD(aotriton_kernel_choice, predicted_error),
    AOTRITON_FIELD(aotriton_kernel_choice, model),
    AOTRITON_FIELD(aotriton_kernel_choice, bin_image),
    AOTRITON_FIELD(aotriton_kernel_choice, bin_tunables),
    AOTRITON_FIELD(aotriton_kernel_choice, bin_compile_options),
    AOTRITON_FIELD(aotriton_kernel_choice, bin_median_us),
    AOTRITON_FIELD(aotriton_kernel_choice, predicted_total_us),
    AOTRITON_FIELD(aotriton_kernel_choice, backends_predicted_us),
    AOTRITON_FIELD(aotriton_kernel_choice, flops),
    AOTRITON_FIELD(aotriton_kernel_choice, hints),
    AOTRITON_FIELD(aotriton_kernel_choice, hint_count),
    AOTRITON_FIELD(aotriton_kernel_choice, pieces),
    AOTRITON_FIELD(aotriton_kernel_choice, certificate_product),
    AOTRITON_FIELD(aotriton_kernel_choice, certificate_checks),
    AOTRITON_FIELD(aotriton_kernel_choice, certificate_problems),
    AOTRITON_FIELD(aotriton_kernel_choice, certificate_day),
    AOTRITON_FIELD(aotriton_kernel_choice, certificate_error),
    AOTRITON_FIELD(aotriton_kernel_choice, certificate_allowed),
};
static_assert(are_all(kChoiceFields, sizeof(aotriton_kernel_choice)));

[[gnu::cold]] Error no_memory(const Call& call) noexcept {
  return fail(Error::out_of_memory, "%s: no memory", call.info->name);
}

// Whether the call has results, and any of them has an element.
bool has_results(const Call& call) {
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot) {
    const OperandInfo& operand = call.info->operands[slot];
    if (!operand.written || !call[slot].sizes || (operand.optional && !call[slot].data)) continue;
    bool elements = true;
    for (size_t i = 0; i < operand.dims.size(); ++i) elements &= call[slot].sizes[i] > 0;
    if (elements) return true;
  }
  return false;
}

bool launches_nothing(CheckedCall call) { return call->empty && (call->info->fills_when_empty || !has_results(*call)); }

// Those that the call can get with the workspace that it brings.
Backends backends_for(const Call& call) { return call.workspace ? Backends::all : Backends::without_workspace; }

// Builds a call in chunks.
[[gnu::cold]] Result<BuiltCall> build_chunks(const ChunkedCall& chunks, const Device& device, Stream stream,
                                             const Key& key, Builder& builder) {
  Prepared* prepared[2] = {};
  size_t count = 0;
  const Error error = chunks.each([&](ChosenCall chosen) {
    const Result<BuiltCall> built = builder.build(chosen, device, stream);
    AOTRITON_TRY(built.error());
    prepared[count] = built->finish(key);
    return prepared[count++] ? Error::success : no_memory(chosen.call());
  });
  const Result<BuiltCall> built = error == Error::success ? builder.build_chunks(chunks, device, prepared) : error;
  if (built.error() != Error::success)
    for (Prepared* one : prepared) Prepared::destroy(one);
  return built;
}

// Operands whose data is not there yet, by which kernels follow their strides: where one of a group is misaligned, it
// is as if all of it were.
struct Groups {
  size_t count = 0;
  uint32_t slots[kMaxOperands];  // of each group, as bits
};
Groups missing_groups(const Call& call) {
  const OperatorInfo& info = *call.info;
  Groups groups;
  uint64_t users[kMaxOperands];
  for (size_t slot = 0; slot < info.operands.size(); ++slot) {
    const size_t own = call.from[slot];
    if (call[slot].data || info.operands[slot].optional || !call[slot].sizes) continue;
    uint64_t using_it = 0;
    uint64_t kernel_bit = 1;
    for (const BackendInfo& backend : info.backends)
      for (const KernelInfo* kernel : backend.kernels) {
        if (kernel->uses.strided >> slot & 1) using_it |= kernel_bit;
        kernel_bit = std::rotl(kernel_bit, 1);
      }
    if (!using_it) continue;
    size_t group = 0;
    while (group < groups.count && users[group] != using_it) ++group;
    if (group == groups.count) {
      users[groups.count] = using_it;
      groups.slots[groups.count++] = 0;
    }
    groups.slots[group] |= 1u << own;
  }
  return groups;
}

Error load(const Dispatch& dispatch, const Device& device, Stream stream) {
  for (size_t i = 0; i < dispatch.chosen().kernels.size(); ++i) {
    if (!dispatch.plans[i].has_programs) continue;
    void* function;
    AOTRITON_TRY(load_image(device, *dispatch.kernels[i].entry().image, stream, &function));
  }
  return Error::success;
}

// Writes the choice of each kernel that the call launches to `kernels`, which has room for that many; *count becomes
// their number.
Error explain_kernels(ChosenCall chosen, int64_t chunks, By by, aotriton_kernel_choice* kernels, size_t room,
                      size_t* count) {
  const Dispatch& dispatch = chosen.dispatch();
  const size_t stride = kernels->size;
  size_t launched[kMaxKernels], needed = 0;
  for (size_t i = 0; i < dispatch.chosen().kernels.size(); ++i)
    if (dispatch.plans[i].has_programs) launched[needed++] = i;
  if (needed > room)
    return fail(Error::invalid_argument, "explain: room for %zu kernels, %zu are needed", room, needed);
  for (size_t i = 0; i < needed; ++i) {
    KernelChoice choice = explain(dispatch, launched[i]);
    choice.pieces = chunks;
    if (by == By::time) add_prediction(chosen, launched[i], &choice);
    add_call_facts(chosen, launched[i], &choice);
    // The structs of the array may be of another version: as much of each is written as both versions know.
    choice.size = stride;
    char* const element = reinterpret_cast<char*>(kernels) + i * stride;
    memcpy(element, &choice, std::min(stride, sizeof choice));
    if (stride > sizeof choice) memset(element + sizeof choice, 0, stride - sizeof choice);
  }
  *count = needed;
  return Error::success;
}

// Builds what the call launches on the device, which is entered.
[[gnu::hot]] Result<BuiltCall> build(CheckedCall call, const Device& device, Stream stream, const Key& key,
                                     Builder& builder) {
  if (launches_nothing(call)) return builder.build_empty(call, device);
  Dispatch made;
  const Result<ChunkedCall> chunks = plan_chunks(call, device.facts.gpu, backends_for(*call), By::time, &made);
  AOTRITON_TRY(chunks.error());
  if (chunks->count() > 1) return build_chunks(*chunks, device, stream, key, builder);
  return chunks->first([&](ChosenCall chosen) { return builder.build(chosen, device, stream); });
}

// Runs a call that this thread's memo does not have.
[[gnu::hot]] Error run_cold(Call& call, Stream stream, const Contexts* contexts, const Key& key, Memo& memo) {
  const Result<CheckedCall> checked = check_call(call, Data::needed);
  AOTRITON_TRY(checked.error());
  const auto body = [&](const Device& device) {
    const Result<BuiltCall> built = build(*checked, device, stream, key, memo.builder);
    AOTRITON_TRY(built.error());
    Prepared* const prepared = memo.keep(*built, key);
    if (!prepared) return no_memory(call);
    memo.note(prepared, nullptr, nullptr);
    const Contexts entered = {device.contexts.of_stream, device.contexts.of_stream, device.contexts.id};
    const Error error = prepared->launch(entered, stream);
    if (error != Error::success) memo.drop(prepared);
    return error;
  };
  return on_device(call.info->name, stream, body, contexts);
}

// Launches a kept call, whose pointers are those of this one if `rebound` is success. False where they are not.
[[gnu::always_inline]] inline bool relaunch(Prepared* kept, Error rebound, const Contexts& contexts, Stream stream,
                                            Memo& memo, Error* error) {
  if (rebound != Error::success) {
    if (kept->stale) memo.drop(kept);
    return false;
  }
  *error = kept->launch(contexts, stream);
  if (*error != Error::success) memo.drop(kept);
  return true;
}

// Whether the stream has a context.
bool find_contexts(const Driver* driver, Stream stream, Contexts* contexts) {
  return driver && !driver->contexts(stream.handle, contexts) && contexts->of_stream;
}

}  // namespace

[[gnu::hot]] Error run(Call& call, Stream stream, const ParamsLayout* layout, const void* params) noexcept {
  const MemoOfCall own;
  Memo* const memo = own.get();
  if (!memo) return no_memory(call);
  Contexts contexts;
  const bool entered = find_contexts(opened_driver(), stream, &contexts);
  const Key key(call);
  if (Prepared* const kept = entered ? memo->find(key, contexts.id) : nullptr) {
    const Error rebound = kept->rebind(call);
    if (rebound == Error::success) memo->note(kept, layout, params);
    Error error;
    if (relaunch(kept, rebound, contexts, stream, *memo, &error)) return error;
  }
  return run_cold(call, stream, entered ? &contexts : nullptr, key, *memo);
}

[[gnu::hot]] bool run_again(const ParamsLayout& layout, const void* params, Stream stream, Error* error) noexcept {
  Memo* const memo = memo_of_thread();
  Prepared* const last = memo ? memo->last(layout, params) : nullptr;
  if (!last) return false;
  Contexts contexts;
  if (!find_contexts(opened_driver(), stream, &contexts) || contexts.id != last->context_id) return false;
  return relaunch(last, last->rebind(layout, params), contexts, stream, *memo, error);
}

Error prepare(Call& call, Stream stream, Prepared** prepared) noexcept {
  *prepared = nullptr;
  const MemoOfCall own;
  Memo* const memo = own.get();
  if (!memo) return no_memory(call);
  const Key key(call);
  const Result<CheckedCall> checked = check_call(call, Data::needed);
  AOTRITON_TRY(checked.error());
  return on_device(call.info->name, stream, [&](const Device& device) {
    const Result<BuiltCall> built = build(*checked, device, stream, key, memo->builder);
    AOTRITON_TRY(built.error());
    *prepared = built->finish(key);
    return *prepared ? Error::success : no_memory(call);
  });
}

Error launch(Prepared* prepared, void* const* pointers, size_t count, Stream stream) noexcept {
  if (!prepared) return fail(Error::null_pointer, "launch: the call is not prepared");
  if (!pointers) return fail(Error::null_pointer, "launch: pointers is null");
  const OperatorInfo& info = *prepared->info;
  const size_t wanted = info.plain_operands() + 1, all = info.operands.size() + 1;
  if (count != wanted && count != all)
    return fail(Error::invalid_argument,
                "launch: %zu pointers are given, %s takes %zu: its operands' and the workspace", count, info.name,
                wanted);
  void* const workspace = pointers[count - 1];
  void* own[kMaxOperands] = {};
  if (count != all) pointers = std::copy_n(pointers, count - 1, own) - (count - 1);
  Contexts contexts;
  if (const Status status = prepared->driver->contexts(stream.handle, &contexts))
    return driver_failure(*prepared->driver, status, "launch", "say which device the stream is on");
  if (contexts.id != prepared->context_id)
    return fail(Error::invalid_argument,
                "launch: %s was prepared for another device or context, or its context was reset since", info.name);
  // How large the workspace is was checked before; the caller passes another one like it.
  AOTRITON_TRY(prepared->rebind(pointers, workspace, prepared->workspace_bytes));
  return prepared->launch(contexts, stream);
}

Error workspace_size(Call& call, Stream stream, size_t* bytes) noexcept {
  if (!bytes) return fail(Error::null_pointer, "%s_workspace_size: bytes is null", call.info->name);
  *bytes = 0;
  const Result<CheckedCall> checked = check_call(call, Data::optional);
  AOTRITON_TRY(checked.error());
  if (launches_nothing(*checked)) return Error::success;
  return on_device(call.info->name, stream, [&](const Device& device) {
    const Gpu& gpu = device.facts.gpu;
    const auto include = [&] {
      Dispatch made;
      const Result<ChunkedCall> chunks = plan_chunks(*checked, gpu, Backends::all, By::time, &made);
      AOTRITON_TRY(chunks.error());
      return chunks->each([&](ChosenCall chosen) {
        *bytes = std::max(*bytes, chosen.dispatch().workspace.bytes);
        return Error::success;
      });
    };
    // Data that is not there yet may turn out to be misaligned, any of it, which leaves other kernels. The call is
    // refused where none of these ways is served.
    const Groups groups = missing_groups(call);
    const uint32_t anyway = call.misaligned;
    Error refusal = Error::success;
    bool any = false;
    for (unsigned which = 0; which < 1u << groups.count; ++which) {
      call.misaligned = anyway;
      for (unsigned left = which; left; left &= left - 1) call.misaligned |= groups.slots[std::countr_zero(left)];
      const Error error = include();
      any |= error == Error::success;
      if (!which) refusal = error;
    }
    call.misaligned = anyway;
    return any ? Error::success : refusal;
  });
}

Error supported(Call& call, Stream stream) noexcept {
  const Result<CheckedCall> checked = check_call(call, Data::optional);
  AOTRITON_TRY(checked.error());
  return on_device(call.info->name, stream, [&](const Device& device) {
    if (launches_nothing(*checked)) return Error::success;
    Dispatch made;
    const Result<ChunkedCall> chunks = plan_chunks(*checked, device.facts.gpu, Backends::all, By::time, &made);
    AOTRITON_TRY(chunks.error());
    return chunks->each([](ChosenCall) { return Error::success; });
  });
}

Error hint_outcomes(Call& call, Stream stream, aotriton_hint_outcome* outcomes, size_t* count) noexcept {
  if (!outcomes || !count)
    return fail(Error::null_pointer, "%s_hint_outcomes: outcomes or count is null", call.info->name);
  const size_t room = *count;
  *count = 0;
  const Result<CheckedCall> checked = check_call(call, Data::optional);
  AOTRITON_TRY(checked.error());
  return on_device(call.info->name, stream, [&](const Device& device) {
    if (launches_nothing(*checked)) return Error::success;
    Dispatch made;
    AOTRITON_TRY(plan_chunks(*checked, device.facts.gpu, backends_for(call), By::time, &made).error());
    if (made.hint_count > room)
      return fail(Error::invalid_argument, "%s_hint_outcomes: room for %zu, %zu are needed", call.info->name, room,
                  made.hint_count);
    std::copy_n(made.hints, made.hint_count, outcomes);
    *count = made.hint_count;
    return Error::success;
  });
}

Error preload(Call& call, Stream stream) noexcept {
  const Result<CheckedCall> checked = check_call(call, Data::optional);
  AOTRITON_TRY(checked.error());
  return on_device(call.info->name, stream, [&](const Device& device) {
    if (launches_nothing(*checked)) return Error::success;
    for (const Backends among : {Backends::all, Backends::without_workspace}) {
      Dispatch made;
      const Result<ChunkedCall> chunks = plan_chunks(*checked, device.facts.gpu, among, By::time, &made);
      Error error = chunks.error();
      if (error == Error::success)
        error = chunks->each([&](ChosenCall chosen) { return load(chosen.dispatch(), device, stream); });
      // Hints and what the process leaves out may leave nothing to a call without a workspace.
      if (error == Error::not_supported && (call.hints || *exclusion()) && among == Backends::without_workspace) break;
      AOTRITON_TRY(error);
    }
    return Error::success;
  });
}

Error explain(Call& call, const char* arch, const char* product, int multiprocessors, aotriton_kernel_choice* kernels,
              size_t* count, By by) noexcept {
  if (!kernels || !count) return fail(Error::null_pointer, "explain: kernels or count is null");
  const size_t room = *count, stride = kernels->size;
  *count = 0;
  if (stride < offsetof(aotriton_kernel_choice, arch) || stride > kMostStructBytes ||
      !cuts_no_field(kChoiceFields, stride))
    return fail(Error::invalid_argument, "explain: the first element's size is %zu, not sizeof of the struct", stride);
  const Result<CheckedCall> checked = check_call(call, Data::optional);
  AOTRITON_TRY(checked.error());
  Gpu gpu;
  AOTRITON_TRY(find_gpu("explain", arch, product, multiprocessors, &gpu));
  if (launches_nothing(*checked)) return Error::success;
  Dispatch made;
  return keep_message([&] {
    const Result<ChunkedCall> chunks = plan_chunks(*checked, gpu, Backends::all, by, &made);
    AOTRITON_TRY(chunks.error());
    return chunks->first(
        [&](ChosenCall chosen) { return explain_kernels(chosen, chunks->count(), by, kernels, room, count); });
  });
}

}  // namespace aotriton::v2::inline abi1
