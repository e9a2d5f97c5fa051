// Random attention problems: sizes, strides, element types, and 16-bit values in memory.
#pragma once

#include <aotriton/flash.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

using aotriton::v2::DType;

// The value of a 16-bit float, and the nearest 16-bit float of a value.
double decode(uint16_t bits, DType dtype);
uint16_t encode(double value, DType dtype);
double unit_roundoff(DType dtype);

// A [batch, heads, seqlen, head_dim] tensor inside a larger buffer: strides may leave gaps, and a guard surrounds it.
struct Layout {
  int64_t sizes[4];
  int64_t strides[4];
  size_t offset;  // of the first element in the buffer
  size_t length;  // of the buffer, in elements

  size_t at(int64_t b, int64_t h, int64_t s, int64_t d) const {
    return offset + static_cast<size_t>(b * strides[0] + h * strides[1] + s * strides[2] + d);
  }
};

struct Problem {
  int64_t batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim;
  DType dtype;
  bool causal;
  double spread;  // factor on q: the softmax is flat at 0.1 and peaked at 12
  float sm_scale;
  std::vector<Layout> layouts;  // in the order of Name

  std::string text() const;
};

enum Name { kQ, kK, kV, kOut, kDout, kDq, kDk, kDv, kNames };

Problem random_problem(std::mt19937_64& random);

// From dense values, [batch, heads, seqlen, head_dim] in this order, to the buffer and back.
std::vector<uint16_t> scatter(const Layout& layout, const std::vector<double>& values, DType dtype,
                              uint16_t background);
std::vector<double> gather(const Layout& layout, const std::vector<uint16_t>& buffer, DType dtype);

// Elements outside the tensor that are no longer `background`.
size_t changed_outside(const Layout& layout, const std::vector<uint16_t>& buffer, uint16_t background);
