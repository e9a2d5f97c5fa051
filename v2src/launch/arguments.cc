#include "launch/arguments.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "call/operands.h"
#include "dispatch/log.h"
#include "launch/load.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr size_t align_up(size_t value, size_t alignment) { return (value + alignment - 1) / alignment * alignment; }

// Of numbers that are not negative. Processors divide those of 32 bits in half the time.
int64_t quotient(int64_t a, int64_t b) {
  return static_cast<uint64_t>(a | b) <= UINT32_MAX ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

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
  std::copy_n(call.one_place, 2, made_.one_place);
  made_.argument_count = made_.pointer_count = 0;
  byte_count_ = 0;
  const size_t operands = call.info->operands.size();
  for (size_t slot = 0; slot < operands; ++slot) {
    const size_t from = call.from[slot];
    data_[from] = call.views[slot].data;
    extents_[from] = call.extents[slot];
  }
  data_[operands] = call.workspace;
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

// Where the arguments of a kernel go. Numbers of its own, not the builder's: those would be read again behind each byte
// that is written.
struct Builder::Cursor {
  Builder& builder;
  const size_t most;                // bytes that they may end at
  size_t arguments, pointers, end;  // so far: in number, and in bytes
  int descriptors = 0;
  const int64_t* number;  // the next of the plan's

  // Notes where the next argument lies.
  void note(size_t begin, size_t size) {
    builder.offsets_[arguments] = static_cast<uint32_t>(begin);
    builder.sizes_[arguments++] = static_cast<uint16_t>(size);
    end = begin + size;
  }

  template <class Number>
  void put(Number value) {
    put_at(align_up(end, alignof(Number)), value);
  }

  template <class Number>
  void put_at(size_t begin, Number value) {
    memcpy(builder.bytes_ + begin, &value, sizeof value);
    note(begin, sizeof value);
  }

  // Notes that the next argument follows the data of `slot`.
  void note_pointer(const Call& call, size_t slot, bool map) {
    const bool of_workspace = slot >= call.info->operands.size();
    if (of_workspace && !builder.made_.workspace_bytes) return;
    builder.pointers_[pointers++] = {static_cast<uint16_t>(arguments), of_workspace ? kWorkspaceSlot : call.from[slot],
                                     map, of_workspace ? builder.offsets_of_workspace_[slot] : 0};
  }

  bool fits() const { return arguments <= kMaxArguments && pointers <= kMaxPointers && end <= most; }
};

Error Builder::add(const Call& call, const Device& device, const KernelInfo& kernel, const KernelPlan& plan,
                   Image& image, bool early, Stream stream) noexcept {
  if (!plan.has_programs) return Error::success;
  PreparedLaunch& launch = launches_[made_.launch_count++];
  launch.image = &image;
  launch.early = early;
  std::copy_n(plan.grid, 3, launch.grid);
  AOTRITON_TRY(load_image(device, image, stream, &launch.function));
  launch.first = made_.argument_count;
  const size_t begin = align_up(byte_count_, alignof(TensorMap)), most = std::min(begin + kMaxKernelBytes, kMaxBytes);
  Cursor cursor = {*this, most, made_.argument_count, made_.pointer_count, begin, 0, plan.numbers};
  for (const Argument& argument : kernel.arguments) {
    if (!argument.is_of(image)) continue;
    AOTRITON_TRY(add_argument(call, argument, image, cursor));
    if (!cursor.fits()) return fail(Error::not_supported, "%s: takes too many arguments", image.name);
  }
  cursor.put<void*>(nullptr);  // global scratch
  cursor.put<void*>(nullptr);  // profile scratch
  if (!cursor.fits()) return fail(Error::not_supported, "%s: takes too many arguments", image.name);
  if (image.global_scratch)
    return fail(Error::not_supported, "%s: needs scratch memory, which is not provided", image.name);
  if (cursor.descriptors != image.descriptor_count)
    return fail(Error::damaged_image, "%s: takes %d descriptors, its description has %d", image.name,
                image.descriptor_count, cursor.descriptors);
  made_.argument_count = static_cast<uint16_t>(cursor.arguments);
  made_.pointer_count = static_cast<uint16_t>(cursor.pointers);
  byte_count_ = cursor.end;
  launch.count = static_cast<uint16_t>(made_.argument_count - launch.first);
  return Error::success;
}

[[gnu::always_inline]] inline Error Builder::add_argument(const Call& call, const Argument& argument,
                                                          const Image& image, Cursor& cursor) noexcept {
  const View& view = call[argument.slot];
  switch (argument.pass) {
    case Pass::tensor: {
      const int64_t of_box = argument.value.code.empty() ? 0 : *cursor.number++;
      const bool map = argument.block && image.descriptor_count;
      cursor.note_pointer(call, argument.slot, map);
      if (map) return add_map(argument, call.info->slot(argument.slot), view, of_box, image, cursor);
      cursor.put(view.data);
      return Error::success;
    }
    case Pass::stride:
      if (argument.block && image.descriptor_count) return Error::success;  // the descriptor has it
      // A kernel may take a stride as i32 where tensors are small: the driver reads the leading bytes, which on the
      // little-endian hosts of both vendors are the low ones.
      // Those of a tensor that is not given may be anything: calls that differ in them are one call to the memo.
      cursor.put(view.strides && is_given(call.info->slot(argument.slot), view) ? view.strides[argument.dim]
                                                                                : int64_t{0});
      return Error::success;
    case Pass::fp32:
      cursor.put(call.scalars[argument.slot].real);
      return Error::success;
    case Pass::i32:
      cursor.put(static_cast<int32_t>(*cursor.number++));
      return Error::success;
    case Pass::i64:
      cursor.put(*cursor.number++);
      return Error::success;
  }
  return Error::success;
}

// Triton passes a host descriptor as the tensor map, then every size as i32, then every stride as i64, in elements and
// with the innermost one. The contiguous dimension comes last. `of_box`, if it is not 0: how many neighbours along the
// second dimension are packed, of which a box has as many rows each; or the rows of a box.
[[gnu::always_inline]] inline Error Builder::add_map(const Argument& argument, const OperandInfo& operand,
                                                     const View& view, int64_t of_box, const Image& image,
                                                     Cursor& cursor) noexcept {
  const Driver& driver = *made_.driver;
  const int64_t packed = argument.dim == 1 ? of_box : 0;
  const int index = cursor.descriptors++;
  const size_t rank = operand.dims.size() + (packed ? 1 : 0);
  if (index >= image.descriptor_count || image.descriptors[index].rank != rank)
    return fail(Error::damaged_image, "%s: descriptor %d is not as its description has it", image.name, index);
  if (!driver.encode_tensor_map)
    return fail(Error::not_supported, "%s: %s has no tensor descriptors", image.name, driver.name);
  const DescriptorLayout& layout = image.descriptors[index];
  const size_t begin = align_up(cursor.end, alignof(TensorMap));
  cursor.note(begin, sizeof(TensorMap));
  TensorMapRequest request;
  request.dtype = view.dtype;
  request.rank = static_cast<int>(rank);
  request.address = view.data;
  request.swizzle = layout.swizzle;
  // A constant rank lets the compiler unroll the loops.
  const auto write = [&](auto of_map) __attribute__((always_inline)) {
    int64_t sizes[kMaxRank + 1], strides[kMaxRank + 1];
    const size_t given = packed ? of_map - 1 : of_map;
    for (size_t i = 0; i < given; ++i) sizes[i] = view.sizes[i], strides[i] = view.strides[i];
    if (transposed(operand, view)) {
      std::swap(sizes[given - 1], sizes[given - 2]);
      std::swap(strides[given - 1], strides[given - 2]);
    }
    if (packed) {
      // [a, b, rows, columns] as [a, b / packed, rows, packed, columns]
      sizes[4] = sizes[3], strides[4] = strides[3];
      sizes[3] = packed, strides[3] = strides[1];
      sizes[1] = quotient(sizes[1], packed), strides[1] *= packed;
    }
    const int64_t width = bytes_of(view.dtype);
    // Behind a map all else is as far from it as the rank says.
    constexpr size_t kSize = sizeof(int32_t), kStride = sizeof(int64_t);
    const size_t of_sizes = begin + sizeof(TensorMap), of_strides = of_sizes + align_up(of_map * kSize, kStride);
    for (size_t i = 0; i < of_map; ++i) cursor.put_at(of_sizes + i * kSize, static_cast<int32_t>(sizes[i]));
    for (size_t i = 0; i < of_map; ++i) cursor.put_at(of_strides + i * kStride, strides[i]);
    for (size_t i = 0; i < of_map; ++i) {
      const size_t from = of_map - 1 - i;
      request.sizes[i] = static_cast<uint64_t>(sizes[from]);
      request.box[i] = layout.block[from];
      // No access follows the stride of a dimension of size 1, but the driver wants it to be a multiple of 16 all the
      // same.
      if (i > 0) request.strides[i - 1] = sizes[from] == 1 ? 16 : static_cast<uint64_t>(strides[from] * width);
    }
    for (size_t i = of_map; i <= kMaxRank; ++i) request.sizes[i] = request.strides[i - 1] = request.box[i] = 0;
  };
  if (rank == 4)
    write(std::integral_constant<size_t, 4>());
  else if (rank == 5)
    write(std::integral_constant<size_t, 5>());
  else
    write(rank);
  if (packed) {
    request.box[1] *= static_cast<uint32_t>(packed);
    request.box[2] /= static_cast<uint32_t>(packed);
  } else if (of_box) {
    request.box[1] = static_cast<uint32_t>(of_box);
  }
  const Status status = driver.encode_tensor_map(reinterpret_cast<TensorMap*>(bytes_ + begin), request);
  return status ? driver_failure(driver, status, image.name, "encode a tensor descriptor") : Error::success;
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
