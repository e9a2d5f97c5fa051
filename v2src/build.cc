#include "build.h"

#include <algorithm>
#include <cinttypes>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "error.h"
#include "load.h"
#include "log.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr int64_t kMostPrograms[3] = {INT32_MAX, 65535, 65535};  // along x, y and z

constexpr size_t align_up(size_t value, size_t alignment) { return (value + alignment - 1) / alignment * alignment; }

}  // namespace

void Builder::begin(const Call& call, const Device& device) noexcept {
  made_.driver = device.driver;
  made_.context_id = device.contexts.id;
  made_.context = device.contexts.of_stream;
  made_.info = call.info;
  made_.workspace_bytes = 0;
  made_.empty = false;
  made_.part = made_.last_part = nullptr;
  made_.launch_count = 0;
  made_.argument_count = made_.place_count = 0;
  made_.byte_count = 0;
  overflow_ = false;
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot) {
    const View& view = call[slot];
    const OperandInfo& operand = call.info->operands[slot];
    const size_t place = call.from[slot];
    made_.data[place] = view.data;
    const bool given = view.sizes && (view.data || !operand.optional);
    made_.extents[place] = given ? extent(operand, view) : 0;
    for (size_t i = 0; given && i < operand.dims.size(); ++i)
      if (view.sizes[i] == 0) made_.extents[place] = 0;
  }
  made_.data[kWorkspaceSlot] = call.workspace;
}

void Builder::keep_key(const Call& call) noexcept {
  write_key(call, made_.key);
  made_.hash = hash_of(call);
  if (call.hints) made_.hints = *call.hints;
}

Error Builder::prepare_parts(const Call& call, const Device& device, const Pieces& pieces,
                             Prepared* const (&parts)[2]) noexcept {
  begin(call, device);
  made_.part_count = call.sizes[call.info->cut] / pieces.size;
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot)
    made_.part_steps[call.from[slot]] = step_of(call, slot, pieces.size);
  made_.workspace_bytes = parts[0]->workspace_bytes;
  if (parts[1]) made_.workspace_bytes = std::max(made_.workspace_bytes, parts[1]->workspace_bytes);
  if (made_.workspace_bytes)
    AOTRITON_TRY(check_workspace(*call.info, call.workspace, made_.workspace_bytes, made_.data, made_.extents));
  made_.part = parts[0];
  made_.last_part = parts[1];
  return Error::success;
}

void Builder::prepare_empty(const Call& call, const Device& device) noexcept {
  begin(call, device);
  made_.empty = true;
}

Error Builder::workspace_size(Call& call, const Dispatch& dispatch, size_t* bytes) noexcept {
  AOTRITON_TRY(place_workspace(call, dispatch));
  *bytes = made_.workspace_bytes;
  return Error::success;
}

Error Builder::prepare(Call& call, const Device& device, const Dispatch& dispatch, Stream stream) noexcept {
  begin(call, device);
  AOTRITON_TRY(place_workspace(call, dispatch));
  if (made_.workspace_bytes && call.workspace && call.workspace_size < made_.workspace_bytes)
    return fail(Error::workspace_too_small, "%s: workspace has %zu bytes, %zu are needed", call.info->name,
                call.workspace_size, made_.workspace_bytes);
  if (made_.workspace_bytes)
    AOTRITON_TRY(check_workspace(*call.info, call.workspace, made_.workspace_bytes, made_.data, made_.extents));
  const BackendInfo& backend = dispatch.chosen();
  for (size_t i = 0; i < backend.kernels.size(); ++i) {
    const Entry& entry = dispatch.kernels[i].entry();
    log_first_use(dispatch, i);
    AOTRITON_TRY(add(call, device, *backend.kernels[i], *entry.image, entry.psels, stream));
  }
  return Error::success;
}

Error Builder::prepare(Call& call, const Device& device, const KernelInfo& kernel, Image& image, const int32_t* psels,
                       Stream stream) noexcept {
  begin(call, device);
  return add(call, device, kernel, image, psels, stream);
}

Error Builder::place_workspace(Call& call, const Dispatch& dispatch) noexcept {
  AOTRITON_TRY(lay_out(call, dispatch, &workspace_));
  made_.workspace_bytes = workspace_.bytes;
  return Error::success;
}

Error Builder::add(const Call& call, const Device& device, const KernelInfo& kernel, Image& image, const int32_t* psels,
                   Stream stream) noexcept {
  PreparedLaunch& launch = made_.launches[made_.launch_count];
  launch.image = &image;
  const Environment environment = {&call, psels, device.facts.place.multiprocessors, 0};
  bool has_programs = true;
  for (int axis = 0; axis < 3; ++axis) {
    int64_t programs;
    if (!evaluate(kernel.grid[axis], environment, &programs) || programs < 0 || programs > kMostPrograms[axis])
      return fail(Error::not_supported, "%s: more than %" PRId64 " programs of %s along %c", call.info->name,
                  kMostPrograms[axis], kernel.name, "xyz"[axis]);
    launch.grid[axis] = static_cast<uint32_t>(programs);
    has_programs &= programs > 0;
  }
  if (!has_programs) return Error::success;  // no driver launches none
  ++made_.launch_count;
  AOTRITON_TRY(load_image(device, image, stream, &launch.function));
  if (uint64_t{launch.grid[0]} * image.threads > device.driver->most_threads_x)
    return fail(Error::not_supported, "%s: %s has more threads of %s along x than can be launched", call.info->name,
                device.driver->name, kernel.name);

  launch.first = made_.argument_count;
  kernel_begin_ = made_.byte_count = static_cast<uint32_t>(align_up(made_.byte_count, alignof(TensorMap)));
  descriptors_ = 0;
  for (const Argument& argument : kernel.arguments) AOTRITON_TRY(add_argument(call, argument, environment, image));
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

Error Builder::add_argument(const Call& call, const Argument& argument, const Environment& environment,
                            const Image& image) noexcept {
  const View& view = call[argument.slot];
  switch (argument.pass) {
    case Pass::tensor:
      if (argument.block && image.descriptor_count) {
        note_place(call, argument.slot, true);
        int64_t packed = 0;  // of the second dimension, where the description has so many side by side
        if (!argument.value.code.empty()) AOTRITON_TRY(number(call, argument, environment, &packed));
        return add_map(call.info->slot(argument.slot), view, packed, image);
      }
      note_place(call, argument.slot, false);
      put(view.data);
      return Error::success;
    case Pass::stride:
      if (argument.block && image.descriptor_count) return Error::success;  // the descriptor has it
      // A kernel may take a stride as i32 where tensors are small: the driver reads the leading bytes, which on the
      // little-endian hosts of both vendors are the low ones.
      put(view.strides ? view.strides[argument.dim] : int64_t{0});
      return Error::success;
    case Pass::fp32:
      put(call.scalars[argument.slot].real);
      return Error::success;
    default:
      return add_number(call, argument, environment);
  }
}

Error Builder::number(const Call& call, const Argument& argument, const Environment& environment,
                      int64_t* value) noexcept {
  const bool fits = evaluate(argument.value, environment, value);
  if (!fits || (argument.pass == Pass::i32 && (*value < INT32_MIN || *value > INT32_MAX)))
    return fail(Error::not_supported, "%s: a size is beyond what kernels count in %d bits", call.info->name,
                argument.pass == Pass::i32 ? 32 : 63);
  return Error::success;
}

Error Builder::add_number(const Call& call, const Argument& argument, const Environment& environment) noexcept {
  int64_t value;
  AOTRITON_TRY(number(call, argument, environment, &value));
  if (argument.pass == Pass::i32)
    put(static_cast<int32_t>(value));
  else
    put(value);
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
  void* const map = reserve(sizeof(TensorMap), alignof(TensorMap));
  for (size_t i = 0; i < rank; ++i) put(static_cast<int32_t>(sizes[i]));
  for (size_t i = 0; i < rank; ++i) put(strides[i]);
  if (!map) return Error::success;  // `overflow_` is told at the end
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
  const int status = driver.encode_tensor_map(static_cast<TensorMap*>(map), request);
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
  places_[made_.place_count++] = {made_.argument_count,
                                  static_cast<uint8_t>(of_workspace ? kWorkspaceSlot : call.from[slot]), map,
                                  of_workspace ? workspace_.offsets[slot] : 0};
}

void* Builder::reserve(size_t size, size_t alignment) noexcept {
  const size_t begin = align_up(made_.byte_count, alignment);
  if (made_.argument_count == kMaxArguments || begin + size > kernel_begin_ + kMaxKernelBytes ||
      begin + size > kMaxBytes) {
    overflow_ = true;
    return nullptr;
  }
  offsets_[made_.argument_count] = begin;
  sizes_[made_.argument_count++] = static_cast<uint16_t>(size);
  made_.byte_count = static_cast<uint32_t>(begin + size);
  return bytes_ + begin;
}

template <class Number>
void Builder::put(Number number) noexcept {
  if (void* place = reserve(sizeof number, alignof(Number))) memcpy(place, &number, sizeof number);
}

Prepared* Builder::finish() const noexcept {
  const size_t head = sizeof(Prepared) + made_.argument_count * (sizeof(void*) + sizeof(uint16_t)) +
                      made_.place_count * sizeof(PointerPlace);
  const size_t bytes = align_up(head, alignof(TensorMap));
  void* const block = aligned_alloc(alignof(TensorMap), align_up(bytes + made_.byte_count, alignof(TensorMap)));
  if (!block) return nullptr;
  auto* const prepared = new (block) Prepared(made_);
  unsigned char* const storage = static_cast<unsigned char*>(block) + bytes;
  memcpy(storage, bytes_, made_.byte_count);
  for (size_t i = 0; i < made_.argument_count; ++i) prepared->arguments()[i] = storage + offsets_[i];
  memcpy(prepared->places(), places_, made_.place_count * sizeof(PointerPlace));
  memcpy(prepared->sizes(), sizes_, made_.argument_count * sizeof(uint16_t));
  return prepared;
}

}  // namespace aotriton::v2::inline abi1
