#include "base/lock.h"

#include <pthread.h>

namespace aotriton::v2::inline abi1 {

namespace {

std::mutex mutex;

void take() { mutex.lock(); }
void give() { mutex.unlock(); }

}  // namespace

std::mutex& slow_path() noexcept {
  // Another thread may hold the lock at the moment of a fork, and is not there in the child to give it back.
  static const int registered = pthread_atfork(take, give, give);
  static_cast<void>(registered);
  return mutex;
}

}  // namespace aotriton::v2::inline abi1
