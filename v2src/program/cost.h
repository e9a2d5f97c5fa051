// What a call costs on an image: the sum of the terms of rules/work.py with the image's own coefficients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "program/expression.h"

namespace aotriton::v2::inline abi1 {

inline constexpr int kTerms = 14;

// What a call has to compute, by a kernel. In the order of Work.of_call.
struct WorkInfo {
  Expression outer, rows, packed, columns, depth, repeat, parts, form, begin, end, near, far, slow;
};

// The same in numbers, and the GPU that computes it.
struct WorkOfCall {
  double outer, rows, packed, columns, depth, repeat, parts, begin, end, near, far, slow;
  int form;
  double multiprocessors;
};

// A whole number to divide by. Products with the inverse take a quarter of a quotient's time.
struct Divisor {
  double value, inverse;

  constexpr Divisor(int32_t number = 0) noexcept : value(number), inverse(number ? 1.0 / number : 0) {}
};

// What is known of an image's speed on a product: its tile, and the fitted coefficients of the terms, in microseconds.
struct Cost {
  Divisor row_tile;  // 0: nothing is known
  Divisor column_tile;
  Divisor depth_tile;
  Divisor programs;  // that the grid counts on for each multiprocessor
  Divisor sorted_rounds;
  Divisor hiding_rows;
  Divisor occupancy;   // programs that fit on a multiprocessor
  float error;         // of the fit: the median relative one
  const char* source;  // whose model it is, where that is another functional's or product's
  float coefficients[kTerms];

  bool known() const noexcept { return row_tile.value > 0; }
};

// `value(expression, &number)` evaluates; false where it says so: a number does not fit in 63 bits.
template <class Value>
[[gnu::always_inline]] inline bool work_of(const WorkInfo& work, Value value, WorkOfCall* of_call) noexcept {
  const auto number = [&](const Expression& expression, auto* field) __attribute__((always_inline)) {
    int64_t found;
    if (!value(expression, &found)) return false;
    *field = static_cast<std::remove_pointer_t<decltype(field)>>(found);
    return true;
  };
  return number(work.outer, &of_call->outer) && number(work.rows, &of_call->rows) &&
         number(work.packed, &of_call->packed) && number(work.columns, &of_call->columns) &&
         number(work.depth, &of_call->depth) && number(work.repeat, &of_call->repeat) &&
         number(work.parts, &of_call->parts) && number(work.form, &of_call->form) &&
         number(work.begin, &of_call->begin) && number(work.end, &of_call->end) && number(work.near, &of_call->near) &&
         number(work.far, &of_call->far) && number(work.slow, &of_call->slow);
}

// The same from the values of an operator's steps, of which the first `count` must fit; null where an expression has no
// step.
struct CompiledWork {
  size_t count = 0;
  void (*function)(const int64_t* steps, WorkOfCall* of_call) noexcept = nullptr;
};
template <const WorkInfo& kWork>
constexpr CompiledWork compiled_work() noexcept {
  constexpr const Expression* kAll[] = {&kWork.outer,  &kWork.rows,  &kWork.packed, &kWork.columns, &kWork.depth,
                                        &kWork.repeat, &kWork.parts, &kWork.form,   &kWork.begin,   &kWork.end,
                                        &kWork.near,   &kWork.far,   &kWork.slow};
  size_t count = 0;
  for (const Expression* one : kAll) {
    if (one->step == kNoStep) return {};
    if (one->step >= count) count = one->step + size_t{1};
  }
  return {count, [](const int64_t* steps, WorkOfCall* of_call) noexcept {
            work_of(
                kWork,
                [steps](const Expression& expression, int64_t* number) __attribute__((always_inline)) {
                  *number = expression.step == kNoStep ? 0 : steps[expression.step];
                  return true;
                },
                of_call);
          }};
}

// The first one of the least predicted time among those that are known; a time of 0 where none is.
struct Cheapest {
  size_t entry;
  float predicted_us;
};
Cheapest cheapest(std::span<const Cost> costs, const WorkOfCall& work) noexcept;

// The terms themselves, for tests.
void terms_of(const Cost& cost, const WorkOfCall& work, double (&terms)[kTerms]) noexcept;

}  // namespace aotriton::v2::inline abi1
