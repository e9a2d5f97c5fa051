#include "cost.h"

#include <algorithm>

namespace aotriton::v2::inline abi1 {

namespace {

enum Form { whole, growing, shrinking, split };  // as FORMS of rules/work.py

constexpr double kMostSplits = 16, kFewestSteps = 4;
constexpr double kTrafficUnit = 1e-7;

// Both for numbers that are not negative. The library's own functions are calls where SSE4 is not asked for.
double down(double value) { return static_cast<double>(static_cast<int64_t>(value)); }

double up(double value) {
  const double lower = down(value);
  return lower < value ? lower + 1 : lower;
}

}  // namespace

// Line by line as terms() of rules/work.py, where the reasons are.
void terms_of(const Cost& cost, const WorkOfCall& work, double (&terms)[kTerms]) noexcept {
  const double row_tile = cost.row_tile, depth_tile = cost.depth_tile;
  const double row_tiles = up(work.rows / row_tile);
  const double across = work.outer * up(work.columns / cost.column_tile);
  const double tiles = across * row_tiles, steps = up(work.depth / depth_tile);
  double walked = row_tiles * steps, longest = steps;
  if (work.form == growing) {
    const double below = std::min(row_tiles, down(work.depth / row_tile));
    walked = row_tile / depth_tile * below * (below + 1) / 2 + (row_tiles - below) * steps;
    if (row_tile < depth_tile) walked += 0.5 * below;
    longest = up(std::min(row_tiles * row_tile, work.depth) / depth_tile);
  } else if (work.form == shrinking) {
    const double reaching = std::min(row_tiles, up(work.depth / row_tile));
    walked = (reaching * work.depth - row_tile * reaching * (reaching - 1) / 2) / depth_tile + 0.5 * reaching;
  }
  longest *= work.repeat;
  const double total = across * work.repeat * walked;
  const bool triangle = work.form == growing || work.form == shrinking;
  const double slots = work.multiprocessors * cost.programs;
  const double count = up(tiles / slots);
  const double tail = work.form == shrinking ? longest - total / std::max(tiles, 1.0) : 0;
  double walk = triangle ? std::max(longest, total / slots + tail) : count * longest;
  double packed = 0, packed_walk = 0;
  if (work.form == split) {
    const double full = down(tiles / slots), left = tiles - full * slots;
    const double parts =
        std::min({down(slots / std::max(left, 1.0)), kMostSplits, std::max(down(longest / kFewestSteps), 1.0)});
    if (left > 0 && parts > 1) {
      walk = full * longest + up(longest / parts);
      packed = left * parts / work.multiprocessors;
      packed_walk = left / work.multiprocessors;
    }
  } else if (cost.occupancy > 1) {
    const double room = work.multiprocessors * cost.occupancy;
    packed = up(tiles / room);
    packed_walk = triangle ? std::max(longest, total / room + tail) : packed * longest;
  }
  const double spread = total / work.multiprocessors;
  terms[0] = 1;
  terms[1] = count;
  terms[2] = walk;
  terms[3] = packed;
  terms[4] = packed_walk;
  terms[5] = spread;
  terms[6] = tiles / work.multiprocessors;
  terms[7] = longest;
  terms[8] = work.near * kTrafficUnit;
  terms[9] = work.far * kTrafficUnit;
  terms[10] = work.slow * walk;
  terms[11] = work.slow * spread;
  terms[12] = work.repeat - 1;
  terms[13] = (work.repeat - 1) * terms[6];
}

float cost_of(const Cost& cost, const WorkOfCall& work) noexcept {
  double terms[kTerms], even = 0, odd = 0;
  terms_of(cost, work, terms);
  for (int i = 0; i < kTerms; i += 2) {  // two sums, which do not wait for each other
    even += static_cast<double>(cost.coefficients[i]) * terms[i];
    odd += static_cast<double>(cost.coefficients[i + 1]) * terms[i + 1];
  }
  return static_cast<float>(even + odd);
}

}  // namespace aotriton::v2::inline abi1
