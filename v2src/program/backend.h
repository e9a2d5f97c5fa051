// The backends of an operator: from a cell of its lead kernel to the backend that serves it. Generated code is data of
// these types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "program_limits.h"

namespace aotriton::v2::inline abi1 {

struct BackendCell {
  uint8_t backend;
  float median_us[kMaxBackends];  // of all kernels of each backend; 0 where it was not compared
};

// The cells of a functional of the lead kernel, as its Lut has them. Empty: the first backend serves them all.
using BackendCells = std::span<const BackendCell>;

// By product of the arch, then by godel number of the lead kernel.
struct OperatorTable {
  std::span<const std::span<const BackendCells>> products;
};

}  // namespace aotriton::v2::inline abi1
