#include "program/cost.h"

#include <cfloat>

#include "cost_formulas.h"

namespace aotriton::v2::inline abi1 {

namespace {

// Of a kernel that has no programs for the call; 0 would say that its time is not known.
constexpr float kNoTime = FLT_MIN;

// Two numbers that are computed with at once.
using Pair = double __attribute__((vector_size(2 * sizeof(double))));

// The terms by the image's coefficients.
template <Form kForm>
[[gnu::always_inline]] inline float sum_of(const Cost& cost, const WorkOfCall& work) {
  double terms[kTerms];
  write_terms<kForm>(cost, work, terms);
  Pair sums[2] = {};  // which do not wait for each other; the first terms are known last
  static_assert(kTerms % 2 == 0);
  for (int i = kTerms; (i -= 2) >= 0;) {
    const Pair coefficients = {static_cast<double>(cost.coefficients[i]),
                               static_cast<double>(cost.coefficients[i + 1])};
    sums[i / 2 % 2] += coefficients * Pair{terms[i], terms[i + 1]};
  }
  return static_cast<float>((sums[0][0] + sums[1][1]) + (sums[0][1] + sums[1][0]));
}

template <Form kForm>
[[gnu::hot]] Cheapest cheapest_of(std::span<const Cost> costs, const WorkOfCall& work) {
  Cheapest best = {0, 0};
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!costs[i].known()) continue;
    const float time = work.rows > 0 ? sum_of<kForm>(costs[i], work) : kNoTime;
    if (best.predicted_us <= 0 || time < best.predicted_us) best = {i, time};
  }
  return best;
}

}  // namespace

void terms_of(const Cost& cost, const WorkOfCall& work, double (&terms)[kTerms]) noexcept {
  switch (static_cast<Form>(work.form)) {
    case whole:
      return write_terms<whole>(cost, work, terms);
    case growing:
      return write_terms<growing>(cost, work, terms);
    case shrinking:
      return write_terms<shrinking>(cost, work, terms);
    case split:
      return write_terms<split>(cost, work, terms);
    case band:
      return write_terms<band>(cost, work, terms);
  }
}

// For each form compiled on its own: what is the same for all images is worked out once.
[[gnu::hot]] Cheapest cheapest(std::span<const Cost> costs, const WorkOfCall& work) noexcept {
  switch (static_cast<Form>(work.form)) {
    case whole:
      return cheapest_of<whole>(costs, work);
    case growing:
      return cheapest_of<growing>(costs, work);
    case shrinking:
      return cheapest_of<shrinking>(costs, work);
    case split:
      return cheapest_of<split>(costs, work);
    case band:
      return cheapest_of<band>(costs, work);
  }
  return {0, 0};  // no form: the generator writes none
}

}  // namespace aotriton::v2::inline abi1
