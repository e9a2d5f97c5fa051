#include "torch/counts.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace aotriton_torch {

namespace {

constexpr size_t kMost = 100;  // reasons of an operator: messages have sizes in them, so there may be many
std::mutex mutex;
std::map<std::pair<std::string, std::string>, std::map<std::string, int64_t>> counts;

}  // namespace

void count(const char* op, const char* what, const std::string& why) {
  const std::lock_guard lock(mutex);
  auto& reasons = counts[{op, what}];
  ++reasons[reasons.size() < kMost || reasons.count(why) ? why : "for more reasons than are kept"];
}

std::string counted() {
  const std::lock_guard lock(mutex);
  std::string lines;
  for (const auto& [key, reasons] : counts)
    for (const auto& [why, number] : reasons) {
      lines.append(key.first).append("\t").append(key.second).append("\t").append(why).append("\t");
      lines.append(std::to_string(number)).append("\n");
    }
  return lines;
}

}  // namespace aotriton_torch
