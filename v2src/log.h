// With AOTRITON_LOG=info, one line on stderr for each (kernel, arch, functional, bin) that a process uses.
#pragma once

#include <atomic>

#include "lookup.h"

namespace aotriton::v2::inline abi1 {

enum class LogState { unread, off, info };
inline std::atomic<LogState> log_state{LogState::unread};

void log_first_use_slow(const Selection& selection) noexcept;

// Nothing but one read where the log is off.
inline void log_first_use(const Selection& selection) noexcept {
  if (log_state.load(std::memory_order_relaxed) != LogState::off) log_first_use_slow(selection);
}

}  // namespace aotriton::v2::inline abi1
