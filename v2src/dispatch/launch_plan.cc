#include "dispatch/launch_plan.h"

#include <cstring>

#include "base/error.h"

namespace aotriton::v2::inline abi1 {

namespace {

// Threads of all programs along x that the vendor's driver counts.
uint64_t most_threads(const ArchInfo& arch) { return strcmp(arch.vendor, "hip") ? UINT64_MAX : UINT32_MAX; }

// Whether a tensor map can describe a contiguous tensor of the workspace.
bool has_map(const OperandInfo& operand, const View& view) {
  // Where there are elements, no size or stride is more than all of them.
  if (const int64_t elements = view.sizes[0] * view.strides[0]; elements > 0 && elements <= INT32_MAX) return true;
  for (size_t i = 0; i < operand.dims.size(); ++i)
    if (view.sizes[i] > INT32_MAX || view.strides[i] * bytes_of(view.dtype) >= kMapStrideLimit) return false;
  return true;
}

}  // namespace

[[gnu::hot]] Misfit plan_kernel(const Call& call, const KernelInfo& kernel, const Image& image, const int32_t* tunables,
                                const Gpu& gpu, const Values* steps, KernelPlan* plan) noexcept {
  const Environment environment = {&call, tunables, gpu.multiprocessors, 0};
  const size_t known = steps ? steps->known() : 0;
  const int64_t* const sound = known ? steps->sound(known) : nullptr;
  const auto number = [&](const Expression& expression, int64_t* value) __attribute__((always_inline)) {
    if (expression.step < known) {
      *value = sound[expression.step];
      return true;
    }
    const bool has_step = expression.step != kNoStep && steps;
    return (has_step && steps->get(expression.step, value)) || evaluate(expression, environment, value);
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
  const uint64_t threads = uint64_t{plan->grid[0]} * image.threads;
  if (threads > UINT32_MAX && threads > most_threads(gpu.info())) return {Misfit::threads, 0, &kernel};
  const size_t operands = call.info->operands.size();
  int64_t *next = plan->numbers, *const last = next + kMaxNumbers;
  const auto add = [&](const Argument& argument) __attribute__((always_inline)) -> Misfit {
    // Choosing has looked at the caller's tensors, but those of the workspace had no sizes yet.
    if (argument.slot >= operands && argument.pass == Pass::tensor && argument.block && image.descriptor_count &&
        !has_map(call.info->slot(argument.slot), call[argument.slot]))
      return {Misfit::tensor_map, argument.slot};
    if (argument.pass == Pass::tensor && argument.value.code.empty()) return {};
    if (next == last) return {Misfit::many_numbers, 0, &kernel};
    const bool fits = number(argument.value, next);
    const bool is_i32 = argument.pass == Pass::i32;
    if (!fits || (is_i32 && (*next < INT32_MIN || *next > INT32_MAX)))
      return {Misfit::number, static_cast<uint8_t>(is_i32 ? 32 : 63)};
    ++next;
    return {};
  };
  if (kernel.planned_arguments.empty()) {
    for (const Argument& argument : kernel.arguments)
      if (argument.is_of(image) && argument.is_planned(operands))
        if (const Misfit misfit = add(argument)) return misfit;
    return {};
  }
  const unsigned level = 1u << image.level;
  for (const PlannedArgument& one : kernel.planned_arguments) {
    if (!(one.levels & level)) continue;
    if (one.step < known && next != last) {
      const int64_t value = sound[one.step];
      if (one.is_i32 && value != static_cast<int32_t>(value)) return {Misfit::number, 32};
      *next++ = value;
    } else if (const Misfit misfit = add(kernel.arguments[one.number])) {
      return misfit;
    }
  }
  return {};
}

}  // namespace aotriton::v2::inline abi1
