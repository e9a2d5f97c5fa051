// The backends of an operator: from a cell of its lead kernel to the backend that serves it. Generated code is data of
// these types.
#pragma once

#include <aotriton/explain.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace aotriton::v2::inline abi1 {

struct BackendCell {
  uint8_t backend;
  float median_us[kMaxBackends];  // of all kernels of each backend; 0 where it was not compared
};

// Cells by godel number of the lead kernel, then as its Lut has them. An empty span: the first backend serves them all.
struct OperatorTable {
  const char* arch;
  std::span<const std::span<const BackendCell>> functionals;
};

struct OperatorInfo {
  const char* name;
  std::span<const char* const> backends;
  std::span<const OperatorTable> tables;  // an arch without one has the first backend everywhere
};

// What serves a cell, and why. `times` is null where nothing was compared with the first backend.
struct BackendChoice {
  const OperatorInfo* info = nullptr;
  size_t backend = 0;
  const float* times = nullptr;
};

BackendChoice choose_backend(const OperatorInfo& info, const char* arch, int godel_number, size_t cell) noexcept;

}  // namespace aotriton::v2::inline abi1
