#include "dispatch/workspace.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr auto kAlignment = static_cast<int64_t>(kWorkspaceAlignment);

Misfit derive_sizes(Call& call, const BackendInfo& backend, const int32_t* tunables, int multiprocessors) {
  const Environment environment = {&call, tunables, multiprocessors, 0};
  for (const DerivedSize& derived : backend.sizes)
    if (!evaluate(derived.value, environment, &call.sizes[derived.size])) return {Misfit::derived_size, derived.size};
  return {};
}

// Puts elements of so many bytes behind the used bytes. False where its end does not fit in 63 bits, or `elements` is
// -1.
bool put_behind(int64_t elements, int64_t width, int64_t* begin, int64_t* used) {
  *begin = (*used + kAlignment - 1) & -kAlignment;
  int64_t bytes;
  return elements >= 0 && !__builtin_mul_overflow(elements, width, &bytes) &&
         !__builtin_add_overflow(*begin, bytes, used) && *used <= INT64_MAX - kAlignment;
}

}  // namespace

size_t workspace_bytes(Call& call, const BackendInfo& backend, const int32_t* tunables, int multiprocessors,
                       size_t limit) noexcept {
  if (derive_sizes(call, backend, tunables, multiprocessors)) return SIZE_MAX;
  int64_t begin, used = 0;
  for (const uint8_t slot : backend.workspace) {
    const OperandInfo& operand = call.info->slot(slot);
    int64_t elements = 1;
    for (const uint8_t dim : operand.dims)
      if (__builtin_mul_overflow(elements, call.sizes[dim], &elements)) return SIZE_MAX;
    const DType dtype = operand.dtype == DType::none ? call.dtype : operand.dtype;
    if (!put_behind(elements, bytes_of(dtype), &begin, &used)) return SIZE_MAX;
    if (static_cast<size_t>(used) > limit) break;
  }
  return static_cast<size_t>(used);
}

[[gnu::hot]] Misfit lay_out(Call& call, const BackendInfo& backend, const int32_t* tunables, int multiprocessors,
                            Workspace* workspace) noexcept {
  if (const Misfit misfit = derive_sizes(call, backend, tunables, multiprocessors)) return misfit;
  int64_t used = 0;
  for (const uint8_t slot : backend.workspace) {
    int64_t begin;
    // It may have its shape already, from before a backend was chosen.
    const View& view = call[slot];
    const bool shaped = view.sizes == call.dims[slot][0];
    const int64_t elements = shaped ? view.sizes[0] * view.strides[0] : shape_tensor(call, slot);
    if (!put_behind(elements, bytes_of(call[slot].dtype), &begin, &used)) return {Misfit::workspace};
    workspace->offsets[slot] = static_cast<size_t>(begin);
    // The workspace is yet to be checked: as a pointer the sum may be none.
    call.views[slot].data =
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(call.workspace) + static_cast<uintptr_t>(begin));
  }
  workspace->bytes = static_cast<size_t>(used);
  if (!used)  // what has no bytes is nowhere, whichever workspace a call brings
    for (const uint8_t slot : backend.workspace) call.views[slot].data = nullptr;
  return {};
}

[[gnu::hot]] Misfit add_scratch(const Image& image, KernelPlan* plan, Workspace* workspace) noexcept {
  if (!image.global_scratch || !plan->has_programs) return {};
  const int64_t programs = int64_t{plan->grid[0]} * plan->grid[1] * plan->grid[2];  // below 2 ** 63: kMostPrograms
  int64_t begin, used = static_cast<int64_t>(workspace->bytes);
  if (!put_behind(programs, image.global_scratch, &begin, &used)) return {Misfit::workspace};
  plan->scratch = static_cast<size_t>(begin);
  workspace->bytes = static_cast<size_t>(used);
  return {};
}

}  // namespace aotriton::v2::inline abi1
