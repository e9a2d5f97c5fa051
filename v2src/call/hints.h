// Reads a caller's hints, a struct or text, into a call.
#pragma once

#include <cstddef>
#include <string_view>

#include "call/call.h"

namespace aotriton::v2::inline abi1 {

// The bytes of the struct in which two calls must agree to be the same.
inline constexpr size_t kHintBytes = offsetof(aotriton_hints, unknown);

// As take_hints(), where some are given.
Error take_given_hints(const aotriton_hints& given, Call* call) noexcept;

// Gives the call, whose scalars are set, the caller's hints: the caller's own struct, or a copy of one that is older or
// newer. Sets the scalars `deterministic` and `batch_invariant` where the operator has them. invalid_argument names the
// field.
inline Error take_hints(const aotriton_hints* given, Call* call) noexcept {
  return given ? take_given_hints(*given, call) : Error::success;
}

// As aotriton_parse_hints.
Error parse_hints(const char* text, aotriton_hints* hints) noexcept;

// Takes the first word, up to one of `separators`, off a list. Empty where there is none left.
std::string_view next_word(std::string_view* list, const char* separators) noexcept;

bool lists_word(const char* list, const char* name) noexcept;

// Whether a list with commas between its names has the name.
inline bool lists(const char* list, const char* name) noexcept { return *list && lists_word(list, name); }

}  // namespace aotriton::v2::inline abi1
