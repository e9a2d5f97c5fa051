#include "call/overlap.h"

#include <algorithm>
#include <utility>

namespace aotriton::v2::inline abi1 {

namespace {

constexpr int64_t kMostShifts = 16;  // that are looked at before two tensors are said to overlap

// The dimension of the largest stride among those of more than one element, or -1.
int widest(const Footprint& footprint) {
  int found = -1;
  for (int i = 0; i < footprint.rank; ++i)
    if (footprint.sizes[i] > 1 && (found < 0 || footprint.strides[i] > footprint.strides[found])) found = i;
  return found;
}

// The footprint without its dimension of this stride; how often that repeated it. 1 where it has none.
int64_t take(Footprint& footprint, int64_t stride) {
  const int dim = widest(footprint);
  if (dim < 0 || footprint.strides[dim] != stride) return 1;
  return std::exchange(footprint.sizes[dim], 1);
}

using Wide = __int128;  // what is added to an extent may be as large as one

Wide floor_divide(Wide a, int64_t b) { return a / b - (a % b < 0); }

// Whether `a` at 0 and `b` at `shift` share a byte. Dimensions are taken off from the widest on: elements of both are
// one where some difference of their indices along it, times the stride, brings the rest together.
bool overlap_at(Footprint a, Footprint b, int64_t shift) {
  const Wide bytes_a = extent(a), bytes_b = extent(b);
  if (shift >= bytes_a || -Wide{shift} >= bytes_b) return false;
  const int of_a = widest(a), of_b = widest(b);
  if (of_a < 0 && of_b < 0) return true;
  const int64_t stride = std::max(of_a < 0 ? 0 : a.strides[of_a], of_b < 0 ? 0 : b.strides[of_b]);
  if (stride == 0) return true;
  const int64_t count_a = take(a, stride), count_b = take(b, stride);
  // What is left of b must begin before a ends, and end behind where a begins.
  const Wide first = std::max<Wide>(1 - count_a, floor_divide(-Wide{extent(b)} - shift, stride) + 1);
  const Wide last = std::min<Wide>(count_b - 1, floor_divide(Wide{extent(a)} - 1 - shift, stride));
  if (last - first >= kMostShifts) return true;
  for (Wide k = first; k <= last; ++k)
    if (overlap_at(a, b, static_cast<int64_t>(shift + k * stride))) return true;
  return false;
}

}  // namespace

int64_t extent(const Footprint& footprint) noexcept {
  int64_t bytes = footprint.width;
  for (int i = 0; i < footprint.rank; ++i) bytes += (footprint.sizes[i] - 1) * footprint.strides[i];
  return bytes;
}

bool overlaps_itself(const Footprint& footprint) noexcept {
  // Each dimension must step over all that the rest reaches.
  for (Footprint rest = footprint;;) {
    const int dim = widest(rest);
    if (dim < 0) return false;
    const int64_t stride = rest.strides[dim];
    rest.sizes[dim] = 1;
    if (stride < extent(rest)) return true;
  }
}

bool overlap(const Footprint& a, const Footprint& b) noexcept {
  const bool before = a.begin < b.begin;
  const Footprint &low = before ? a : b, &high = before ? b : a;
  const uintptr_t shift = high.begin - low.begin;
  return shift < static_cast<uintptr_t>(extent(low)) && overlap_at(low, high, static_cast<int64_t>(shift));
}

}  // namespace aotriton::v2::inline abi1
