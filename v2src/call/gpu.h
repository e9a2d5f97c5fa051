// The GPU that a call runs on: its arch says which images can run, its product which of them are fast.
#pragma once

#include <aotriton/types.h>

#include <span>

#include "archs.h"

namespace aotriton::v2::inline abi1 {

struct ProductInfo {
  const char* name;  // as its driver spells it
  int multiprocessors;
  uint64_t memory;  // bytes; 0 where that is not known
};

// The products of an arch that this build has tables for, the usual one first; there is one at least. A product's
// number is its index here.
std::span<const ProductInfo> products(int arch) noexcept;

// The GPU that a call runs on, or is explained for.
struct Gpu {
  int arch;     // index in kArchs
  int product;  // whose tables count, by its number
  int multiprocessors;
  bool exact;  // the GPU is this product, not one that is like it

  const ArchInfo& info() const noexcept { return kArchs[arch]; }
  const ProductInfo& product_info() const noexcept { return products(arch)[static_cast<size_t>(product)]; }
};

// The product of the GPU's name; else the one that is most like it by multiprocessors, then by memory, then the first.
// `among` is not empty.
struct ProductChoice {
  int product;
  bool exact;
};
ProductChoice nearest_product(std::span<const ProductInfo> among, const ProductInfo& gpu) noexcept;

// The GPU that is asked about: `arch` with a product of it, or with null for the usual one; or `arch` is a product
// itself. `multiprocessors` counts where it is not 0, and then chooses the product that is most like such a
// GPU where none is named, or one that has no tables. unknown_arch, null_pointer or invalid_argument.
Error find_gpu(const char* who, const char* arch, const char* product, int multiprocessors, Gpu* gpu) noexcept;

}  // namespace aotriton::v2::inline abi1
