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

// The value of what is before it, by number, or of the call. `value` is an instruction's.
struct Step {
  Code code;
  StepNumber operands[3];
  int32_t value;
};

// What an expression may ask for; null and 0 where it does not.
struct Environment {
  const Call* call;
  const int32_t* tunables;
  int multiprocessors;
  int addressing;
};

// Constant data as a function (call/expressions.h): of an expression the value, of steps those of all. False where one
// does not fit.
using Compiled = bool (*)(const Environment& environment, int64_t* values) noexcept;

// `step`: the one of its operator that has the same value, which kernels and backends share; kNoStep where a tunable or
// the kernel's addressing counts, or choosing does not ask for it. `compiled`: of its code, or null.
struct Expression {
  std::span<const Instruction> code;
  StepNumber step = kNoStep;
  Compiled compiled = nullptr;
};

// False where a number does not fit in 63 bits, or a divisor is not positive.
bool evaluate(const Expression& expression, const Environment& environment, int64_t* value) noexcept;

// The values of an operator's steps for a call.
class Values {
 public:
  // `compiled`: of these steps, or null.
  Values(std::span<const Step> steps, Compiled compiled, const Environment& environment) noexcept;

  // As evaluate() of an expression that has the step; false for kNoStep.
  bool get(StepNumber step, int64_t* value) const noexcept {
    if (step >= sound_) [[unlikely]]
      return get_sound(step, value);
    *value = values_[step];
    return true;
  }

  // All of them; null where one has no value.
  const int64_t* sound() const noexcept { return sound_ ? values_ : nullptr; }

 private:
  bool get_sound(StepNumber step, int64_t* value) const noexcept;

  size_t sound_;                 // steps, where all have a value; else 0
  std::bitset<kMaxSteps> lost_;  // those without a value
  int64_t values_[kMaxSteps];
};

}  // namespace aotriton::v2::inline abi1
