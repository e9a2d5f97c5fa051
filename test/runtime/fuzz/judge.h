// Whether a call that was accepted is sane, by rules of its own: they share nothing with the library's.
#pragma once

#include <algorithm>

#include "fuzz/driver.h"
#include "fuzz/operators.h"

namespace fuzz {

using Wide = __int128;  // no sum of sizes times strides overflows it

inline Wide element_bytes(const DraftTensor& tensor) { return bytes_of(static_cast<DType>(tensor.dtype)); }

// The bytes of a tensor, as an interval.
struct Interval {
  Wide begin, end;
};

class Judge {
 public:
  Judge(const Operator& op, const Draft& draft) : op_(op), draft_(draft), info_(*draft.info) {}

  // Objects to a call that was accepted and is not sane.
  void check() const {
    for (size_t slot = 0; slot < draft_.tensors.size(); ++slot) {
      if (!given(slot)) continue;
      for (size_t i = 0; i < rank(slot); ++i)
        if (draft_.tensors[slot].sizes[i] < 0) complain("has a negative size", slot);
      if (has_elements(slot)) check_tensor(slot);
    }
    for (size_t a = 0; a < draft_.tensors.size(); ++a)
      for (size_t b = 0; b < draft_.tensors.size(); ++b)
        if (a != b && has_memory(a) && is_result(b) && shares_a_sample(a, b))
          complain(is_result(a) ? "overlaps another result" : "is read, and overlaps a result", a);
    if (const char* objection = op_.objection(draft_)) object(std::string("accepted, but ") + objection);
  }

  // A workspace that was accepted, of which so many bytes are used.
  void check_workspace(size_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(draft_.workspace);
    if (!begin || begin % 256) object("a workspace that is not aligned was accepted");
    if (draft_.workspace_size < bytes) object("a workspace that is too small was accepted");
    const Interval own = {begin, Wide{begin} + bytes};
    if (own.end > Wide{1} << 64) object("a workspace that wraps around the address space was accepted");
    for (size_t slot = 0; slot < draft_.tensors.size(); ++slot)
      if (has_memory(slot) && own.begin < bytes_of(slot).end && bytes_of(slot).begin < own.end)
        complain("overlaps the workspace", slot);
  }

  // Each fill must be inside of a result.
  void check_fills() const {
    for (const SeenFill& fill : state.fills) {
      bool inside = false;
      for (size_t slot = 0; slot < draft_.tensors.size(); ++slot)
        inside |= is_result(slot) && fill.begin >= bytes_of(slot).begin && fill.end <= bytes_of(slot).end;
      if (!inside) object("a fill outside of all results");
    }
  }

  bool has_size_zero() const {
    for (size_t slot = 0; slot < draft_.tensors.size(); ++slot)
      if (given(slot) && !has_elements(slot)) return true;
    return false;
  }

 private:
  static constexpr int kSamples = 32;

  // What the call does without has no memory of its own.
  bool given(size_t slot) const { return draft_.given(slot) && !(op_.lacks && op_.lacks(draft_, slot)); }

  [[noreturn]] void complain(const char* what, size_t slot) const {
    object(std::string("accepted, but ") + info_.operands[slot].name + " " + what);
  }

  size_t rank(size_t slot) const { return info_.operands[slot].dims.size(); }

  bool has_elements(size_t slot) const {
    for (size_t i = 0; i < rank(slot); ++i)
      if (!draft_.tensors[slot].sizes[i]) return false;
    return true;
  }

  bool has_memory(size_t slot) const { return given(slot) && has_elements(slot); }

  bool is_result(size_t slot) const { return info_.operands[slot].written && has_memory(slot); }

  Interval bytes_of(size_t slot) const {
    const DraftTensor& tensor = draft_.tensors[slot];
    Wide reach = 1;
    for (size_t i = 0; i < rank(slot); ++i) reach += Wide{tensor.sizes[i] - 1} * tensor.strides[i];
    const Wide begin = reinterpret_cast<uintptr_t>(tensor.data);
    return {begin, begin + reach * element_bytes(tensor)};
  }

  void check_tensor(size_t slot) const {
    const DraftTensor& tensor = draft_.tensors[slot];
    const Layout layout = info_.operands[slot].layout;
    if (!tensor.data) complain("has no data", slot);
    if (tensor.dtype < AOTRITON_FLOAT16 || tensor.dtype > AOTRITON_INT32) complain("has no element type", slot);
    if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(element_bytes(tensor)))
      complain("is not aligned to its elements", slot);
    Wide contiguous = 1;
    for (size_t i = rank(slot); i-- > 0;) {
      const bool steps = tensor.sizes[i] > 1;
      if (tensor.strides[i] < 0) complain("has a negative stride", slot);
      if (layout == Layout::rows && i + 1 == rank(slot) && steps && tensor.strides[i] != 1)
        complain("has columns that are apart", slot);
      if (layout == Layout::contiguous && steps && tensor.strides[i] != contiguous) complain("is not contiguous", slot);
      contiguous *= tensor.sizes[i];
    }
    if (bytes_of(slot).end > Wide{1} << 64) complain("wraps around the address space", slot);
    if (!info_.operands[slot].written) return;
    Wide reach = 1;  // each dimension must step over all that narrower ones reach
    for (const size_t dim : by_stride(slot)) {
      if (tensor.sizes[dim] > 1 && tensor.strides[dim] < reach) complain("overlaps itself", slot);
      reach += Wide{tensor.sizes[dim] - 1} * tensor.strides[dim];
    }
  }

  // Dimensions that have a step, narrow ones first.
  std::vector<size_t> by_stride(size_t slot) const {
    const DraftTensor& tensor = draft_.tensors[slot];
    std::vector<size_t> order;
    for (size_t i = 0; i < rank(slot); ++i)
      if (tensor.sizes[i] > 1) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensor.strides[a] < tensor.strides[b]; });
    return order;
  }

  // Whether the byte is one of a tensor that does not overlap itself.
  bool contains(size_t slot, Wide byte) const {
    const DraftTensor& tensor = draft_.tensors[slot];
    const Wide width = element_bytes(tensor);
    Wide rest = byte - reinterpret_cast<uintptr_t>(tensor.data);
    if (rest < 0) return false;
    std::vector<size_t> order = by_stride(slot);
    std::reverse(order.begin(), order.end());
    for (const size_t dim : order) {
      const Wide step = tensor.strides[dim] * width;
      rest -= std::min<Wide>(rest / step, tensor.sizes[dim] - 1) * step;
    }
    return rest < width;
  }

  // Whether one of some elements of `a` lies in `b`: corners, and others that follow from the draft.
  bool shares_a_sample(size_t a, size_t b) const {
    const Interval of_a = bytes_of(a), of_b = bytes_of(b);
    if (of_a.end <= of_b.begin || of_b.end <= of_a.begin) return false;
    const DraftTensor& tensor = draft_.tensors[a];
    Chance chance(reinterpret_cast<uintptr_t>(tensor.data));
    for (int sample = 0; sample < kSamples; ++sample) {
      Wide offset = 0;
      for (size_t i = 0; i < rank(a); ++i) {
        const auto count = static_cast<uint64_t>(tensor.sizes[i]);
        const uint64_t corner = sample >> i & 1 ? count - 1 : 0;
        offset += Wide{sample < 16 ? corner : chance.below(count)} * tensor.strides[i];
      }
      if (contains(b, of_a.begin + offset * element_bytes(tensor))) return true;
    }
    return false;
  }

  const Operator& op_;
  const Draft& draft_;
  const OperatorInfo& info_;
};

}  // namespace fuzz
