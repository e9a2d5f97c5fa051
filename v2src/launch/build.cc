#include "launch/build.h"

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
  made_.part = made_.last_part = nullptr;
  made_.part_steps = nullptr;
  made_.launch_count = 0;
  made_.argument_count = made_.place_count = 0;
  byte_count_ = 0;
  overflow_ = false;
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot) {
    data_[call.from[slot]] = call[slot].data;
    extents_[call.from[slot]] = call.extents[slot];
  }
  data_[call.info->operands.size()] = call.workspace;
}

Error Builder::prepare_parts(const Call& call, const Device& device, const Pieces& pieces,
                             Prepared* const (&parts)[2]) noexcept {
  begin(call, device);
  made_.part_count = call.sizes[call.info->cut] / pieces.size;
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot)
    part_steps_[call.from[slot]] = step_of(call, slot, pieces.size);
  made_.part_steps = part_steps_;
  made_.workspace_bytes = parts[0]->workspace_bytes;
  if (parts[1]) made_.workspace_bytes = std::max(made_.workspace_bytes, parts[1]->workspace_bytes);
  if (made_.workspace_bytes)
    AOTRITON_TRY(check_workspace(*call.info, call.workspace, made_.workspace_bytes, data_, extents_));
  made_.part = parts[0];
  made_.last_part = parts[1];
  return Error::success;
}

void Builder::prepare_empty(const Call& call, const Device& device) noexcept {
  begin(call, device);
  made_.empty = true;
}

Error Builder::prepare(const Call& call, const Device& device, const Dispatch& dispatch, Stream stream) noexcept {
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
    AOTRITON_TRY(add(call, device, *backend.kernels[i], dispatch.plans[i], *dispatch.kernels[i].entry().image, stream));
  }
  return Error::success;
}

Error Builder::prepare(const Call& call, const Device& device, const KernelInfo& kernel, Image& image,
                       const int32_t* psels, Stream stream) noexcept {
  KernelPlan plan;
  if (const Misfit misfit = plan_kernel(call, kernel, image, psels, device.facts.place, nullptr, &plan))
    return refuse(call, misfit);
  begin(call, device);
  return add(call, device, kernel, plan, image, stream);
}

Error Builder::add(const Call& call, const Device& device, const KernelInfo& kernel, const KernelPlan& plan,
                   Image& image, Stream stream) noexcept {
  if (!plan.has_programs) return Error::success;
  PreparedLaunch& launch = launches_[made_.launch_count++];
  launch.image = &image;
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
      // Of the second dimension, where the description has so many side by side.
      const int64_t packed = argument.value.code.empty() ? 0 : *(*number)++;
      const bool map = argument.block && image.descriptor_count;
      note_place(call, argument.slot, map);
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

// The next argument follows the data of `slot`.
void Builder::note_place(const Call& call, size_t slot, bool map) noexcept {
  const bool of_workspace = slot >= made_.info->operands.size();
  if (of_workspace && !made_.workspace_bytes) return;
  if (made_.place_count == kMaxPlaces) {
    overflow_ = true;
    return;
  }
  places_[made_.place_count++] = {made_.argument_count, of_workspace ? kWorkspaceSlot : call.from[slot], map,
                                  of_workspace ? offsets_of_workspace_[slot] : 0};
}

// Whether there is room for so many more arguments, which end at this byte. Where there is none that is told at the
// end.
bool Builder::has_room(size_t arguments, size_t end) noexcept {
  const bool fits =
      made_.argument_count + arguments <= kMaxArguments && end <= kernel_begin_ + kMaxKernelBytes && end <= kMaxBytes;
  overflow_ |= !fits;
  return fits;
}

// The next argument lies there. There is room for it.
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

Prepared* Builder::finish(Prepared* recycled) const noexcept {
  const size_t operands = made_.info->operands.size();
  size_t bytes = 0;
  const auto place = [&](size_t size, size_t alignment) {
    bytes = align_up(bytes, alignment);
    return std::exchange(bytes, bytes + size);
  };
  place(sizeof(Prepared), alignof(Prepared));
  const size_t launches = place(made_.launch_count * sizeof(PreparedLaunch), alignof(PreparedLaunch));
  const size_t data = place((operands + 1) * sizeof(void*), alignof(void*));
  const size_t extents = place(operands * sizeof(int64_t), alignof(int64_t));
  const size_t part_steps = place(made_.part_steps ? operands * sizeof(int64_t) : 0, alignof(int64_t));
  const size_t words = place(key.count * sizeof(int64_t), alignof(int64_t));
  const size_t hints = place(key.hints ? sizeof(aotriton_hints) : 0, alignof(aotriton_hints));
  const size_t arguments = place(made_.argument_count * sizeof(void*), alignof(void*));
  const size_t places = place(made_.place_count * sizeof(PointerPlace), alignof(PointerPlace));
  const size_t sizes = place(made_.argument_count * sizeof(uint16_t), alignof(uint16_t));
  const size_t storage = place(byte_count_, alignof(TensorMap));

  constexpr size_t kGrain = 256;  // so that blocks suit many calls
  size_t block_bytes = align_up(bytes, kGrain);
  void* block;
  if (recycled && !recycled->part && recycled->block_bytes >= block_bytes && recycled->block_bytes / 2 < block_bytes) {
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
  auto* const prepared = new (block) Prepared(made_);
  prepared->hash = key.hash;
  prepared->block_bytes = static_cast<uint32_t>(block_bytes);
  prepared->key_count = static_cast<uint16_t>(key.count);
  prepared->launches = at(launches, launches_, made_.launch_count);
  prepared->data = reinterpret_cast<void**>(begin + data);
  memcpy(prepared->data, data_, (operands + 1) * sizeof(void*));
  prepared->extents = at(extents, extents_, operands);
  prepared->part_steps = made_.part_steps ? at(part_steps, part_steps_, operands) : nullptr;
  prepared->key = at(words, key.words, key.count);
  prepared->hints = key.hints ? at(hints, key.hints, 1) : nullptr;
  prepared->arguments = reinterpret_cast<void**>(begin + arguments);
  void** const places_of_arguments = prepared->arguments;
  for (size_t i = 0, count = made_.argument_count; i < count; ++i)
    places_of_arguments[i] = begin + storage + offsets_[i];
  prepared->places = at(places, places_, made_.place_count);
  prepared->sizes = at(sizes, sizes_, made_.argument_count);
  at(storage, bytes_, byte_count_);
  return prepared;
}

}  // namespace aotriton::v2::inline abi1
