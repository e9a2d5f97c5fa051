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

Environment environment_of(const KernelInfo& kernel, const Call& call, const Place& place) {
  return {&call, nullptr, place.multiprocessors, static_cast<int>(usable_addressing(kernel, call, place))};
}

// The entry that won for this call; false where the kernel can not serve it, or is not in this build.
bool select(const KernelInfo& kernel, const Call& call, const Place& place, Selection* selection) {
  const KernelTable* table = table_of(kernel, place.arch);
  if (!table) return false;
  const Environment environment = environment_of(kernel, call, place);
  if (refusal(kernel, environment)) return false;
  int number = 0;
  for (const ChoiceInfo& choice : kernel.choices) {
    const int place_of_value = digit(choice, environment);
    if (place_of_value < 0) return false;
    number = number * static_cast<int>(choice.values.size()) + place_of_value;
  }
  const auto index = static_cast<size_t>(number);
  const Lut* lut = index < table->luts.size() ? table->luts[index] : nullptr;
  if (!lut) return false;
  selection->kernel = &kernel;
  selection->lut = lut;
  selection->godel_number = number;
  for (size_t i = 0; i < kernel.keys.size(); ++i)
    if (!evaluate(kernel.keys[i].value, environment, &selection->keys[i])) return false;
  selection->cell = lut->cell(selection->keys);
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
Unserved why_not(const KernelInfo& kernel, const Call& call, const Place& place) {
  if (!table_of(kernel, place.arch)) return {"this build has no images of it for the arch", &kernel, nullptr};
  const Environment environment = environment_of(kernel, call, place);
  if (const char* why = refusal(kernel, environment)) return {why, &kernel, nullptr};
  for (const ChoiceInfo& choice : kernel.choices) {
    if (digit(choice, environment) >= 0) continue;
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
void choose_backend(const Selection& lead, Backends among, Dispatch* dispatch) {
  dispatch->backend = 0;
  dispatch->times = nullptr;
  const auto arch = static_cast<size_t>(dispatch->place.arch);
  const OperatorTable* table = arch < dispatch->info->tables.size() ? dispatch->info->tables[arch] : nullptr;
  if (!table) return;
  const std::span<const BackendCell> cells = table->functionals[static_cast<size_t>(lead.godel_number)];
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

}  // namespace

Error dispatch(Call& call, const Place& place, Dispatch* dispatch, Backends among) noexcept {
  const OperatorInfo& info = *call.info;
  if (!shape_workspace(call, false))
    return fail(Error::not_supported, "%s: the workspace overflows 63 bits", info.name);
  dispatch->info = &info;
  dispatch->place = place;
  const BackendInfo& first = info.backends[0];
  const size_t place_of_lead = first.kernels.size() - 1;
  Selection lead;
  if (!select(info.lead(), call, place, &lead)) return explain_refusal(info.lead(), call, place);
  choose_backend(lead, among, dispatch);

  // A backend that can not serve this very call leaves it to the first one.
  if (dispatch->backend) {
    const BackendInfo& other = dispatch->chosen();
    bool served = true;
    for (size_t i = 0; served && i < other.kernels.size(); ++i)
      served = select(*other.kernels[i], call, place, &dispatch->kernels[i]);
    if (served) return Error::success;
    dispatch->backend = 0;
  }
  for (size_t i = 0; i < first.kernels.size(); ++i) {
    if (i == place_of_lead)
      dispatch->kernels[i] = lead;
    else if (!select(*first.kernels[i], call, place, &dispatch->kernels[i]))
      return explain_refusal(*first.kernels[i], call, place);
  }
  return Error::success;
}

Unserved examine(const BackendInfo& backend, const Call& call, const Place& place, Selection* selections) noexcept {
  for (size_t i = 0; i < backend.kernels.size(); ++i)
    if (!select(*backend.kernels[i], call, place, &selections[i])) return why_not(*backend.kernels[i], call, place);
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
  constexpr int64_t kBufferLimit = int64_t{1} << 31;  // bytes that AMD buffer instructions reach
  constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes, of a tensor map
  constexpr int64_t kSizeLimit = INT32_MAX;           // elements along a dimension, of a tensor map's argument
  constexpr int64_t kAlignment = 16;                  // bytes, of both
  const Addressing fast = place.info().aligned;
  for (const Use& use : kernel.uses) {
    const OperandInfo& operand = call.info->slot(use.slot);
    const View& view = call[use.slot];
    if (!view.sizes || (operand.optional && !view.data)) continue;
    const size_t rank = operand.dims.size(), contiguous = rank - 1 - transposed(operand, view);
    if (use.strided) {
      if (!aligned_to(view.data, kAlignment)) return Addressing::general;
      for (size_t i = 0; i < rank; ++i) {
        const int64_t size = view.sizes[i], stride = view.strides[i];
        if (size == 0 || size > kSizeLimit) return Addressing::general;
        const int64_t bytes = bytes_of(view.dtype);
        // A descriptor's store ends at a multiple of 16 bytes, where the next element may not be ours.
        if (i == contiguous && operand.written && fast == Addressing::descriptor && size * bytes % kAlignment)
          return Addressing::general;
        if (size == 1) continue;
        if (i == contiguous ? stride != 1
                            : stride <= 0 || stride >= kStrideLimit / bytes || stride * bytes % kAlignment)
          return Addressing::general;
      }
    }
    if (fast == Addressing::offset32 && extent(operand, view) >= kBufferLimit) return Addressing::general;
  }
  return fast;
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

Error find_place(const char* who, const char* arch, int multiprocessors, Place* place) noexcept {
  if (!arch) return fail(Error::null_pointer, "%s: arch is null", who);
  if (multiprocessors < 0)
    return fail(Error::invalid_argument, "%s: multiprocessors is %d, which must not be negative", who, multiprocessors);
  char archs[160] = "";
  for (int i = 0; i < kArchCount; ++i) {
    snprintf(archs + strlen(archs), sizeof archs - strlen(archs), "%s%s", i ? ", " : "", kArchs[i].arch);
    if (strcmp(kArchs[i].arch, arch)) continue;
    *place = {i, multiprocessors ? multiprocessors : kArchs[i].multiprocessors};
    return Error::success;
  }
  return fail(Error::unknown_arch, "%s: unknown arch %s: choose from %s", who, arch, archs);
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
