// Stands in for the generated file of this name, in the C++ tests.
#pragma once

#include <cstdint>

namespace aotriton::v2::inline abi1 {

enum class Addressing : int32_t { general, offset32, descriptor };

struct ArchInfo {
  const char* arch;
  const char* vendor;
  int warp_size;
  int multiprocessors;  // of the usual product
  Addressing aligned;   // how tensors are reached that are aligned, and small where that matters
};

inline constexpr ArchInfo kArchs[] = {
    {"sm_90", "cuda", 32, 132, Addressing::descriptor},
    {"gfx942", "hip", 64, 304, Addressing::offset32},
};

}  // namespace aotriton::v2::inline abi1
