#include "launch/argument_layout.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "call/operands.h"
#include "launch/device.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr size_t kMaxPointers = kMaxKernels * (kMaxOperands + 4);  // a kernel may take an operand twice
constexpr size_t kMaxKernelBytes = 4096;                           // what a CUDA kernel can take
constexpr size_t kMaxBytes = 4 * kMaxKernelBytes;
static_assert(kMaxBytes <= UINT16_MAX && kMaxPointers <= UINT16_MAX);

// Of numbers that are not negative. Processors divide those of 32 bits in half the time.
int64_t quotient(int64_t a, int64_t b) {
  return static_cast<uint64_t>(a | b) <= UINT32_MAX ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

bool is_given(const Call& call, size_t slot) { return is_given(call.info->slot(slot), call[slot]); }

bool takes_map(const Argument& argument, const Image& image) { return argument.block && image.descriptor_count; }

template <class Number>
void put(unsigned char* to, Number value) {
  memcpy(to, &value, sizeof value);
}

}  // namespace

// Goes through the arguments of a call's launches twice: to count them, and then to fill a layout that has room.
class ArgumentLayout::Draft {
 public:
  Draft(const Call& call, bool in_workspace, const Driver& driver, ArgumentLayout* filled)
      : call_(call), in_workspace_(in_workspace), driver_(driver), filled_(filled) {}

  Error add(const Part& part) {
    const size_t first = arguments;
    const Image& image = *part.image;
    bytes = align_up(bytes, alignof(TensorMap));
    const size_t most = std::min(bytes + kMaxKernelBytes, kMaxBytes);
    const auto fits = [&] { return arguments <= kMaxArguments && pointers <= kMaxPointers && bytes <= most; };
    maps_ = numbers_ = 0;
    for (const Argument& argument : part.kernel->arguments) {
      if (!argument.is_of(image)) continue;
      AOTRITON_TRY(add(argument, part));
      if (!fits()) return fail(Error::not_supported, "%s: takes too many arguments", image.name);
    }
    add_scratch(image);
    note(sizeof(void*));  // profile scratch
    if (!fits()) return fail(Error::not_supported, "%s: takes too many arguments", image.name);
    if (maps_ != image.descriptor_count)
      return fail(Error::damaged_image, "%s: takes %d descriptors, its description has %d", image.name,
                  image.descriptor_count, static_cast<int>(maps_));
    if (filled_) {
      PreparedLaunch& launch = filled_->launches[launches];
      launch.image = part.image;
      launch.early = part.early;
      launch.first = static_cast<uint16_t>(first);
      launch.count = static_cast<uint16_t>(arguments - first);
      filled_->kernels_[launches] = part.kernel;
    }
    ++launches;
    return Error::success;
  }

  size_t launches = 0, arguments = 0, pointers = 0, bytes = 0;
  size_t of_kind[kFollows] = {};  // sources
  uint32_t strided = 0;

 private:
  static size_t align_up(size_t value, size_t alignment) { return (value + alignment - 1) / alignment * alignment; }

  // Where the next argument lies.
  size_t note(size_t size) { return note(size, size); }
  size_t note(size_t size, size_t alignment) {
    const size_t begin = align_up(bytes, alignment);
    if (filled_) {
      filled_->offsets[arguments] = static_cast<uint32_t>(begin);
      filled_->sizes[arguments] = static_cast<uint16_t>(size);
    }
    ++arguments;
    bytes = begin + size;
    return begin;
  }

  void follow(Follows what, size_t at, size_t slot, size_t which = 0, size_t number = Source::kNoNumber,
              size_t pointer = 0) {
    const auto kind = static_cast<size_t>(what);
    if (filled_)
      filled_->sources_[filled_->begins_[kind] + of_kind[kind]] = {
          static_cast<uint16_t>(at),   static_cast<uint8_t>(launches), static_cast<uint8_t>(slot),
          static_cast<uint8_t>(which), static_cast<uint8_t>(number),   static_cast<uint16_t>(pointer)};
    ++of_kind[kind];
  }

  // Notes that the next argument follows the data of `slot`.
  void note_pointer(size_t slot, bool map) {
    const bool of_workspace = slot >= call_.info->operands.size();
    if (of_workspace && !in_workspace_) return;
    if (filled_)
      filled_->pointers[pointers] = {static_cast<uint16_t>(arguments), of_workspace ? kWorkspaceSlot : call_.from[slot],
                                     map, 0};
    if (of_workspace) follow(Follows::workspace, 0, slot, 0, Source::kNoNumber, pointers);
    ++pointers;
  }

  Error add(const Argument& argument, const Part& part) {
    const size_t slot = argument.slot;
    switch (argument.pass) {
      case Pass::tensor: {
        const size_t number = argument.value.code.empty() ? Source::kNoNumber : numbers_++;
        const bool map = takes_map(argument, *part.image);
        note_pointer(slot, map);
        if (map) return add_map(argument, part, number);
        follow(Follows::data, note(sizeof(void*)), slot);
        return Error::success;
      }
      case Pass::stride: {
        if (takes_map(argument, *part.image)) return Error::success;  // the descriptor has it
        // A kernel may take a stride as i32 where tensors are small: the driver reads the leading bytes, which on the
        // little-endian hosts of both vendors are the low ones.
        // Those of a tensor that is not given may be anything: calls that differ in them are one call to the memo.
        const size_t at = note(sizeof(int64_t));
        strided |= uint32_t{1} << slot;
        if (is_given(call_, slot)) follow(Follows::stride, at, slot, argument.dim);
        return Error::success;
      }
      case Pass::fp32:
        follow(Follows::real, note(sizeof(float)), slot);
        return Error::success;
      case Pass::i32:
        follow(Follows::i32, note(sizeof(int32_t)), 0, 0, numbers_++);
        return Error::success;
      case Pass::i64:
        follow(Follows::i64, note(sizeof(int64_t)), 0, 0, numbers_++);
        return Error::success;
    }
    return Error::success;
  }

  // Triton passes a host descriptor as the tensor map, then every size as i32, then every stride as i64, in elements
  // and with the innermost one.
  Error add_map(const Argument& argument, const Part& part, size_t number) {
    const Image& image = *part.image;
    const bool may_pack = number != Source::kNoNumber && argument.dim == 1;
    const bool packs = may_pack && part.plan->numbers[number];
    const size_t index = maps_++, rank = call_.info->slot(argument.slot).dims.size() + packs;
    if (index >= image.descriptor_count || image.descriptors[index].rank != rank)
      return fail(Error::damaged_image, "%s: descriptor %d is not as its description has it", image.name,
                  static_cast<int>(index));
    if (!driver_.encode_tensor_map)
      return fail(Error::not_supported, "%s: %s has no tensor descriptors", image.name, driver_.name);
    follow(packs      ? Follows::packed_map
           : may_pack ? Follows::flat_map
                      : Follows::map,
           note(sizeof(TensorMap), alignof(TensorMap)), argument.slot, index, number);
    for (size_t i = 0; i < rank; ++i) note(sizeof(int32_t));
    for (size_t i = 0; i < rank; ++i) note(sizeof(int64_t));
    return Error::success;
  }

  // The pointer to the programs' scratch memory, which lies in the workspace; null where the image needs none.
  void add_scratch(const Image& image) {
    if (!image.global_scratch) {
      note(sizeof(void*));
      return;
    }
    if (filled_) filled_->pointers[pointers] = {static_cast<uint16_t>(arguments), kWorkspaceSlot, false, 0};
    follow(Follows::scratch, note(sizeof(void*)), 0, 0, Source::kNoNumber, pointers++);
  }

  const Call& call_;
  const bool in_workspace_;
  const Driver& driver_;
  ArgumentLayout* const filled_;   // null: to count
  size_t maps_ = 0, numbers_ = 0;  // of the launch so far
};

Error ArgumentLayout::make(const Call& call, std::span<const Part> parts, bool in_workspace, const Driver& driver,
                           ArgumentLayout** made) noexcept {
  Draft counted(call, in_workspace, driver, nullptr);
  for (const Part& part : parts) AOTRITON_TRY(counted.add(part));
  size_t size = 0;
  const auto reserve = [&](size_t bytes, size_t alignment) {
    size = (size + alignment - 1) / alignment * alignment;
    return std::exchange(size, size + bytes);
  };
  uint16_t begins[kFollows + 1] = {};
  for (size_t i = 0; i < kFollows; ++i) begins[i + 1] = static_cast<uint16_t>(begins[i] + counted.of_kind[i]);
  reserve(sizeof(ArgumentLayout), alignof(ArgumentLayout));
  const size_t bytes = reserve(counted.bytes, alignof(TensorMap));
  const size_t launches = reserve(counted.launches * sizeof(PreparedLaunch), alignof(PreparedLaunch));
  const size_t pointers = reserve(counted.pointers * sizeof(PointerArgument), alignof(PointerArgument));
  const size_t sources = reserve(begins[kFollows] * sizeof(Source), alignof(Source));
  const size_t offsets = reserve(counted.arguments * sizeof(uint32_t), alignof(uint32_t));
  const size_t sizes = reserve(counted.arguments * sizeof(uint16_t), alignof(uint16_t));
  reserve(0, alignof(TensorMap));
  auto* const block = static_cast<unsigned char*>(aligned_alloc(alignof(TensorMap), size));
  if (!block) return fail(Error::out_of_memory, "%s: no memory", call.info->name);
  auto* const layout = new (block) ArgumentLayout;
  layout->launch_count = counted.launches;
  layout->argument_count = counted.arguments;
  layout->pointer_count = counted.pointers;
  layout->byte_count = counted.bytes;
  layout->bytes = block + bytes;
  memset(layout->bytes, 0, counted.bytes);  // of what follows nothing, and of gaps
  layout->launches = reinterpret_cast<PreparedLaunch*>(block + launches);
  layout->pointers = reinterpret_cast<PointerArgument*>(block + pointers);
  layout->offsets = reinterpret_cast<uint32_t*>(block + offsets);
  layout->sizes = reinterpret_cast<uint16_t*>(block + sizes);
  layout->sources_ = reinterpret_cast<Source*>(block + sources);
  std::copy_n(begins, kFollows + 1, layout->begins_);
  layout->driver_ = &driver;
  std::copy_n(call.from, kMaxOperands, layout->from_);
  layout->in_workspace_ = in_workspace;
  layout->strided_ = counted.strided;
  layout->given_ = 0;
  for (uint32_t left = counted.strided; left; left &= left - 1) {
    const auto slot = static_cast<size_t>(std::countr_zero(left));
    layout->given_ |= static_cast<uint32_t>(is_given(call, slot)) << slot;
  }
  Draft filled(call, in_workspace, driver, layout);
  for (const Part& part : parts)
    if (const Error error = filled.add(part); error != Error::success) {
      destroy(layout);
      return error;
    }
  *made = layout;
  return Error::success;
}

void ArgumentLayout::destroy(ArgumentLayout* layout) noexcept { free(layout); }

[[gnu::hot]] bool ArgumentLayout::suits(const Call& call, std::span<const Part> parts, bool in_workspace,
                                        const Driver& driver) const noexcept {
  if (parts.size() != launch_count || in_workspace != in_workspace_ || &driver != driver_) return false;
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].image != launches[i].image || parts[i].kernel != kernels_[i] || parts[i].early != launches[i].early)
      return false;
  if (memcmp(from_, call.from, kMaxOperands) != 0) return false;
  for (uint32_t left = strided_; left; left &= left - 1) {
    const auto slot = static_cast<size_t>(std::countr_zero(left));
    if (is_given(call, slot) != (given_ >> slot & 1)) return false;
  }
  for (const bool packs : {true, false})
    for (const Source& one : sources(packs ? Follows::packed_map : Follows::flat_map))
      if ((parts[one.launch].plan->numbers[one.number] != 0) != packs) return false;
  return true;
}

[[gnu::hot]] Error ArgumentLayout::write(const Call& call, std::span<const Part> parts,
                                         const size_t* offsets_in_workspace) noexcept {
  for (size_t i = 0; i < parts.size(); ++i) std::copy_n(parts[i].plan->grid, 3, launches[i].grid);
  unsigned char* const to = bytes;  // which would be read again behind each byte that is written
  for (const Source& one : sources(Follows::stride)) put(to + one.at, call[one.slot].strides[one.which]);
  for (const Source& one : sources(Follows::data)) put(to + one.at, call[one.slot].data);
  for (const Source& one : sources(Follows::real)) put(to + one.at, call.scalars[one.slot].real);
  for (const Source& one : sources(Follows::i32))
    put(to + one.at, static_cast<int32_t>(parts[one.launch].plan->numbers[one.number]));
  for (const Source& one : sources(Follows::i64)) put(to + one.at, parts[one.launch].plan->numbers[one.number]);
  for (const Source& one : sources(Follows::scratch)) {
    const size_t begin = parts[one.launch].plan->scratch;
    put(to + one.at, static_cast<char*>(call.workspace) + begin);
    pointers[one.pointer].offset = begin;
  }
  for (const Source& one : sources(Follows::workspace)) pointers[one.pointer].offset = offsets_in_workspace[one.slot];
  for (const Follows what : {Follows::map, Follows::packed_map, Follows::flat_map})
    for (const Source& one : sources(what))
      AOTRITON_TRY(write_map(call, parts[one.launch], one, what == Follows::packed_map));
  return Error::success;
}

namespace {

// What a tensor map is of, the contiguous dimension last.
struct Mapped {
  const int64_t *sizes, *strides;
};

// Writes the arguments behind a map, and what the driver is asked for. With a constant rank the compiler unrolls the
// loops.
template <class Rank>
[[gnu::always_inline]] inline void describe(const Mapped& mapped, const DescriptorLayout& layout, int64_t width,
                                            Rank rank, unsigned char* behind, TensorMapRequest* request) {
  constexpr size_t kSize = sizeof(int32_t), kStride = sizeof(int64_t);
  unsigned char* const strides = behind + (rank * kSize + kStride - 1) / kStride * kStride;
  for (size_t i = 0; i < rank; ++i) put(behind + i * kSize, static_cast<int32_t>(mapped.sizes[i]));
  memcpy(strides, mapped.strides, rank * kStride);
  for (size_t i = 0; i < rank; ++i) {
    const size_t from = rank - 1 - i;
    const int64_t size = mapped.sizes[from];
    request->sizes[i] = static_cast<uint64_t>(size);
    request->box[i] = layout.block[from];
    // No access follows the stride of a dimension of size 1, but the driver wants it to be a multiple of 16 all the
    // same.
    if (i > 0) request->strides[i - 1] = size == 1 ? 16 : static_cast<uint64_t>(mapped.strides[from] * width);
  }
  for (size_t i = rank; i <= kMaxRank; ++i) request->sizes[i] = request->strides[i - 1] = request->box[i] = 0;
}

}  // namespace

// The number of the plan, if there is one and it is not 0: how many neighbours along the second dimension are packed,
// of which a box has as many rows each; or the rows of a box.
[[gnu::always_inline]] inline Error ArgumentLayout::write_map(const Call& call, const Part& part, const Source& source,
                                                              bool packs) noexcept {
  const OperandInfo& operand = call.info->slot(source.slot);
  const View& view = call[source.slot];
  const int64_t of_box = source.number == Source::kNoNumber ? 0 : part.plan->numbers[source.number];
  const DescriptorLayout& layout = part.image->descriptors[source.which];
  unsigned char* const map = bytes + source.at;
  Mapped mapped = {view.sizes, view.strides};
  int64_t own_sizes[kMaxRank + 1], own_strides[kMaxRank + 1];
  const bool swapped = operand.layout == Layout::strided && transposed(operand, view);
  if (swapped || packs) {
    const size_t given = operand.dims.size();
    std::copy_n(view.sizes, given, own_sizes);
    std::copy_n(view.strides, given, own_strides);
    if (swapped) {
      std::swap(own_sizes[given - 1], own_sizes[given - 2]);
      std::swap(own_strides[given - 1], own_strides[given - 2]);
    }
    if (packs) {
      // [a, b, rows, columns] as [a, b / packed, rows, packed, columns]
      own_sizes[4] = own_sizes[3], own_strides[4] = own_strides[3];
      own_sizes[3] = of_box, own_strides[3] = own_strides[1];
      own_sizes[1] = quotient(own_sizes[1], of_box), own_strides[1] *= of_box;
    }
    mapped = {own_sizes, own_strides};
  }
  TensorMapRequest request;
  request.dtype = view.dtype;
  request.rank = layout.rank;
  request.address = view.data;
  request.swizzle = layout.swizzle;
  unsigned char* const behind = map + sizeof(TensorMap);
  const int64_t width = bytes_of(view.dtype);
  if (layout.rank == 4)
    describe(mapped, layout, width, std::integral_constant<size_t, 4>(), behind, &request);
  else if (layout.rank == 5)
    describe(mapped, layout, width, std::integral_constant<size_t, 5>(), behind, &request);
  else
    describe(mapped, layout, width, size_t{layout.rank}, behind, &request);
  if (packs) {
    request.box[1] *= static_cast<uint32_t>(of_box);
    request.box[2] /= static_cast<uint32_t>(of_box);
  } else if (of_box) {
    request.box[1] = static_cast<uint32_t>(of_box);
  }
  const Status status = driver_->encode_tensor_map(reinterpret_cast<TensorMap*>(map), request);
  return status ? driver_failure(*driver_, status, part.image->name, "encode a tensor descriptor") : Error::success;
}

}  // namespace aotriton::v2::inline abi1
