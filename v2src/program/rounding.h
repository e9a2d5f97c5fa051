// Whole numbers next to quotients, for the formulas of costs.
#pragma once

#include <cstdint>

#ifdef __FAST_MATH__
#error \
    "-ffast-math rounds quotients to other whole numbers, which changes what is chosen: -fno-fast-math must follow it"
#endif

namespace aotriton::v2::inline abi1 {

// Beyond 2^52 doubles have no digits behind the point, so adding such a number rounds, and subtracting it again leaves
// the rounded one. Conversions to integers take three times as long, and the library's own functions are calls where
// SSE4 is not asked for. What is within kNoise of a whole number is taken for that one: no other quotient by a whole
// number below 2^20 is, so that a product with a rounded reciprocal will do. From 2^32 on the next whole number may
// come out, which is as good there.
inline constexpr double kNoFractions = double(int64_t{3} << 51), kNoise = 1.0 / double(1 << 20);

inline double down(double value) { return value - (0.5 - kNoise) + kNoFractions - kNoFractions; }
inline double up(double value) { return value + (0.5 - kNoise) + kNoFractions - kNoFractions; }

}  // namespace aotriton::v2::inline abi1
