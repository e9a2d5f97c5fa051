#include "torch/counts.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

namespace aotriton_torch {

namespace {

constexpr size_t kMost = 100;
std::mutex mutex;
std::map<std::tuple<std::string, std::string, std::string>, int64_t> counts;

}  // namespace

void count(const char* op, const char* what, const std::string& why) {
  const std::lock_guard lock(mutex);
  std::tuple<std::string, std::string, std::string> key(op, what, why);
  // Messages have sizes in them, so there may be many.
  if (counts.size() >= kMost && !counts.count(key)) std::get<2>(key) = "for more reasons than are kept";
  ++counts[key];
}

std::string counted() {
  const std::lock_guard lock(mutex);
  std::string lines;
  for (const auto& [key, number] : counts) {
    const auto& [op, what, why] = key;
    lines.append(op).append("\t").append(what).append("\t").append(why).append("\t");
    lines.append(std::to_string(number)).append("\n");
  }
  return lines;
}

}  // namespace aotriton_torch
