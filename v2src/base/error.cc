#include "base/error.h"

#include <cstdarg>
#include <cstdio>

namespace aotriton::v2::inline abi1 {

namespace {
thread_local Message last;
}

Error fail(Error error, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last.text, sizeof last.text, format, arguments);
  va_end(arguments);
  return error;
}

Message message() noexcept { return last; }

void set_message(const Message& message) noexcept { last = message; }

}  // namespace aotriton::v2::inline abi1

extern "C" {

const char* aotriton_last_error_message(void) { return aotriton::v2::last.text; }

const char* aotriton_error_name(aotriton_error error) {
  switch (error) {
    case AOTRITON_SUCCESS:
      return "success";
    case AOTRITON_NULL_POINTER:
      return "null_pointer";
    case AOTRITON_INVALID_SHAPE:
      return "invalid_shape";
    case AOTRITON_INVALID_STRIDE:
      return "invalid_stride";
    case AOTRITON_INVALID_DTYPE:
      return "invalid_dtype";
    case AOTRITON_MISALIGNED_POINTER:
      return "misaligned_pointer";
    case AOTRITON_INVALID_ARGUMENT:
      return "invalid_argument";
    case AOTRITON_NOT_SUPPORTED:
      return "not_supported";
    case AOTRITON_NO_DRIVER:
      return "no_driver";
    case AOTRITON_NO_CONTEXT:
      return "no_context";
    case AOTRITON_UNKNOWN_ARCH:
      return "unknown_arch";
    case AOTRITON_NO_WINNER:
      return "no_winner";
    case AOTRITON_NOT_LOADED:
      return "not_loaded";
    case AOTRITON_WORKSPACE_TOO_SMALL:
      return "workspace_too_small";
    case AOTRITON_DAMAGED_IMAGE:
      return "damaged_image";
    case AOTRITON_DRIVER_FAILED:
      return "driver_failed";
    case AOTRITON_OUT_OF_MEMORY:
      return "out_of_memory";
    default:
      return "unknown_error";
  }
}

}  // extern "C"
