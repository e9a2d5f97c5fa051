#include "select.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "error.h"

namespace aotriton::v2::inline abi1 {

namespace {

const KernelTable* table_of(const KernelInfo& kernel, int arch) {
  const auto index = static_cast<size_t>(arch);
  return index < kernel.tables.size() ? kernel.tables[index] : nullptr;
}

// What choosing works out about a call once, however many kernels and backends ask.
class Survey {
 public:
  Survey(const Call& call, const Place& place) noexcept : call(call), place(place) {}

  // How the kernel reaches its tensors: the arch's fast way where all of them allow it.
  Addressing addressing(const KernelInfo& kernel) noexcept {
    const Addressing fast = place.info().aligned;
    for (const Use& use : kernel.uses) {
      const int number = 2 * use.slot + use.strided;
      const uint64_t bit = uint64_t{1} << number;
      if (!(known_ & bit)) {
        known_ |= bit;
        if (reached_fast(use)) fast_ |= bit;
      }
      if (!(fast_ & bit)) return Addressing::general;
    }
    return fast;
  }

  // An expression of the call alone, without psels and addressing. Kernels share the code of what is alike.
  bool value(Expression expression, int64_t* value) noexcept {
    Value& known = values_[(reinterpret_cast<uintptr_t>(expression.data()) / sizeof(Instruction)) % kValues];
    if (known.code != expression.data()) {
      const Environment environment = {&call, nullptr, place.multiprocessors, 0};
      known.code = nullptr;
      if (!evaluate(expression, environment, &known.number)) return false;
      known.code = expression.data();
    }
    *value = known.number;
    return true;
  }

  // Whether a choice that the call's value is rounded up for has the value that the lead's has. A kernel that rounds
  // further would compute the call, but is for others.
  bool rounded_as_lead(const ChoiceInfo& choice, int64_t rounded) noexcept {
    for (const ChoiceInfo& of_lead : call.info->lead().choices) {
      int64_t wanted;
      if (!of_lead.round_up || strcmp(of_lead.name, choice.name) || !value(of_lead.value, &wanted)) continue;
      for (const int64_t leads : of_lead.values)
        if (wanted <= leads) return leads == rounded;
    }
    return true;
  }

  const Call& call;
  const Place& place;

 private:
  static constexpr size_t kValues = 64;
  static_assert(2 * kMaxOperands <= 64);
  struct Value {
    const Instruction* code = nullptr;
    int64_t number;
  };

  bool reached_fast(const Use& use) const noexcept {
    constexpr int64_t kBufferLimit = int64_t{1} << 31;  // bytes that AMD buffer instructions reach
    constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes, of a tensor map
    constexpr int64_t kSizeLimit = INT32_MAX;           // elements along a dimension, of a tensor map's argument
    constexpr int64_t kAlignment = 16;                  // bytes, of both
    const Addressing fast = place.info().aligned;
    const OperandInfo& operand = call.info->slot(use.slot);
    const View& view = call[use.slot];
    if (!view.sizes || (operand.optional && !view.data)) return true;
    const size_t rank = operand.dims.size(), contiguous = rank - 1 - transposed(operand, view);
    if (use.strided) {
      if (!aligned_to(view.data, kAlignment)) return false;
      for (size_t i = 0; i < rank; ++i) {
        const int64_t size = view.sizes[i], stride = view.strides[i];
        if (size == 0 || size > kSizeLimit) return false;
        const int64_t bytes = bytes_of(view.dtype);
        // A descriptor's store ends at a multiple of 16 bytes, where the next element may not be ours.
        if (i == contiguous && operand.written && fast == Addressing::descriptor && size * bytes % kAlignment)
          return false;
        if (size == 1) continue;
        if (i == contiguous ? stride != 1
                            : stride <= 0 || stride >= kStrideLimit / bytes || stride * bytes % kAlignment)
          return false;
      }
    }
    return fast != Addressing::offset32 || extent(operand, view) < kBufferLimit;
  }

  uint64_t known_ = 0, fast_ = 0;  // by slot, and by whether strides are followed
  Value values_[kValues];
};

Environment environment_of(const KernelInfo& kernel, const Call& call, const Place& place) {
  return {&call, nullptr, place.multiprocessors, static_cast<int>(usable_addressing(kernel, call, place))};
}

// The entry of the least predicted time; what won the cell where none is predicted.
void choose_entry(const KernelInfo& kernel, Survey& survey, Selection* selection) {
  WorkOfCall work;
  const auto value = [&](Expression expression, int64_t* number) { return survey.value(expression, number); };
  if (!work_of(*kernel.work, value, &work)) return;
  work.multiprocessors = survey.place.multiprocessors;
  const std::span<const Cost> costs = selection->decisions->costs;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!costs[i].known()) continue;
    const float time = cost_of(costs[i], work);
    if (selection->predicted_us > 0 && time >= selection->predicted_us) continue;
    selection->predicted_us = time;
    selection->chosen = i;
  }
}

// What the kernel runs for this call; false where it can not serve it, or is not in this build.
bool select(const KernelInfo& kernel, Survey& survey, By by, Selection* selection) {
  const Place& place = survey.place;
  const KernelTable* table = table_of(kernel, place.arch);
  if (!table) return false;
  const Environment environment = {&survey.call, nullptr, place.multiprocessors,
                                   static_cast<int>(survey.addressing(kernel))};
  if (refusal(kernel, environment)) return false;
  int number = 0;
  for (const ChoiceInfo& choice : kernel.choices) {
    const int place_of_value = digit(choice, environment);
    if (place_of_value < 0) return false;
    if (choice.round_up && !survey.rounded_as_lead(choice, choice.values[static_cast<size_t>(place_of_value)]))
      return false;
    number = number * static_cast<int>(choice.values.size()) + place_of_value;
  }
  const auto index = static_cast<size_t>(number);
  const Lut* lut = index < table->luts.size() ? table->luts[index] : nullptr;
  const auto product = static_cast<size_t>(place.product);
  if (!lut || product >= lut->decisions.size()) return false;  // too few: of a family built beside another library
  selection->kernel = &kernel;
  selection->lut = lut;
  selection->decisions = &lut->decisions[product];
  selection->godel_number = number;
  for (size_t i = 0; i < kernel.keys.size(); ++i)
    if (!survey.value(kernel.keys[i].value, &selection->keys[i])) return false;
  selection->cell = lut->cell(selection->keys);
  selection->chosen = selection->decisions->index[selection->cell];
  selection->predicted_us = 0;
  if (by == By::time && kernel.work && !selection->decisions->costs.empty()) choose_entry(kernel, survey, selection);
  return true;
}

// What keeps a kernel of the first backend from the call.
Error explain_refusal(const KernelInfo& kernel, const Call& call, const Place& place) {
  const char* const arch = place.info().arch;
  if (!table_of(kernel, place.arch)) {
    char archs[160] = "";
    for (int i = 0; i < kArchCount; ++i)
      if (table_of(kernel, i)) snprintf(archs + strlen(archs), sizeof archs - strlen(archs), " %s", kArchs[i].arch);
    return fail(Error::unknown_arch, "%s: this build has no images for %s; it has:%s", kernel.name, arch,
                *archs ? archs : " none");
  }
  const Environment environment = environment_of(kernel, call, place);
  if (const char* why = refusal(kernel, environment)) return fail(Error::not_supported, "%s: %s", call.info->name, why);
  char choices[200] = "";
  for (const ChoiceInfo& choice : kernel.choices) {
    const int found = digit(choice, environment);
    const size_t used = strlen(choices);
    if (found >= 0) {
      snprintf(choices + used, sizeof choices - used, " %s=%s", choice.name, choice.texts[static_cast<size_t>(found)]);
      continue;
    }
    int64_t value = 0;
    static_cast<void>(evaluate(choice.value, environment, &value));
    snprintf(choices + used, sizeof choices - used, " %s=%" PRId64, choice.name, value);
  }
  return fail(Error::no_winner, "%s %s:%s is not in this build's coverage", kernel.name, arch, choices);
}

// What keeps a kernel from a call that select() gave no entry.
Unserved why_not(const KernelInfo& kernel, Survey& survey) {
  if (!table_of(kernel, survey.place.arch)) return {"this build has no images of it for the arch", &kernel, nullptr};
  const Environment environment = environment_of(kernel, survey.call, survey.place);
  if (const char* why = refusal(kernel, environment)) return {why, &kernel, nullptr};
  for (const ChoiceInfo& choice : kernel.choices) {
    const int found = digit(choice, environment);
    if (found >= 0 && (!choice.round_up || survey.rounded_as_lead(choice, choice.values[static_cast<size_t>(found)])))
      continue;
    const bool reach = choice.value.size() == 1 && choice.value[0].code == Code::addressing;
    return {reach ? "it cannot address the tensors as they lie" : "it has no image for this choice", &kernel, &choice};
  }
  return {"this build has no image of it for this functional", &kernel, nullptr};
}

// The fastest of the backends without a workspace in a cell.
size_t fastest_without_workspace(std::span<const BackendInfo> backends, const BackendCell& cell) {
  size_t best = 0;
  for (size_t i = 1; i < backends.size(); ++i)
    if (backends[i].workspace.empty() && cell.median_us[i] > 0 && cell.median_us[i] < cell.median_us[best]) best = i;
  return best;
}

// The backend that was measured to be the fastest of those in the lead's cell.
void choose_by_cell(const Selection& lead, Backends among, Dispatch* dispatch) {
  const auto arch = static_cast<size_t>(dispatch->place.arch), product = static_cast<size_t>(dispatch->place.product);
  const OperatorTable* table = arch < dispatch->info->tables.size() ? dispatch->info->tables[arch] : nullptr;
  if (!table) return;
  const BackendCells cells = table->products[product][static_cast<size_t>(lead.godel_number)];
  if (cells.empty()) return;
  const BackendCell& cell = cells[lead.cell];
  dispatch->times = cell.median_us;
  if (among == Backends::first) return;
  const std::span<const BackendInfo> backends = dispatch->info->backends;
  dispatch->backend = cell.backend;
  if (among == Backends::without_workspace && backends[0].workspace.empty() &&
      !backends[cell.backend].workspace.empty())
    dispatch->backend = fastest_without_workspace(backends, cell);
}

// What all kernels of a backend run; false where one of them can not serve the call. One is known already.
bool select_all(const BackendInfo& backend, Survey& survey, By by, const Selection& known, Selection* selections) {
  for (size_t i = 0; i < backend.kernels.size(); ++i) {
    if (backend.kernels[i] == known.kernel)
      selections[i] = known;
    else if (!select(*backend.kernels[i], survey, by, &selections[i]))
      return false;
  }
  return true;
}

// The backend of the least predicted time, among those of which all kernels are predicted. The first one is.
void choose_by_time(Survey& survey, const Selection& lead, Backends among, Dispatch* dispatch) {
  const std::span<const BackendInfo> backends = dispatch->info->backends;
  const bool any_workspace = among == Backends::all || !backends[0].workspace.empty();
  for (size_t i = 1; i < backends.size(); ++i) {
    if (!any_workspace && !backends[i].workspace.empty()) continue;
    Selection selections[kMaxKernels];
    if (!select_all(backends[i], survey, By::time, lead, selections)) continue;
    const float time = predicted(backends[i], selections);
    if (time <= 0 || time >= dispatch->predicted_us) continue;
    dispatch->predicted_us = time;
    dispatch->backend = i;
    memcpy(dispatch->kernels, selections, sizeof selections);
  }
}

// Whether the call is the very problem that the backends were compared on in its cell.
bool was_measured(const OperatorInfo& info, const Selection& lead, const Dispatch& dispatch) {
  if (!info.exact_cells || !dispatch.times) return false;
  for (size_t i = 0; i < lead.lut->bins.size(); ++i) {
    const std::span<const int32_t> bins = lead.lut->bins[i];
    if (lead.keys[i] != bins[Lut::bin_of(bins, lead.keys[i])]) return false;
  }
  return true;
}

}  // namespace

float predicted(const BackendInfo& backend, const Selection* selections) noexcept {
  float total = 0;
  for (size_t i = 0; i < backend.kernels.size(); ++i) {
    if (!backend.kernels[i]->work) continue;  // its time is in that of the others
    if (selections[i].predicted_us <= 0) return 0;
    total += selections[i].predicted_us;
  }
  return total;
}

Error dispatch(Call& call, const Place& place, Dispatch* dispatch, Backends among, By by) noexcept {
  const OperatorInfo& info = *call.info;
  if (!shape_workspace(call, false))
    return fail(Error::not_supported, "%s: the workspace overflows 63 bits", info.name);
  dispatch->info = &info;
  dispatch->place = place;
  dispatch->backend = 0;
  dispatch->times = nullptr;
  const BackendInfo& first = info.backends[0];
  Survey survey(call, place);
  Selection lead;
  if (!select(info.lead(), survey, by, &lead)) return explain_refusal(info.lead(), call, place);
  choose_by_cell(lead, among, dispatch);
  if (by == By::time && was_measured(info, lead, *dispatch)) {
    by = By::cell;
    lead.chosen = lead.decisions->index[lead.cell];
    lead.predicted_us = 0;
  }
  for (size_t i = 0; i < first.kernels.size(); ++i) {
    if (first.kernels[i] == lead.kernel)
      dispatch->kernels[i] = lead;
    else if (!select(*first.kernels[i], survey, by, &dispatch->kernels[i]))
      return explain_refusal(*first.kernels[i], call, place);
  }
  dispatch->by = by;
  dispatch->predicted_us = predicted(first, dispatch->kernels);
  if (dispatch->predicted_us > 0) {
    dispatch->backend = 0;
    if (among != Backends::first) choose_by_time(survey, lead, among, dispatch);
    return Error::success;
  }
  // A backend that can not serve this very call leaves it to the first one.
  if (!dispatch->backend) return Error::success;
  Selection selections[kMaxKernels];
  if (select_all(dispatch->chosen(), survey, by, lead, selections))
    memcpy(dispatch->kernels, selections, sizeof selections);
  else
    dispatch->backend = 0;
  return Error::success;
}

Unserved examine(const BackendInfo& backend, const Call& call, const Place& place, Selection* selections,
                 By by) noexcept {
  Survey survey(call, place);
  for (size_t i = 0; i < backend.kernels.size(); ++i)
    if (!select(*backend.kernels[i], survey, by, &selections[i])) return why_not(*backend.kernels[i], survey);
  return {nullptr, nullptr, nullptr};
}

bool rounded(const KernelInfo& kernel, const ChoiceInfo& choice, const Call& call, const Place& place,
             int64_t* of_image, int64_t* of_call) noexcept {
  const Environment environment = environment_of(kernel, call, place);
  const int found = digit(choice, environment);
  if (found < 0) return false;
  *of_image = choice.values[static_cast<size_t>(found)];
  return !of_call || evaluate(choice.value, environment, of_call);
}

Addressing usable_addressing(const KernelInfo& kernel, const Call& call, const Place& place) noexcept {
  Survey survey(call, place);
  return survey.addressing(kernel);
}

const char* refusal(const KernelInfo& kernel, const Environment& environment) noexcept {
  for (const GuardInfo& guard : kernel.guards) {
    int64_t holds;
    if (!evaluate(guard.condition, environment, &holds) || !holds) return guard.why;
  }
  return nullptr;
}

int digit(const ChoiceInfo& choice, const Environment& environment) noexcept {
  int64_t value;
  if (!evaluate(choice.value, environment, &value)) return -1;
  for (size_t i = 0; i < choice.values.size(); ++i)
    if (choice.round_up ? value <= choice.values[i] : value == choice.values[i]) return static_cast<int>(i);
  return -1;
}

Error derive_sizes(Call& call, const Dispatch& dispatch) noexcept {
  const BackendInfo& backend = dispatch.chosen();
  for (const DerivedSize& derived : backend.sizes) {
    const Environment environment = {&call, dispatch.kernels[backend.psels_of].entry().psels,
                                     dispatch.place.multiprocessors, 0};
    if (!evaluate(derived.value, environment, &call.sizes[derived.size]))
      return fail(Error::not_supported, "%s: %s does not fit in 63 bits", call.info->name,
                  call.info->sizes[derived.size]);
  }
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
