// Expressions: whole numbers that follow from a call, as constant data. Python evaluates the same ones
// (rules/expression.py).
#pragma once

#include <cstdint>
#include <span>

namespace aotriton::v2::inline abi1 {

struct Call;

// Codes of a stack machine, in the order of codegen/program.py. The first group pushes, the second works on what was
// pushed before.
enum class Code : uint8_t {
  constant,         // value
  size,             // size number `value` of the call
  scalar,           // scalar number `value`, as a whole number
  psel,             // psel number `value` of the candidate
  present,          // whether operand number `value` was given
  transposed,       // whether the last dimension but one of operand number `value` is the contiguous one
  dtype,            // of the operands that share the call's element type
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
  choose,
};

struct Instruction {
  Code code;
  int32_t value;
};
using Expression = std::span<const Instruction>;

// What an expression may ask for; null and 0 where it does not.
struct Environment {
  const Call* call;
  const int32_t* psels;
  int multiprocessors;
  int addressing;
};

// False where a number does not fit in 63 bits, or a divisor is not positive.
bool evaluate(Expression expression, const Environment& environment, int64_t* value) noexcept;

}  // namespace aotriton::v2::inline abi1
