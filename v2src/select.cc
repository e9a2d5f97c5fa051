#include "select.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "error.h"
#include "narrow.h"

namespace aotriton::v2::inline abi1 {

namespace {

const KernelTable* table_of(const KernelInfo& kernel, int arch) {
  const auto index = static_cast<size_t>(arch);
  return index < kernel.tables.size() ? kernel.tables[index] : nullptr;
}

// The place of a choice's value among those that there are images for; -1 where it is none of them.
int place_of(const ChoiceInfo& choice, int64_t value) {
  const std::span<const int64_t> values = choice.values;
  size_t i = 0;
  if (choice.round_up)
    while (i < values.size() && values[i] < value) ++i;
  else
    while (i < values.size() && values[i] != value) ++i;
  return i < values.size() ? static_cast<int>(i) : -1;
}

// Why a kernel's guards refuse a call, or null. `value(expression, &number)` evaluates; false where it can not.
template <class Value>
const char* refused(const KernelInfo& kernel, Value value) {
  for (const GuardInfo& guard : kernel.guards) {
    int64_t holds;
    if (!value(guard.condition, &holds) || !holds) return guard.why;
  }
  return nullptr;
}

// What choosing works out about a call once, however many kernels and backends ask.
class Survey {
 public:
  Survey(const Call& call_to_serve, const Place& where) noexcept
      : call(call_to_serve),
        place(where),
        fast_(where.info().aligned),
        values_(call.info->steps, {&call, nullptr, place.multiprocessors, 0}) {
    std::fill_n(digits_, kMaxChoices, kUnknown);
    if (fast_ != Addressing::offset32) return;
    for (size_t slot = 0; slot < call.info->slots(); ++slot)
      if (!near(slot)) unreached_.all |= static_cast<uint16_t>(1 << slot);
  }

  // How the kernel reaches its tensors: the arch's fast way where all of them allow it.
  Addressing addressing(const KernelInfo& kernel) noexcept {
    const Uses& uses = kernel.uses;
    for (unsigned left = uses.strided & ~seen_; left; left &= left - 1) {
      const int slot = std::countr_zero(left);
      if (!strides_suit(static_cast<size_t>(slot))) unreached_.strided |= static_cast<uint16_t>(1 << slot);
    }
    seen_ |= uses.strided;
    return (uses.all & unreached_.all) | (uses.strided & unreached_.strided) ? Addressing::general : fast_;
  }

  // False where the number does not fit in 63 bits.
  bool value(const Expression& expression, int64_t* value) const noexcept {
    return values_.get(expression.step, value) || own_value(expression, value);
  }

  // Why the kernel cannot serve the call, or null.
  const char* refusal(const KernelInfo& kernel) const noexcept {
    return refused(kernel, [this](const Expression& condition, int64_t* holds) { return value(condition, holds); });
  }

  // The digit of a choice of the kernel; -1 where none serves the call.
  int digit(const ChoiceInfo& choice, Addressing reached) noexcept {
    if (choice.number == kNoNumber) return own_digit(choice, reached);
    int16_t& digit = digits_[choice.number];
    if (digit == kUnknown) digit = shared_digit(choice);
    return digit;
  }

  const Call& call;
  const Place& place;

 private:
  static constexpr int16_t kUnknown = -2;

  Environment environment(Addressing reached) const noexcept {
    return {&call, nullptr, place.multiprocessors, static_cast<int>(reached)};
  }

  // Beside the way that almost all expressions take.
  [[gnu::noinline]] bool own_value(const Expression& expression, int64_t* value) const noexcept {
    return expression.step == kNoStep && evaluate(expression, environment(Addressing::general), value);
  }

  int own_digit(const ChoiceInfo& choice, Addressing reached) const noexcept {
    if (choice.of_addressing()) return place_of(choice, static_cast<int64_t>(reached));
    int64_t number;
    return evaluate(choice.value, environment(reached), &number) ? place_of(choice, number) : -1;
  }

  // A kernel that rounds a value further up than the lead does would compute the call, but is for others. One that
  // rounds it less far up has a value between two of the lead's.
  int16_t shared_digit(const ChoiceInfo& choice) const noexcept {
    int64_t number;
    if (!value(choice.value, &number)) return -1;
    const int found = place_of(choice, number);
    if (found >= 0 && choice.round_up && beyond_lead(choice, choice.values[static_cast<size_t>(found)])) return -1;
    return static_cast<int16_t>(found);
  }

  bool beyond_lead(const ChoiceInfo& choice, int64_t rounded) const noexcept {
    for (const ChoiceInfo& of_lead : call.info->lead().choices) {
      int64_t wanted;
      if (!of_lead.round_up || strcmp(of_lead.name, choice.name)) continue;
      if (!value(of_lead.value, &wanted)) continue;
      const int found = place_of(of_lead, wanted);
      if (found >= 0) return of_lead.values[static_cast<size_t>(found)] < rounded;
    }
    return false;
  }

  // Without a tensor nothing is in the way.
  bool given(size_t slot) const noexcept {
    return call[slot].sizes && (call[slot].data || !call.info->slot(slot).optional);
  }

  // Whether buffer instructions reach all of the tensor.
  bool near(size_t slot) const noexcept {
    constexpr int64_t kBufferLimit = int64_t{1} << 31;  // bytes
    return !given(slot) || extent(call.info->slot(slot), call[slot]) < kBufferLimit;
  }

  // Whether the fast way can follow the tensor's strides.
  bool strides_suit(size_t slot) const noexcept {
    constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes, of a tensor map
    constexpr int64_t kMostPacked = 16;                 // along the second of four dimensions, by any description
    constexpr int64_t kSizeLimit = INT32_MAX;           // elements along a dimension, of a tensor map's argument
    constexpr int64_t kAlignment = 16;                  // bytes, of both
    if (!given(slot)) return true;
    const OperandInfo& operand = call.info->slot(slot);
    const View& view = call[slot];
    if (!aligned_to(view.data, kAlignment)) return false;
    const bool swapped = operand.layout == Layout::strided && transposed(operand, view);
    const size_t rank = operand.dims.size(), contiguous = rank - 1 - swapped;
    const auto outside = [](int64_t number, int64_t most) {
      return static_cast<uint64_t>(number) - 1 >= static_cast<uint64_t>(most);
    };
    const int shift = view.dtype == DType::float32 ? 2 : 1;  // of bytes to elements
    const int64_t limit = kStrideLimit >> shift, partial = (kAlignment >> shift) - 1;
    for (size_t i = 0; i < rank; ++i) {
      const int64_t size = view.sizes[i], stride = view.strides[i];
      if (outside(size, kSizeLimit)) return false;
      if (size == 1) continue;
      const int64_t most = (rank == 4 && i == 1 ? limit / kMostPacked : limit) - 1;
      if (i == contiguous ? stride != 1 : outside(stride, most) || (stride & partial)) return false;
    }
    // A descriptor's store ends at a multiple of 16 bytes, where the next element may not be ours.
    return !(operand.written && fast_ == Addressing::descriptor && (view.sizes[contiguous] & partial));
  }

  const Addressing fast_;
  Uses unreached_ = {};  // slots that the fast way does not reach, and of which it can not follow the strides
  uint16_t seen_ = 0;    // slots whose strides were looked at
  const Values values_;
  int16_t digits_[kMaxChoices];  // by the choice's number; kUnknown where nobody has asked yet
};

// The entry of the least predicted time; what won the cell where none is predicted.
void choose_entry(const KernelInfo& kernel, Survey& survey, Selection* selection) {
  WorkOfCall work;
  const auto value = [&](const Expression& expression, int64_t* number) { return survey.value(expression, number); };
  if (!work_of(*kernel.work, value, &work)) return;
  work.multiprocessors = survey.place.multiprocessors;
  const Cheapest found = cheapest(selection->decisions->costs, work);
  if (found.predicted_us == 0) return;
  selection->chosen = found.entry;
  selection->predicted_us = found.predicted_us;
}

// The same among the entries that the filter allows; where neither a time nor the cell tells, the first one. False
// where it allows none.
bool choose_allowed(const KernelInfo& kernel, Survey& survey, By by, const EntryFilter& filter, Selection* selection) {
  const std::span<const Entry> entries = selection->lut->entries;
  const std::span<const Cost> costs = selection->decisions->costs;
  const auto value = [&](const Expression& expression, int64_t* number) { return survey.value(expression, number); };
  WorkOfCall work;
  const bool timed = by == By::time && kernel.work && !costs.empty() && work_of(*kernel.work, value, &work);
  work.multiprocessors = survey.place.multiprocessors;
  size_t first = entries.size();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!filter.allows(kernel, entries[i])) continue;
    first = std::min(first, i);
    const float time = timed ? cheapest(costs.subspan(i, 1), work).predicted_us : 0;
    if (time <= 0 || (selection->predicted_us > 0 && time >= selection->predicted_us)) continue;
    selection->chosen = i;
    selection->predicted_us = time;
  }
  if (selection->predicted_us <= 0 && first < entries.size() && !filter.allows(kernel, selection->entry()))
    selection->chosen = first;
  return first < entries.size();
}

// What the kernel runs for this call; false where it can not serve it, or is not in this build.
bool select(const KernelInfo& kernel, Survey& survey, By by, Selection* selection,
            const EntryFilter* filter = nullptr) {
  const Place& place = survey.place;
  const KernelTable* table = table_of(kernel, place.arch);
  if (!table || survey.refusal(kernel)) return false;
  const Addressing reached = survey.addressing(kernel);
  int number = 0;
  for (const ChoiceInfo& choice : kernel.choices) {
    const int digit = survey.digit(choice, reached);
    if (digit < 0) return false;
    number = number * static_cast<int>(choice.values.size()) + digit;
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
  if (filter) return choose_allowed(kernel, survey, by, *filter, selection);
  if (by == By::time && kernel.work && !selection->decisions->costs.empty()) choose_entry(kernel, survey, selection);
  return true;
}

// What keeps a kernel of the first backend from the call.
Error explain_refusal(const KernelInfo& kernel, Survey& survey) {
  const char* const arch = survey.place.info().arch;
  if (!table_of(kernel, survey.place.arch)) {
    char archs[160] = "";
    for (int i = 0; i < kArchCount; ++i)
      if (table_of(kernel, i)) snprintf(archs + strlen(archs), sizeof archs - strlen(archs), " %s", kArchs[i].arch);
    return fail(Error::unknown_arch, "%s: this build has no images for %s; it has:%s", kernel.name, arch,
                *archs ? archs : " none");
  }
  if (const char* why = survey.refusal(kernel))
    return fail(Error::not_supported, "%s: %s", survey.call.info->name, why);
  char choices[200] = "";
  for (const ChoiceInfo& choice : kernel.choices) {
    const int found = survey.digit(choice, survey.addressing(kernel));
    const size_t used = strlen(choices);
    if (found >= 0) {
      snprintf(choices + used, sizeof choices - used, " %s=%s", choice.name, choice.texts[static_cast<size_t>(found)]);
      continue;
    }
    int64_t value = choice.of_addressing() ? static_cast<int64_t>(survey.addressing(kernel)) : 0;
    if (!choice.of_addressing()) static_cast<void>(survey.value(choice.value, &value));
    snprintf(choices + used, sizeof choices - used, " %s=%" PRId64, choice.name, value);
  }
  return fail(Error::no_winner, "%s %s:%s is not in this build's coverage", kernel.name, arch, choices);
}

// What keeps a kernel from a call that select() gave no entry.
Unserved why_not(const KernelInfo& kernel, Survey& survey, const EntryFilter* filter) {
  if (!table_of(kernel, survey.place.arch)) return {"this build has no images of it for the arch", &kernel, nullptr};
  if (const char* why = survey.refusal(kernel)) return {why, &kernel, nullptr};
  for (const ChoiceInfo& choice : kernel.choices) {
    if (survey.digit(choice, survey.addressing(kernel)) >= 0) continue;
    const char* const why =
        choice.of_addressing() ? "it cannot address the tensors as they lie" : "it has no image for this choice";
    return {why, &kernel, &choice};
  }
  Selection unfiltered;
  if (filter && select(kernel, survey, By::cell, &unfiltered)) return {"no image of it is left", &kernel, nullptr};
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

// What the kernels of the first backend run, which others may have, too.
using OfFirst = std::span<const Selection>;

// What a kernel of another backend runs; false where it can not serve the call.
bool select(const KernelInfo& kernel, Survey& survey, By by, OfFirst of_first, Selection* selection) {
  for (const Selection& one : of_first)
    if (one.kernel == &kernel) {
      *selection = one;
      return true;
    }
  return select(kernel, survey, by, selection);
}

// What all kernels of a backend run; false where one of them can not serve the call.
bool select_all(const BackendInfo& backend, Survey& survey, By by, OfFirst of_first, Selection* selections) {
  for (size_t i = 0; i < backend.kernels.size(); ++i)
    if (!select(*backend.kernels[i], survey, by, of_first, &selections[i])) return false;
  return true;
}

// What all kernels of a backend run, if that is predicted to take less than `limit`: the time it takes; else 0.
float select_faster(const BackendInfo& backend, Survey& survey, OfFirst of_first, float limit, Selection* selections) {
  float total = 0;
  for (size_t i = 0; i < backend.kernels.size(); ++i) {
    if (!select(*backend.kernels[i], survey, By::time, of_first, &selections[i])) return 0;
    if (!backend.kernels[i]->work) continue;  // as predicted(), but the rest need not be known of what is too slow
    if (selections[i].predicted_us <= 0) return 0;
    total += selections[i].predicted_us;
    if (total >= limit) return 0;
  }
  return total;
}

// The backend of the least predicted time, among those of which all kernels are predicted. The first one is.
void choose_by_time(Survey& survey, Backends among, Dispatch* dispatch) {
  const std::span<const BackendInfo> backends = dispatch->info->backends;
  const bool any_workspace = among == Backends::all || !backends[0].workspace.empty();
  const OfFirst of_first(dispatch->kernels, backends[0].kernels.size());
  Selection buffers[2][kMaxKernels], *tried = buffers[0], *best = buffers[1];
  for (size_t i = 1; i < backends.size(); ++i) {
    if (!any_workspace && !backends[i].workspace.empty()) continue;
    const float time = select_faster(backends[i], survey, of_first, dispatch->predicted_us, tried);
    if (time <= 0) continue;
    dispatch->predicted_us = time;
    dispatch->backend = i;
    std::swap(tried, best);
  }
  if (dispatch->backend) std::copy_n(best, dispatch->chosen().kernels.size(), dispatch->kernels);
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

// As dispatch(), whatever hints the call has.
Error dispatch_freely(Call& call, const Place& place, Dispatch* dispatch, Backends among, By by) {
  const OperatorInfo& info = *call.info;
  if (!shape_workspace(call, false))
    return fail(Error::not_supported, "%s: the workspace overflows 63 bits", info.name);
  dispatch->info = &info;
  dispatch->place = place;
  dispatch->backend = 0;
  dispatch->times = nullptr;
  const BackendInfo& first = info.backends[0];
  const size_t others = first.kernels.size() - 1;
  Survey survey(call, place);
  Selection& lead = dispatch->kernels[others];
  if (!select(info.lead(), survey, by, &lead)) return explain_refusal(info.lead(), survey);
  choose_by_cell(lead, among, dispatch);
  if (by == By::time && was_measured(info, lead, *dispatch)) {
    by = By::cell;
    lead.chosen = lead.decisions->index[lead.cell];
    lead.predicted_us = 0;
  }
  for (size_t i = 0; i < others; ++i)
    if (!select(*first.kernels[i], survey, by, &dispatch->kernels[i]))
      return explain_refusal(*first.kernels[i], survey);
  dispatch->by = by;
  dispatch->predicted_us = predicted(first, dispatch->kernels);
  if (dispatch->predicted_us > 0) {
    dispatch->backend = 0;
    if (among != Backends::first) choose_by_time(survey, among, dispatch);
    return Error::success;
  }
  // A backend that can not serve this very call leaves it to the first one.
  if (!dispatch->backend) return Error::success;
  Selection selections[kMaxKernels];
  if (select_all(dispatch->chosen(), survey, by, {dispatch->kernels, first.kernels.size()}, selections))
    std::copy_n(selections, dispatch->chosen().kernels.size(), dispatch->kernels);
  else
    dispatch->backend = 0;
  return Error::success;
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
  AOTRITON_TRY(dispatch_freely(call, place, dispatch, among, by));
  dispatch->narrowed = dispatch->limited = false;
  dispatch->hint_count = 0;
  return call.hints ? narrow(call, among, by, dispatch) : Error::success;
}

Unserved examine(const BackendInfo& backend, const Call& call, const Place& place, Selection* selections, By by,
                 const EntryFilter* filter) noexcept {
  Survey survey(call, place);
  for (size_t i = 0; i < backend.kernels.size(); ++i)
    if (!select(*backend.kernels[i], survey, by, &selections[i], filter))
      return why_not(*backend.kernels[i], survey, filter);
  return {nullptr, nullptr, nullptr};
}

bool rounded(const KernelInfo& kernel, const ChoiceInfo& choice, const Call& call, const Place& place,
             int64_t* of_image, int64_t* of_call) noexcept {
  const Environment environment = {&call, nullptr, place.multiprocessors,
                                   static_cast<int>(usable_addressing(kernel, call, place))};
  const int found = digit(choice, environment);
  if (found < 0) return false;
  *of_image = choice.values[static_cast<size_t>(found)];
  return !of_call || evaluate(choice.value, environment, of_call);
}

Addressing usable_addressing(const KernelInfo& kernel, const Call& call, const Place& place) noexcept {
  return Survey(call, place).addressing(kernel);
}

const char* refusal(const KernelInfo& kernel, const Environment& environment) noexcept {
  return refused(kernel,
                 [&](const Expression& condition, int64_t* holds) { return evaluate(condition, environment, holds); });
}

int digit(const ChoiceInfo& choice, const Environment& environment) noexcept {
  int64_t value;
  return evaluate(choice.value, environment, &value) ? place_of(choice, value) : -1;
}

Error lay_out(Call& call, const Dispatch& dispatch, Workspace* workspace) noexcept {
  const BackendInfo& backend = dispatch.chosen();
  const int32_t* const psels = dispatch.kernels[backend.psels_of].entry().psels;
  return lay_out(call, backend, psels, dispatch.place.multiprocessors, workspace);
}

}  // namespace aotriton::v2::inline abi1
