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

[[gnu::hot]] Values::Values(std::span<const Step> steps, const CompiledSteps& compiled,
                            const Environment& environment) noexcept
    : steps_(steps), others_(compiled.others), environment_(environment) {
  const bool fit = compiled.first && compiled.first(environment, values_);
  sound_ = fit ? compiled.first_count : 0;
  if (!fit) complete();
}

void Values::complete() const noexcept {
  if (complete_) return;
  complete_ = true;
  if (sound_ && (sound_ == steps_.size() || others_(environment_, values_))) {
    sound_ = steps_.size();
    return;
  }
  const auto work_out = [&](size_t i) {
    const auto operand = [&](size_t which) { return values_[steps_[i].operands[which]]; };
    return apply(steps_[i].code, steps_[i].value, environment_, operand, &values_[i]);
  };
  size_t done = 0;
  while (done < steps_.size() && work_out(done)) ++done;
  sound_ = done == steps_.size() ? done : 0;
  for (; done < steps_.size(); ++done) {  // from the first one without a value on
    const std::span operands(steps_[done].operands, arity_of(steps_[done].code));
    const bool fits = work_out(done);
    if (!fits) values_[done] = 0;
    lost_[done] = !fits || std::ranges::any_of(operands, [&](StepNumber operand) { return lost_[operand]; });
  }
}

bool Values::get_other(StepNumber step, int64_t* value) const noexcept {
  if (step == kNoStep) return false;
  complete();
  if (lost_[step]) return false;
  *value = values_[step];
  return true;
}

}  // namespace aotriton::v2::inline abi1
