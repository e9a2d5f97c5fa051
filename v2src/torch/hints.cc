#include "torch/hints.h"

#include "torch/counts.h"
#include "torch/tensor.h"

namespace aotriton_torch {

namespace {
thread_local std::string region;
}  // namespace

Hints::Hints(const char* op, const std::string& own) {
  if (region.empty() && own.empty()) return;
  given_.emplace(aotriton_hints{});
  given_->size = sizeof *given_;
  raise_if(aotriton_parse_hints(region.c_str(), &*given_));
  raise_if(aotriton_parse_hints(own.c_str(), &*given_));
  count(op, "hints", own.empty() ? region : own);
}

void enter_region(const std::string& text) { region = text; }

}  // namespace aotriton_torch
