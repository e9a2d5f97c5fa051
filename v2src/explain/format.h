// From values to strings.
#pragma once

#include <string>

namespace aotriton::v2::explain_main {

// What printf would print.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

// As a string of JSON.
std::string quoted(const char* text);

}  // namespace aotriton::v2::explain_main
