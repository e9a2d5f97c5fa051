#include "dispatch/log.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "base/lock.h"
#include "dispatch/explain.h"

namespace aotriton::v2::inline abi1 {

namespace {

LogState read_environment() {
  const char* wish = getenv("AOTRITON_LOG");
  if (!wish || !*wish || !strcmp(wish, "off")) return LogState::off;
  if (!strcmp(wish, "info")) return LogState::info;
  fprintf(stderr, "aotriton: AOTRITON_LOG=%s is not known: use info or off\n", wish);
  return LogState::off;
}

}  // namespace

void log_first_use_slow(const Dispatch& dispatch, size_t kernel) noexcept {
  // Never destroyed: calls go on until the process has ended.
  static auto& seen = *new std::set<std::pair<const ProductTable*, size_t>>;
  const std::lock_guard lock(slow_path());
  if (log_state == LogState::unread) {
    log_state = read_environment();
    seen.clear();
  }
  const Selection& selection = dispatch.kernels[kernel];
  if (log_state != LogState::info || !seen.emplace(selection.table, selection.cell()).second) return;
  char line[1024];
  format_line(explain(dispatch, kernel), line, sizeof line);
  fprintf(stderr, "aotriton: %s\n", line);
}

}  // namespace aotriton::v2::inline abi1
