#include "expression.h"

#include <algorithm>

#include "call.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr size_t kDepth = 16;  // of the stack; the generator asserts that no expression needs more

constexpr size_t arity_of(Code code) {
  return code <= Code::multiprocessors                      ? 0
         : code == Code::negate || code == Code::lowest_bit ? 1
         : code == Code::choose                             ? 3
                                                            : 2;
}

// What an instruction makes of operand(0), operand(1) and operand(2); false where it does not fit.
template <class Operand>
[[gnu::always_inline]] inline bool apply(Code code, int32_t number, const Environment& environment, Operand operand,
                                         int64_t* value) {
  const auto index = static_cast<size_t>(number);
  switch (code) {
    case Code::constant:
      *value = number;
      return true;
    case Code::size:
      *value = environment.call->sizes[index];
      return true;
    case Code::scalar:
      *value = environment.call->scalars[index].whole;
      return true;
    case Code::psel:
      *value = environment.psels[index];
      return true;
    case Code::present:
      *value = environment.call->views[index].data != nullptr;
      return true;
    case Code::transposed:
      *value = transposed(environment.call->info->slot(index), (*environment.call)[index]);
      return true;
    case Code::dtype:
      *value = static_cast<int64_t>(environment.call->dtype);
      return true;
    case Code::addressing:
      *value = environment.addressing;
      return true;
    case Code::multiprocessors:
      *value = environment.multiprocessors;
      return true;
    case Code::add:
      return !__builtin_add_overflow(operand(0), operand(1), value);
    case Code::subtract:
      return !__builtin_sub_overflow(operand(0), operand(1), value);
    case Code::multiply:
      return !__builtin_mul_overflow(operand(0), operand(1), value);
    case Code::ceil_divide: {
      const int64_t a = operand(0), b = operand(1);
      if (b <= 0) return false;
      *value = a / b + (a % b > 0);
      return true;
    }
    case Code::minimum:
      *value = std::min(operand(0), operand(1));
      return true;
    case Code::maximum:
      *value = std::max(operand(0), operand(1));
      return true;
    case Code::at_most:
      *value = operand(0) <= operand(1);
      return true;
    case Code::equal:
      *value = operand(0) == operand(1);
      return true;
    case Code::both:
      *value = operand(0) && operand(1);
      return true;
    case Code::negate:
      *value = !operand(0);
      return true;
    case Code::lowest_bit:
      *value = operand(0) == INT64_MIN ? INT64_MIN : operand(0) & -operand(0);
      return *value >= 0;
    case Code::choose:
      *value = operand(0) ? operand(1) : operand(2);
      return true;
  }
  return false;
}

}  // namespace

bool evaluate(const Expression& expression, const Environment& environment, int64_t* value) noexcept {
  if (expression.code.size() == 1) {  // as most arguments of kernels are
    const auto none = [](size_t) { return int64_t{0}; };
    return apply(expression.code[0].code, expression.code[0].value, environment, none, value);
  }
  int64_t stack[kDepth];
  size_t depth = 0;
  for (const Instruction& instruction : expression.code) {
    depth -= arity_of(instruction.code);
    int64_t made;
    const auto operand = [&](size_t i) { return stack[depth + i]; };
    if (!apply(instruction.code, instruction.value, environment, operand, &made)) return false;
    stack[depth++] = made;
  }
  *value = stack[0];
  return true;
}

Values::Values(std::span<const Step> steps, const Environment& environment) noexcept {
  const auto work_out = [&](size_t i) {
    const auto operand = [&](size_t which) { return values_[steps[i].operands[which]]; };
    return apply(steps[i].code, steps[i].value, environment, operand, &values_[i]);
  };
  size_t done = 0;
  while (done < steps.size() && work_out(done)) ++done;
  sound_ = done == steps.size() ? done : 0;
  for (; done < steps.size(); ++done) {  // from the first one without a value on
    const std::span operands(steps[done].operands, arity_of(steps[done].code));
    const bool fits = work_out(done);
    if (!fits) values_[done] = 0;
    lost_[done] = !fits || std::ranges::any_of(operands, [&](uint8_t operand) { return lost_[operand]; });
  }
}

bool Values::get_sound(uint8_t step, int64_t* value) const noexcept {
  if (step == kNoStep || lost_[step]) return false;
  *value = values_[step];
  return true;
}

}  // namespace aotriton::v2::inline abi1
