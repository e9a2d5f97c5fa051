// Lookup tables: from a functional and its tuning keys to the image that won there. Generated code is data of these
// types.
#pragma once

#include <aotriton/explain.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "program/cost.h"
#include "program/image.h"
#include "program_limits.h"

namespace aotriton::v2::inline abi1 {

struct Entry {
  Image* image;
  int32_t tunables[kMaxTunables];  // in the order of the kernel description
  const char* tunables_text;
  const char* compile_options_text;
};

// Why cells have their entries. What was measured has a shape, a day and a median, which may be known to be between
// two.
struct Origin {
  Provenance provenance;
  const char* source;
  const char* shape;     // that was measured: "rows 256 width 1024"
  const char* measured;  // when: "2026-11-21"
  float median_us, low_us, high_us;
  std::span<const RunnerUp> runners_up;
};

// What was decided for one product: images are shared by an arch, which of them is the fastest is not.
struct ProductTable {
  std::span<const uint8_t> index;       // entry of each cell, row-major over the keys
  std::span<const uint16_t> origin_of;  // of each cell: its number among the origins, which cells share
  std::span<const Origin> origins;
  std::span<const Cost> costs;  // one for each entry, by which the fastest is chosen; empty: the index decides

  constexpr const Origin& origin(size_t cell) const { return origins[origin_of[cell]]; }
};

struct Lut {
  const char* functional;
  std::span<const std::span<const int32_t>> bins;  // representatives, one span for each tuning key
  std::span<const Entry> entries;
  std::span<const ProductTable> products;  // by product of the arch

  // First bin whose representative is not smaller; the last bin is open-ended.
  static constexpr size_t bin_of(std::span<const int32_t> representatives, int64_t value) {
    size_t bin = 0;
    while (bin + 1 < representatives.size() && value > representatives[bin]) ++bin;
    return bin;
  }

  constexpr size_t cell(const int64_t* keys) const {
    size_t cell = 0;
    for (size_t i = 0; i < bins.size(); ++i) cell = cell * bins[i].size() + bin_of(bins[i], keys[i]);
    return cell;
  }

  constexpr bool valid() const {
    size_t cells = 1;
    for (auto representatives : bins) {
      if (representatives.empty()) return false;
      for (size_t i = 1; i < representatives.size(); ++i)
        if (representatives[i - 1] >= representatives[i]) return false;
      cells *= representatives.size();
    }
    for (const ProductTable& one : products) {
      if (one.index.size() != cells || one.origin_of.size() != cells) return false;
      if (!one.costs.empty() && one.costs.size() != entries.size()) return false;
      for (uint8_t entry : one.index)
        if (entry >= entries.size()) return false;
      for (uint16_t origin : one.origin_of)
        if (origin >= one.origins.size()) return false;
    }
    return !products.empty() && bins.size() <= kMaxKeys;
  }
};

// All tables of one kernel on one arch, by godel number; null where this build has no images for the functional.
struct KernelTable {
  std::span<const Lut* const> luts;
  std::span<Image* const> images;
};

}  // namespace aotriton::v2::inline abi1
