// With AOTRITON_LOG=info, one line on stderr for each (kernel, arch, functional, bin) that a process uses.
#pragma once

#include <atomic>

#include "dispatch/select.h"

namespace aotriton::v2::inline abi1 {

enum class LogState { unread, off, info };
inline std::atomic<LogState> log_state{LogState::unread};

void log_first_use_slow(const Dispatch& dispatch, size_t kernel) noexcept;

// Nothing but one read where the log is off.
inline void log_first_use(const Dispatch& dispatch, size_t kernel) noexcept {
  if (log_state.load(std::memory_order_relaxed) != LogState::off) log_first_use_slow(dispatch, kernel);
}

}  // namespace aotriton::v2::inline abi1
