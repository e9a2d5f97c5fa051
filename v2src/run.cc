#include "run.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <optional>

#include "build.h"
#include "error.h"
#include "explain.h"
#include "load.h"
#include "pieces.h"
#include "select.h"

namespace aotriton::v2::inline abi1 {

namespace {

// A thread's last calls. A call's set follows from its hash; in a set the one made last comes first, and a new one
// takes the place of the one that was made longest ago. So any few calls stay, wherever their hashes fall.
class Memo {
 public:
  ~Memo() {
    for (Set& set : sets_)
      for (Prepared* prepared : set) Prepared::destroy(prepared);
  }

  Prepared* find(const Call& call, uint64_t context_id) noexcept {
    if (last_ && last_->is(call, context_id)) return last_;
    const uint64_t hash = hash_of(call);
    Set& set = set_of(hash);
    for (Prepared*& kept : set) {
      if (!kept || kept->hash != hash || !kept->is(call, context_id)) continue;
      last_ = kept;
      std::rotate(set.begin(), &kept, &kept + 1);
      return last_;
    }
    return nullptr;
  }

  void keep(Prepared* prepared) noexcept {
    Set& set = set_of(prepared->hash);
    const auto place = std::find_if(set.begin(), set.end() - 1, [&](const Prepared* kept) {
      return !kept || (kept->hash == prepared->hash && kept->context_id == prepared->context_id);
    });
    Prepared::destroy(*place);
    last_ = *place = prepared;
    std::rotate(set.begin(), place, place + 1);
  }

  void drop(Prepared* prepared) noexcept {
    Set& set = set_of(prepared->hash);
    std::replace(set.begin(), set.end(), prepared, static_cast<Prepared*>(nullptr));
    last_ = nullptr;
    Prepared::destroy(prepared);
  }

  Builder builder;

 private:
  static constexpr int kBits = 4;
  using Set = std::array<Prepared*, 8>;

  Set& set_of(uint64_t hash) noexcept { return sets_[hash >> (64 - kBits)]; }

  Prepared* last_ = nullptr;
  Set sets_[size_t{1} << kBits] = {};
};

// This thread's memo, made by its first call; null where there is no memory.
Memo* memo() noexcept {
  static thread_local std::unique_ptr<Memo> own;
  if (!own) own.reset(new (std::nothrow) Memo);
  return own.get();
}

Error no_memory(const Call& call) noexcept { return fail(Error::out_of_memory, "%s: no memory", call.info->name); }

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

bool launches_nothing(const Call& call) { return call.empty && (call.info->fills_when_empty || !has_results(call)); }

// Those that the call can get with the workspace that it brings.
Backends backends_for(const Call& call) { return call.workspace ? Backends::all : Backends::without_workspace; }

// A checked call in pieces.
Error build_parts(Call& call, const Device& device, const Pieces& pieces, Stream stream, Builder& builder,
                  Prepared** prepared) {
  Prepared* parts[2] = {};
  size_t made = 0;
  Error error = each_part(call, pieces, [&](Call& part) {
    Dispatch found;
    AOTRITON_TRY(dispatch(part, device.facts.place, &found, backends_for(call)));
    AOTRITON_TRY(builder.prepare(part, device, found, stream));
    parts[made] = builder.finish();
    return parts[made++] ? Error::success : no_memory(call);
  });
  if (error == Error::success) error = builder.prepare_parts(call, device, pieces, parts);
  if (error == Error::success && !(*prepared = builder.finish())) error = no_memory(call);
  if (error != Error::success)
    for (Prepared* part : parts) Prepared::destroy(part);
  return error;
}

// Loads what a part of a call needs.
Error load(Call& part, const Device& device, Backends among, Stream stream) {
  Dispatch found;
  AOTRITON_TRY(dispatch(part, device.facts.place, &found, among));
  for (size_t i = 0; i < found.chosen().kernels.size(); ++i) {
    void* function;
    AOTRITON_TRY(load_image(device, *found.kernels[i].entry().image, stream, &function));
  }
  return Error::success;
}

// The dispatch of a call, or of its first piece where it is in pieces.
Error dispatch_first(Call& call, const Place& place, Backends among, By by, Dispatch* found, Pieces* pieces) {
  AOTRITON_TRY(plan_pieces(call, place, among, pieces));
  if (pieces->count == 1) return dispatch(call, place, found, among, by);
  Piece first(call, 0, pieces->size);
  AOTRITON_TRY(dispatch(first.call, place, found, among, by));
  for (size_t i = 0; i < found->hint_count; ++i)
    if (!strcmp(found->hints[i].name, "workspace_limit"))
      found->hints[i].why = "the call is made in pieces, one after the other";
  return Error::success;
}

// The checked call, ready to be launched on the device, which is entered.
Error build(Call& call, const Device& device, Stream stream, Builder& builder, Prepared** prepared) {
  if (launches_nothing(call)) {
    builder.prepare_empty(call, device);
  } else {
    Pieces pieces;
    AOTRITON_TRY(plan_pieces(call, device.facts.place, backends_for(call), &pieces));
    if (pieces.count > 1) return build_parts(call, device, pieces, stream, builder, prepared);
    Dispatch found;
    AOTRITON_TRY(dispatch(call, device.facts.place, &found, backends_for(call)));
    AOTRITON_TRY(builder.prepare(call, device, found, stream));
  }
  *prepared = builder.finish();
  return *prepared ? Error::success : no_memory(call);
}

// A call that this thread has not made lately.
Error run_cold(Call& call, Stream stream, Memo& memo) {
  memo.builder.keep_key(call);
  AOTRITON_TRY(check_call(call, Data::needed));
  return on_device(call.info->name, stream, [&](const Device& device) {
    Prepared* prepared;
    AOTRITON_TRY(build(call, device, stream, memo.builder, &prepared));
    const Contexts entered = {device.contexts.of_stream, device.contexts.of_stream, device.contexts.id};
    const Error error = prepared->launch(entered, stream);
    if (error == Error::success)
      memo.keep(prepared);
    else
      Prepared::destroy(prepared);
    return error;
  });
}

}  // namespace

Error run(Call& call, Stream stream) noexcept {
  Memo* const memo = abi1::memo();
  if (!memo) return no_memory(call);
  const Driver* const driver = opened_driver();
  Contexts contexts;
  if (driver && !driver->contexts(stream.handle, &contexts) && contexts.of_stream) {
    Prepared* const prepared = memo->find(call, contexts.id);
    if (prepared && prepared->rebind(call) == Error::success) {
      const Error error = prepared->launch(contexts, stream);
      if (error != Error::success) memo->drop(prepared);
      return error;
    }
  }
  return run_cold(call, stream, *memo);
}

Error prepare(Call& call, Stream stream, Prepared** prepared) noexcept {
  *prepared = nullptr;
  Memo* const memo = abi1::memo();
  if (!memo) return no_memory(call);
  memo->builder.keep_key(call);
  AOTRITON_TRY(check_call(call, Data::needed));
  return on_device(call.info->name, stream,
                   [&](const Device& device) { return build(call, device, stream, memo->builder, prepared); });
}

Error launch(Prepared* prepared, void* const* pointers, size_t count, Stream stream) noexcept {
  if (!prepared) return fail(Error::null_pointer, "launch: the call is not prepared");
  if (!pointers) return fail(Error::null_pointer, "launch: pointers is null");
  const OperatorInfo& info = *prepared->info;
  const size_t wanted = info.operands.size() + 1;
  if (count != wanted)
    return fail(Error::invalid_argument,
                "launch: %zu pointers are given, %s takes %zu: its operands' and the workspace", count, info.name,
                wanted);
  Contexts contexts;
  if (const int status = prepared->driver->contexts(stream.handle, &contexts))
    return driver_failure(*prepared->driver, status, "launch", "say which device the stream is on");
  if (contexts.id != prepared->context_id)
    return fail(Error::invalid_argument,
                "launch: %s was prepared for another device or context, or its context was reset since", info.name);
  // How large the workspace is was checked before; the caller passes another one like it.
  AOTRITON_TRY(prepared->rebind(pointers, pointers[count - 1], prepared->workspace_bytes));
  return prepared->launch(contexts, stream);
}

Error workspace_size(Call& call, Stream stream, size_t* bytes) noexcept {
  if (!bytes) return fail(Error::null_pointer, "%s_workspace_size: bytes is null", call.info->name);
  *bytes = 0;
  AOTRITON_TRY(check_call(call, Data::optional));
  if (launches_nothing(call)) return Error::success;
  Memo* const memo = abi1::memo();
  if (!memo) return no_memory(call);
  bool everything_given = true;
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot)
    everything_given &= call[slot].data != nullptr || call.info->operands[slot].optional;
  return on_device(call.info->name, stream, [&](const Device& device) {
    Pieces pieces;
    AOTRITON_TRY(plan_pieces(call, device.facts.place, Backends::all, &pieces));
    return each_part(call, pieces, [&](Call& part) {
      Dispatch found;
      size_t needed;
      AOTRITON_TRY(dispatch(part, device.facts.place, &found));
      AOTRITON_TRY(memo->builder.workspace_size(part, found, &needed));
      *bytes = std::max(*bytes, needed);
      if (everything_given || !found.backend) return Error::success;
      // Data that turns out to be misaligned would be the first backend's, unless hints leave it out.
      if (const Error error = dispatch(part, device.facts.place, &found, Backends::first); error != Error::success)
        return call.hints ? Error::success : error;
      AOTRITON_TRY(memo->builder.workspace_size(part, found, &needed));
      *bytes = std::max(*bytes, needed);
      return Error::success;
    });
  });
}

Error supported(Call& call, Stream stream) noexcept {
  AOTRITON_TRY(check_call(call, Data::optional));
  return on_device(call.info->name, stream, [&](const Device& device) {
    Dispatch found;
    return launches_nothing(call) ? Error::success : dispatch(call, device.facts.place, &found);
  });
}

Error hint_outcomes(Call& call, Stream stream, aotriton_hint_outcome* outcomes, size_t* count) noexcept {
  if (!outcomes || !count)
    return fail(Error::null_pointer, "%s_hint_outcomes: outcomes or count is null", call.info->name);
  const size_t room = *count;
  *count = 0;
  AOTRITON_TRY(check_call(call, Data::optional));
  return on_device(call.info->name, stream, [&](const Device& device) {
    if (launches_nothing(call)) return Error::success;
    Dispatch found;
    Pieces pieces;
    AOTRITON_TRY(dispatch_first(call, device.facts.place, backends_for(call), By::time, &found, &pieces));
    if (found.hint_count > room)
      return fail(Error::invalid_argument, "%s_hint_outcomes: room for %zu, %zu are needed", call.info->name, room,
                  found.hint_count);
    std::copy_n(found.hints, found.hint_count, outcomes);
    *count = found.hint_count;
    return Error::success;
  });
}

Error preload(Call& call, Stream stream) noexcept {
  AOTRITON_TRY(check_call(call, Data::optional));
  return on_device(call.info->name, stream, [&](const Device& device) {
    if (launches_nothing(call)) return Error::success;
    for (const Backends among : {Backends::all, Backends::without_workspace}) {
      Pieces pieces;
      Error error = plan_pieces(call, device.facts.place, among, &pieces);
      if (error == Error::success)
        error = each_part(call, pieces, [&](Call& part) { return load(part, device, among, stream); });
      // Hints may leave nothing to a call without a workspace.
      if (error == Error::not_supported && call.hints && among == Backends::without_workspace) break;
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
  if (stride < offsetof(aotriton_kernel_choice, arch) || stride > 65536)
    return fail(Error::invalid_argument, "explain: the first element's size is %zu, not sizeof of the struct", stride);
  AOTRITON_TRY(check_call(call, Data::optional));
  Place place;
  AOTRITON_TRY(find_place("explain", arch, product, multiprocessors, &place));
  if (launches_nothing(call)) return Error::success;
  Dispatch found;
  Pieces pieces;
  AOTRITON_TRY(dispatch_first(call, place, Backends::all, by, &found, &pieces));
  const size_t needed = found.chosen().kernels.size();
  if (needed > room)
    return fail(Error::invalid_argument, "explain: room for %zu kernels, %zu are needed", room, needed);
  std::optional<Piece> first;
  if (pieces.count > 1) first.emplace(call, 0, pieces.size);
  for (size_t i = 0; i < needed; ++i) {
    // An array of another version's structs: as much of each as both know.
    KernelChoice choice = explain(found, i);
    choice.pieces = pieces.count;
    add_call_facts(first ? first->call : call, found, i, &choice);
    choice.size = stride;
    memcpy(reinterpret_cast<char*>(kernels) + i * stride, &choice, stride < sizeof choice ? stride : sizeof choice);
  }
  *count = needed;
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
