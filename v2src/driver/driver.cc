#include "driver/driver.h"

#include <atomic>
#include <cstdio>
#include <mutex>

#include "base/error.h"
#include "base/lock.h"

namespace aotriton::v2::inline abi1 {

namespace {
std::atomic<const Driver*> chosen{nullptr};
std::atomic<bool> is_missing{false};  // which the first call has found out, for all that follow
char why_missing[400];                // written before that
}  // namespace

const Driver* driver() noexcept {
  if (const Driver* found = chosen.load(std::memory_order_acquire)) return found;
  if (is_missing.load(std::memory_order_acquire)) {
    static_cast<void>(fail(Error::no_driver, "%s", why_missing));
    return nullptr;
  }
  const std::lock_guard lock(slow_path());
  if (const Driver* found = chosen.load(std::memory_order_acquire)) return found;
  char no_cuda[160], no_hip[160];
  const Driver* found = open_cuda(no_cuda, sizeof no_cuda);
  if (!found) found = open_hip(no_hip, sizeof no_hip);
  if (!found) {
    snprintf(why_missing, sizeof why_missing, "no GPU driver: %s; %s", no_cuda, no_hip);
    static_cast<void>(fail(Error::no_driver, "%s", why_missing));
    is_missing.store(true, std::memory_order_release);
  }
  chosen.store(found, std::memory_order_release);
  return found;
}

const Driver* opened_driver() noexcept { return chosen.load(std::memory_order_acquire); }

void replace_driver(const Driver* replacement) noexcept {
  is_missing.store(false, std::memory_order_release);
  chosen.store(replacement, std::memory_order_release);
}

Error driver_failure(const Driver& driver, Status status, const char* who, const char* what) noexcept {
  char text[200];
  driver.describe_error(status, text, sizeof text);
  return fail(Error::driver_failed, "%s: %s could not %s: %s", who, driver.name, what, text);
}

}  // namespace aotriton::v2::inline abi1
