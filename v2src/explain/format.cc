#include "explain/format.h"

#include <cstdarg>
#include <cstdio>

namespace aotriton::v2::explain_main {

std::string text(const char* format, ...) {
  va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  std::string result(static_cast<size_t>(vsnprintf(nullptr, 0, format, values)), '\0');
  vsnprintf(result.data(), result.size() + 1, format, again);
  va_end(values);
  va_end(again);
  return result;
}

std::string quoted(const char* text) {
  std::string result = "\"";
  for (; *text; ++text) {
    const auto byte = static_cast<unsigned char>(*text);
    char escaped[8];
    if (byte == '"' || byte == '\\')
      snprintf(escaped, sizeof escaped, "\\%c", byte);
    else
      snprintf(escaped, sizeof escaped, byte < 32 ? "\\u%04x" : "%c", byte);
    result += escaped;
  }
  return result + '"';
}

}  // namespace aotriton::v2::explain_main
