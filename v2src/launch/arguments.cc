#include "launch/arguments.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "base/error.h"
#include "call/operands.h"
#include "dispatch/log.h"
#include "launch/load.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr size_t align_up(size_t value, size_t alignment) { return (value + alignment - 1) / alignment * alignment; }

// Apart, so that the compiler sees that nothing is read of what is written.
void put_addresses(char* begin, const uint32_t* __restrict offsets, size_t count, void** __restrict addresses) {
  for (size_t i = 0; i < count; ++i) addresses[i] = begin + offsets[i];
}

}  // namespace

Builder::~Builder() {
  for (ArgumentLayout* one : layouts_) ArgumentLayout::destroy(one);
  ArgumentLayout::destroy(own_);
}

[[gnu::hot]] void Builder::begin(const Call& call, const Device& device) noexcept {
  made_.driver = device.driver;
  made_.context_id = device.contexts.id;
  made_.context = device.contexts.of_stream;
  made_.info = call.info;
  made_.workspace_bytes = 0;
  made_.empty = false;
  made_.stale = false;
  made_.chunk = made_.last_chunk = nullptr;
  made_.chunk_strides = nullptr;
  made_.launch_count = 0;
  made_.operand_count = static_cast<uint8_t>(operands_of_key(*call.info, call.plain));
  std::copy_n(call.one_place, 2, made_.one_place);
  made_.argument_count = made_.pointer_count = 0;
  made_.layout = 0;
  layout_ = nullptr;
  const size_t operands = call.info->operands.size();
  for (size_t slot = 0; slot < operands; ++slot) {
    const size_t from = call.from[slot];
    data_[from] = call.views[slot].data;
    extents_[from] = call.extents[slot];
  }
  data_[operands] = call.workspace;
}

Error Builder::take_workspace(const Call& call, size_t bytes) noexcept {
  made_.workspace_bytes = bytes;
  if (!bytes) return Error::success;
  if (call.workspace && call.workspace_size < bytes)
    return fail(Error::workspace_too_small, "%s: workspace has %zu bytes, %zu are needed", call.info->name,
                call.workspace_size, bytes);
  return check_workspace(*call.info, call.workspace, bytes, data_, extents_);
}

Result<BuiltCall> Builder::build_chunks(const ChunkedCall& chunks, const Device& device,
                                        Prepared* const (&prepared)[2]) noexcept {
  const Call& call = *chunks.whole();
  begin(call, device);
  made_.chunk_count = call.sizes[call.info->cut] / chunks.size();
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot)
    chunk_strides_[call.from[slot]] = chunk_stride(call, slot, chunks.size());
  made_.chunk_strides = chunk_strides_;
  made_.workspace_bytes = prepared[0]->workspace_bytes;
  if (prepared[1]) made_.workspace_bytes = std::max(made_.workspace_bytes, prepared[1]->workspace_bytes);
  if (made_.workspace_bytes)
    AOTRITON_TRY(check_workspace(*call.info, call.workspace, made_.workspace_bytes, data_, extents_));
  made_.chunk = prepared[0];
  made_.last_chunk = prepared[1];
  return BuiltCall(*this);
}

BuiltCall Builder::build_empty(CheckedCall call, const Device& device) noexcept {
  begin(*call, device);
  made_.empty = true;
  return BuiltCall(*this);
}

[[gnu::hot]] Result<BuiltCall> Builder::build(ChosenCall chosen, const Device& device, Stream stream) noexcept {
  const Call& call = chosen.call();
  const Dispatch& dispatch = chosen.dispatch();
  begin(call, device);
  AOTRITON_TRY(take_workspace(call, dispatch.workspace.bytes));
  const std::span<const KernelInfo* const> kernels = dispatch.chosen().kernels;
  Part parts[kMaxKernels];
  size_t count = 0;
  for (size_t i = 0; i < kernels.size(); ++i) {
    log_first_use(dispatch, i);
    if (!dispatch.plans[i].has_programs) continue;
    // What such a kernel waits for is a launch of this call, not whatever the stream had before.
    const bool early = count && kernels[i]->begins_early;
    parts[count++] = {kernels[i], dispatch.kernels[i].entry().image, &dispatch.plans[i], early};
  }
  AOTRITON_TRY(write(call, device, {parts, count}, true, dispatch.workspace.offsets, stream));
  return BuiltCall(*this);
}

Result<BuiltCall> Builder::build(CheckedCall call, const Device& device, const KernelInfo& kernel, Image& image,
                                 const int32_t* tunables, Stream stream) noexcept {
  KernelPlan plan;
  if (const Misfit misfit = plan_kernel(*call, kernel, image, tunables, device.facts.gpu, nullptr, &plan))
    return refuse(*call, misfit);
  Workspace workspace;
  workspace.bytes = 0;  // the caller has each of its tensors where it likes
  if (const Misfit misfit = add_scratch(image, &plan, &workspace)) return refuse(*call, misfit);
  begin(*call, device);
  AOTRITON_TRY(take_workspace(*call, workspace.bytes));
  const Part part = {&kernel, &image, &plan, false};
  if (plan.has_programs) AOTRITON_TRY(write(*call, device, {&part, 1}, false, nullptr, stream));
  return BuiltCall(*this);
}

[[gnu::hot]] Error Builder::write(const Call& call, const Device& device, std::span<const Part> parts, bool of_program,
                                  const size_t* offsets, Stream stream) noexcept {
  void* functions[kMaxKernels];
  for (size_t i = 0; i < parts.size(); ++i) AOTRITON_TRY(load_image(device, *parts[i].image, stream, &functions[i]));
  if (of_program)
    AOTRITON_TRY(find_layout(call, parts, *device.driver));
  else
    AOTRITON_TRY(lay_out(call, parts, false, *device.driver, &own_));
  for (size_t i = 0; i < parts.size(); ++i) layout_->launches[i].function = functions[i];
  made_.launch_count = static_cast<uint8_t>(layout_->launch_count);
  made_.argument_count = static_cast<uint16_t>(layout_->argument_count);
  made_.pointer_count = static_cast<uint16_t>(layout_->pointer_count);
  made_.layout = layout_->number;
  return layout_->write(call, parts, offsets);
}

[[gnu::hot]] Error Builder::find_layout(const Call& call, std::span<const Part> parts, const Driver& driver) noexcept {
  const bool in_workspace = made_.workspace_bytes != 0;
  ArgumentLayout** const end = std::end(layouts_);
  ArgumentLayout** found = std::find_if(
      layouts_, end, [&](const ArgumentLayout* one) { return one && one->suits(call, parts, in_workspace, driver); });
  if (found == end) AOTRITON_TRY(lay_out(call, parts, in_workspace, driver, --found));
  layout_ = *found;
  std::rotate(layouts_, found, found + 1);
  return Error::success;
}

Error Builder::lay_out(const Call& call, std::span<const Part> parts, bool in_workspace, const Driver& driver,
                       ArgumentLayout** place) noexcept {
  ArgumentLayout* made;
  AOTRITON_TRY(ArgumentLayout::make(call, parts, in_workspace, driver, &made));
  ArgumentLayout::destroy(*place);
  made->number = ++laid_out_;
  layout_ = *place = made;
  return Error::success;
}

[[gnu::hot]] Prepared* BuiltCall::finish(const Key& key, Prepared* recycled) const noexcept {
  const Builder& builder = *builder_;
  const Prepared& made = builder.made_;
  const ArgumentLayout* const layout = builder.layout_;
  const size_t operands = made.info->operands.size();
  size_t bytes = 0;
  const auto reserve = [&](size_t size, size_t alignment) {
    bytes = align_up(bytes, alignment);
    return std::exchange(bytes, bytes + size);
  };
  reserve(sizeof(Prepared), alignof(Prepared));
  const size_t launches = reserve(made.launch_count * sizeof(PreparedLaunch), alignof(PreparedLaunch));
  const size_t data = reserve((operands + 1) * sizeof(void*), alignof(void*));
  const size_t extents = reserve(operands * sizeof(int64_t), alignof(int64_t));
  const size_t chunk_strides = reserve(made.chunk_strides ? operands * sizeof(int64_t) : 0, alignof(int64_t));
  const size_t words = reserve(key.count * sizeof(int64_t), alignof(int64_t));
  const size_t hints = reserve(key.hints ? sizeof(aotriton_hints) : 0, alignof(aotriton_hints));
  const size_t arguments = reserve(made.argument_count * sizeof(void*), alignof(void*));
  const size_t pointers = reserve(made.pointer_count * sizeof(PointerArgument), alignof(PointerArgument));
  const size_t sizes = reserve(made.argument_count * sizeof(uint16_t), alignof(uint16_t));
  const size_t storage = reserve(layout ? layout->byte_count : 0, alignof(TensorMap));

  constexpr size_t kGrain = 256;  // so that blocks suit many calls
  size_t block_bytes = align_up(bytes, kGrain);
  // Whether all has the places that it had in the block, which then has what follows from them alone.
  const bool has_places = recycled && layout && recycled->layout == made.layout && recycled->key_count == key.count &&
                          !recycled->hints == !key.hints;
  void* block;
  if (recycled && !recycled->chunk && recycled->block_bytes >= block_bytes && recycled->block_bytes / 2 < block_bytes) {
    block = recycled;
    block_bytes = recycled->block_bytes;
  } else {
    Prepared::destroy(recycled);
    block = aligned_alloc(alignof(TensorMap), block_bytes);
  }
  if (!block) return nullptr;
  char* const begin = static_cast<char*>(block);
  const auto at = [&]<class T>(size_t offset, const T* from, size_t count) {
    T* const to = reinterpret_cast<T*>(begin + offset);
    if (count) memcpy(to, from, count * sizeof(T));
    return to;
  };
  auto* const prepared = new (block) Prepared(made);
  prepared->hash = key.hash;
  prepared->block_bytes = static_cast<uint32_t>(block_bytes);
  prepared->key_count = static_cast<uint16_t>(key.count);
  prepared->launches = at(launches, layout ? layout->launches : nullptr, made.launch_count);
  prepared->data = reinterpret_cast<void**>(begin + data);
  memcpy(prepared->data, builder.data_, (operands + 1) * sizeof(void*));
  prepared->extents = at(extents, builder.extents_, operands);
  prepared->chunk_strides = made.chunk_strides ? at(chunk_strides, builder.chunk_strides_, operands) : nullptr;
  prepared->key = at(words, key.words, key.count);
  prepared->hints = key.hints ? at(hints, key.hints, 1) : nullptr;
  prepared->arguments = reinterpret_cast<void**>(begin + arguments);
  prepared->pointers = reinterpret_cast<PointerArgument*>(begin + pointers);
  prepared->sizes = reinterpret_cast<uint16_t*>(begin + sizes);
  if (!layout) return prepared;
  at(storage, layout->bytes, layout->byte_count);
  if (!has_places || made.workspace_bytes) at(pointers, layout->pointers, made.pointer_count);  // with offsets into it
  if (has_places) return prepared;
  at(sizes, layout->sizes, made.argument_count);
  put_addresses(begin + storage, layout->offsets, made.argument_count, prepared->arguments);
  return prepared;
}

}  // namespace aotriton::v2::inline abi1
