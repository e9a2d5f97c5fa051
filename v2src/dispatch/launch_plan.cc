#include "dispatch/launch_plan.h"

#include <cstring>

#include "base/error.h"

namespace aotriton::v2::inline abi1 {

namespace {

// Threads of all programs along x that the vendor's driver counts.
uint64_t most_threads(const ArchInfo& arch) { return strcmp(arch.vendor, "hip") ? UINT64_MAX : UINT32_MAX; }

// Whether a tensor map can describe a contiguous tensor of the workspace.
bool has_map(const OperandInfo& operand, const View& view) {
  for (size_t i = 0; i < operand.dims.size(); ++i)
    if (view.sizes[i] > INT32_MAX || view.strides[i] * bytes_of(view.dtype) >= kMapStrideLimit) return false;
  return true;
}

}  // namespace

Misfit plan_kernel(const Call& call, const KernelInfo& kernel, const Image& image, const int32_t* tunables,
                   const Gpu& gpu, const Values* steps, KernelPlan* plan) noexcept {
  const Environment environment = {&call, tunables, gpu.multiprocessors, 0};
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
  if (uint64_t{plan->grid[0]} * image.threads > most_threads(gpu.info())) return {Misfit::threads, 0, &kernel};
  const size_t operands = call.info->operands.size();
  int64_t* next = plan->numbers;
  const auto add = [&](const Argument& argument) __attribute__((always_inline)) -> Misfit {
    if (!argument.is_of(image)) return {};
    // Choosing has looked at the caller's tensors, but those of the workspace had no sizes yet.
    if (argument.slot >= operands && argument.pass == Pass::tensor && argument.block && image.descriptor_count &&
        !has_map(call.info->slot(argument.slot), call[argument.slot]))
      return {Misfit::tensor_map, argument.slot};
    if (argument.pass == Pass::tensor && argument.value.code.empty()) return {};
    if (next == plan->numbers + kMaxNumbers) return {Misfit::many_numbers, 0, &kernel};
    const bool fits = number(argument.value, next);
    const bool is_i32 = argument.pass == Pass::i32;
    if (!fits || (is_i32 && (*next < INT32_MIN || *next > INT32_MAX)))
      return {Misfit::number, static_cast<uint8_t>(is_i32 ? 32 : 63)};
    ++next;
    return {};
  };
  if (kernel.planned_arguments.empty()) {
    for (const Argument& argument : kernel.arguments)
      if (argument.is_planned(operands))
        if (const Misfit misfit = add(argument)) return misfit;
    return {};
  }
  for (const uint16_t index : kernel.planned_arguments)
    if (const Misfit misfit = add(kernel.arguments[index])) return misfit;
  return {};
}

}  // namespace aotriton::v2::inline abi1
