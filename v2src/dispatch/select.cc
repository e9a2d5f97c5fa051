#include "dispatch/select.h"

#include <algorithm>
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
Kind::Functional find_functional(const KernelInfo& kernel, Survey& survey) {
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

// The kernel's table for the call; false where it has none.
bool find_table(const KernelInfo& kernel, Survey& survey, Selection* selection) {
  Kind::Functional own;
  Kind::Functional* found = &own;
  Kind* const kind = survey.kind(kernel);
  if (kind) found = &kind->functionals[kernel.number];
  if (!kind || !(kind->known >> kernel.number & 1)) {
    *found = find_functional(kernel, survey);
    if (kind) kind->known |= uint64_t{1} << kernel.number;
  }
  if (!found->lut) return false;
  selection->kernel = &kernel;
  selection->lut = found->lut;
  selection->table = &found->lut->products[static_cast<size_t>(survey.gpu.product)];
  selection->godel_number = found->godel_number;
  selection->predicted_us = 0;
  return true;
}

// The call's keys in the table, and what won in their cell unless a predicted time has chosen. False where a tuning key
// does not fit in 63 bits.
bool find_cell(const Survey& survey, Selection* selection) {
  const std::span<const KeyInfo> keys = selection->kernel->keys;
  for (size_t i = 0; i < keys.size(); ++i)
    if (!survey.value(keys[i].value, &selection->keys[i])) return false;
  if (selection->predicted_us <= 0) selection->chosen = selection->table->index[selection->cell()];
  return true;
}

// The entry of the least predicted time, where any is predicted.
void choose_entry(const Survey& survey, Selection* selection) {
  WorkOfCall work;
  const std::span<const Cost> costs = selection->table->costs;
  if (!selection->kernel->work || costs.empty() || !survey.work(*selection->kernel, &work)) return;
  const Cheapest found = cheapest(costs, work);
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
Error explain_refusal(const KernelInfo& kernel, Survey& survey) {
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
Unserved why_not(const KernelInfo& kernel, Survey& survey, const EntryFilter* filter) {
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
const BackendCell* compared(const Selection& lead, const Dispatch& dispatch) {
  const auto arch = static_cast<size_t>(dispatch.gpu.arch), product = static_cast<size_t>(dispatch.gpu.product);
  const OperatorTable* table = arch < dispatch.info->tables.size() ? dispatch.info->tables[arch] : nullptr;
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
  bool choose() {
    dispatch_.backend = 0;
    dispatch_.times = nullptr;
    dispatch_.predicted_us = 0;
    const BackendCell* const cell = select_first();
    dispatch_.by = by_;
    const bool first = serving_ == first_kernels().size() && allowed(0);
    if (first) dispatch_.predicted_us = predicted(backends()[0], dispatch_.kernels);
    if (by_ == By::time && (!first || dispatch_.predicted_us > 0) && choose_by_time(first)) return true;
    if (by_ == By::time && choose_by_time(false, Compared::own_shapes)) return true;
    if (cell && choose_by_cell(*cell)) return true;
    if (first) return true;
    for (size_t i = 1; i < backends().size(); ++i)
      if (take(i)) return true;
    return false;
  }

  // What keeps the first backend from the call; where it refuses such calls, and another one lacks but images, what
  // that lacks.
  Error refusal() const {
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
    has_lead_ = select(*first_kernels()[others], survey_, by_, &lead);
    if (!has_lead_) return nullptr;
    const BackendCell* const cell = compared(lead, dispatch_);
    if (cell) dispatch_.times = cell->median_us;
    if (by_ == By::time && cell && was_measured(*dispatch_.info, lead)) {
      by_ = By::cell;
      lead.chosen = lead.table->index[lead.cell()];
      lead.predicted_us = 0;
    }
    while (serving_ < others && select(*first_kernels()[serving_], survey_, by_, &dispatch_.kernels[serving_]))
      ++serving_;
    if (serving_ == others) ++serving_;
    return cell;
  }

  // What the first backend has selected for a kernel that others have, too; null where there is none.
  const Selection* shared_with_first(const KernelInfo& kernel) const {
    if (serving_ < first_kernels().size()) return nullptr;
    for (size_t i = 0; i < first_kernels().size(); ++i)
      if (first_kernels()[i] == &kernel) return &dispatch_.kernels[i];
    return nullptr;
  }

  // Finds the tables of a backend's kernels and what they run, if that is predicted to take less than `limit`: the time
  // it takes; else 0. Cells are left for later.
  float time_of(const BackendInfo& backend, float limit, Selection* selections) {
    float total = 0;
    for (size_t i = 0; i < backend.kernels.size(); ++i) {
      const KernelInfo& kernel = *backend.kernels[i];
      if (const Selection* const known = shared_with_first(kernel)) {
        selections[i] = *known;
      } else {
        if (!find_table(kernel, survey_, &selections[i])) return 0;
        choose_entry(survey_, &selections[i]);
      }
      if (!kernel.work) continue;  // as predicted(), but the rest need not be known of what is too slow
      if (selections[i].predicted_us <= 0) return 0;
      total += selections[i].predicted_us;
      if (total >= limit) return 0;
    }
    return total;
  }

  // Where no time of the first backend is predicted, backends with shapes of their own are left: cells do not compare
  // them, and the calls that they serve are what they are for.
  enum class Compared { all, own_shapes };

  // The backend of the least predicted time, among those of which all kernels are predicted. False where there is none.
  bool choose_by_time(bool first, Compared compared = Compared::all) {
    Selection buffers[2][kMaxKernels], *tried = buffers[0], *best = buffers[1];
    float limit = first ? dispatch_.predicted_us : FLT_MAX;
    for (size_t i = 1; i < backends().size(); ++i) {
      if (refused(i) || (compared == Compared::own_shapes && !backends()[i].own_shapes)) continue;
      const float time = time_of(backends()[i], limit, tried);
      if (time <= 0 || !allowed(i)) continue;
      limit = time;
      dispatch_.backend = i;
      std::swap(tried, best);
    }
    if (!dispatch_.backend) return first;
    const size_t count = dispatch_.chosen().kernels.size();
    for (size_t i = 0; i < count; ++i)
      if (!find_cell(survey_, &best[i])) {
        refused_ |= 1u << dispatch_.backend;
        dispatch_.backend = 0;
        return choose_by_time(first, compared);
      }
    std::copy_n(best, count, dispatch_.kernels);
    dispatch_.predicted_us = limit;
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
    for (size_t k = 0; k < kernels.size(); ++k) {
      if (const Selection* const known = shared_with_first(*kernels[k]))
        selections[k] = *known;
      else if (!select(*kernels[k], survey_, by_, &selections[k]))
        return false;
    }
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
};

// The workspace and the launches of what was chosen.
Misfit plan_launches(Call& call, const Survey& survey, Dispatch* dispatch) {
  const BackendInfo& backend = dispatch->chosen();
  const Gpu& gpu = dispatch->gpu;
  const int32_t* const psels = dispatch->kernels[backend.psels_of].entry().psels;
  Misfit misfit = lay_out(call, backend, psels, gpu.multiprocessors, &dispatch->workspace);
  for (size_t i = 0; i < backend.kernels.size() && !misfit; ++i) {
    const Entry& entry = dispatch->kernels[i].entry();
    misfit =
        plan_kernel(call, *backend.kernels[i], *entry.image, entry.psels, gpu, &survey.steps(), &dispatch->plans[i]);
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

Result<ChosenCall> dispatch(CheckedCall checked, const Gpu& gpu, Dispatch* made, Backends among, By by,
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
  const Misfit misfit = lay_out(*call, backend, dispatch.kernels[backend.psels_of].entry().psels,
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
