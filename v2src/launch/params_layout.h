// How the parameters of a call are compared with those of another one, without being looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "program/program.h"

namespace aotriton::v2::inline abi1 {

inline constexpr size_t kMostParamsBytes = 1536;

// Where a params struct has an operand's data, which may differ from call to call.
struct MovingPointer {
  uint16_t offset;
  uint8_t slot;
};

#define AOTRITON_MOVING(STRUCT, NAME) {offsetof(STRUCT, NAME.data), NAME}

// A params struct: all of it must be equal but the moving pointers and the workspace. Only plain operands move: what
// features point at is what makes a call another one.
struct ParamsLayout {
  const OperatorInfo* info;
  size_t bytes;
  std::span<const MovingPointer> moving;
  size_t workspace, workspace_size;  // offsets; 0 where the operator has none
};

template <class Params, const OperatorInfo& kInfo, const auto& kMoving>
constexpr ParamsLayout params_layout() noexcept {
  static_assert(sizeof(Params) <= kMostParamsBytes);
  ParamsLayout layout = {&kInfo, sizeof(Params), kMoving, 0, 0};
  if constexpr (requires(Params params) { params.workspace; }) {
    layout.workspace = offsetof(Params, workspace);
    layout.workspace_size = offsetof(Params, workspace_size);
  }
  return layout;
}

// The value at an offset of a params struct.
template <class T>
T read_at(const void* params, size_t offset) noexcept {
  T value;
  memcpy(&value, static_cast<const char*>(params) + offset, sizeof value);
  return value;
}

}  // namespace aotriton::v2::inline abi1
