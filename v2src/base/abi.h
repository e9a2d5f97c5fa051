// Structs of c.h whose size says which version of them a caller has. Operators' parameters are checked with this in
// launch/c_operator.h, hints in call/hints.cc, explanations in launch/run.cc.
#pragma once

#include <aotriton/c.h>

#include <cstddef>
#include <span>

namespace aotriton::v2::inline abi1 {

// A field's bytes in its struct.
struct Field {
  size_t begin, end;
};

#define AOTRITON_FIELD(STRUCT, NAME) {offsetof(STRUCT, NAME), offsetof(STRUCT, NAME) + sizeof(STRUCT::NAME)}

inline constexpr size_t kMostStructBytes = 1 << 16;  // of any version

// Whether a struct of this size has each of the fields whole or not at all. Padding may be cut.
constexpr bool cuts_no_field(std::span<const Field> fields, size_t size) {
  for (const Field& field : fields)
    if (field.begin < size && size < field.end) return false;
  return true;
}

inline constexpr size_t kMostPadding = 7;  // bytes: nothing in these structs is aligned to more than 8

// Whether these are all fields of a struct of `size` bytes, in order, with no more than padding between them.
constexpr bool are_all(std::span<const Field> fields, size_t size) {
  size_t end = 0;
  for (const Field& field : fields) {
    if (field.begin < end || field.begin - end > kMostPadding) return false;
    end = field.end;
  }
  return end <= size && size - end <= kMostPadding;
}

}  // namespace aotriton::v2::inline abi1
