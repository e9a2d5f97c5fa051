// From explanations, or from what the build has, to standard output.
#pragma once

#include <aotriton/explain.h>

#include <span>
#include <string>
#include <vector>

#include "explain/options.h"

namespace aotriton::v2::explain_main {

// The explanations of one call on several archs, as text or as JSON: one list of all their kernels.
void print_text(const char* op, const std::vector<Explanation>& explanations);
void print_json(const std::vector<Explanation>& explanations);

// What the build has, as --list asks for it; the exit status.
int list(const Options& options);

// The certificate of each image, as --certificates asks for them; the exit status.
int certificates(const Options& options);

// Says that the build has no such arch; the exit status.
int unknown_arch(const std::string& arch, std::span<const char* const> all);

}  // namespace aotriton::v2::explain_main
