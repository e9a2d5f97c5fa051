#include "lookup.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "error.h"

namespace aotriton::v2::inline abi1 {

namespace {

// Appends to a line of `size` bytes; what does not fit is cut.
class Line {
 public:
  Line(char* line, size_t size) : line_(line), size_(size) { *line = '\0'; }

  template <class... Values>
  void add(const char* format, Values... values) {
    const int wanted = snprintf(line_ + used_, size_ - used_, format, values...);
    if (wanted > 0)
      used_ += static_cast<size_t>(wanted) < size_ - used_ ? static_cast<size_t>(wanted) : size_ - used_ - 1;
  }
  void add(const char* text) { add("%s", text); }

 private:
  char* line_;
  size_t size_;
  size_t used_ = 0;
};

}  // namespace

const KernelTable* find_table(const KernelInfo& kernel, const char* arch) noexcept {
  for (const KernelTable& table : kernel.tables)
    if (!strcmp(table.arch, arch)) return &table;
  return nullptr;
}

bool find_cell(const KernelInfo& kernel, const KernelTable& table, int godel_number, std::span<const int64_t> keys,
               Selection* selection) noexcept {
  const Lut* lut = nullptr;
  if (godel_number >= 0 && static_cast<size_t>(godel_number) < table.luts.size())
    lut = table.luts[static_cast<size_t>(godel_number)];
  if (!lut) return false;
  selection->kernel = &kernel;
  selection->arch = table.arch;
  selection->lut = lut;
  selection->godel_number = godel_number;
  for (size_t i = 0; i < keys.size(); ++i) selection->keys[i] = keys[i];
  selection->cell = lut->cell(selection->keys);
  return true;
}

BackendChoice choose_backend(const OperatorInfo& info, const char* arch, int godel_number, size_t cell) noexcept {
  for (const OperatorTable& table : info.tables) {
    if (strcmp(table.arch, arch)) continue;
    const std::span<const BackendCell> cells = table.functionals[static_cast<size_t>(godel_number)];
    if (!cells.empty()) return {&info, cells[cell].backend, cells[cell].median_us};
  }
  return {.info = &info};
}

Error unknown_arch(const KernelInfo& kernel, const char* arch) noexcept {
  char archs[160];
  Line line(archs, sizeof archs);
  for (const KernelTable& table : kernel.tables) line.add(" %s", table.arch);
  return fail(Error::unknown_arch, "%s: this build has no images for %s; it has:%s", kernel.name, arch, archs);
}

KernelChoice explain(const Selection& selection) noexcept {
  const Entry& entry = selection.entry();
  const Evidence& evidence = selection.lut->evidence[selection.cell];
  KernelChoice choice = {
      .kernel = selection.kernel->name,
      .arch = selection.arch,
      .functional = selection.lut->functional,
      .godel_number = selection.godel_number,
      .key_count = static_cast<int>(selection.kernel->keys.size()),
      .keys = {},
      .image = entry.image->name,
      .psels = entry.psels_text,
      .copts = entry.copts_text,
      .provenance = evidence.provenance,
      .source = evidence.source,
      .median_us = evidence.median_us,
      .runner_up_count = static_cast<int>(evidence.runners_up.size()),
      .runners_up = evidence.runners_up.data(),
      .backend = selection.backend.info->backends[selection.backend.backend],
      .backend_count = static_cast<int>(selection.backend.info->backends.size()),
      .backends = {},
  };
  for (size_t i = 0; i < selection.backend.info->backends.size(); ++i)
    choice.backends[i] = {selection.backend.info->backends[i],
                          selection.backend.times ? selection.backend.times[i] : 0};
  for (size_t i = 0; i < selection.kernel->keys.size(); ++i) {
    const std::span<const int32_t> bins = selection.lut->bins[i];
    choice.keys[i] = {selection.kernel->keys[i], selection.keys[i], bins[Lut::bin_of(bins, selection.keys[i])]};
  }
  return choice;
}

const char* provenance_name(Provenance provenance) noexcept {
  switch (provenance) {
    case Provenance::measured:
      return "measured";
    case Provenance::borrowed:
      return "borrowed";
    case Provenance::predicted:
      return "predicted";
    case Provenance::imported:
      return "imported";
  }
  return "unknown";
}

void format_line(const KernelChoice& choice, char* text, size_t size) noexcept {
  Line line(text, size);
  line.add("%s %s F%d (%s)", choice.kernel, choice.arch, choice.godel_number, choice.functional);
  for (int i = 0; i < choice.key_count; ++i) {
    const TuningKeyValue& key = choice.keys[i];
    line.add(" %s=%" PRId64 "%s%d", key.name, key.value, key.value <= key.representative ? "<=" : ">",
             key.representative);
  }
  line.add(" -> %s %s %s, %s", choice.image, choice.psels, choice.copts, provenance_name(choice.provenance));
  if (*choice.source) line.add(" (%s)", choice.source);
  if (choice.median_us > 0) line.add(", %.4g us", static_cast<double>(choice.median_us));
  if (choice.backend_count < 2) return;
  line.add("; backend %s", choice.backend);
  for (int i = 0; i < choice.backend_count; ++i) {
    const BackendTime& other = choice.backends[i];
    if (!strcmp(other.name, choice.backend)) continue;
    if (other.median_us > 0)
      line.add(", %s takes %.4g us", other.name, static_cast<double>(other.median_us));
    else
      line.add(", %s was not compared", other.name);
  }
}

}  // namespace aotriton::v2::inline abi1
