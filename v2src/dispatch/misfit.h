// Why a launch cannot be made.
#pragma once

#include "call/call.h"

namespace aotriton::v2::inline abi1 {

inline constexpr int64_t kMostPrograms[3] = {INT32_MAX, 65535, 65535};  // along x, y and z

// Why a launch cannot be made.
struct Misfit {
  enum What : uint8_t { none, derived_size, workspace, programs, threads, tensor_map, number, many_numbers };
  What what = none;
  uint8_t detail = 0;                  // the size by number, the axis, the slot, or the bits
  const KernelInfo* kernel = nullptr;  // of programs, threads and many_numbers

  explicit operator bool() const noexcept { return what != none; }
};

// not_supported, with the reason.
[[gnu::cold]] Error refuse(const Call& call, const Misfit& misfit) noexcept;

}  // namespace aotriton::v2::inline abi1
