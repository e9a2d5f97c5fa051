// From a dispatch to what is said of it.
#pragma once

#include <aotriton/explain.h>

#include <cstddef>

namespace aotriton::v2::inline abi1 {

struct Dispatch;

KernelChoice explain(const Dispatch& dispatch, size_t kernel) noexcept;

// The choice on one line of at most `size` bytes, without a newline: what the log and aotriton-explain print.
void format_line(const KernelChoice& choice, char* line, size_t size) noexcept;

}  // namespace aotriton::v2::inline abi1
