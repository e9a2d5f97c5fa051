// From explanations, or from what the build has, to standard output.
#pragma once

#include <aotriton/explain.h>

#include <vector>

#include "explain_main/options.h"

namespace aotriton::v2::explain_main {

// The explanations of one call on several archs, as text or as JSON: one list of all their kernels.
void print_text(const char* op, const std::vector<Explanation>& explanations);
void print_json(const std::vector<Explanation>& explanations);

// What the build has, as --list asks for it; the exit status.
int list(const Options& options);

}  // namespace aotriton::v2::explain_main
