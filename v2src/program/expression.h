// Expressions: whole numbers that follow from a call, as constant data. Python evaluates the same ones
// (rules/expression.py).
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>

#include "program_limits.h"

namespace aotriton::v2::inline abi1 {

struct Call;

// Codes of a stack machine, in the order of codegen/program.py. The first group pushes, the second works on what was
// pushed before.
enum class Code : uint8_t {
  constant,         // value
  size,             // size number `value` of the call
  scalar,           // scalar number `value`, as a whole number
  tunable,          // tunable number `value` of the candidate
  present,          // whether operand number `value` was given
  transposed,       // whether the last dimension but one of operand number `value` is the contiguous one
  dtype,            // of the operands that share the call's element type
  other_dtype,      // of operand number `value`, where it is not the call's; else 0
  addressing,       // how the kernel reaches its tensors
  multiprocessors,  // of the GPU

  add,
  subtract,
  multiply,
  ceil_divide,
  minimum,
  maximum,
  at_most,
  equal,
  both,
  negate,
  lowest_bit,  // the largest power of two that divides it
  choose,
};

struct Instruction {
  Code code;
  int32_t value;
};

using StepNumber = uint16_t;
inline constexpr StepNumber kNoStep = UINT16_MAX;
static_assert(kMaxSteps <= kNoStep);

// The value of what is before it, by number, or of the call. `value` is an instruction's; `kept`: it is the value of an
// expression, too.
struct Step {
  Code code;
  StepNumber operands[3];
  int32_t value;
  bool kept = false;
};

// What an expression may ask for; null and 0 where it does not.
struct Environment {
  const Call* call;
  const int32_t* tunables;
  int multiprocessors;
  int addressing;
};

// Constant data as a function (call/expressions.h): of an expression the value, of steps those of some that are kept.
// False where one does not fit.
using Compiled = bool (*)(const Environment& environment, int64_t* values) noexcept;

// Of the first steps and of the others, for which few calls ask; null: they are interpreted.
struct CompiledSteps {
  size_t first_count = 0;
  Compiled first = nullptr, others = nullptr;
};

// `step`: the one of its operator that has the same value, which kernels and backends share; kNoStep where a tunable or
// the kernel's addressing counts, or choosing does not ask for it. `compiled`: of its code, or null.
struct Expression {
  std::span<const Instruction> code;
  StepNumber step = kNoStep;
  Compiled compiled = nullptr;
};

// False where a number does not fit in 63 bits, or a divisor is not positive.
bool evaluate(const Expression& expression, const Environment& environment, int64_t* value) noexcept;

// The values of an operator's steps for a call. Beyond the first ones they are worked out when one is asked for.
class Values {
 public:
  Values(std::span<const Step> steps, const CompiledSteps& compiled, const Environment& environment) noexcept;

  // As evaluate() of an expression that has the step; false for kNoStep.
  bool get(StepNumber step, int64_t* value) const noexcept {
    if (step >= sound_) [[unlikely]]
      return get_other(step, value);
    *value = values_[step];
    return true;
  }

  // The first `count`; null where one of all has no value.
  const int64_t* sound(size_t count) const noexcept {
    if (count > sound_) [[unlikely]]
      complete();
    return count <= sound_ ? values_ : nullptr;
  }

  // So many have values, and are known.
  size_t known() const noexcept { return sound_; }

 private:
  bool get_other(StepNumber step, int64_t* value) const noexcept;
  void complete() const noexcept;

  const std::span<const Step> steps_;
  const Compiled others_;
  const Environment environment_;
  mutable bool complete_ = false;
  mutable size_t sound_;                 // first steps that are known, and all have a value; or 0
  mutable std::bitset<kMaxSteps> lost_;  // those without a value
  mutable int64_t values_[kMaxSteps];
};

}  // namespace aotriton::v2::inline abi1
