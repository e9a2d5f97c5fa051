// What became of calls since the process began.
#pragma once

#include <string>

namespace aotriton_torch {

// One more call of `op`, or of one of SDPA's directions: `what` is "aotriton" where it ran here, "torch" where it went
// on to torch's own kernel, because of `why`, and "hints" where it was told `why`.
void count(const char* op, const char* what, const std::string& why);

// A line for each: op, what, why, number, with tabs between.
std::string counted();

}  // namespace aotriton_torch
