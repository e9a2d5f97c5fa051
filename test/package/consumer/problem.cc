#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace {

constexpr size_t kGuard = 256;  // elements, so that a guard does not change the alignment to 256 bytes

int64_t pick(std::mt19937_64& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

Layout random_layout(std::mt19937_64& random, int64_t b, int64_t h, int64_t s, int64_t d) {
  Layout layout{{b, h, s, d}, {h * s * d, s * d, d, 1}, kGuard, 0};
  int64_t* strides = layout.strides;
  const int64_t padding = pick(random, 1, 9);
  switch (pick(random, 0, 4)) {
    case 0:
      break;  // [batch, heads, seqlen, head_dim] in memory
    case 1:   // [batch, seqlen, heads, head_dim]
      strides[0] = s * h * d, strides[1] = d, strides[2] = h * d;
      break;
    case 2:  // rows with padding: mostly no multiple of 16 bytes
      strides[2] = d + padding, strides[1] = s * strides[2], strides[0] = h * strides[1];
      break;
    case 3:  // whole unused rows between heads
      strides[1] = (s + padding) * d, strides[0] = h * strides[1];
      break;
    case 4:  // starts at any element
      layout.offset += static_cast<size_t>(padding);
      break;
  }
  int64_t last = 0;
  for (int i = 0; i < 4; ++i) last += (layout.sizes[i] - 1) * strides[i];
  layout.length = layout.offset + static_cast<size_t>(last) + 1 + kGuard;
  return layout;
}

}  // namespace

double unit_roundoff(DType dtype) { return dtype == DType::float16 ? std::ldexp(1, -11) : std::ldexp(1, -8); }

double decode(uint16_t bits, DType dtype) {
  if (dtype == DType::bfloat16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double magnitude;
  if (exponent == 31)
    magnitude = mantissa ? NAN : INFINITY;
  else
    magnitude = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

uint16_t encode(double value, DType dtype) {
  const bool half = dtype == DType::float16;
  const int digits = half ? 11 : 8, lowest = half ? -14 : -126, highest = half ? 15 : 127;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7fff);
  int exponent = std::isinf(magnitude) ? highest + 1 : std::max(std::ilogb(magnitude), lowest);
  double mantissa = std::isinf(magnitude) ? 0 : std::nearbyint(std::ldexp(magnitude, digits - 1 - exponent));
  if (mantissa == std::ldexp(1, digits)) mantissa /= 2, ++exponent;
  const uint16_t infinity = half ? 0x7c00 : 0x7f80;
  if (exponent > highest) return sign | infinity;
  // A subnormal number lacks the leading digit, and its exponent field is 0: both follow from the addition.
  return static_cast<uint16_t>(sign + ((exponent - lowest) << (digits - 1)) + static_cast<int>(mantissa));
}

std::string Problem::text() const {
  char line[160];
  std::snprintf(line, sizeof line, "%s batch %d heads %d:%d seqlen %d x %d head_dim %d spread %g%s",
                dtype == DType::float16 ? "fp16" : "bf16", static_cast<int>(batch), static_cast<int>(heads_q),
                static_cast<int>(heads_k), static_cast<int>(seqlen_q), static_cast<int>(seqlen_k),
                static_cast<int>(head_dim), spread, causal ? " causal" : "");
  return line;
}

Problem random_problem(std::mt19937_64& random) {
  Problem problem{};
  const int64_t groups[] = {1, 1, 2, 4};
  const double spreads[] = {0.1, 1, 12};
  problem.batch = pick(random, 1, 2);
  problem.heads_k = pick(random, 1, 3);
  problem.heads_q = problem.heads_k * groups[pick(random, 0, 3)];
  problem.seqlen_q = pick(random, 1, 300);
  problem.causal = pick(random, 0, 1) == 1;
  problem.seqlen_k = problem.causal ? problem.seqlen_q : pick(random, 1, 300);
  problem.head_dim = 8 * pick(random, 1, 32);
  problem.dtype = pick(random, 0, 1) ? DType::bfloat16 : DType::float16;
  problem.spread = spreads[pick(random, 0, 2)];
  problem.sm_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  for (int name = 0; name < kNames; ++name) {
    const bool of_keys = name == kK || name == kV || name == kDk || name == kDv;
    problem.layouts.push_back(random_layout(random, problem.batch, of_keys ? problem.heads_k : problem.heads_q,
                                            of_keys ? problem.seqlen_k : problem.seqlen_q, problem.head_dim));
  }
  return problem;
}

template <class Visit>
static void visit(const Layout& layout, Visit&& element) {
  for (int64_t b = 0; b < layout.sizes[0]; ++b)
    for (int64_t h = 0; h < layout.sizes[1]; ++h)
      for (int64_t s = 0; s < layout.sizes[2]; ++s)
        for (int64_t d = 0; d < layout.sizes[3]; ++d) element(layout.at(b, h, s, d));
}

std::vector<uint16_t> scatter(const Layout& layout, const std::vector<double>& values, DType dtype,
                              uint16_t background) {
  std::vector<uint16_t> buffer(layout.length, background);
  size_t next = 0;
  visit(layout, [&](size_t place) { buffer[place] = encode(values[next++], dtype); });
  return buffer;
}

std::vector<double> gather(const Layout& layout, const std::vector<uint16_t>& buffer, DType dtype) {
  std::vector<double> values;
  visit(layout, [&](size_t place) { values.push_back(decode(buffer[place], dtype)); });
  return values;
}

size_t changed_outside(const Layout& layout, const std::vector<uint16_t>& buffer, uint16_t background) {
  std::vector<bool> inside(buffer.size());
  visit(layout, [&](size_t place) { inside[place] = true; });
  size_t changed = 0;
  for (size_t i = 0; i < buffer.size(); ++i) changed += !inside[i] && buffer[i] != background;
  return changed;
}
