#include "torch/hints.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "torch/counts.h"
#include "torch/tensor.h"

namespace aotriton_torch {

namespace {

thread_local std::string region;

// As Python's hints.within, which may have been here before.
std::string within(const std::string& own) {
  if (own.compare(0, region.size(), region) == 0) return own;
  return own.empty() ? region : region + " " + own;
}

std::mutex numbers_mutex;
std::vector<std::string> numbered;

}  // namespace

Hints::Hints(const char* op, const std::string& own) {
  if (region.empty() && own.empty()) return;
  given_.emplace(aotriton_hints{});
  given_->size = sizeof *given_;
  const std::string text = within(own);
  raise_if(aotriton_parse_hints(text.c_str(), &*given_));
  count(op, "hints", text);
}

void enter_region(const std::string& text) { region = text; }

Region::Region(const std::string& own) : before_(std::exchange(region, within(own))) {}

Region::~Region() { region = std::move(before_); }

int64_t number_of_region() {
  if (region.empty()) return 0;
  const std::lock_guard lock(numbers_mutex);
  const auto found = std::find(numbered.begin(), numbered.end(), region);
  const int64_t number = found - numbered.begin() + 1;
  if (found == numbered.end()) numbered.push_back(region);
  return number;
}

std::string region_of_number(int64_t number) {
  const std::lock_guard lock(numbers_mutex);
  if (number < 1 || number > static_cast<int64_t>(numbered.size())) fail("attn_bwd: hints that no forward was told");
  return numbered[static_cast<size_t>(number) - 1];
}

}  // namespace aotriton_torch
