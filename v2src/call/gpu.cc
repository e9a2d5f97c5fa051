#include "call/gpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace aotriton::v2::inline abi1 {

namespace {

std::pair<int, uint64_t> distance(const ProductInfo& one, const ProductInfo& other) {
  uint64_t memory = one.memory > other.memory ? one.memory - other.memory : other.memory - one.memory;
  if (!one.memory || !other.memory) memory = UINT64_MAX;
  return {abs(one.multiprocessors - other.multiprocessors), memory};
}

// "one, another"; what does not fit is cut.
class Names {
 public:
  void add(const char* name) {
    const size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "", name);
  }
  void add(std::span<const ProductInfo> products) {
    for (const ProductInfo& product : products) add(product.name);
  }
  char text[300] = "";
};

}  // namespace

ProductChoice nearest_product(std::span<const ProductInfo> among, const ProductInfo& gpu) noexcept {
  size_t best = 0;
  for (size_t i = 0; i < among.size(); ++i) {
    if (!strcmp(among[i].name, gpu.name)) return {static_cast<int>(i), true};
    if (distance(among[i], gpu) < distance(among[best], gpu)) best = i;
  }
  return {static_cast<int>(best), false};
}

Error find_gpu(const char* who, const char* arch, const char* product, int multiprocessors, Gpu* gpu) noexcept {
  if (!arch) return fail(Error::null_pointer, "%s: arch is null", who);
  if (multiprocessors < 0)
    return fail(Error::invalid_argument, "%s: multiprocessors is %d, which must not be negative", who, multiprocessors);
  Names archs, all;
  for (int i = 0; i < kArchCount; ++i) {
    const std::span<const ProductInfo> known = products(i);
    archs.add(kArchs[i].arch);
    all.add(known);
    const bool named = !strcmp(kArchs[i].arch, arch);  // else it may be one of its products
    if (!named && product) continue;
    const char* const name = named ? product : arch;
    const int count = multiprocessors ? multiprocessors : known[0].multiprocessors;
    ProductChoice found = nearest_product(known, {name ? name : "", count, 0});
    if (!named && !found.exact) continue;
    if (!name) found.exact = !multiprocessors;
    if (name && !found.exact && !multiprocessors) {
      Names own;
      own.add(known);
      return fail(Error::invalid_argument, "%s: unknown product %s of %s: choose from %s", who, name, arch, own.text);
    }
    const int usual = known[static_cast<size_t>(found.product)].multiprocessors;
    *gpu = {i, found.product, multiprocessors ? multiprocessors : usual, found.exact};
    return Error::success;
  }
  return fail(Error::unknown_arch, "%s: unknown arch %s: choose from %s, or from the products %s", who, arch,
              archs.text, all.text);
}

}  // namespace aotriton::v2::inline abi1
