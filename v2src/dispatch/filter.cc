#include "dispatch/filter.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "call/hints.h"
#include "dispatch/exclusion.h"

namespace aotriton::v2::inline abi1 {

namespace {

// The kernel of an operator that has an image of this name on an arch; null where none has.
const KernelInfo* owner_of(const char* image, const OperatorInfo& info, int arch) {
  for (const BackendInfo& backend : info.backends)
    for (const KernelInfo* kernel : backend.kernels) {
      const auto index = static_cast<size_t>(arch);
      const KernelTable* const table = index < kernel->tables.size() ? kernel->tables[index] : nullptr;
      for (size_t i = 0; table && i < table->images.size(); ++i)
        if (!strcmp(table->images[i]->name, image)) return kernel;
    }
  return nullptr;
}

bool has(const BackendInfo& backend, const KernelInfo* kernel) {
  return std::find(backend.kernels.begin(), backend.kernels.end(), kernel) != backend.kernels.end();
}

// Whether a description says in which order a kernel of the backend runs.
bool has_schedule(const BackendInfo& backend) {
  return std::any_of(backend.kernels.begin(), backend.kernels.end(),
                     [](const KernelInfo* kernel) { return !kernel->schedule.code.empty(); });
}

constexpr aotriton_hints kNoHints = {};

// Allows the entries of a backend that the hints allow.
class AllowedEntries final : public EntryFilter {
 public:
  AllowedEntries(Call& call, const aotriton_hints& hints, const Gpu& gpu) noexcept
      : call_(call), hints_(hints), gpu_(gpu) {}

  bool allows(const KernelInfo& kernel, const Entry& entry) const noexcept override {
    const char* const image = entry.image->name;
    if (&kernel == owner && strcmp(image, hints_.image)) return false;
    if (lists(hints_.exclude, image) || lists(exclusion(), image)) return false;
    if (schedule && !kernel.schedule.code.empty() && order_of(kernel, entry) != schedule) return false;
    return !limited || backend->kernels[backend->tunables_of] != &kernel ||
           workspace_bytes(call_, *backend, entry.tunables, gpu_.multiprocessors) <= hints_.workspace_limit;
  }

  const BackendInfo* backend = nullptr;  // whose entries are asked about
  const KernelInfo* owner = nullptr;     // of the only image that it may run
  int64_t schedule = AOTRITON_AUTO;      // that its kernels must have
  bool limited = false;                  // whether its workspace is

 private:
  int64_t order_of(const KernelInfo& kernel, const Entry& entry) const {
    int64_t order = AOTRITON_AUTO;
    evaluate(kernel.schedule, {&call_, entry.tunables, gpu_.multiprocessors, 0}, &order);
    return order;
  }

  Call& call_;
  const aotriton_hints& hints_;
  const Gpu& gpu_;
};

// A backend with what its kernels run for the call.
struct Alternative {
  size_t backend;
  float predicted_us;  // 0 where it is not known
  Selection kernels[kMaxKernels];
};

class HintFilter {
 public:
  HintFilter(Survey& survey, Call& call, By by, unsigned refused, Dispatch& dispatch)
      : survey_(survey),
        call_(call),
        hints_(call.hints ? *call.hints : kNoHints),
        by_(by),
        refused_(refused),
        dispatch_(dispatch),
        allowed_(call, hints_, dispatch.gpu) {}

  Error apply(Backends among) {
    AOTRITON_TRY(check_names());
    for (size_t i = 0; i < backends().size(); ++i) refusals_[i] = refusal_of(backends()[i], among);
    if (!pick(&best_)) return nothing_allowed();
    if (*hints_.backend) report("backend", true, "");
    if (*hints_.image) report("image", true, "");
    if (*hints_.exclude) report("exclude", true, "");
    if (hints_.workspace_limited) limit_workspace();
    if (hints_.schedule) keep_to_schedule();
    if (hints_.deterministic)
      report("deterministic", true,
             has_scalar("deterministic") ? ""
                                         : "no kernel of the operator is described as adding in an order that varies");
    if (hints_.batch_invariant)
      report("batch_invariant", has_scalar("batch_invariant"),
             has_scalar("batch_invariant") ? "" : "no kernel of the operator is described as such");
    if (hints_.objective == AOTRITON_LATENCY) report("latency", true, "the least time of a call alone always decides");
    if (hints_.objective == AOTRITON_THROUGHPUT)
      report("throughput", false, "no cost model says what a call leaves to others that run beside it");
    report_unknown();
    commit();
    return Error::success;
  }

 private:
  const OperatorInfo& info() const { return *dispatch_.info; }
  std::span<const BackendInfo> backends() const { return info().backends; }

  void report(std::string_view name, bool honoured, const char* why) {
    if (dispatch_.hint_count == AOTRITON_MOST_OUTCOMES) return;
    aotriton_hint_outcome& made = dispatch_.hints[dispatch_.hint_count++];
    made = {{}, honoured, why};
    name.copy(made.name, sizeof made.name - 1);
  }

  // not_supported where the backend or the image that the hints name does not exist. Excluded names need not.
  Error check_names() {
    const auto is_named = [&](const BackendInfo& backend) { return !strcmp(backend.name, hints_.backend); };
    if (*hints_.backend && std::none_of(backends().begin(), backends().end(), is_named)) {
      char names[200] = "";
      for (const BackendInfo& backend : backends())
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "", backend.name);
      return fail(Error::not_supported, "%s: hint backend=%s: its backends are %s", info().name, hints_.backend, names);
    }
    if (!*hints_.image) return Error::success;
    allowed_.owner = owner_of(hints_.image, info(), dispatch_.gpu.arch);
    if (allowed_.owner) return Error::success;
    return fail(Error::not_supported, "%s: hint image=%s: this build has no such image of its kernels for %s",
                info().name, hints_.image, dispatch_.gpu.info().arch);
  }

  bool is_excluded(const char* name) const { return lists(hints_.exclude, name) || lists(exclusion(), name); }

  // Why the hints, or what the call brings, do not allow a backend; null where they do.
  const char* refusal_of(const BackendInfo& backend, Backends among) const {
    if (*hints_.backend && strcmp(backend.name, hints_.backend)) return "another one is asked for";
    if (is_excluded(backend.name)) return "it is excluded";
    for (const KernelInfo* kernel : backend.kernels)
      if (is_excluded(kernel->name)) return "a kernel of it is excluded";
    if (allowed_.owner && !has(backend, allowed_.owner)) return "it does not have the image";
    if (refused_ >> (&backend - backends().data()) & 1) return "a launch of it would be larger than a driver takes";
    if (among == Backends::without_workspace && backends()[0].workspace.empty() &&
        needs_workspace(call_, backend, dispatch_.gpu.multiprocessors))
      return "it needs a workspace, and the call brings none";
    return nullptr;
  }

  // The best of what is allowed; false where nothing is. What was chosen without hints is the best, if it is allowed.
  bool pick(Alternative* best) {
    if (chosen_is_allowed()) {
      best->backend = dispatch_.backend;
      best->predicted_us = dispatch_.predicted_us;
      std::copy_n(dispatch_.kernels, dispatch_.chosen().kernels.size(), best->kernels);
      return true;
    }
    bool found = false;
    for (size_t i = 0; i < backends().size(); ++i) {
      if (refusals_[i] || (allowed_.schedule && !has_schedule(backends()[i]))) continue;
      Alternative tried;
      tried.backend = i;
      allowed_.backend = &backends()[i];
      if (examine(backends()[i], survey_, tried.kernels, by_, &allowed_).why) continue;
      tried.predicted_us = predicted(backends()[i], tried.kernels);
      if (!found || is_better(tried, *best)) *best = tried;
      found = true;
    }
    return found;
  }

  bool chosen_is_allowed() {
    const BackendInfo& chosen = dispatch_.chosen();
    if (refusals_[dispatch_.backend] || (allowed_.schedule && !has_schedule(chosen))) return false;
    allowed_.backend = &chosen;
    for (size_t i = 0; i < chosen.kernels.size(); ++i)
      if (!allowed_.allows(*chosen.kernels[i], dispatch_.kernels[i].entry())) return false;
    return true;
  }

  // By predicted time, and where neither has one, as measured in the cell.
  bool is_better(const Alternative& one, const Alternative& other) const {
    if (one.predicted_us > 0 && other.predicted_us > 0) return one.predicted_us < other.predicted_us;
    if (one.predicted_us > 0 || other.predicted_us > 0) return one.predicted_us > 0;
    const float* const times = times_in_cell(survey_);
    if (!times) return false;
    const float own = times[one.backend], others = times[other.backend];
    return own > 0 && (others <= 0 || own < others);
  }

  // The error that names each backend and why it is not allowed.
  Error nothing_allowed() {
    char text[kMostMessage] = "";
    for (size_t i = 0; i < backends().size(); ++i) {
      const BackendInfo& backend = backends()[i];
      Selection selections[kMaxKernels];
      Unserved unserved = {refusals_[i], nullptr, nullptr};
      allowed_.backend = &backend;
      if (!unserved.why) unserved = examine(backend, survey_, selections, by_, &allowed_);
      const size_t used = strlen(text);
      snprintf(text + used, sizeof text - used, "; %s: %s%s%s%s", backend.name, unserved.why,
               unserved.kernel ? " (" : "", unserved.kernel ? unserved.kernel->name : "", unserved.kernel ? ")" : "");
    }
    char variable[200] = "";
    if (*exclusion()) snprintf(variable, sizeof variable, "AOTRITON_EXCLUDE=%s", exclusion());
    const bool hinted = &hints_ != &kNoHints;
    return fail(Error::not_supported, "%s: %s%s%s %s nothing that serves this call%s", info().name,
                hinted ? "its hints" : "", hinted && *variable ? " and " : "", variable, hinted ? "leave" : "leaves",
                text);
  }

  size_t workspace_of(const Alternative& one) {
    const BackendInfo& backend = backends()[one.backend];
    const Entry& entry = one.kernels[backend.tunables_of].entry();
    return workspace_bytes(call_, backend, entry.tunables, dispatch_.gpu.multiprocessors);
  }

  // Where nothing keeps the limit, the backend that needs the least is taken.
  void limit_workspace() {
    allowed_.limited = true;
    dispatch_.limited |= workspace_of(best_) > hints_.workspace_limit;
    if (pick(&best_)) return report("workspace_limit", true, "");
    allowed_.limited = false;
    const char* refusals[kMaxBackends];
    std::copy_n(refusals_, kMaxBackends, refusals);
    size_t least = SIZE_MAX, frugal = best_.backend;
    for (size_t i = 0; i < backends().size(); ++i) {
      std::fill_n(refusals_, kMaxBackends, "it needs more workspace");
      refusals_[i] = refusals[i];
      Alternative alone;
      if (refusals[i] || (!backends()[i].sizes_follow_tunables &&
                          workspace_bytes(call_, backends()[i], nullptr, dispatch_.gpu.multiprocessors) >= least))
        continue;
      if (!pick(&alone) || workspace_of(alone) >= least) continue;
      least = workspace_of(alone);
      frugal = i;
    }
    std::fill_n(refusals_, kMaxBackends, "it needs more workspace");
    refusals_[frugal] = nullptr;
    pick(&best_);
    report("workspace_limit", false, "every way that serves the call needs more; this one needs the least");
  }

  void keep_to_schedule() {
    allowed_.schedule = hints_.schedule;
    if (pick(&best_)) return report("schedule", true, "");
    allowed_.schedule = AOTRITON_AUTO;
    const bool described = std::any_of(backends().begin(), backends().end(), has_schedule);
    report("schedule", false,
           described ? "this build has no image in this order that serves the call"
                     : "no kernel of the operator has its order described");
  }

  // Whether the operator has a scalar of a hint's name, which was set, so that guards have followed it.
  bool has_scalar(const char* name) const {
    const auto is_it = [name](const ScalarInfo& scalar) { return !strcmp(scalar.name, name); };
    return std::any_of(info().scalars.begin(), info().scalars.end(), is_it);
  }

  void report_unknown() {
    std::string_view names = hints_.unknown;
    for (std::string_view name = next_word(&names, " "); !name.empty(); name = next_word(&names, " "))
      report(name, false, "there is no hint of this name");
  }

  void commit() {
    const size_t count = backends()[best_.backend].kernels.size();
    bool same = best_.backend == dispatch_.backend;
    for (size_t i = 0; same && i < count; ++i) same = best_.kernels[i].chosen == dispatch_.kernels[i].chosen;
    if (same) return;
    dispatch_.constrained = true;
    dispatch_.backend = best_.backend;
    dispatch_.predicted_us = best_.predicted_us;
    std::copy_n(best_.kernels, count, dispatch_.kernels);
  }

  Survey& survey_;
  Call& call_;
  const aotriton_hints& hints_;
  const By by_;
  const unsigned refused_;
  Dispatch& dispatch_;
  AllowedEntries allowed_;
  Alternative best_;
  const char* refusals_[kMaxBackends];  // by backend; null where it is allowed
};

}  // namespace

unsigned beyond_limit(Call& call, int multiprocessors) noexcept {
  unsigned beyond = 0;
  for (size_t i = 0; i < call.info->backends.size(); ++i) {
    const BackendInfo& backend = call.info->backends[i];
    const size_t limit = call.hints->workspace_limit;
    if (!backend.workspace.empty() && !backend.sizes_follow_tunables &&
        workspace_bytes(call, backend, nullptr, multiprocessors, limit) > limit)
      beyond |= 1u << i;
  }
  return beyond;
}

Error filter_by_hints(Survey& survey, Call& call, Backends among, By by, unsigned refused,
                      Dispatch* dispatch) noexcept {
  return HintFilter(survey, call, by, refused, *dispatch).apply(among);
}

}  // namespace aotriton::v2::inline abi1
