// What is asked of each operand of every new call. Of an operator whose operands are constants it is compiled for
// these: the compiler unrolls the loops, and leaves out what is not an operand's.
#pragma once

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "call/call.h"

namespace aotriton::v2::inline abi1 {

// Functions that run step(slot, operand) -> bool for each operand, until one returns false: whether none did.
struct EachAtRunTime {
  std::span<const OperandInfo> operands;

  template <class Step>
  bool operator()(Step step) const {
    for (size_t slot = 0; slot < operands.size(); ++slot)
      if (!step(slot, operands[slot])) return false;
    return true;
  }
};
template <const auto& kOperands>
struct EachUnrolled {
  template <class Step>
  [[gnu::always_inline]] bool operator()(Step step) const {
    return [&]<size_t... kSlots>(std::index_sequence<kSlots...>) __attribute__((always_inline)) {
      return (step(kSlots, kOperands[kSlots]) && ...);
    }(std::make_index_sequence<std::size(kOperands)>());
  }
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

// Sets the sizes, the type and the extents of a call, which are 0 and none. It is unusual where a tensor does not fit
// to the others, is empty, or lies as few do, right or not: a dimension of a written one is within another.
template <class Each>
[[gnu::always_inline]] inline Look look_at(Call& call, Data data, bool paged, Each each) {
  uint32_t with_data = 0, written = 0;
  bool known = true;  // the call's type, where a tensor has that
  const bool plain = each([&](size_t slot, const OperandInfo& operand) __attribute__((always_inline)) {
    const View& view = call[slot];
    if (!is_given(operand, view)) return true;
    const bool of_call = operand.dtype == DType::none, other = operand.may_have(view.dtype);
    if (of_call && !other && call.dtype == DType::none) {
      call.dtype = view.dtype;
      known &= std::ranges::find(call.info->dtypes, static_cast<int64_t>(view.dtype)) != call.info->dtypes.end();
    }
    if (!other && view.dtype != (of_call ? call.dtype : operand.dtype)) return false;
    const std::span<const uint8_t> dims = dims_of(operand, paged);
    int64_t elements = 1, reach = 1;  // all, and from the first to the last one
    int64_t sign = 0, differing = 0;
    unsigned within = 0;
    for (size_t i = operand.dims.size(); i-- > 0;) {
      const int64_t size = view.sizes[i], stride = view.strides[i];
      int64_t& size_of_call = call.sizes[dims[i]];
      size_of_call = size_of_call ? size_of_call : size;
      differing |= size_of_call ^ size;
      const auto steps = static_cast<int64_t>(static_cast<uint64_t>(size) - 1);
      sign |= size | steps | stride;
      if (operand.written || operand.layout == Layout::contiguous)
        within |= static_cast<unsigned>(stride < reach) & static_cast<unsigned>(size != 1);
      int64_t span;
      if (__builtin_mul_overflow(elements, size, &elements) || __builtin_mul_overflow(steps, stride, &span) ||
          __builtin_add_overflow(reach, span, &reach))
        return false;
    }
    const int64_t width = bytes_of(view.dtype);
    int64_t& bytes = call.extents[slot];
    if (__builtin_mul_overflow(reach, width, &bytes) || differing || sign < 0 || within) return false;
    // What is contiguous has as many elements as it reaches over.
    if (operand.layout == Layout::contiguous && reach != elements) return false;
    const size_t last = operand.dims.size() - 1;
    if (operand.layout == Layout::rows && view.sizes[last] != 1 && view.strides[last] != 1) return false;
    const auto begin = reinterpret_cast<uintptr_t>(view.data);
    if (!begin) return data == Data::optional;
    const auto alignment = static_cast<uintptr_t>(std::max(width, int64_t{operand.alignment}));
    if (begin & (alignment - 1) || begin + static_cast<uintptr_t>(bytes) - 1 < begin) return false;
    with_data |= uint32_t{1} << slot;
    if (operand.written) written |= uint32_t{1} << slot;
    return true;
  });
  if (!plain || !known) return Look::unusual;
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

// Writes the words of the operands: of each one, its sizes and its strides, or 0. Where they end. *hash becomes one
// with all but the strides, which are mostly the same where all else is.
template <class Each>
[[gnu::always_inline]] inline int64_t* write_words(const Call& call, int64_t* words, uint64_t* hash, Each each) {
  uint64_t mixed = *hash;
  each([&](size_t slot, const OperandInfo& operand) __attribute__((always_inline)) {
    const View& view = call[slot];
    const size_t rank = operand.dims.size();
    const bool given = is_given(operand, view);
    *words++ = given ? key_word(view) : 0;
    if (!given) return true;
    for (size_t i = 0; i < rank; ++i) words[i] = view.sizes[i], words[rank + i] = view.strides[i];
    for (size_t i = 0; i < rank; i += 2) mixed = hash_of(mixed, words[i], i + 1 < rank ? words[i + 1] : words[-1]);
    words += 2 * rank;
    return true;
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
  each([&](size_t slot, const OperandInfo& operand) __attribute__((always_inline)) {
    if (!(among >> slot & 1) || !is_given(operand, call[slot])) return true;
    if (call.misaligned >> call.from[slot] & 1 || !strides_suit(operand, call[slot], by_descriptor))
      found |= uint32_t{1} << slot;
    return true;
  });
  return found;
}

// These functions of constant operands, of which kernels follow the strides of `kStrided`, as bits.
template <const auto& kOperands, uint32_t kStrided>
constexpr CompiledOperands compiled_operands() {
  return {
      .look = [](Call& call, Data data,
                 bool paged) noexcept { return look_at(call, data, paged, EachUnrolled<kOperands>()); },
      .write_words = [](const Call& call, int64_t* words,
                        uint64_t* hash) noexcept { return write_words(call, words, hash, EachUnrolled<kOperands>()); },
      .unsuited =
          [](const Call& call, bool by_descriptor) noexcept {
            return unsuited(call, kStrided, by_descriptor, EachUnrolled<kOperands>());
          },
  };
}

}  // namespace aotriton::v2::inline abi1
