// From a kernel, an arch, a functional and tuning keys to the entry that won there, and to what explain() says of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend.h"
#include "lut.h"

namespace aotriton::v2::inline abi1 {

// One cell of one table.
struct Selection {
  const KernelInfo* kernel = nullptr;
  const char* arch = nullptr;
  const Lut* lut = nullptr;
  int godel_number = 0;
  size_t cell = 0;
  int64_t keys[kMaxKeys] = {};
  BackendChoice backend;

  const Entry& entry() const noexcept { return lut->entries[lut->index[cell]]; }
};

// Null where the build has no table of the kernel for the arch.
const KernelTable* find_table(const KernelInfo& kernel, const char* arch) noexcept;

// False where the functional has no images in this build.
bool find_cell(const KernelInfo& kernel, const KernelTable& table, int godel_number, std::span<const int64_t> keys,
               Selection* selection) noexcept;

// unknown_arch, with the archs of this build in the message.
Error unknown_arch(const KernelInfo& kernel, const char* arch) noexcept;

KernelChoice explain(const Selection& selection) noexcept;

// The choice on one line of at most `size` bytes, without a newline: what the log and aotriton-explain print.
void format_line(const KernelChoice& choice, char* line, size_t size) noexcept;

}  // namespace aotriton::v2::inline abi1
