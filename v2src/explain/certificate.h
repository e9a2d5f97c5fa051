// From the numbers of a certificate to text and JSON.
#pragma once

#include <cstdint>
#include <string>

namespace aotriton::v2::explain_main {

std::string certificate_text(const char* product, int64_t day, int64_t problems, float error, float allowed);
std::string certificate_json(const char* product, int64_t day, int64_t problems, int64_t checks, float error,
                             float allowed);

}  // namespace aotriton::v2::explain_main
