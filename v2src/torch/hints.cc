#include "torch/hints.h"

#include "torch/counts.h"
#include "torch/tensor.h"

namespace aotriton_torch {

namespace {

thread_local std::string region;

}  // namespace

// As Python's hints.within, which may have been here before.
std::string within(const std::string& own) {
  if (own.compare(0, region.size(), region) == 0) return own;
  return own.empty() ? region : region + " " + own;
}

Hints::Hints(const char* op, const std::string& own) {
  if (region.empty() && own.empty()) return;
  given_.emplace(aotriton_hints{});
  given_->size = sizeof *given_;
  const std::string text = within(own);
  raise_if(aotriton_parse_hints(text.c_str(), &*given_));
  count(op, "hints", text);
}

void enter_region(const std::string& text) { region = text; }

}  // namespace aotriton_torch
