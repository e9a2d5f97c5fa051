#include "cost.h"

#include <algorithm>

#ifdef __FAST_MATH__
#error \
    "-ffast-math rounds quotients to other whole numbers, which changes what is chosen: -fno-fast-math must follow it"
#endif

namespace aotriton::v2::inline abi1 {

namespace {

enum Form { whole, growing, shrinking, split };  // as FORMS of rules/work.py

constexpr double kMostSplits = 16, kFewestSteps = 4;
constexpr double kTrafficUnit = 1e-7;

// The whole numbers next to a quotient, with the usual rounding: beyond 2^52 doubles have no digits behind the point.
// Conversions to integers take three times as long, and the library's own functions are calls where SSE4 is not asked
// for. What is within kNoise of a whole number is taken for that one: no other quotient by a whole number below 2^20
// is, so that a product with a rounded reciprocal will do. From 2^32 on the next whole number may come out, which is as
// good there.
constexpr double kNoFractions = double(int64_t{3} << 51), kNoise = 1.0 / double(1 << 20);

double down(double value) { return value - (0.5 - kNoise) + kNoFractions - kNoFractions; }
double up(double value) { return value + (0.5 - kNoise) + kNoFractions - kNoFractions; }

// Line by line as terms() of rules/work.py, where the reasons are. Inlined, terms never are in memory, and what is the
// same for all images is worked out once.
[[gnu::always_inline]] inline void write_terms(const Cost& cost, const WorkOfCall& work, double (&terms)[kTerms]) {
  const double share = 1 / work.multiprocessors;  // of a multiprocessor
  const double walks = work.repeat / work.parts;
  const double row_tile = cost.row_tile.value, depth_tile = cost.depth_tile.value;
  const double of_row_tile = cost.row_tile.inverse, of_depth_tile = cost.depth_tile.inverse;
  const double row_tiles = up(work.rows * of_row_tile);
  const double across = work.outer * up(work.columns * cost.column_tile.inverse);
  const double tiles = across * row_tiles * work.parts, steps = up(work.depth * of_depth_tile);
  double walked = row_tiles * steps, longest = steps;
  if (work.form == growing) {
    const double grown = row_tile / work.packed;
    const double below = std::min(row_tiles, down(work.depth * (work.packed * of_row_tile)));
    walked = grown * of_depth_tile * below * (below + 1) / 2 + (row_tiles - below) * steps;
    if (grown < depth_tile) walked += 0.5 * below;
    longest = up(std::min(row_tiles * grown, work.depth) * of_depth_tile);
  } else if (work.form == shrinking) {
    const double reaching = std::min(row_tiles, up(work.depth * of_row_tile));
    walked = (reaching * work.depth - row_tile * reaching * (reaching - 1) / 2) * of_depth_tile + 0.5 * reaching;
  }
  longest = up(longest * walks);
  const double total = across * work.repeat * walked;
  const bool triangle = work.form == growing || work.form == shrinking;
  const double slots = work.multiprocessors * cost.programs.value, of_slots = share * cost.programs.inverse;
  const double count = up(tiles * of_slots);
  const double tail = work.form == shrinking ? longest - total / std::max(tiles, 1.0) : 0;
  double walk = triangle ? std::max(longest, total * of_slots + tail) : count * longest;
  double packed = 0, packed_walk = 0;
  if (work.form == split) {
    const double full = down(tiles * of_slots), left = tiles - full * slots;
    const double splits =
        std::min({down(slots / std::max(left, 1.0)), kMostSplits, std::max(down(longest / kFewestSteps), 1.0)});
    if (left > 0 && splits > 1) {
      walk = full * longest + up(longest / splits);
      packed = left * splits * share;
      packed_walk = left * share;
    }
  } else if (cost.occupancy.value > 1) {
    const double of_room = share * cost.occupancy.inverse;
    packed = up(tiles * of_room);
    packed_walk = triangle ? std::max(longest, total * of_room + tail) : packed * longest;
  }
  const double spread = total * share;
  terms[0] = 1;
  terms[1] = count;
  terms[2] = walk;
  terms[3] = packed;
  terms[4] = packed_walk;
  terms[5] = spread;
  terms[6] = tiles * share;
  terms[7] = longest;
  terms[8] = work.near * kTrafficUnit;
  terms[9] = work.far * kTrafficUnit;
  terms[10] = work.slow * walk;
  terms[11] = work.slow * spread;
  terms[12] = std::max(walks, 1.0) - 1;
  terms[13] = terms[12] * terms[6];
}

// The terms by the image's coefficients.
[[gnu::always_inline]] inline float sum_of(const Cost& cost, const WorkOfCall& work) {
  double terms[kTerms], sums[4] = {};  // which do not wait for each other; the first terms are known last
  write_terms(cost, work, terms);
  for (int i = kTerms; i-- > 0;) sums[i % 4] += static_cast<double>(cost.coefficients[i]) * terms[i];
  return static_cast<float>((sums[0] + sums[3]) + (sums[1] + sums[2]));
}

}  // namespace

void terms_of(const Cost& cost, const WorkOfCall& work, double (&terms)[kTerms]) noexcept {
  write_terms(cost, work, terms);
}

Cheapest cheapest(std::span<const Cost> costs, const WorkOfCall& work) noexcept {
  Cheapest best = {0, 0};
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!costs[i].known()) continue;
    const float time = sum_of(costs[i], work);
    if (best.predicted_us <= 0 || time < best.predicted_us) best = {i, time};
  }
  return best;
}

}  // namespace aotriton::v2::inline abi1
