#include "dispatch/exclusion.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "base/lock.h"
#include "call/hints.h"
#include "program/registry.h"

namespace aotriton::v2::inline abi1 {

namespace {

bool has_image(const KernelInfo& kernel, std::string_view name) {
  const auto is_it = [&](const Image* image) { return image->name == name; };
  return std::any_of(kernel.tables.begin(), kernel.tables.end(), [&](const KernelTable* table) {
    return table && std::any_of(table->images.begin(), table->images.end(), is_it);
  });
}

// Whether an operator has a backend, a kernel or an image of this name, on any arch.
bool is_known(std::string_view name) {
  return any_operator([&](const OperatorInfo& info) {
    for (const BackendInfo& backend : info.backends) {
      if (backend.name == name) return true;
      for (const KernelInfo* kernel : backend.kernels)
        if (kernel->name == name || has_image(*kernel, name)) return true;
    }
    return false;
  });
}

void tell(const char* names) {
  fprintf(stderr, "aotriton: AOTRITON_EXCLUDE leaves out %s\n", names);
  std::string_view left = names;
  for (std::string_view name = next_word(&left, ","); !name.empty(); name = next_word(&left, ","))
    if (!is_known(name))
      fprintf(stderr, "aotriton: AOTRITON_EXCLUDE: this build has no backend, kernel or image of the name %.*s\n",
              static_cast<int>(name.size()), name.data());
}

}  // namespace

const char* read_exclusion() noexcept {
  const std::lock_guard lock(slow_path());
  if (const char* const names = excluded_names.load(std::memory_order_relaxed)) return names;
  const char* const wish = getenv("AOTRITON_EXCLUDE");
  // A copy, as the environment may change; never given back, as calls are made until the process ends.
  char* const copy = wish ? strdup(wish) : nullptr;
  if (copy) *std::remove(copy, copy + strlen(copy), ' ') = '\0';
  const char* const names = copy ? copy : wish ? wish : "";
  if (*names) tell(names);
  excluded_names.store(names, std::memory_order_release);
  return names;
}

}  // namespace aotriton::v2::inline abi1
