#include "base/error.h"

#include <cstdarg>
#include <cstdio>

namespace aotriton::v2::inline abi1 {

namespace {

// The thread's message, and room for that of an attempt.
struct Messages {
  char texts[2][kMostMessage];
  bool last;            // which one is the thread's
  bool trying, failed;  // whether an attempt is under way, and has written to the other one
};
thread_local Messages messages;

}  // namespace

Error fail(Error error, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  messages.failed = true;
  vsnprintf(messages.texts[messages.last != messages.trying], sizeof *messages.texts, format, arguments);
  va_end(arguments);
  return error;
}

void begin_attempt() noexcept {
  messages.trying = true;
  messages.failed = false;
}

void end_attempt(Error error) noexcept {
  messages.trying = false;
  if (error != Error::success) messages.last ^= messages.failed;
}

}  // namespace aotriton::v2::inline abi1

extern "C" {

const char* aotriton_last_error_message(void) { return aotriton::v2::messages.texts[aotriton::v2::messages.last]; }

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
