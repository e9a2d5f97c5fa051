#include "dispatch/launch_plan.h"

#include <cinttypes>
#include <string_view>

#include "base/error.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr auto kAlignment = static_cast<int64_t>(kWorkspaceAlignment);
constexpr int64_t kMostPrograms[3] = {INT32_MAX, 65535, 65535};  // along x, y and z

// Threads of all programs along x that the vendor's driver counts.
uint64_t most_threads(const ArchInfo& arch) { return std::string_view(arch.vendor) == "hip" ? UINT32_MAX : UINT64_MAX; }

// Whether the argument is a whole number that follows from the call.
bool is_number(const Argument& argument) {
  return argument.pass == Pass::i32 || argument.pass == Pass::i64 ||
         (argument.pass == Pass::tensor && !argument.value.code.empty());
}

// Whether a tensor map can describe a contiguous tensor of the workspace.
bool has_map(const OperandInfo& operand, const View& view) {
  for (size_t i = 0; i < operand.dims.size(); ++i)
    if (view.sizes[i] > INT32_MAX || view.strides[i] * bytes_of(view.dtype) >= kMapStrideLimit) return false;
  return true;
}

Misfit derive_sizes(Call& call, const BackendInfo& backend, const int32_t* psels, int multiprocessors) {
  const Environment environment = {&call, psels, multiprocessors, 0};
  for (const DerivedSize& derived : backend.sizes)
    if (!evaluate(derived.value, environment, &call.sizes[derived.size])) return {Misfit::derived_size, derived.size};
  return {};
}

// Puts a tensor of so many elements behind what is used. False where that leaves 63 bits; -1 elements do.
bool put_behind(int64_t elements, DType dtype, int64_t* begin, int64_t* used) {
  *begin = (*used + kAlignment - 1) & -kAlignment;
  int64_t bytes;
  return elements >= 0 && !__builtin_mul_overflow(elements, bytes_of(dtype), &bytes) &&
         !__builtin_add_overflow(*begin, bytes, used) && *used <= INT64_MAX - kAlignment;
}

}  // namespace

size_t workspace_bytes(Call& call, const BackendInfo& backend, const int32_t* psels, int multiprocessors,
                       size_t limit) noexcept {
  if (derive_sizes(call, backend, psels, multiprocessors)) return SIZE_MAX;
  int64_t begin, used = 0;
  for (const uint8_t slot : backend.workspace) {
    const OperandInfo& operand = call.info->slot(slot);
    int64_t elements = 1;
    for (const uint8_t dim : operand.dims)
      if (__builtin_mul_overflow(elements, call.sizes[dim], &elements)) return SIZE_MAX;
    if (!put_behind(elements, operand.dtype == DType::none ? call.dtype : operand.dtype, &begin, &used))
      return SIZE_MAX;
    if (static_cast<size_t>(used) > limit) break;
  }
  return static_cast<size_t>(used);
}

Misfit lay_out(Call& call, const BackendInfo& backend, const int32_t* psels, int multiprocessors,
               Workspace* workspace) noexcept {
  if (const Misfit misfit = derive_sizes(call, backend, psels, multiprocessors)) return misfit;
  int64_t used = 0;
  for (const uint8_t slot : backend.workspace) {
    int64_t begin;
    const int64_t elements = shape_tensor(call, slot);
    if (!put_behind(elements, call[slot].dtype, &begin, &used)) return {Misfit::workspace};
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

Misfit plan_kernel(const Call& call, const KernelInfo& kernel, const Image& image, const int32_t* psels,
                   const Place& place, const Values* steps, KernelPlan* plan) noexcept {
  const Environment environment = {&call, psels, place.multiprocessors, 0};
  const auto number = [&](const Expression& expression, int64_t* value) {
    return (steps && steps->get(expression.step, value)) || evaluate(expression, environment, value);
  };
  plan->has_programs = true;
  for (uint8_t axis = 0; axis < 3; ++axis) {
    int64_t programs;
    if (!number(kernel.grid[axis], &programs) || programs < 0 || programs > kMostPrograms[axis])
      return {Misfit::programs, axis, &kernel};
    plan->grid[axis] = static_cast<uint32_t>(programs);
    plan->has_programs &= programs > 0;
  }
  if (!plan->has_programs) return {};  // no driver launches none
  if (uint64_t{plan->grid[0]} * image.threads > most_threads(place.info())) return {Misfit::threads, 0, &kernel};
  int64_t* next = plan->numbers;
  for (const Argument& argument : kernel.arguments) {
    if (!argument.is_of(image)) continue;
    // Choosing has looked at the caller's tensors, but those of the workspace had no sizes yet.
    if (argument.pass == Pass::tensor && argument.block && image.descriptor_count &&
        argument.slot >= call.info->operands.size() && !has_map(call.info->slot(argument.slot), call[argument.slot]))
      return {Misfit::tensor_map, argument.slot};
    if (!is_number(argument)) continue;
    if (next == plan->numbers + kMaxNumbers) return {Misfit::many_numbers, 0, &kernel};
    const bool fits = number(argument.value, next);
    const bool narrow = argument.pass == Pass::i32;
    if (!fits || (narrow && (*next < INT32_MIN || *next > INT32_MAX)))
      return {Misfit::number, static_cast<uint8_t>(narrow ? 32 : 63)};
    ++next;
  }
  return {};
}

Error refuse(const Call& call, const Misfit& misfit) noexcept {
  const char* const name = call.info->name;
  switch (misfit.what) {
    case Misfit::derived_size:
      return fail(Error::not_supported, "%s: %s does not fit in 63 bits", name, call.info->sizes[misfit.detail]);
    case Misfit::workspace:
      return fail(Error::not_supported, "%s: the workspace overflows 63 bits", name);
    case Misfit::programs:
      return fail(Error::not_supported, "%s: more than %" PRId64 " programs of %s along %c", name,
                  kMostPrograms[misfit.detail], misfit.kernel->name, "xyz"[misfit.detail]);
    case Misfit::threads:
      return fail(Error::not_supported, "%s: HIP has more threads of %s along x than can be launched", name,
                  misfit.kernel->name);
    case Misfit::tensor_map:
      return fail(Error::not_supported, "%s: %s of the workspace is larger than a tensor map describes", name,
                  call.info->slot(misfit.detail).name);
    case Misfit::number:
      return fail(Error::not_supported, "%s: a size is beyond what kernels count in %d bits", name, misfit.detail);
    case Misfit::many_numbers:
      return fail(Error::not_supported, "%s: %s takes too many arguments", name, misfit.kernel->name);
    case Misfit::none:
      break;
  }
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
