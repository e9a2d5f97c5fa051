#include "call/expressions.h"

#include <algorithm>

#include "program/expression.h"

namespace aotriton::v2::inline abi1 {

bool evaluate(const Expression& expression, const Environment& environment, int64_t* value) noexcept {
  if (expression.compiled) return expression.compiled(environment, value);
  if (expression.code.size() == 1) {  // as most arguments of kernels are
    const auto none = [](size_t) { return int64_t{0}; };
    return apply(expression.code[0].code, expression.code[0].value, environment, none, value);
  }
  int64_t stack[kStackDepth];
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

Values::Values(std::span<const Step> steps, Compiled compiled, const Environment& environment) noexcept {
  if (compiled && compiled(environment, values_)) {
    sound_ = steps.size();
    return;
  }
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
    lost_[done] = !fits || std::ranges::any_of(operands, [&](StepNumber operand) { return lost_[operand]; });
  }
}

bool Values::get_sound(StepNumber step, int64_t* value) const noexcept {
  if (step == kNoStep || lost_[step]) return false;
  *value = values_[step];
  return true;
}

}  // namespace aotriton::v2::inline abi1
