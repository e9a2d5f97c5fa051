#include "dispatch/survey.h"

#include <algorithm>
#include <iterator>

namespace aotriton::v2::inline abi1 {

namespace {

// The index of a choice's value among those that there are images for; -1 where it is none of them.
int index_of(const ChoiceInfo& choice, int64_t value) {
  const std::span<const int64_t> values = choice.values;
  size_t i = 0;
  if (choice.round_up)
    while (i < values.size() && values[i] < value) ++i;
  else
    while (i < values.size() && values[i] != value) ++i;
  return i < values.size() ? static_cast<int>(i) : -1;
}

}  // namespace

[[gnu::hot]] Survey::Survey(const Call& call_to_serve, const Gpu& gpu_of_call) noexcept
    : call(call_to_serve),
      gpu(gpu_of_call),
      fast_(gpu_of_call.info().aligned),
      values_(call.info->steps, call.info->compiled_steps, {&call, nullptr, gpu.multiprocessors, 0}) {
  std::fill_n(digits_, kMaxChoices, kUnknown);
  const OperatorInfo& info = *call.info;
  const int64_t* const first = values_.sound(info.compiled_steps.first_count);
  if (info.compiled_guards && values_.known()) [[likely]] {
    failing_ = info.compiled_guards(first);
  } else {
    for (size_t i = 0; i < info.guards.size(); ++i) {
      int64_t holds;
      if (!value(info.guards[i], &holds) || !holds) failing_ |= uint64_t{1} << i;
    }
  }
  const bool by_descriptor = fast_ == Addressing::descriptor;
  unreached_.strided = info.compiled.unsuited
                           ? info.compiled.unsuited(call, by_descriptor)
                           : unsuited(call, info.uses.strided, by_descriptor, EachAtRunTime{info.operands});
  if (call.by_pointer) unreached_.strided |= kSteered;
  const bool suited = call.suited && !call.misaligned;
  for (size_t slot = info.operands.size(); slot < info.slots() && !suited; ++slot)
    if (info.uses.strided >> slot & 1 && given(slot) &&
        (call.misaligned >> call.from[slot] & 1 || !strides_suit(info.slot(slot), call[slot], by_descriptor)))
      unreached_.strided |= uint32_t{1} << slot;
  for (size_t slot = 0; fast_ == Addressing::offset32 && slot < info.slots(); ++slot)
    if (info.uses.all >> slot & 1 && given(slot) && !near(slot)) unreached_.all |= uint32_t{1} << slot;
  kind_ = find_kind();
  version_ = kind_ ? kind_->version : 0;
}

// The thread's, of this operator, or one that is forgotten for it.
[[gnu::hot]] Kind* Survey::find_kind() const noexcept {
  static thread_local Kind kinds[4];
  static thread_local uint64_t versions;
  Kind* kind = kinds;
  while (kind != std::end(kinds) && kind->info != call.info) ++kind;
  if (kind == std::end(kinds)) {
    kind = &kinds[versions % std::size(kinds)];
    kind->info = nullptr;
  }
  const std::span<const uint16_t> choices = call.info->choices;
  int64_t differing = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    int64_t number;
    if (!values_.get(choices[i], &number)) {
      kind->version = 0;
      kind->info = nullptr;  // some of its values are this call's
      return nullptr;
    }
    differing |= kind->choices[i] ^ number;
    kind->choices[i] = number;
  }
  if (kind->info == call.info && kind->arch == gpu.arch && kind->product == gpu.product && kind->failing == failing_ &&
      kind->unreached.all == unreached_.all && kind->unreached.strided == unreached_.strided && !differing)
    return kind;
  kind->version = ++versions;
  kind->info = call.info;
  kind->arch = gpu.arch;
  kind->product = gpu.product;
  kind->failing = failing_;
  kind->unreached = unreached_;
  kind->known = 0;
  kind->unserved = 0;
  kind->backend = 0;
  std::fill_n(kind->longest, kMaxBackends, uint8_t{0});
  return kind;
}

bool Survey::own_work(const KernelInfo& kernel, WorkOfCall* work) const noexcept {
  work->multiprocessors = gpu.multiprocessors;
  return work_of(
      *kernel.work, [this](const Expression& expression, int64_t* number) { return value(expression, number); }, work);
}

bool Survey::own_value(const Expression& expression, int64_t* value) const noexcept {
  return expression.step == kNoStep && evaluate(expression, {&call, nullptr, gpu.multiprocessors, 0}, value);
}

int Survey::own_digit(const ChoiceInfo& choice, Addressing reached) const noexcept {
  if (choice.of_addressing()) return index_of(choice, static_cast<int64_t>(reached));
  return abi1::digit(choice, {&call, nullptr, gpu.multiprocessors, static_cast<int>(reached)});
}

// A kernel that rounds a value further up than the lead does would compute the call, but is for others. One that rounds
// it less far up has a value between two of the lead's.
int16_t Survey::shared_digit(const ChoiceInfo& choice) noexcept {
  int64_t number;
  if (!value(choice.value, &number)) return -1;
  const int found = index_of(choice, number);
  if (found >= 0 && choice.round_up && beyond_lead(choice, choice.values[static_cast<size_t>(found)])) return -1;
  return static_cast<int16_t>(found);
}

bool Survey::beyond_lead(const ChoiceInfo& choice, int64_t rounded) noexcept {
  if (choice.of_lead == kNoNumber) return false;
  const ChoiceInfo& of_lead = call.info->lead().choices[choice.of_lead];
  const int found = digit(of_lead, fast_);
  return found >= 0 && of_lead.values[static_cast<size_t>(found)] < rounded;
}

// Whether buffer instructions reach all of the tensor.
bool Survey::near(size_t slot) const noexcept {
  constexpr int64_t kBufferLimit = int64_t{1} << 31;  // bytes
  if (slot < call.info->operands.size()) return call.extents[slot] < kBufferLimit;
  return extent(call.info->slot(slot), call[slot]) < kBufferLimit;
}

int digit(const ChoiceInfo& choice, const Environment& environment) noexcept {
  int64_t value;
  return evaluate(choice.value, environment, &value) ? index_of(choice, value) : -1;
}

const char* refusal(const KernelInfo& kernel, const Environment& environment) noexcept {
  for (const GuardInfo& guard : kernel.guards) {
    int64_t holds;
    if (!evaluate(guard.condition, environment, &holds) || !holds) return guard.why;
  }
  return nullptr;
}

}  // namespace aotriton::v2::inline abi1
