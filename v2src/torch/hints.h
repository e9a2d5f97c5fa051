// What a call is told: the hints of the region that its thread is in, then its own, which count where both say
// something.
#pragma once

#include <aotriton/c.h>

#include <optional>
#include <string>

namespace aotriton_torch {

class Hints {
 public:
  // Fails where a known hint has a value that it cannot have.
  Hints(const char* op, const std::string& own);

  const aotriton_hints* get() const { return given_ ? &*given_ : nullptr; }  // null: nothing is said

 private:
  std::optional<aotriton_hints> given_;
};

// This thread is in a region of these hints from now on.
void enter_region(const std::string& text);

// The hints of the region that this thread is in, then the call's own, as one text.
std::string within(const std::string& own);

}  // namespace aotriton_torch
