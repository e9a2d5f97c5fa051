#include "dispatch/select.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "dispatch/exclusion.h"
#include "dispatch/filter.h"

namespace aotriton::v2::inline abi1 {

namespace {

const KernelTable* table_of(const KernelInfo& kernel, int arch) {
  const auto index = static_cast<size_t>(arch);
  return index < kernel.tables.size() ? kernel.tables[index] : nullptr;
}

// The kernel's functional for the call; none where its guards refuse the call, or it is not in this build.
[[gnu::noinline]] Kind::Functional find_functional(const KernelInfo& kernel, Survey& survey) {
  const Gpu& gpu = survey.gpu;
  const KernelTable* table = table_of(kernel, gpu.arch);
  if (!table || survey.refusal(kernel)) return {nullptr, 0};
  const Addressing reached = survey.addressing(kernel);
  int number = 0;
  for (const ChoiceInfo& choice : kernel.choices) {
    const int digit = survey.digit(choice, reached);
    if (digit < 0) return {nullptr, 0};
    number = number * static_cast<int>(choice.values.size()) + digit;
  }
  const auto index = static_cast<size_t>(number);
  const Lut* lut = index < table->luts.size() ? table->luts[index] : nullptr;
  const auto product = static_cast<size_t>(gpu.product);
  if (lut && product >= lut->products.size()) lut = nullptr;  // too few: of a family built beside another library
  return {lut, number};
}

// The same, as a thread keeps it for calls of the kind.
[[gnu::always_inline]] inline Kind::Functional functional_of(const KernelInfo& kernel, Survey& survey) {
  Kind* const kind = kernel.number < Kind::kMost ? survey.kind() : nullptr;
  if (kind && kind->known >> kernel.number & 1) [[likely]]
    return kind->functionals[kernel.number];
  const Kind::Functional found = find_functional(kernel, survey);
  if (kind) {
    kind->functionals[kernel.number] = found;
    kind->known |= uint64_t{1} << kernel.number;
  }
  return found;
}

// The kernel's table for the call; false where it has none.
[[gnu::hot]] bool find_table(const KernelInfo& kernel, Survey& survey, Selection* selection) {
  const Kind::Functional found = functional_of(kernel, survey);
  if (!found.lut) return false;
  selection->kernel = &kernel;
  selection->lut = found.lut;
  selection->table = &found.lut->products[static_cast<size_t>(survey.gpu.product)];
  selection->godel_number = found.godel_number;
  selection->predicted_us = 0;
  return true;
}

// The call's keys in the table, and what won in their cell unless a predicted time has chosen. False where a tuning key
// does not fit in 63 bits.
[[gnu::hot]] bool find_cell(const Survey& survey, Selection* selection) {
  const std::span<const KeyInfo> keys = selection->kernel->keys;
  for (size_t i = 0; i < keys.size(); ++i)
    if (!survey.value(keys[i].value, &selection->keys[i])) return false;
  if (selection->predicted_us <= 0) selection->chosen = selection->table->index[selection->cell()];
  return true;
}

// The kernel's entry of the least predicted time; a time of 0 where none is predicted.
Cheapest cheapest_for(const KernelInfo& kernel, const ProductTable& table, const Survey& survey) {
  WorkOfCall work;
  if (!kernel.work || table.costs.empty() || !survey.work(kernel, &work)) return {0, 0};
  return cheapest(table.costs, work);
}

// The entry of the least predicted time, where any is predicted.
void choose_entry(const Survey& survey, Selection* selection) {
  const Cheapest found = cheapest_for(*selection->kernel, *selection->table, survey);
  if (found.predicted_us <= 0) return;
  selection->chosen = found.entry;
  selection->predicted_us = found.predicted_us;
}

// The same among the entries that the filter allows; where neither a time nor the cell tells, the first one. False
// where it allows none.
bool choose_allowed(const Survey& survey, By by, const EntryFilter& filter, Selection* selection) {
  const KernelInfo& kernel = *selection->kernel;
  const std::span<const Entry> entries = selection->lut->entries;
  const std::span<const Cost> costs = selection->table->costs;
  WorkOfCall work;
  const bool timed = by == By::time && kernel.work && !costs.empty() && survey.work(kernel, &work);
  size_t first = entries.size();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!filter.allows(kernel, entries[i])) continue;
    first = std::min(first, i);
    const float time = timed ? cheapest(costs.subspan(i, 1), work).predicted_us : 0;
    if (time <= 0 || (selection->predicted_us > 0 && time >= selection->predicted_us)) continue;
    selection->chosen = i;
    selection->predicted_us = time;
  }
  if (first == entries.size() || !find_cell(survey, selection)) return false;
  if (selection->predicted_us <= 0 && !filter.allows(kernel, selection->entry())) selection->chosen = first;
  return true;
}

// What the kernel runs for this call; false where it can not serve it, or is not in this build.
bool select(const KernelInfo& kernel, Survey& survey, By by, Selection* selection,
            const EntryFilter* filter = nullptr) {
  if (!find_table(kernel, survey, selection)) return false;
  if (filter) return choose_allowed(survey, by, *filter, selection);
  if (by == By::time) choose_entry(survey, selection);
  return find_cell(survey, selection);
}

// What keeps a kernel of the first backend from the call.
[[gnu::cold]] Error explain_refusal(const KernelInfo& kernel, Survey& survey) {
  const char* const arch = survey.gpu.info().arch;
  if (!table_of(kernel, survey.gpu.arch)) {
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
[[gnu::cold]] Unserved why_not(const KernelInfo& kernel, Survey& survey, const EntryFilter* filter) {
  if (!table_of(kernel, survey.gpu.arch)) return {"this build has no images of it for the arch", &kernel, nullptr};
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

// The lead's cell in the backends' table; null where they were not compared.
const BackendCell* compared(const Selection& lead, const Survey& survey) {
  const auto arch = static_cast<size_t>(survey.gpu.arch), product = static_cast<size_t>(survey.gpu.product);
  const std::span<const OperatorTable* const> tables = survey.call.info->tables;
  const OperatorTable* table = arch < tables.size() ? tables[arch] : nullptr;
  if (!table) return nullptr;
  const BackendCells cells = table->products[product][static_cast<size_t>(lead.godel_number)];
  return cells.empty() ? nullptr : &cells[lead.cell()];
}

// Whether the call is the very problem that the backends were compared on in its cell.
bool was_measured(const OperatorInfo& info, const Selection& lead) {
  if (!info.exact_cells) return false;
  for (size_t i = 0; i < lead.lut->bins.size(); ++i) {
    const std::span<const int32_t> bins = lead.lut->bins[i];
    if (lead.keys[i] != bins[Lut::bin_of(bins, lead.keys[i])]) return false;
  }
  return true;
}

// The choice of a backend.
class Chooser {
 public:
  // `refused`: backends by number, as bits, of which a launch cannot be made.
  Chooser(Call& call, Survey& survey, Backends among, By by, unsigned refused, Dispatch& dispatch)
      : call_(call), survey_(survey), among_(among), by_(by), refused_(refused), dispatch_(dispatch) {}

  // False where no backend serves the call; refusal() says why.
  [[gnu::hot]] bool choose() {
    // A cell may come before a predicted time only where it may be the very problem.
    if (by_ == By::time && !dispatch_.info->exact_cells && choose_by_times_alone()) return true;
    dispatch_.backend = 0;
    dispatch_.predicted_us = 0;
    const BackendCell* const cell = select_first();
    dispatch_.by = by_;
    const bool first = serving_ == first_kernels().size() && allowed(0);
    if (first) dispatch_.predicted_us = predicted(backends()[0], dispatch_.kernels);
    if (by_ == By::time && (!first || dispatch_.predicted_us > 0) && choose_by_time(first)) return true;
    const bool in_cell = cell && cell->median_us[0] > 0;
    if (by_ == By::time && choose_by_time(false, in_cell ? Compared::own_shapes : Compared::all)) return true;
    if (cell && choose_by_cell(*cell)) return true;
    if (first) return true;
    for (size_t i = 1; i < backends().size(); ++i)
      if (take(i)) return true;
    return false;
  }

  // What keeps the first backend from the call; where it refuses such calls, and another one lacks but images, what
  // that lacks.
  [[gnu::cold]] Error refusal() const {
    const KernelInfo& lead = dispatch_.info->lead();
    const KernelInfo& own = has_lead_ && serving_ < first_kernels().size() ? *first_kernels()[serving_] : lead;
    const KernelInfo* const missing = survey_.refusal(own) ? kernel_without_images() : nullptr;
    return explain_refusal(missing ? *missing : own, survey_);
  }

 private:
  std::span<const BackendInfo> backends() const { return dispatch_.info->backends; }
  std::span<const KernelInfo* const> first_kernels() const { return backends()[0].kernels; }

  // Of a backend that would serve the call a kernel that this build has no images of for it; null where there is none.
  const KernelInfo* kernel_without_images() const {
    const auto would_serve = [&](const KernelInfo* kernel) {
      const auto has_value = [&](const ChoiceInfo& choice) {
        return survey_.digit(choice, survey_.addressing(*kernel)) >= 0;
      };
      return table_of(*kernel, survey_.gpu.arch) && !survey_.refusal(*kernel) &&
             std::all_of(kernel->choices.begin(), kernel->choices.end(), has_value);
    };
    for (size_t i = 1; i < backends().size(); ++i) {
      const std::span<const KernelInfo* const> kernels = backends()[i].kernels;
      if (!allowed(i) || !std::all_of(kernels.begin(), kernels.end(), would_serve)) continue;
      Selection selection;
      for (const KernelInfo* kernel : kernels)
        if (!find_table(*kernel, survey_, &selection)) return kernel;
    }
    return nullptr;
  }

  // The backend of the least predicted time, where the first one's is known: no cell decides then. False where it is
  // not, or what was found cannot be had.
  bool choose_by_times_alone() {
    float total = 0;
    for (size_t i = 0; i < first_kernels().size(); ++i) {
      const Cheapest* const one = by_time(*first_kernels()[i], i);
      if (!one) return false;
      if (!first_kernels()[i]->work) continue;  // as predicted()
      if (one->predicted_us <= 0) return false;
      total += one->predicted_us;
    }
    if (!allowed(0)) return false;
    dispatch_.backend = 0;
    dispatch_.predicted_us = total;
    dispatch_.by = By::time;
    compare_all(Compared::all);
    return select_chosen(dispatch_.kernels);
  }

  bool refused(size_t i) const { return refused_ >> i & 1; }

  bool allowed(size_t i) const {
    return !refused(i) && (among_ == Backends::all || !backends()[0].workspace.empty() ||
                           !needs_workspace(call_, backends()[i], survey_.gpu.multiprocessors));
  }

  // What the kernels of the first backend run, the lead, which is its last one, before the others. The lead's cell in
  // the backends' table, or null.
  const BackendCell* select_first() {
    const size_t others = first_kernels().size() - 1;
    Selection& lead = dispatch_.kernels[others];
    has_lead_ = select_at(others, *first_kernels()[others], &lead);
    if (!has_lead_) return nullptr;
    const BackendCell* const cell = compared(lead, survey_);
    if (by_ == By::time && cell && was_measured(*dispatch_.info, lead)) {
      by_ = By::cell;
      lead.chosen = lead.table->index[lead.cell()];
      lead.predicted_us = 0;
    }
    while (serving_ < others && select_at(serving_, *first_kernels()[serving_], &dispatch_.kernels[serving_]))
      ++serving_;
    if (serving_ == others) ++serving_;
    return cell;
  }

  // What a kernel of a backend, by its place there, runs by predicted time; null where it cannot serve the call. Cells
  // are left for later. Worked out once for all backends that have the kernel.
  const Cheapest* by_time(const KernelInfo& kernel, size_t place) {
    const bool numbered = kernel.number < Kind::kMost;
    const uint64_t bit = numbered ? uint64_t{1} << kernel.number : 0;
    Cheapest& made = numbered ? by_time_[kernel.number] : unnumbered_[place];
    if (tried_ & bit) return serves_ & bit ? &made : nullptr;
    tried_ |= bit;
    const Lut* const lut = functional_of(kernel, survey_).lut;
    if (!lut) return nullptr;
    serves_ |= bit;
    made = cheapest_for(kernel, lut->products[static_cast<size_t>(survey_.gpu.product)], survey_);
    return &made;
  }

  // As select() of a kernel of a backend, by its place there.
  bool select_at(size_t place, const KernelInfo& kernel, Selection* selection) {
    if (by_ == By::cell) return select(kernel, survey_, by_, selection);
    const Cheapest* const found = by_time(kernel, place);
    if (!found || !find_table(kernel, survey_, selection)) return false;
    selection->chosen = found->entry;
    selection->predicted_us = found->predicted_us;
    return find_cell(survey_, selection);
  }

  // Whether a backend that takes this time is to be taken instead of what was found so far: of equals the first one.
  bool is_better(float time, size_t backend) const {
    return time < dispatch_.predicted_us || (time == dispatch_.predicted_us && backend < dispatch_.backend);
  }

  // The same of a backend's kernel. Of one that serves no call of the kind, the backend is not asked again.
  const Cheapest* by_time_of(size_t backend, size_t place) {
    const KernelInfo& kernel = *backends()[backend].kernels[place];
    const Cheapest* const found = by_time(kernel, place);
    if (!found && kind_ && kernel.number < Kind::kMost) kind_->unserved |= 1u << backend;
    return found;
  }

  // Whether the kernel of a backend that took the longest last time leaves the backend a chance.
  bool may_be_better(size_t backend, size_t longest) {
    const Cheapest* const one = by_time_of(backend, longest);
    return one && is_better(one->predicted_us, backend);
  }

  // The time that a backend is predicted to take, if it is better; else 0.
  float better_time_of(size_t backend) {
    uint8_t own = 0;
    uint8_t& longest = kind_ ? kind_->longest[backend] : own;
    if (!may_be_better(backend, longest)) return 0;
    const std::span<const KernelInfo* const> kernels = backends()[backend].kernels;
    float total = 0, most = 0;
    for (size_t i = 0; i < kernels.size(); ++i) {
      const Cheapest* const one = by_time_of(backend, i);
      if (!one) return 0;
      if (!kernels[i]->work) continue;  // as predicted(), but the rest need not be known of what is too slow
      if (one->predicted_us <= 0) return 0;
      if (one->predicted_us > most) most = one->predicted_us, longest = static_cast<uint8_t>(i);
      total += one->predicted_us;
      if (!is_better(total, backend)) return 0;
    }
    return total;
  }

  // Where the first backend has a measured time in place of a predicted one, backends with shapes of their own are
  // left: cells do not compare them, and the calls that they serve are what they are for.
  enum class Compared { all, own_shapes };

  void compare(size_t backend, Compared compared) {
    if (kind_ && kind_->unserved >> backend & 1) return;
    if (refused(backend) || (compared == Compared::own_shapes && !backends()[backend].own_shapes)) return;
    const float time = better_time_of(backend);
    if (time <= 0 || !allowed(backend)) return;
    dispatch_.predicted_us = time;
    dispatch_.backend = backend;
  }

  // Compares all backends with what was found so far. What the last call of the kind had comes first: it is mostly the
  // best again, and few kernels of others take less than all of it.
  [[gnu::hot]] void compare_all(Compared compared) {
    const size_t last = kind_ ? kind_->backend : 0;
    if (last) compare(last, compared);
    unsigned left = ((1u << backends().size()) - 1) & ~(1u | 1u << last | (kind_ ? kind_->unserved : 0));
    for (; left; left &= left - 1) compare(static_cast<size_t>(std::countr_zero(left)), compared);
    if (kind_) kind_->backend = static_cast<uint8_t>(dispatch_.backend);
  }

  // What the kernels of the chosen backend run; false where one of them cannot.
  bool select_chosen(Selection* selections) {
    const std::span<const KernelInfo* const> kernels = dispatch_.chosen().kernels;
    for (size_t i = 0; i < kernels.size(); ++i)
      if (!select_at(i, *kernels[i], &selections[i])) return false;
    return true;
  }

  // The backend of the least predicted time, among those of which all kernels are predicted. False where there is none.
  bool choose_by_time(bool first, Compared compared = Compared::all) {
    const float of_first = dispatch_.predicted_us;
    if (!first) dispatch_.predicted_us = FLT_MAX;
    compare_all(compared);
    if (!dispatch_.backend) {
      dispatch_.predicted_us = of_first;
      return first;
    }
    Selection chosen[kMaxKernels];  // not in their place at once: the first backend's stay where these cannot be had
    if (!select_chosen(chosen)) {
      refused_ |= 1u << dispatch_.backend;
      dispatch_.backend = 0;
      dispatch_.predicted_us = of_first;
      return choose_by_time(first, compared);
    }
    std::copy_n(chosen, dispatch_.chosen().kernels.size(), dispatch_.kernels);
    return true;
  }

  // The backend that was measured to be the fastest in the lead's cell, if it is another one than the first.
  bool choose_by_cell(const BackendCell& cell) {
    size_t best = cell.backend;
    if (among_ == Backends::without_workspace && !allowed(best) && !refused(best)) {
      best = 0;
      for (size_t i = 1; i < backends().size(); ++i)
        if (allowed(i) && cell.median_us[i] > 0 && cell.median_us[i] < cell.median_us[best]) best = i;
    }
    return best && take(best);
  }

  // Takes the backend, if it can serve this very call.
  bool take(size_t i) {
    if (!allowed(i)) return false;
    Selection selections[kMaxKernels];
    const std::span<const KernelInfo* const> kernels = backends()[i].kernels;
    for (size_t k = 0; k < kernels.size(); ++k)
      if (!select_at(k, *kernels[k], &selections[k])) return false;
    std::copy_n(selections, kernels.size(), dispatch_.kernels);
    dispatch_.backend = i;
    dispatch_.predicted_us = by_ == By::time ? predicted(backends()[i], selections) : 0;
    return true;
  }

  Call& call_;
  Survey& survey_;
  const Backends among_;
  By by_;
  unsigned refused_;
  Dispatch& dispatch_;
  bool has_lead_ = false;
  size_t serving_ = 0;  // kernels of the first backend that serve the call, from the first one on
  Kind* const kind_ = survey_.kind();
  // What by_time() has found, by the kernel's number or by its place; and of which numbers, as bits.
  uint64_t tried_ = 0, serves_ = 0;
  Cheapest by_time_[Kind::kMost], unnumbered_[kMaxKernels];
};

// The workspace and the launches of what was chosen.
Misfit plan_launches(Call& call, const Survey& survey, Dispatch* dispatch) {
  const BackendInfo& backend = dispatch->chosen();
  const Gpu& gpu = dispatch->gpu;
  const int32_t* const tunables = dispatch->kernels[backend.tunables_of].entry().tunables;
  Misfit misfit = lay_out(call, backend, tunables, gpu.multiprocessors, &dispatch->workspace);
  for (size_t i = 0; i < backend.kernels.size() && !misfit; ++i) {
    const Entry& entry = dispatch->kernels[i].entry();
    misfit =
        plan_kernel(call, *backend.kernels[i], *entry.image, entry.tunables, gpu, &survey.steps(), &dispatch->plans[i]);
    if (!misfit) misfit = add_scratch(*entry.image, &dispatch->plans[i], &dispatch->workspace);
  }
  return misfit;
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

float predicted(const Selection& selection, const Survey& survey) noexcept {
  const Cost* const cost = selection.cost();
  WorkOfCall work;
  if (!cost || !selection.kernel->work || !survey.work(*selection.kernel, &work)) return 0;
  return cheapest({cost, 1}, work).predicted_us;
}

const float* times_in_cell(Survey& survey) noexcept {
  Selection lead;
  if (!select(survey.call.info->lead(), survey, By::cell, &lead)) return nullptr;
  const BackendCell* const cell = compared(lead, survey);
  return cell ? cell->median_us : nullptr;
}

[[gnu::hot]] Result<ChosenCall> dispatch(CheckedCall checked, const Gpu& gpu, Dispatch* made, Backends among, By by,
                                         bool worded) noexcept {
  Call& call = *checked;
  if (!shape_workspace(call)) return fail(Error::not_supported, "%s: the workspace overflows 63 bits", call.info->name);
  made->info = call.info;
  made->gpu = gpu;
  Survey survey(call, gpu);
  const unsigned beyond = call.hints && call.hints->workspace_limited ? beyond_limit(call, gpu.multiprocessors) : 0;
  unsigned refused = 0;
  Misfit first;
  for (;;) {
    made->constrained = made->limited = false;
    made->hint_count = 0;
    const unsigned left_out = among == Backends::within_limit ? beyond : 0;
    if (Chooser chooser(call, survey, among, by, refused | left_out, *made); !chooser.choose()) {
      if (among != Backends::without_workspace) {
        if (first) return refuse(call, first);
        return worded ? chooser.refusal() : Error::not_supported;
      }
      among = Backends::all;  // every backend needs a workspace, so that the error is about the workspace
      continue;
    }
    if (beyond >> made->backend & 1) {
      Dispatch within;
      within.info = made->info;
      within.gpu = made->gpu;
      within.constrained = within.limited = true;
      within.hint_count = 0;
      if (Chooser(call, survey, among, by, refused | beyond, within).choose())
        *made = within;  // else the hint's outcome says so
    }
    if (call.hints || *exclusion()) {
      const Error error = filter_by_hints(survey, call, among, by, refused, made);
      if (error != Error::success) return error;
    }
    const Misfit misfit = plan_launches(call, survey, made);
    if (!misfit) return ChosenCall(call, *made);
    if (!first) first = misfit;
    refused |= 1u << made->backend;
    shape_workspace(call);
  }
}

Result<ChosenCall> lay_out(CheckedCall call, const Dispatch& dispatch) noexcept {
  const BackendInfo& backend = dispatch.chosen();
  Workspace workspace;
  const Misfit misfit = lay_out(*call, backend, dispatch.kernels[backend.tunables_of].entry().tunables,
                                dispatch.gpu.multiprocessors, &workspace);
  if (misfit) return refuse(*call, misfit);
  return ChosenCall(*call, dispatch);
}

Unserved examine(const BackendInfo& backend, Survey& survey, Selection* selections, By by,
                 const EntryFilter* filter) noexcept {
  for (size_t i = 0; i < backend.kernels.size(); ++i)
    if (!select(*backend.kernels[i], survey, by, &selections[i], filter))
      return why_not(*backend.kernels[i], survey, filter);
  return {nullptr, nullptr, nullptr};
}

}  // namespace aotriton::v2::inline abi1
