#include "program/registry.h"

#include <atomic>
#include <cstring>

namespace aotriton::v2::inline abi1 {

namespace {
std::atomic<AddedFamily*> added{nullptr};
}

void add_family(AddedFamily& family) noexcept {
  family.next = added.load(std::memory_order_relaxed);
  while (!added.compare_exchange_weak(family.next, &family, std::memory_order_release)) {
  }
}

AddedFamily* added_families() noexcept { return added.load(std::memory_order_acquire); }

const OperatorInfo* find_operator(const char* name) noexcept {
  const OperatorInfo* found = nullptr;
  any_operator([&](const OperatorInfo& info) {
    if (strcmp(info.name, name)) return false;
    found = &info;
    return true;
  });
  return found;
}

}  // namespace aotriton::v2::inline abi1
