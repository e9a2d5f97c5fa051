#include "dispatch/explain.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "dispatch/exclusion.h"
#include "dispatch/select.h"

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

// The medians of a backend's kernels together; 0 where one has none. A kernel without choices does not count: it is not
// measured, and no measured call launches it.
float total_of(std::span<const Selection> selections) {
  float total = 0;
  for (const Selection& selection : selections) {
    if (selection.kernel->choices.empty()) continue;
    const float median = selection.origin().median_us;
    if (median <= 0) return 0;
    total += median;
  }
  return total;
}

// The call's value of a choice, as the first kernel that has images for it spells it; empty where none has.
const char* text_of(const char* name, Survey& survey) {
  for (const BackendInfo& backend : survey.call.info->backends)
    for (const KernelInfo* kernel : backend.kernels)
      for (const ChoiceInfo& choice : kernel->choices) {
        if (strcmp(choice.name, name)) continue;
        const int found = survey.digit(choice, survey.addressing(*kernel));
        if (found >= 0) return choice.texts[static_cast<size_t>(found)];
      }
  return "";
}

}  // namespace

KernelChoice explain(const Dispatch& dispatch, size_t kernel) noexcept {
  const Selection& selection = dispatch.kernels[kernel];
  const Entry& entry = selection.entry();
  const Origin& origin = selection.origin();
  const std::span<const BackendInfo> backends = dispatch.info->backends;
  KernelChoice choice = {};
  choice.size = sizeof choice;
  choice.kernel = selection.kernel->name;
  choice.arch = dispatch.gpu.info().arch;
  choice.functional = selection.lut->functional;
  choice.godel_number = selection.godel_number;
  choice.key_count = static_cast<int32_t>(selection.kernel->keys.size());
  for (size_t i = 0; i < selection.kernel->keys.size(); ++i) {
    const std::span<const int32_t> bins = selection.lut->bins[i];
    choice.keys[i] = {selection.kernel->keys[i].name, selection.keys[i], bins[Lut::bin_of(bins, selection.keys[i])]};
  }
  choice.image = entry.image->name;
  choice.tunables = entry.tunables_text;
  choice.compile_options = entry.compile_options_text;
  const Entry& of_bin = selection.lut->entries[selection.table->index[selection.cell()]];
  choice.bin_image = of_bin.image->name;
  choice.bin_tunables = of_bin.tunables_text;
  choice.bin_compile_options = of_bin.compile_options_text;
  choice.bin_median_us = origin.median_us;
  choice.model = "";
  choice.predicted_us = selection.predicted_us;
  choice.predicted_total_us = dispatch.predicted_us;
  if (selection.predicted_us > 0) {
    choice.predicted_error = selection.cost()->error;
    choice.model = selection.cost()->source;
  }
  if (of_bin.image == entry.image) {
    choice.provenance = static_cast<int32_t>(origin.provenance);
    choice.median_us = origin.median_us;
    choice.source = origin.source;
  } else {
    choice.provenance = static_cast<int32_t>(Provenance::predicted);
    choice.source = !dispatch.constrained ? "faster than its bin's image by the cost model"
                    : *exclusion()        ? "its hints or AOTRITON_EXCLUDE leave no better one"
                                          : "its hints leave no better one";
  }
  choice.product = dispatch.gpu.product_info().name;
  choice.exact_product = dispatch.gpu.exact;
  choice.shape = origin.shape;
  choice.measured = origin.measured;
  choice.low_us = origin.low_us;
  choice.high_us = origin.high_us;
  choice.runners_up = origin.runners_up.data();
  choice.runner_up_count = static_cast<int32_t>(origin.runners_up.size());
  choice.certificate_product = "";
  if (const Certificate* const certificate = certificate_of(*entry.image, dispatch.gpu.product)) {
    choice.certificate_product = products(dispatch.gpu.arch)[certificate->product].name;
    choice.certificate_checks = certificate->checks;
    choice.certificate_problems = certificate->problems;
    choice.certificate_day = static_cast<int32_t>(certificate->day);
    choice.certificate_error = certificate->error;
    choice.certificate_allowed = certificate->allowed;
  }
  choice.backend = backends[dispatch.backend].name;
  choice.hint_count = static_cast<int32_t>(dispatch.hint_count);
  std::copy_n(dispatch.hints, dispatch.hint_count, choice.hints);
  choice.backend_count = static_cast<int32_t>(backends.size());
  // Field by field: what lies between them stays zero.
  for (size_t i = 0; i < backends.size(); ++i) choice.backends[i].name = backends[i].name;
  return choice;
}

static_assert(std::extent_v<decltype(KernelChoice::keys)> == kMaxKeys);
static_assert(std::extent_v<decltype(KernelChoice::backends)> == kMaxBackends);
static_assert(std::extent_v<decltype(KernelChoice::backend_states)> == kMaxBackends);
static_assert(std::extent_v<decltype(KernelChoice::backends_predicted_us)> == kMaxBackends);

void add_prediction(ChosenCall chosen, size_t kernel, KernelChoice* choice) noexcept {
  const Dispatch& dispatch = chosen.dispatch();
  if (dispatch.by != By::cell) return;
  const BackendInfo& backend = dispatch.chosen();
  const Survey survey(chosen.call(), dispatch.gpu);
  Selection selections[kMaxKernels];
  std::copy_n(dispatch.kernels, backend.kernels.size(), selections);
  for (size_t i = 0; i < backend.kernels.size(); ++i) selections[i].predicted_us = predicted(selections[i], survey);
  choice->predicted_total_us = predicted(backend, selections);
  choice->predicted_us = selections[kernel].predicted_us;
  if (!(choice->predicted_us > 0)) return;
  choice->predicted_error = selections[kernel].cost()->error;
  choice->model = selections[kernel].cost()->source;
}

void add_call_facts(ChosenCall chosen, size_t kernel, KernelChoice* choice) noexcept {
  const Dispatch& dispatch = chosen.dispatch();
  Call call(chosen.call());
  shape_workspace(call);  // as it was when backends were compared
  Survey survey(call, dispatch.gpu);
  const std::span<const BackendInfo> backends = dispatch.info->backends;
  const float* const times = times_in_cell(survey);
  for (size_t i = 0; i < backends.size(); ++i) {
    choice->backends[i].median_us = times ? times[i] : 0;
    Selection selections[kMaxKernels];
    const Unserved unserved = examine(backends[i], survey, selections, dispatch.by);
    BackendState& state = choice->backend_states[i];
    state = {"", "", "", "", 0, !backends[i].workspace.empty()};
    if (!unserved.why) {
      choice->backends_predicted_us[i] = predicted(backends[i], selections);
      const std::span selected(selections, backends[i].kernels.size());
      state.total_us = total_of(selected);
      for (const Selection& one : selected) state.needs_workspace |= one.entry().image->global_scratch != 0;
      continue;
    }
    state.refusal = unserved.why;
    state.kernel = unserved.kernel->name;
    if (!unserved.choice) continue;
    state.choice = unserved.choice->name;
    state.choice_value = text_of(state.choice, survey);
  }
  int64_t flops;
  if (!call.info->flops.code.empty() && survey.value(call.info->flops, &flops))
    choice->flops = static_cast<double>(flops);
  const KernelInfo& info = *dispatch.kernels[kernel].kernel;
  for (const ChoiceInfo& one : info.choices) {
    if (choice->padding_count == std::ssize(choice->paddings)) break;
    int64_t value;
    const int found = survey.digit(one, survey.addressing(info));
    const bool of_sizes = std::ranges::all_of(one.value.code, [](const Instruction& step) {  // or of the largest
      return step.code == Code::size || step.code == Code::maximum;
    });
    if (!one.round_up || !of_sizes || found < 0 || !survey.value(one.value, &value)) continue;
    const int64_t padded = one.values[static_cast<size_t>(found)];
    if (value < padded) choice->paddings[choice->padding_count++] = {one.name, value, padded};
  }
}

Measured measured_at(const KernelChoice& choice) noexcept {
  bool larger = choice.padding_count > 0, smaller = false;
  for (int i = 0; i < choice.key_count; ++i) {
    larger |= choice.keys[i].representative > choice.keys[i].value;
    smaller |= choice.keys[i].representative < choice.keys[i].value;
  }
  if (larger && smaller) return Measured::otherwise;
  return larger ? Measured::larger : smaller ? Measured::smaller : Measured::alike;
}

const char* measured_name(Measured measured) noexcept {
  constexpr const char* names[] = {"alike", "larger", "smaller", "other"};
  return names[static_cast<int>(measured)];
}

const BackendState& chosen_state(const KernelChoice& choice) noexcept {
  int i = 0;
  while (i + 1 < choice.backend_count && strcmp(choice.backends[i].name, choice.backend)) ++i;
  return choice.backend_states[i];
}

void format_day(int64_t day, char* text, size_t size) noexcept {
  snprintf(text, size, "%04" PRId64 "-%02" PRId64 "-%02" PRId64, day / 10000, day / 100 % 100, day % 100);
}

void format_time(double us, char* text, size_t size) noexcept {
  if (us < 1e-4)  // of a kernel that has nothing to do
    snprintf(text, size, "0 us");
  else if (us < 1e3)
    snprintf(text, size, "%.4g us", us);
  else if (us < 1e6)
    snprintf(text, size, "%.4g ms", us * 1e-3);
  else
    snprintf(text, size, us < 1e9 ? "%.4g s" : "%.0f s", us * 1e-6);
}

void format_line(const KernelChoice& choice, char* text, size_t size) noexcept {
  Line line(text, size);
  line.add("%s", choice.image);
  for (int i = 0; i < choice.key_count; ++i)
    line.add("%s%s=%" PRId64, i ? " " : " for ", choice.keys[i].name, choice.keys[i].value);
  if (choice.backend_count > 1) line.add(", %s", choice.backend);
  char time[32];
  if (choice.predicted_us > 0) {
    format_time(static_cast<double>(choice.predicted_us), time, sizeof time);
    line.add(", %s", time);
  } else if (choice.median_us > 0) {
    format_time(static_cast<double>(choice.median_us), time, sizeof time);
    line.add(", %s in its bin", time);
  }
  for (int i = 0; i < choice.hint_count; ++i)
    line.add("; hint %s %shonoured", choice.hints[i].name, choice.hints[i].honoured ? "" : "not ");
}

}  // namespace aotriton::v2::inline abi1
