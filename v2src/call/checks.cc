#include "call/checks.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "call/operands.h"
#include "call/overlap.h"

namespace aotriton::v2::inline abi1 {

namespace {

Footprint footprint_of(const OperandInfo& operand, const View& view) {
  const int64_t bytes = bytes_of(view.dtype);
  Footprint made = {reinterpret_cast<uintptr_t>(view.data), bytes, static_cast<int>(operand.dims.size()), {}, {}};
  for (int i = 0; i < made.rank; ++i) {
    made.sizes[i] = view.sizes[i];
    made.strides[i] = view.sizes[i] > 1 ? view.strides[i] * bytes : 0;  // one that nothing follows may be anything
  }
  return made;
}

size_t first_of(unsigned slots) { return static_cast<size_t>(std::countr_zero(slots)); }

// Where the messages of one call come from, and what its sizes were set by.
class Checker {
 public:
  Checker(Call& call, Data data, bool partial)
      : call_(call), info_(*call.info), data_(data), partial_(partial), paged_(is_paged(call)) {}

  Error check() {
    begin();
    const Look found = info_.compiled.look && !partial_ ? info_.compiled.look(call_, data_, paged_) : Look::unusual;
    if (found == Look::unusual) {
      begin();
      AOTRITON_TRY(check_closely());
    }
    if (found != Look::plain) AOTRITON_TRY(check_overlap(call_, partial_));
    return info_.check && !partial_ ? info_.check(call_) : Error::success;
  }

 private:
  // Forgets what the call's tensors were found to have. A partial call keeps the sizes that it came with, where it has
  // no tensor of them.
  void begin() {
    call_.dtype = DType::none;
    call_.empty = call_.suited = false;
    if (!partial_) std::fill_n(call_.sizes, info_.sizes.size(), 0);
    std::fill_n(call_.extents, slots(), 0);
  }

  size_t slots() const { return partial_ ? info_.slots() : info_.operands.size(); }

  // Tells what is wrong with a call, if anything is.
  [[gnu::cold]] Error check_closely() {
    std::fill_n(set_by_, kMaxSizes, nullptr);
    unsigned all = 0;
    for (size_t slot = 0; slot < slots(); ++slot)
      if (is_given(info_.slot(slot), call_[slot])) all |= 1u << slot;
    for (unsigned left = all; left; left &= left - 1) AOTRITON_TRY(check_sizes(first_of(left)));
    for (unsigned left = all; left; left &= left - 1) AOTRITON_TRY(check_dtype(first_of(left)));
    for (unsigned left = all; left; left &= left - 1) AOTRITON_TRY(check_layout(first_of(left)));
    for (unsigned left = all; left; left &= left - 1) AOTRITON_TRY(check_data(first_of(left)));
    return Error::success;
  }

  std::span<const uint8_t> dims_of_call(const OperandInfo& operand) const { return dims_of(operand, paged_); }
  const char* dim_name(const OperandInfo& operand, size_t dim) const { return info_.sizes[dims_of_call(operand)[dim]]; }

  Error check_sizes(size_t slot) {
    const OperandInfo& operand = info_.slot(slot);
    const std::span<const uint8_t> dims = dims_of_call(operand);
    const int64_t* const sizes = call_[slot].sizes;
    for (size_t i = 0; i < dims.size(); ++i) {
      const int64_t size = sizes[i];
      const uint8_t number = dims[i];
      if (size < 0)
        return fail(Error::invalid_shape, "%s: %s has %s %" PRId64 ", which must not be negative", info_.name,
                    operand.name, dim_name(operand, i), size);
      if (!set_by_[number]) {
        set_by_[number] = operand.name;
        call_.sizes[number] = size;
        call_.empty |= size == 0;
      } else if (size != call_.sizes[number]) {
        return fail(Error::invalid_shape, "%s: %s has %s %" PRId64 ", %s has %" PRId64, info_.name, operand.name,
                    dim_name(operand, i), size, set_by_[number], call_.sizes[number]);
      }
    }
    return Error::success;
  }

  Error check_dtype(size_t slot) {
    const OperandInfo& operand = info_.slot(slot);
    const DType dtype = call_[slot].dtype;
    if (operand.dtype != DType::none) {
      if (dtype == operand.dtype) return Error::success;
      return fail(Error::invalid_dtype, "%s: %s has dtype %s, which must be %s", info_.name, operand.name,
                  dtype_name(dtype), dtype_name(operand.dtype));
    }
    if (operand.may_have(dtype)) return Error::success;
    bool known = false;
    for (const int64_t one : info_.dtypes) known |= one == static_cast<int64_t>(dtype);
    if (!known) {
      char names[64] = "";
      for (const int64_t one : info_.dtypes)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? " or " : "",
                 dtype_name(static_cast<DType>(one)));
      return fail(Error::invalid_dtype, "%s: %s has dtype %s, which must be %s", info_.name, operand.name,
                  dtype_name(dtype), names);
    }
    if (call_.dtype == DType::none) call_.dtype = dtype;
    if (dtype == call_.dtype) return Error::success;
    return fail(Error::invalid_dtype, "%s: %s has dtype %s, others have %s", info_.name, operand.name,
                dtype_name(dtype), dtype_name(call_.dtype));
  }

  // Sets the operand's extent. Strides of tensors without elements say nothing.
  Error check_layout(size_t slot) {
    const OperandInfo& operand = info_.slot(slot);
    const View& view = call_[slot];
    const size_t rank = operand.dims.size();
    for (size_t i = 0; i < rank; ++i)
      if (view.sizes[i] == 0) return Error::success;
    int64_t contiguous = 1;
    for (size_t i = rank; i-- > 0;) {
      const int64_t stride = view.strides[i];
      if (operand.layout == Layout::contiguous && view.sizes[i] > 1 && stride != contiguous)
        return fail(Error::invalid_stride, "%s: %s has %s stride %" PRId64 ", but must be contiguous", info_.name,
                    operand.name, dim_name(operand, i), stride);
      if (operand.layout == Layout::rows && i + 1 == rank && view.sizes[i] > 1 && stride != 1)
        return fail(Error::invalid_stride, "%s: %s has %s stride %" PRId64 ", which must be 1", info_.name,
                    operand.name, dim_name(operand, i), stride);
      if (stride < 0)
        return fail(Error::invalid_stride, "%s: %s has a negative %s stride, %" PRId64, info_.name, operand.name,
                    dim_name(operand, i), stride);
      if (stride == 0 && view.sizes[i] > 1 && operand.written)
        return fail(Error::invalid_stride, "%s: %s is written, but its %s stride is 0", info_.name, operand.name,
                    dim_name(operand, i));
      if (__builtin_mul_overflow(contiguous, view.sizes[i], &contiguous))
        return fail(Error::not_supported, "%s: %s has more elements than 63 bits count", info_.name, operand.name);
    }
    call_.extents[slot] = extent(operand, view);
    if (call_.extents[slot] < 0)
      return fail(Error::invalid_stride, "%s: %s has strides that reach beyond 63 bits", info_.name, operand.name);
    if (operand.written && overlaps_itself(footprint_of(operand, view)))
      return fail(Error::invalid_stride, "%s: %s is written, but its elements overlap", info_.name, operand.name);
    return Error::success;
  }

  Error check_data(size_t slot) {
    const OperandInfo& operand = info_.slot(slot);
    const View& view = call_[slot];
    const int64_t bytes = call_.extents[slot];
    if (!bytes) return Error::success;
    if (!view.data && data_ == Data::optional) return Error::success;
    if (!view.data) return fail(Error::null_pointer, "%s: %s has no data", info_.name, operand.name);
    if (!aligned_to(view.data, static_cast<uintptr_t>(bytes_of(view.dtype))))
      return fail(Error::misaligned_pointer, "%s: %s is at %p, which is not aligned to its elements", info_.name,
                  operand.name, view.data);
    if (operand.alignment && !aligned_to(view.data, operand.alignment))
      return fail(Error::misaligned_pointer, "%s: %s is at %p, which must be %d-byte aligned", info_.name, operand.name,
                  view.data, operand.alignment);
    if (reinterpret_cast<uintptr_t>(view.data) + static_cast<uintptr_t>(bytes) - 1 <
        reinterpret_cast<uintptr_t>(view.data))
      return fail(Error::invalid_stride, "%s: %s is at %p and reaches beyond the end of the address space", info_.name,
                  operand.name, view.data);
    return Error::success;
  }

  Call& call_;
  const OperatorInfo& info_;
  const Data data_;
  const bool partial_, paged_;
  const char* set_by_[kMaxSizes];
};

}  // namespace

[[gnu::hot]] Result<CheckedCall> check_call(Call& call, Data data, bool partial) noexcept {
  if (call.plain) leave_out_features(call);
  const Error error = Checker(call, data, partial).check();
  if (error != Error::success) return error;
  return CheckedCall(call);
}

Error check_overlap(const Call& call, bool partial) noexcept {
  const OperatorInfo& info = *call.info;
  const size_t count = partial ? info.slots() : info.operands.size();
  unsigned others = 0, written = 0;
  for (size_t slot = 0; slot < count; ++slot) {
    if (!call[slot].data || !call.extents[slot]) continue;
    others |= 1u << slot;
    written |= static_cast<unsigned>(info.slot(slot).written) << slot;
  }
  for (; written; written &= written - 1) {
    const size_t a = first_of(written);
    others &= ~(1u << a);
    for (unsigned left = others; left; left &= left - 1) {
      const size_t b = first_of(left);
      if (!ranges_overlap(call[a].data, call.extents[a], call[b].data, call.extents[b])) [[likely]]
        continue;
      if (!overlap(footprint_of(info.slot(a), call[a]), footprint_of(info.slot(b), call[b]))) continue;
      if (info.slot(b).written)
        return fail(Error::invalid_stride, "%s: %s and %s are written, but overlap", info.name, info.slot(a).name,
                    info.slot(b).name);
      return fail(Error::invalid_stride, "%s: %s is written and %s is read, but they overlap", info.name,
                  info.slot(a).name, info.slot(b).name);
    }
  }
  return Error::success;
}

[[gnu::hot]] Error check_workspace(const OperatorInfo& info, void* workspace, size_t needed, void* const* pointers,
                                   const int64_t* extents) noexcept {
  if (!workspace)
    return fail(Error::workspace_too_small, "%s: workspace is null, %zu bytes are needed", info.name, needed);
  if (!aligned_to(workspace, kWorkspaceAlignment))
    return fail(Error::misaligned_pointer, "%s: workspace is at %p, which must be %d-byte aligned", info.name,
                workspace, static_cast<int>(kWorkspaceAlignment));
  const auto begin = reinterpret_cast<uintptr_t>(workspace);
  if (begin + needed - 1 < begin)
    return fail(Error::invalid_argument, "%s: workspace is at %p and reaches beyond the end of the address space",
                info.name, workspace);
  const auto overlaps = [&](size_t slot) {
    return (extents[slot] != 0) & (pointers[slot] != nullptr) &
           ranges_overlap(workspace, static_cast<int64_t>(needed), pointers[slot], extents[slot]);
  };
  const size_t count = info.operands.size();
  bool any = false;
  for (size_t slot = 0; slot < count; ++slot) any |= overlaps(slot);
  if (!any) [[likely]]
    return Error::success;
  size_t slot = 0;
  while (!overlaps(slot)) ++slot;
  return fail(Error::invalid_argument, "%s: workspace and %s overlap", info.name, info.operands[slot].name);
}

}  // namespace aotriton::v2::inline abi1
