// A machine without a GPU's driver: that is found out once.
#include <future>
#include <mutex>

#include "base/lock.h"
#include "calls.h"

using namespace aotriton::v2;

TEST("without a driver every call says so, and those behind the first neither look for one again nor take a lock") {
  replace_driver(nullptr);
  const Error first = attn_fwd(fwd_call(), {});
  if (first != Error::no_driver) return;  // this machine has one
  const std::string message = last_error_message();
  CHECK_CONTAINS(message, "no GPU driver: libcuda.so.1");
  const std::lock_guard held(slow_path());
  const auto again = std::async(std::launch::async, [] {
    const Error error = attn_fwd(fwd_call(), {});
    return std::pair(error, std::string(last_error_message()));
  });
  CHECK(again.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  if (again.wait_for(std::chrono::seconds(0)) != std::future_status::ready) std::abort();  // it waits for the lock
}
