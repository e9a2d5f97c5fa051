#include "launch/arguments.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "dispatch/log.h"
#include "launch/load.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr size_t align_up(size_t value, size_t alignment) { return (value + alignment - 1) / alignment * alignment; }

}  // namespace

void Builder::begin(const Call& call, const Device& device) noexcept {
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
  made_.argument_count = made_.pointer_count = 0;
  byte_count_ = 0;
  overflow_ = false;
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot) {
    data_[call.from[slot]] = call[slot].data;
    extents_[call.from[slot]] = call.extents[slot];
  }
  data_[call.info->operands.size()] = call.workspace;
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

Result<BuiltCall> Builder::build(ChosenCall chosen, const Device& device, Stream stream) noexcept {
  const Call& call = chosen.call();
  const Dispatch& dispatch = chosen.dispatch();
  begin(call, device);
  made_.workspace_bytes = dispatch.workspace.bytes;
  offsets_of_workspace_ = dispatch.workspace.offsets;
  if (made_.workspace_bytes && call.workspace && call.workspace_size < made_.workspace_bytes)
    return fail(Error::workspace_too_small, "%s: workspace has %zu bytes, %zu are needed", call.info->name,
                call.workspace_size, made_.workspace_bytes);
  if (made_.workspace_bytes)
    AOTRITON_TRY(check_workspace(*call.info, call.workspace, made_.workspace_bytes, data_, extents_));
  const BackendInfo& backend = dispatch.chosen();
  for (size_t i = 0; i < backend.kernels.size(); ++i) {
    log_first_use(dispatch, i);
    // What such a kernel waits for is a launch of this call, not whatever the stream had before.
    const bool early = i && backend.kernels[i]->begins_early && dispatch.plans[i - 1].has_programs;
    AOTRITON_TRY(
        add(call, device, *backend.kernels[i], dispatch.plans[i], *dispatch.kernels[i].entry().image, early, stream));
  }
  return BuiltCall(*this);
}

Result<BuiltCall> Builder::build(CheckedCall call, const Device& device, const KernelInfo& kernel, Image& image,
                                 const int32_t* psels, Stream stream) noexcept {
  KernelPlan plan;
  if (const Misfit misfit = plan_kernel(*call, kernel, image, psels, device.facts.gpu, nullptr, &plan))
    return refuse(*call, misfit);
  begin(*call, device);
  AOTRITON_TRY(add(*call, device, kernel, plan, image, false, stream));
  return BuiltCall(*this);
}

Error Builder::add(const Call& call, const Device& device, const KernelInfo& kernel, const KernelPlan& plan,
                   Image& image, bool early, Stream stream) noexcept {
  if (!plan.has_programs) return Error::success;
  PreparedLaunch& launch = launches_[made_.launch_count++];
  launch.image = &image;
  launch.early = early;
  std::copy_n(plan.grid, 3, launch.grid);
  AOTRITON_TRY(load_image(device, image, stream, &launch.function));
  launch.first = made_.argument_count;
  kernel_begin_ = byte_count_ = static_cast<uint32_t>(align_up(byte_count_, alignof(TensorMap)));
  descriptors_ = 0;
  const int64_t* number = plan.numbers;
  for (const Argument& argument : kernel.arguments)
    if (argument.is_of(image)) AOTRITON_TRY(add_argument(call, argument, image, &number));
  put<void*>(nullptr);  // global scratch
  put<void*>(nullptr);  // profile scratch
  if (overflow_) return fail(Error::not_supported, "%s: takes too many arguments", image.name);
  if (image.global_scratch)
    return fail(Error::not_supported, "%s: needs scratch memory, which is not provided", image.name);
  if (descriptors_ != image.descriptor_count)
    return fail(Error::damaged_image, "%s: takes %d descriptors, its description has %d", image.name,
                image.descriptor_count, descriptors_);
  launch.count = static_cast<uint16_t>(made_.argument_count - launch.first);
  return Error::success;
}

// `number`: the next of the plan's.
Error Builder::add_argument(const Call& call, const Argument& argument, const Image& image,
                            const int64_t** number) noexcept {
  const View& view = call[argument.slot];
  switch (argument.pass) {
    case Pass::tensor: {
      // How many neighbours along the second dimension are packed; 0 where the description packs none.
      const int64_t packed = argument.value.code.empty() ? 0 : *(*number)++;
      const bool map = argument.block && image.descriptor_count;
      note_pointer(call, argument.slot, map);
      if (map) return add_map(call.info->slot(argument.slot), view, packed, image);
      put(view.data);
      return Error::success;
    }
    case Pass::stride:
      if (argument.block && image.descriptor_count) return Error::success;  // the descriptor has it
      // A kernel may take a stride as i32 where tensors are small: the driver reads the leading bytes, which on the
      // little-endian hosts of both vendors are the low ones.
      put(view.strides ? view.strides[argument.dim] : int64_t{0});
      return Error::success;
    case Pass::fp32:
      put(call.scalars[argument.slot].real);
      return Error::success;
    case Pass::i32:
      put(static_cast<int32_t>(*(*number)++));
      return Error::success;
    case Pass::i64:
      put(*(*number)++);
      return Error::success;
  }
  return Error::success;
}

// Triton passes a host descriptor as the tensor map, then every size as i32, then every stride as i64, in elements and
// with the innermost one. The contiguous dimension comes last. Of `packed` neighbours along the second one a box
// has as many rows each.
Error Builder::add_map(const OperandInfo& operand, const View& view, int64_t packed, const Image& image) noexcept {
  const Driver& driver = *made_.driver;
  int64_t sizes[kMaxRank + 1], strides[kMaxRank + 1];
  size_t rank = operand.dims.size();
  std::copy_n(view.sizes, rank, sizes);
  std::copy_n(view.strides, rank, strides);
  if (transposed(operand, view)) {
    std::swap(sizes[rank - 1], sizes[rank - 2]);
    std::swap(strides[rank - 1], strides[rank - 2]);
  }
  if (packed) {
    // [a, b, rows, columns] as [a, b / packed, rows, packed, columns]
    sizes[4] = sizes[3], strides[4] = strides[3];
    sizes[3] = packed, strides[3] = strides[1];
    sizes[1] /= packed, strides[1] *= packed;
    ++rank;
  }
  const int index = descriptors_++;
  const size_t begin = align_up(byte_count_, alignof(TensorMap));
  if (!has_room(1 + 2 * rank, begin + sizeof(TensorMap) + 2 * rank * sizeof(int64_t))) return Error::success;
  void* const map = bytes_ + begin;
  note(begin, sizeof(TensorMap));
  for (size_t i = 0; i < rank; ++i) append(static_cast<int32_t>(sizes[i]));
  for (size_t i = 0; i < rank; ++i) append(strides[i]);
  if (index >= image.descriptor_count || image.descriptors[index].rank != rank)
    return fail(Error::damaged_image, "%s: descriptor %d is not as its description has it", image.name, index);
  if (!driver.encode_tensor_map)
    return fail(Error::not_supported, "%s: %s has no tensor descriptors", image.name, driver.name);
  const DescriptorLayout& layout = image.descriptors[index];
  TensorMapRequest request = {.dtype = view.dtype,
                              .rank = static_cast<int>(rank),
                              .address = view.data,
                              .sizes = {},
                              .strides = {},
                              .box = {},
                              .swizzle = layout.swizzle};
  for (size_t i = 0; i < rank; ++i) {
    const size_t from = rank - 1 - i;
    request.sizes[i] = static_cast<uint64_t>(sizes[from]);
    request.box[i] = layout.block[from];
    // No access follows the stride of a dimension of size 1, but the driver wants it to be a multiple of 16 all the
    // same.
    if (i > 0)
      request.strides[i - 1] = sizes[from] == 1 ? 16 : static_cast<uint64_t>(strides[from] * bytes_of(view.dtype));
  }
  if (packed) {
    request.box[1] *= static_cast<uint32_t>(packed);
    request.box[2] /= static_cast<uint32_t>(packed);
  }
  const Status status = driver.encode_tensor_map(static_cast<TensorMap*>(map), request);
  return status ? driver_failure(driver, status, image.name, "encode a tensor descriptor") : Error::success;
}

// Notes that the next argument follows the data of `slot`.
void Builder::note_pointer(const Call& call, size_t slot, bool map) noexcept {
  const bool of_workspace = slot >= made_.info->operands.size();
  if (of_workspace && !made_.workspace_bytes) return;
  if (made_.pointer_count == kMaxPointers) {
    overflow_ = true;
    return;
  }
  pointers_[made_.pointer_count++] = {made_.argument_count, of_workspace ? kWorkspaceSlot : call.from[slot], map,
                                      of_workspace ? offsets_of_workspace_[slot] : 0};
}

// Whether there is room for this number of further arguments, which end at this byte. add() reports a lack of room.
bool Builder::has_room(size_t arguments, size_t end) noexcept {
  const bool fits =
      made_.argument_count + arguments <= kMaxArguments && end <= kernel_begin_ + kMaxKernelBytes && end <= kMaxBytes;
  overflow_ |= !fits;
  return fits;
}

// Notes where the next argument lies. There is room for it.
inline void Builder::note(size_t begin, size_t size) noexcept {
  const size_t index = made_.argument_count++;
  offsets_[index] = static_cast<uint32_t>(begin);
  sizes_[index] = static_cast<uint16_t>(size);
  byte_count_ = static_cast<uint32_t>(begin + size);
}

template <class Number>
inline void Builder::append(Number number) noexcept {
  const size_t begin = align_up(byte_count_, alignof(Number));
  memcpy(bytes_ + begin, &number, sizeof number);
  note(begin, sizeof number);
}

template <class Number>
void Builder::put(Number number) noexcept {
  if (has_room(1, align_up(byte_count_, alignof(Number)) + sizeof number)) append(number);
}

Prepared* BuiltCall::finish(const Key& key, Prepared* recycled) const noexcept {
  const Builder& builder = *builder_;
  const Prepared& made = builder.made_;
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
  const size_t storage = reserve(builder.byte_count_, alignof(TensorMap));

  constexpr size_t kGrain = 256;  // so that blocks suit many calls
  size_t block_bytes = align_up(bytes, kGrain);
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
  prepared->launches = at(launches, builder.launches_, made.launch_count);
  prepared->data = reinterpret_cast<void**>(begin + data);
  memcpy(prepared->data, builder.data_, (operands + 1) * sizeof(void*));
  prepared->extents = at(extents, builder.extents_, operands);
  prepared->chunk_strides = made.chunk_strides ? at(chunk_strides, builder.chunk_strides_, operands) : nullptr;
  prepared->key = at(words, key.words, key.count);
  prepared->hints = key.hints ? at(hints, key.hints, 1) : nullptr;
  prepared->arguments = reinterpret_cast<void**>(begin + arguments);
  void** const argument_addresses = prepared->arguments;
  for (size_t i = 0, count = made.argument_count; i < count; ++i)
    argument_addresses[i] = begin + storage + builder.offsets_[i];
  prepared->pointers = at(pointers, builder.pointers_, made.pointer_count);
  prepared->sizes = at(sizes, builder.sizes_, made.argument_count);
  at(storage, builder.bytes_, builder.byte_count_);
  return prepared;
}

}  // namespace aotriton::v2::inline abi1
