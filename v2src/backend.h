// The backends of an operator: from a cell of its lead kernel to the backend that serves it. Generated code is data of
// these types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace aotriton::v2::inline abi1 {

inline constexpr size_t kMaxBackends = 4;

struct BackendCell {
  uint8_t backend;
  float median_us[kMaxBackends];  // of all kernels of each backend; 0 where it was not compared
};

// Cells by godel number of the lead kernel, then as its Lut has them. An empty span: the first backend serves them all.
struct OperatorTable {
  std::span<const std::span<const BackendCell>> functionals;
};

}  // namespace aotriton::v2::inline abi1
