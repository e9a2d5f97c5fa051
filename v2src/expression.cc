#include "expression.h"

#include <algorithm>

#include "call.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr size_t kDepth = 16;  // of the stack; the generator asserts that no expression needs more

// What an instruction of the first group pushes.
int64_t leaf(const Instruction& instruction, const Environment& environment) {
  const auto index = static_cast<size_t>(instruction.value);
  switch (instruction.code) {
    case Code::size:
      return environment.call->sizes[index];
    case Code::scalar:
      return environment.call->scalars[index].whole;
    case Code::psel:
      return environment.psels[index];
    case Code::present:
      return environment.call->views[index].data != nullptr;
    case Code::transposed:
      return transposed(environment.call->info->slot(index), (*environment.call)[index]);
    case Code::dtype:
      return static_cast<int64_t>(environment.call->dtype);
    case Code::addressing:
      return environment.addressing;
    case Code::multiprocessors:
      return environment.multiprocessors;
    default:
      return instruction.value;
  }
}

// a, made of a and b; false where it does not fit.
bool combine(Code code, int64_t& a, int64_t b) {
  switch (code) {
    case Code::add:
      return !__builtin_add_overflow(a, b, &a);
    case Code::subtract:
      return !__builtin_sub_overflow(a, b, &a);
    case Code::multiply:
      return !__builtin_mul_overflow(a, b, &a);
    case Code::ceil_divide:
      if (b <= 0) return false;
      a = a / b + (a % b > 0);
      return true;
    case Code::minimum:
      a = std::min(a, b);
      return true;
    case Code::maximum:
      a = std::max(a, b);
      return true;
    case Code::at_most:
      a = a <= b;
      return true;
    case Code::equal:
      a = a == b;
      return true;
    case Code::both:
      a = a && b;
      return true;
    default:
      return false;
  }
}

}  // namespace

bool evaluate(Expression expression, const Environment& environment, int64_t* value) noexcept {
  int64_t stack[kDepth];
  size_t depth = 0;
  for (const Instruction& instruction : expression) {
    if (instruction.code <= Code::multiprocessors) {
      stack[depth++] = leaf(instruction, environment);
    } else if (instruction.code == Code::negate) {
      stack[depth - 1] = !stack[depth - 1];
    } else if (instruction.code == Code::choose) {
      depth -= 2;
      stack[depth - 1] = stack[depth - 1] ? stack[depth] : stack[depth + 1];
    } else {
      --depth;
      if (!combine(instruction.code, stack[depth - 1], stack[depth])) return false;
    }
  }
  *value = stack[0];
  return true;
}

}  // namespace aotriton::v2::inline abi1
