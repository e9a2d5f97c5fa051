// From what went wrong to an Error and a message that last_error_message() returns in the same thread.
#pragma once

#include <aotriton/types.h>

#include <cstddef>
#include <optional>

namespace aotriton::v2::inline abi1 {

inline constexpr size_t kMostMessage = 1024;  // bytes: what is in the way of each backend fits

// Keeps the formatted message in a buffer of this thread, cut to its size, and returns `error`. Allocates nothing.
[[gnu::cold, gnu::format(printf, 2, 3)]] Error fail(Error error, const char* format, ...) noexcept;

// A stage that a call has reached, or the error that is in its way. `Stage` is small: it refers to what it is about.
template <class Stage>
class [[nodiscard]] Result {
 public:
  Result(Error error) noexcept : error_(error) {}
  Result(Stage stage) noexcept : error_(Error::success), stage_(stage) {}

  Error error() const noexcept { return error_; }
  // After success only.
  const Stage& operator*() const noexcept { return *stage_; }  // NOLINT(bugprone-unchecked-optional-access)
  const Stage* operator->() const noexcept {
    return stage_.operator->();
  }  // NOLINT(bugprone-unchecked-optional-access)

 private:
  Error error_;
  std::optional<Stage> stage_;  // empty after an error
};

// Between these, failures of this thread write a message aside, which end_attempt() makes the thread's where the
// attempt failed. One is not within another.
void begin_attempt() noexcept;
void end_attempt(Error error) noexcept;

// Runs body() -> Error, after which something else is tried where it fails: it leaves no message behind.
template <class Body>
Error without_message(Body&& body) noexcept {
  begin_attempt();
  const Error error = body();
  end_attempt(Error::success);
  return error;
}

// Runs body() -> Error. Where that succeeds, what it tried on the way leaves no message behind.
template <class Body>
Error keep_message(Body&& body) noexcept {
  begin_attempt();
  const Error error = body();
  end_attempt(error);
  return error;
}

}  // namespace aotriton::v2::inline abi1

#define AOTRITON_TRY(expression)                                                  \
  do {                                                                            \
    if (const Error error_ = (expression); error_ != Error::success) [[unlikely]] \
      return error_;                                                              \
  } while (false)
