// What a call is told: the hints of the region that its thread is in, then its own, which count where both say
// something.
#pragma once

#include <aotriton/c.h>

#include <cstdint>
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

// A region inside of the one that its thread is in, while it lives.
class Region {
 public:
  explicit Region(const std::string& own);
  Region(const Region&) = delete;
  ~Region();

 private:
  std::string before_;
};

// A number for the text of the region that this thread is in, where a number can be kept and a text cannot; 0: no
// region. Texts are kept as long as the process lives: programs have few.
int64_t number_of_region();
std::string region_of_number(int64_t number);

}  // namespace aotriton_torch
