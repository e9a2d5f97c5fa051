#include "explain.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "select.h"

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

KernelChoice explain(const Dispatch& dispatch, size_t kernel) noexcept {
  const Selection& selection = dispatch.kernels[kernel];
  const Entry& entry = selection.entry();
  const Evidence& evidence = selection.lut->evidence[selection.cell];
  const std::span<const BackendInfo> backends = dispatch.info->backends;
  KernelChoice choice = {};
  choice.size = sizeof choice;
  choice.kernel = selection.kernel->name;
  choice.arch = dispatch.place.info().arch;
  choice.functional = selection.lut->functional;
  choice.godel_number = selection.godel_number;
  choice.key_count = static_cast<int32_t>(selection.kernel->keys.size());
  for (size_t i = 0; i < selection.kernel->keys.size(); ++i) {
    const std::span<const int32_t> bins = selection.lut->bins[i];
    choice.keys[i] = {selection.kernel->keys[i].name, selection.keys[i], bins[Lut::bin_of(bins, selection.keys[i])]};
  }
  choice.image = entry.image->name;
  choice.psels = entry.psels_text;
  choice.copts = entry.copts_text;
  choice.provenance = static_cast<int32_t>(evidence.provenance);
  choice.median_us = evidence.median_us;
  choice.source = evidence.source;
  choice.runners_up = evidence.runners_up.data();
  choice.runner_up_count = static_cast<int32_t>(evidence.runners_up.size());
  choice.backend = backends[dispatch.backend].name;
  choice.backend_count = static_cast<int32_t>(backends.size());
  for (size_t i = 0; i < backends.size(); ++i)
    choice.backends[i] = {backends[i].name, dispatch.times ? dispatch.times[i] : 0};
  return choice;
}

void format_line(const KernelChoice& choice, char* text, size_t size) noexcept {
  Line line(text, size);
  line.add("%s %s F%d (%s)", choice.kernel, choice.arch, choice.godel_number, choice.functional);
  for (int i = 0; i < choice.key_count; ++i) {
    const TuningKeyValue& key = choice.keys[i];
    line.add(" %s=%" PRId64 "%s%d", key.name, key.value, key.value <= key.representative ? "<=" : ">",
             key.representative);
  }
  line.add(" -> %s %s %s, %s", choice.image, choice.psels, choice.copts,
           provenance_name(static_cast<Provenance>(choice.provenance)));
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
