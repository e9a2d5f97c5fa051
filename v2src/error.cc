#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace aotriton::v2::inline abi1 {

namespace {
thread_local char message[512];
}

Error fail(Error error, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return error;
}

const char* last_error_message() noexcept { return message; }

const char* error_name(Error error) noexcept {
  switch (error) {
    case Error::success:
      return "success";
    case Error::null_pointer:
      return "null_pointer";
    case Error::invalid_shape:
      return "invalid_shape";
    case Error::invalid_stride:
      return "invalid_stride";
    case Error::invalid_dtype:
      return "invalid_dtype";
    case Error::misaligned_pointer:
      return "misaligned_pointer";
    case Error::invalid_argument:
      return "invalid_argument";
    case Error::not_supported:
      return "not_supported";
    case Error::no_driver:
      return "no_driver";
    case Error::no_context:
      return "no_context";
    case Error::unknown_arch:
      return "unknown_arch";
    case Error::no_winner:
      return "no_winner";
    case Error::not_loaded:
      return "not_loaded";
    case Error::workspace_too_small:
      return "workspace_too_small";
    case Error::damaged_image:
      return "damaged_image";
    case Error::driver_failed:
      return "driver_failed";
  }
  return "unknown_error";
}

}  // namespace aotriton::v2::inline abi1
