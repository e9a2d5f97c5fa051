#include "launch/prepared.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "base/error.h"
#include "call/checks.h"
#include "call/hints.h"
#include "call/operands.h"
#include "launch/empty_results.h"
#include "launch/load.h"

namespace aotriton::v2::inline abi1 {

namespace {

// The bytes of the hints in which two calls must agree.
std::string_view bytes_of(const aotriton_hints& hints) { return {reinterpret_cast<const char*>(&hints), kHintBytes}; }

constexpr int64_t kPlainBit = 4;

}  // namespace

[[gnu::hot]] Key::Key(const Call& call) noexcept : info(call.info), hints(call.hints) {
  words[0] = (call.workspace ? 1 : 0) | (call.hints ? 2 : 0) | (call.plain ? kPlainBit : 0);
  uint64_t mixed = reinterpret_cast<uint64_t>(info);
  int64_t* const end = info->compiled.write_words ? info->compiled.write_words(call, words + 1, &mixed)
                                                  : write_words(call, words + 1, &mixed, EachAtRunTime{info->operands});
  const size_t scalars = info->scalars.size();
  uint64_t of_scalars = 0;  // a chain, as they are mostly the same where all else is
  for (size_t i = 0; i < scalars; ++i) {
    end[i] = call.scalars[i].whole;
    of_scalars = std::rotl(of_scalars, 7) + static_cast<uint64_t>(end[i]);
  }
  mixed = hash_of(mixed, words[0], static_cast<int64_t>(of_scalars));
  count = static_cast<size_t>(end + scalars - words);
  if (hints) mixed ^= std::hash<std::string_view>{}(bytes_of(*hints));
  hash = mixed * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
}

CallOfKey::CallOfKey(const OperatorInfo& info, const int64_t* key, void* const* pointers,
                     const int64_t* extents) noexcept
    : call_(info) {
  call_.plain = *key++ & kPlainBit;
  const size_t in_key = operands_of_key(info, call_.plain);
  for (size_t slot = 0; slot < info.operands.size(); ++slot) {
    call_.views[slot] = View::none();
    call_.extents[slot] = extents[slot];
    if (slot >= in_key) continue;
    const int64_t word = *key++;
    if (!word) continue;
    const size_t rank = info.operands[slot].dims.size();
    call_.views[slot] = {pointers[slot], static_cast<DType>(word >> 2), key, key + rank};
    key += 2 * rank;
  }
  for (size_t i = 0; i < info.scalars.size(); ++i) call_.scalars[i].whole = *key++;
}

[[gnu::hot]] bool Prepared::is(const Key& other, uint64_t id) const noexcept {
  return hash == other.hash && other.info == info && id == context_id &&
         !memcmp(key, other.words, other.count * sizeof(int64_t)) &&
         (!hints || bytes_of(*other.hints) == bytes_of(*hints));
}

Error Prepared::rebind(const Call& call) noexcept {
  void* pointers[kMaxOperands] = {};
  for (size_t slot = 0; slot < operand_count; ++slot) pointers[slot] = call[slot].data;
  return without_message([&] { return rebind(pointers, call.workspace, call.workspace_size); });
}

[[gnu::hot]] Error Prepared::rebind(const ParamsLayout& layout, const void* params) noexcept {
  void* own_workspace = nullptr;
  size_t workspace_size = 0;
  if (workspace_bytes) {
    own_workspace = read_at<void*>(params, layout.workspace);
    workspace_size = read_at<size_t>(params, layout.workspace_size);
  }
  bool moved = stale || (workspace_bytes && (own_workspace != workspace() || workspace_size < workspace_bytes));
  for (const MovingPointer& one : layout.moving) moved |= read_at<void*>(params, one.offset) != data[one.slot];
  if (!moved) [[likely]]
    return Error::success;
  void* pointers[kMaxOperands];
  std::copy_n(data, info->operands.size(), pointers);
  for (const MovingPointer& one : layout.moving) pointers[one.slot] = read_at<void*>(params, one.offset);
  return without_message([&] { return rebind(pointers, own_workspace, workspace_size); });
}

Error Prepared::rebind(void* const* pointers, void* own_workspace, size_t workspace_size) noexcept {
  if (workspace_bytes && workspace_size < workspace_bytes)
    return fail(Error::workspace_too_small, "%s: workspace has %zu bytes, %zu are needed", info->name, workspace_size,
                workspace_bytes);
  const size_t count = info->operands.size();
  const bool same_workspace = !workspace_bytes || own_workspace == workspace();
  if (!stale && same_workspace && !memcmp(pointers, data, count * sizeof(void*))) return Error::success;
  if (!surely_suit(pointers)) AOTRITON_TRY(check_pointers(pointers));
  if (workspace_bytes) AOTRITON_TRY(check_workspace(*info, own_workspace, workspace_bytes, pointers, extents));
  return write_pointers(pointers, own_workspace);
}

Error Prepared::write_pointers(void* const* new_data, void* new_workspace) noexcept {
  stale = true;
  for (size_t i = 0; i < pointer_count; ++i) {
    const PointerArgument& one = pointers[i];
    const bool of_workspace = one.slot == kWorkspaceSlot;
    void* const wanted = of_workspace ? static_cast<char*>(new_workspace) + one.offset : new_data[one.slot];
    if (!one.map) {
      memcpy(arguments[one.argument], &wanted, sizeof wanted);
      continue;
    }
    if (const Status status = driver->replace_address(static_cast<TensorMap*>(arguments[one.argument]), wanted))
      return driver_failure(*driver, status, info->name, "put an address into a tensor descriptor");
  }
  std::copy_n(new_data, info->operands.size(), data);
  if (workspace_bytes) workspace() = new_workspace;
  stale = false;
  return Error::success;
}

[[gnu::hot]] bool Prepared::surely_suit(void* const* pointers) const noexcept {
  constexpr uintptr_t kAlignment = 16;
  struct Given {
    const void* begin;
    int64_t bytes;
    uintptr_t shift;  // from where it is now
  } all[kMaxOperands];
  size_t given = 0;
  uint32_t written = 0;
  bool wrong = pointers[one_place[0]] != pointers[one_place[1]];
  for (size_t slot = 0; slot < operand_count; ++slot) {
    const auto begin = reinterpret_cast<uintptr_t>(pointers[slot]);
    const auto bytes = static_cast<uintptr_t>(extents[slot]);
    const uintptr_t shift = begin - reinterpret_cast<uintptr_t>(data[slot]);
    wrong |= (!begin != !bytes) | (shift % kAlignment != 0) | (begin + bytes - 1 < begin);
    written |= uint32_t{info->operands[slot].written} << given;
    all[given] = {pointers[slot], extents[slot], shift};
    given += bytes != 0;
  }
  for (size_t slot = operand_count; slot < info->operands.size(); ++slot) wrong |= pointers[slot] != data[slot];
  // Two ranges that overlap are right where they are as far apart as those that were checked before.
  for (; written; written &= written - 1) {
    const Given& a = all[std::countr_zero(written)];
    for (size_t i = 0; i < given; ++i) {
      const Given& b = all[i];
      wrong |= ranges_overlap(a.begin, a.bytes, b.begin, b.bytes) & (a.shift != b.shift);
    }
  }
  return !wrong;
}

[[gnu::cold]] Error Prepared::check_pointers(void* const* pointers) const noexcept {
  bool moved = false;
  for (size_t slot = 0; slot < info->operands.size(); ++slot) {
    const OperandInfo& operand = info->operands[slot];
    const auto begin = reinterpret_cast<uintptr_t>(pointers[slot]);
    if (!extents[slot]) {
      if (begin && operand.optional)
        return fail(Error::invalid_argument, "%s: %s is given, but was not when the call was prepared", info->name,
                    operand.name);
      continue;
    }
    if (!begin) return fail(Error::null_pointer, "%s: %s has no data", info->name, operand.name);
    if ((begin ^ reinterpret_cast<uintptr_t>(data[slot])) % 16)
      return fail(Error::misaligned_pointer,
                  "%s: %s is at %p, which is aligned otherwise than %p, which the call was "
                  "prepared with",
                  info->name, operand.name, pointers[slot], data[slot]);
    if (begin + static_cast<uintptr_t>(extents[slot]) - 1 < begin)
      return fail(Error::invalid_stride, "%s: %s is at %p and reaches beyond the end of the address space", info->name,
                  operand.name, pointers[slot]);
    // Two ranges that overlap are right where they are as far apart as those that were checked before.
    for (size_t other = 0; other < slot; ++other)
      moved |= (operand.written || info->operands[other].written) && extents[other] &&
               ranges_overlap(pointers[slot], extents[slot], pointers[other], extents[other]) &&
               static_cast<char*>(pointers[slot]) - static_cast<char*>(pointers[other]) !=
                   static_cast<char*>(data[slot]) - static_cast<char*>(data[other]);
  }
  if (pointers[one_place[0]] != pointers[one_place[1]])
    return fail(Error::invalid_argument, "%s: %s is at %p and %s at %p, the call was prepared with both at one place",
                info->name, info->operands[one_place[0]].name, pointers[one_place[0]],
                info->operands[one_place[1]].name, pointers[one_place[1]]);
  if (!moved) return Error::success;
  return check_overlap(CallOfKey(*info, key, pointers, extents).call());
}

Error Prepared::launch_chunks(const Contexts& contexts, Stream stream) noexcept {
  void* pointers[kMaxOperands];
  std::copy_n(data, info->operands.size(), pointers);
  for (int64_t i = 0; i < chunk_count + (last_chunk ? 1 : 0); ++i) {
    Prepared& one = i < chunk_count ? *chunk : *last_chunk;
    AOTRITON_TRY(one.write_pointers(pointers, workspace()));
    AOTRITON_TRY(one.launch(contexts, stream));
    for (size_t slot = 0; slot < info->operands.size(); ++slot)
      if (pointers[slot]) pointers[slot] = static_cast<char*>(pointers[slot]) + chunk_strides[slot];
  }
  return Error::success;
}

[[gnu::hot]] Error Prepared::launch_kernels(const Contexts& contexts, Stream stream, bool are_anew) noexcept {
  for (size_t i = 0; i < launch_count; ++i) {
    const PreparedLaunch& one = launches[i];
    const Launch launch = {
        .function = one.function,
        .grid = {one.grid[0], one.grid[1], one.grid[2]},
        .threads = one.image->threads,
        .shared = one.image->shared,
        .stream = stream.handle,
        .arguments = arguments + one.first,
        .sizes = sizes + one.first,
        .argument_count = one.count,
        .early = one.early,
    };
    const Status status = driver->launch(launch);
    if (!status) [[likely]]
      continue;
    if (i || are_anew || !driver->is_gone || !driver->is_gone(status))
      return driver_failure(*driver, status, one.image->name, "launch");
    for (size_t k = 0; k < launch_count; ++k)
      AOTRITON_TRY(load_anew({driver, contexts, {}}, *launches[k].image, stream, &launches[k].function));
    return launch_kernels(contexts, stream, true);
  }
  return Error::success;
}

[[gnu::hot]] Error Prepared::launch(const Contexts& contexts, Stream stream) noexcept {
  if (chunk) return launch_chunks(contexts, stream);
  if (contexts.of_stream != contexts.current)
    if (const Status status = driver->enter(contexts.of_stream))
      return driver_failure(*driver, status, info->name, "make the stream's device current");
  Error error = Error::success;
  if (empty && info->fills_when_empty)
    error = fill_results(CallOfKey(*info, key, data, extents).call(), *driver, stream);
  if (error == Error::success) error = launch_kernels(contexts, stream);
  if (contexts.of_stream == contexts.current) return error;
  const Status status = driver->leave(contexts.current);
  if (!status || error != Error::success) return error;
  return driver_failure(*driver, status, info->name, "make the previous device current again");
}

void Prepared::destroy(Prepared* prepared) noexcept {
  if (!prepared) return;
  destroy(prepared->chunk);
  destroy(prepared->last_chunk);
  free(prepared);
}

}  // namespace aotriton::v2::inline abi1
