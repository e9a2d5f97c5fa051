// What each code of an expression does; and expressions that are constants, compiled instead of interpreted.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "call/call.h"

namespace aotriton::v2::inline abi1 {

inline constexpr size_t kStackDepth = 16;  // the generator asserts that no expression needs more

constexpr size_t arity_of(Code code) {
  return code <= Code::multiprocessors                      ? 0
         : code == Code::negate || code == Code::lowest_bit ? 1
         : code == Code::choose                             ? 3
                                                            : 2;
}

// The value of a code whose operands are operand(0), operand(1) and operand(2); false where it does not fit.
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
    case Code::tunable:
      *value = environment.tunables[index];
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
    case Code::other_dtype: {
      const DType own = environment.call->views[index].dtype;
      *value = own == environment.call->dtype ? 0 : static_cast<int64_t>(own);
      return true;
    }
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
      if (b <= 0) [[unlikely]]
        return false;
      if (static_cast<uint64_t>(a | b) <= UINT32_MAX) [[likely]] {  // which processors divide in half the time
        const auto a32 = static_cast<uint32_t>(a), b32 = static_cast<uint32_t>(b);
        *value = int64_t{a32 / b32} + (a32 % b32 > 0);
        return true;
      }
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

// As evaluate() of this constant code.
template <const auto& kCode>
bool compiled(const Environment& environment, int64_t* value) noexcept {
  constexpr size_t kCount = std::size(kCode);
  constexpr auto kBegin = [] {  // of each instruction's operands on the stack, where its value replaces them
    std::array<size_t, kCount> begin = {};
    for (size_t i = 0, depth = 0; i < kCount; ++i) {
      begin[i] = depth - arity_of(kCode[i].code);
      depth = begin[i] + 1;
    }
    return begin;
  }();
  int64_t stack[kStackDepth];
  const auto step = [&]<size_t kIndex>() __attribute__((always_inline)) {
    constexpr size_t kFirst = kBegin[kIndex];
    int64_t made;
    const auto operand = [&](size_t which) __attribute__((always_inline)) { return stack[kFirst + which]; };
    if (!apply(kCode[kIndex].code, kCode[kIndex].value, environment, operand, &made)) return false;
    stack[kFirst] = made;
    return true;
  };
  const bool fits = [&]<size_t... kIndices>(std::index_sequence<kIndices...>) __attribute__((always_inline)) {
    return (step.template operator()<kIndices>() && ...);
  }(std::make_index_sequence<kCount>());
  *value = stack[0];
  return fits;
}

// Of constant steps those before kEnd whose values are asked for: by an expression, or by a step from kEnd on.
template <const auto& kSteps, size_t kEnd>
constexpr auto kept_steps() {
  std::array<bool, kEnd> kept = {};
  for (size_t i = 0; i < kEnd; ++i) kept[i] = kSteps[i].kept;
  for (size_t i = kEnd; i < std::size(kSteps); ++i)
    for (size_t which = 0; which < arity_of(kSteps[i].code); ++which)
      if (kSteps[i].operands[which] < kEnd) kept[kSteps[i].operands[which]] = true;
  return kept;
}

// The values of these constant steps from kBegin on that are kept; false where any one does not fit.
template <const auto& kSteps, size_t kBegin, size_t kEnd>
[[gnu::hot]] bool compiled_range(const Environment& environment, int64_t* values) noexcept {
  [[maybe_unused]] static constexpr auto kKept = kept_steps<kSteps, kEnd>();
  int64_t own[kEnd - kBegin];
  const auto step = [&]<size_t kIndex>() __attribute__((always_inline)) {
    constexpr const Step& kStep = kSteps[kBegin + kIndex];
    const auto operand = [&](size_t which) __attribute__((always_inline)) -> int64_t {
      const size_t number = kStep.operands[which];
      if (kSteps[number].code == Code::constant) return kSteps[number].value;
      if constexpr (kBegin > 0)
        if (number < kBegin) return values[number];
      return own[number - kBegin];
    };
    if (!apply(kStep.code, kStep.value, environment, operand, &own[kIndex])) return false;
    if (kKept[kBegin + kIndex]) values[kBegin + kIndex] = own[kIndex];
    return true;
  };
  return [&]<size_t... kIndices>(std::index_sequence<kIndices...>) __attribute__((always_inline)) {
    return (step.template operator()<kIndices>() && ...);
  }(std::make_index_sequence<kEnd - kBegin>());
}
template <const auto& kSteps, size_t kFirst>
constexpr CompiledSteps compiled_steps() noexcept {
  constexpr size_t kCount = std::size(kSteps);
  return {kFirst, compiled_range<kSteps, 0, kFirst>,
          kFirst < kCount ? compiled_range<kSteps, kFirst, kCount> : nullptr};
}

}  // namespace aotriton::v2::inline abi1
