// What is asked of each operand of every new call. Of an operator whose operands are constants it is compiled for
// these: the compiler unrolls the loops, and leaves out what is not an operand's.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "call/call.h"

namespace aotriton::v2::inline abi1 {

// Of each operand the dimensions, as bits, whose size a required operand before it has.
template <const auto& kOperands>
constexpr auto repeated_dims(bool paged) {
  std::array<uint8_t, std::size(kOperands)> repeated = {};
  uint64_t known = 0;  // sizes, as bits
  for (size_t slot = 0; slot < std::size(kOperands); ++slot) {
    const std::span<const uint8_t> dims = dims_of(kOperands[slot], paged);
    for (size_t i = dims.size(); i-- > 0;) {
      repeated[slot] |= static_cast<uint8_t>((known >> dims[i] & 1) << i);
      if (!kOperands[slot].optional) known |= uint64_t{1} << dims[i];
    }
  }
  return repeated;
}

// Functions that run step(slot, operand) for each operand, or for the plain ones.
struct EachAtRunTime {
  std::span<const OperandInfo> operands;

  template <class Step>
  void operator()(bool plain, Step step) const {
    const size_t end = plain ? plain_operands(operands) : operands.size();
    for (size_t slot = 0; slot < end; ++slot) step(slot, operands[slot]);
  }
  static constexpr bool repeats(size_t, size_t) { return false; }
};
template <const auto& kOperands>
struct EachUnrolled {
  static constexpr auto kRepeated = repeated_dims<kOperands>(false);

  template <class Step>
  [[gnu::always_inline]] void operator()(bool plain, Step step) const {
    constexpr size_t kPlain = plain_operands(kOperands);
    const auto run = [&]<size_t kBegin, size_t... kSlots>(std::index_sequence<kSlots...>)
                         __attribute__((always_inline)) { (step(kBegin + kSlots, kOperands[kBegin + kSlots]), ...); };
    run.template operator()<0>(std::make_index_sequence<kPlain>());
    if (!plain) run.template operator()<kPlain>(std::make_index_sequence<std::size(kOperands) - kPlain>());
  }
  [[gnu::always_inline]] static constexpr bool repeats(size_t slot, size_t dim) { return kRepeated[slot] >> dim & 1; }
};

// An operand that may be left out is given where it has data.
inline bool is_given(const OperandInfo& operand, const View& view) noexcept {
  return view.sizes && (view.data || !operand.optional);
}

enum class Look {
  plain,        // nothing is wrong
  overlapping,  // nothing else is wrong than that tensors may share memory
  unusual,
};

// Sets the sizes, the type and the extents of a call, which are 0 and none, and `suited`. It is unusual where a tensor
// does not fit to the others, is empty, huge, or lies as few do, right or not: a dimension of a written one is within
// another. `kStrided`: operands, as bits, whose strides kernels follow.
template <const auto& kOperands, uint32_t kStrided, bool kPaged>
[[gnu::hot]] inline Look look_at(Call& call, Data data) {
  constexpr auto kRepeated = repeated_dims<kOperands>(kPaged);
  // Of sizes and strides: four dimensions of any type then reach over less than 2^63 bytes.
  constexpr int kSizeBits = 27, kStrideBits = 31;
  constexpr uint64_t kAlignment = 16;  // bytes, of data and strides that suit
  uint32_t with_data = 0, written = 0;
  bool right = true;
  // Of all dimensions, bit by bit. `wrong` and `unsuited` have their highest bit where one is.
  uint64_t differing = 0, wrong = 0, sizes = 0, strides = 0, unaligned = 0, unsuited = 0;
  EachUnrolled<kOperands>()(call.plain, [&](size_t slot, const OperandInfo& operand) __attribute__((always_inline)) {
    const View& view = call[slot];
    if (!is_given(operand, view)) {
      right &= operand.optional;
      return;
    }
    const bool of_call = operand.dtype == DType::none, other = operand.may_have(view.dtype);
    if (of_call && !other && call.dtype == DType::none) {
      call.dtype = view.dtype;
      right &= std::ranges::find(call.info->dtypes, static_cast<int64_t>(view.dtype)) != call.info->dtypes.end();
    }
    right &= other || view.dtype == (of_call ? call.dtype : operand.dtype);
    const std::span<const uint8_t> dims = dims_of(operand, kPaged);
    const size_t last = operand.dims.size() - 1;
    const bool follows = kStrided >> slot & 1;
    uint64_t elements = 1, reach = 1, outer = 0;  // all; from the first to the last one; strides but for the last one
    for (size_t i = operand.dims.size(); i-- > 0;) {
      const auto size = static_cast<uint64_t>(view.sizes[i]), stride = static_cast<uint64_t>(view.strides[i]);
      const uint64_t steps = size - 1;
      int64_t& size_of_call = call.sizes[dims[i]];
      if (!(kRepeated[slot] >> i & 1)) {
        size_of_call = size_of_call ? size_of_call : view.sizes[i];
        sizes |= size;
        wrong |= steps;
      }
      differing |= static_cast<uint64_t>(size_of_call) ^ size;
      if (operand.layout == Layout::contiguous) {
        differing |= steps ? stride ^ elements : 0;
        elements *= size;
      } else if (operand.written) {
        wrong |= (stride - reach) & -steps;  // one that is smaller is within, if anything is
      }
      if (operand.layout == Layout::rows && i == last) differing |= steps ? stride ^ 1 : 0;
      (i == last ? strides : outer) |= stride;
      // Of written ones only a dimension of size 1, which nothing follows, may have a stride of 0.
      if (i != last && follows && !operand.written) unsuited |= stride - 1;
      reach += steps * stride;
    }
    strides |= outer;
    const auto width = static_cast<uint64_t>(bytes_of(of_call ? view.dtype : operand.dtype));
    const uint64_t bytes = reach * width;
    call.extents[slot] = static_cast<int64_t>(bytes);
    const auto begin = reinterpret_cast<uintptr_t>(view.data);
    if (follows) {
      unaligned |= begin | outer * width;
      // A descriptor's store ends at a multiple of 16 bytes, where the next element may not be ours.
      if (operand.written) unaligned |= static_cast<uint64_t>(view.sizes[last]) * width;
      if (operand.layout == Layout::strided) unaligned |= 1;  // whichever dimension is the contiguous one
    }
    if (!begin) {
      right &= data == Data::optional;
      return;
    }
    right &= !(begin & (std::max(width, uint64_t{operand.alignment}) - 1)) && begin + bytes - 1 >= begin;
    with_data |= uint32_t{1} << slot;
    if (operand.written) written |= uint32_t{1} << slot;
  });
  if (!right || differing | wrong >> 63 | sizes >> kSizeBits | strides >> kStrideBits) return Look::unusual;
  call.suited = !(unaligned % kAlignment) && !(unsuited >> 63);
  for (; written; written &= written - 1) {
    const auto a = static_cast<size_t>(std::countr_zero(written));
    with_data &= ~(uint32_t{1} << a);
    for (uint32_t others = with_data; others; others &= others - 1) {
      const auto b = static_cast<size_t>(std::countr_zero(others));
      if (ranges_overlap(call[a].data, call.extents[a], call[b].data, call.extents[b])) return Look::overlapping;
    }
  }
  return Look::plain;
}

// Of a call's key the word of an operand that is given: its type, and whether it is aligned as kernels can use it.
inline int64_t key_word(const View& view) noexcept {
  return 1 | static_cast<int64_t>(aligned_to(view.data, 16)) << 1 | static_cast<int64_t>(view.dtype) << 2;
}

// A hash with two more words. Products of pairs do not wait for each other, as a chain of words would.
inline uint64_t hash_of(uint64_t hash, int64_t a, int64_t b) noexcept {
  constexpr uint64_t kEven = 0xA0761D6478BD642Fu, kOdd = 0xE7037ED1A0B428DBu;
  return std::rotl(hash, 7) + (static_cast<uint64_t>(a) ^ kEven) * (static_cast<uint64_t>(b) ^ kOdd);
}

// Writes the words of the operands, of a plain call the plain ones: of each, its sizes and its strides, or 0. Where
// they end. *hash becomes one with all but what repeats other sizes, and strides, which are mostly the same where all
// else is.
template <class Each>
[[gnu::always_inline]] inline int64_t* write_words(const Call& call, int64_t* words, uint64_t* hash, Each each) {
  uint64_t mixed = *hash;
  each(call.plain, [&](size_t slot, const OperandInfo& operand) __attribute__((always_inline)) {
    const View& view = call[slot];
    const size_t rank = operand.dims.size();
    const bool given = is_given(operand, view);
    int64_t left = given ? key_word(view) : 0;  // to be mixed in
    *words++ = left;
    if (!given) return;
    memcpy(words, view.sizes, rank * sizeof *words);
    memcpy(words + rank, view.strides, rank * sizeof *words);
    bool any = true;
    for (size_t i = 0; i < rank; ++i) {
      if (each.repeats(slot, i)) continue;
      if (any) mixed = hash_of(mixed, left, view.sizes[i]);
      left = view.sizes[i];
      any = !any;
    }
    if (any) mixed = std::rotl(mixed, 7) + static_cast<uint64_t>(left);
    words += 2 * rank;
  });
  *hash = mixed;
  return words;
}

// Whether kernels with descriptors, or with offsets of 32 bits, can follow a tensor's strides. `by_descriptor`: it is
// the former.
[[gnu::always_inline]] inline bool strides_suit(const OperandInfo& operand, const View& view, bool by_descriptor) {
  constexpr uint64_t kMostPacked = 16;        // along the second of four dimensions, by any description
  constexpr uint64_t kSizeLimit = INT32_MAX;  // elements along a dimension, of a tensor map's argument
  constexpr int64_t kAlignment = 16;          // bytes, of data and strides
  if (!aligned_to(view.data, kAlignment)) return false;
  const bool swapped = operand.layout == Layout::strided && transposed(operand, view);
  const size_t rank = operand.dims.size(), contiguous = rank - 1 - swapped;
  const int shift = std::countr_zero(static_cast<uint64_t>(bytes_of(view.dtype)));  // of bytes to elements
  const uint64_t limit = static_cast<uint64_t>(kMapStrideLimit) >> shift;
  const int64_t partial = (kAlignment >> shift) - 1;
  // Each is below a power of two where all of them are, bit by bit. One less than what is less than one has the
  // highest bit.
  uint64_t sizes = 0, strides = 0, less = 0;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t size = view.sizes[i], stride = size == 1 || i == contiguous ? partial + 1 : view.strides[i];
    const auto bits = static_cast<uint64_t>(stride);
    sizes |= static_cast<uint64_t>(size);
    strides |= rank == 4 && i == 1 ? bits * kMostPacked | bits : bits;
    less |= static_cast<uint64_t>(size - 1) | (bits - 1);
  }
  if (sizes > kSizeLimit || strides >= limit || (strides & static_cast<uint64_t>(partial)) || less >> 63) return false;
  if (view.sizes[contiguous] > 1 && view.strides[contiguous] != 1) return false;
  // A descriptor's store ends at a multiple of 16 bytes, where the next element may not be ours.
  return !(operand.written && by_descriptor && (view.sizes[contiguous] & partial));
}

// The operands of `among`, as bits, that are given and whose strides do not suit.
template <class Each>
[[gnu::always_inline]] inline uint32_t unsuited(const Call& call, uint32_t among, bool by_descriptor, Each each) {
  uint32_t found = 0;
  if (call.suited && !call.misaligned) return found;
  each(call.plain, [&](size_t slot, const OperandInfo& operand) __attribute__((always_inline)) {
    if (!(among >> slot & 1) || !is_given(operand, call[slot])) return;
    if (call.misaligned >> call.from[slot] & 1 || !strides_suit(operand, call[slot], by_descriptor))
      found |= uint32_t{1} << slot;
  });
  return found;
}

// Makes the view of a workspace tensor, as shape_tensor().
[[gnu::always_inline]] inline int64_t shape(Call& call, size_t slot, const OperandInfo& operand) {
  auto& [sizes, strides] = call.dims[slot];
  int64_t elements = 1;
  bool fits = true;
  for (size_t i = operand.dims.size(); i-- > 0;) {
    sizes[i] = call.sizes[operand.dims[i]];
    strides[i] = elements;
    fits &= !__builtin_mul_overflow(elements, sizes[i], &elements);
  }
  call.views[slot] = {nullptr, operand.dtype == DType::none ? call.dtype : operand.dtype, sizes, strides};
  return fits ? elements : -1;
}

// As shape_workspace(), of tensors behind so many operands.
// `strided`: slots, as bits, whose strides kernels follow.
template <class Each>
[[gnu::always_inline]] inline bool shape_all(Call& call, size_t operands, size_t given_sizes, uint32_t strided,
                                             Each each) {
  bool fits = true;
  each(false, [&](size_t i, const OperandInfo& operand) __attribute__((always_inline)) {
    bool derived = false;
    for (const uint8_t dim : operand.dims) derived |= dim >= given_sizes;
    if (derived) {
      call.views[operands + i] = View::none();
      return;
    }
    const size_t slot = operands + i;
    const int64_t elements = shape(call, slot, operand);
    fits &= elements >= 0;
    if (!(strided >> slot & 1)) return;
    // Of which each stride is a multiple, and none more than all elements.
    const View& view = call[slot];
    const int64_t row = view.sizes[operand.dims.size() - 1] * bytes_of(view.dtype);
    call.suited &= elements > 0 && elements <= INT32_MAX && row % 16 == 0;
  });
  return fits;
}
template <const auto& kWorkspace, size_t kOperands, size_t kGivenSizes, uint32_t kStrided>
[[gnu::hot]] bool compiled_shapes(Call& call) noexcept {
  return shape_all(call, kOperands, kGivenSizes, kStrided, EachUnrolled<kWorkspace>());
}

template <const auto& kOperands>
[[gnu::hot]] int64_t* compiled_words(const Call& call, int64_t* words, uint64_t* hash) noexcept {
  return write_words(call, words, hash, EachUnrolled<kOperands>());
}

// These functions of constant operands, of which kernels follow the strides of `kStrided`, as bits.
template <const auto& kOperands, uint32_t kStrided>
constexpr CompiledOperands compiled_operands() {
  constexpr bool kMayBePaged =
      std::ranges::any_of(kOperands, [](const OperandInfo& one) { return !one.paged_dims.empty(); });
  return {
      .look =
          [](Call& call, Data data, bool paged) noexcept {
            if constexpr (kMayBePaged)
              if (paged) return look_at<kOperands, kStrided, true>(call, data);
            return look_at<kOperands, kStrided, false>(call, data);
          },
      .write_words = compiled_words<kOperands>,
      .unsuited =
          [](const Call& call, bool by_descriptor) noexcept {
            return unsuited(call, kStrided, by_descriptor, EachUnrolled<kOperands>());
          },
      .plain_operands = plain_operands(kOperands),
  };
}

}  // namespace aotriton::v2::inline abi1
