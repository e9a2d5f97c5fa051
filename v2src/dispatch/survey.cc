#include "dispatch/survey.h"

#include <algorithm>
#include <bit>
#include <cstring>

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

Survey::Survey(const Call& call_to_serve, const Gpu& gpu_of_call) noexcept
    : call(call_to_serve),
      gpu(gpu_of_call),
      fast_(gpu_of_call.info().aligned),
      values_(call.info->steps, call.info->compiled_steps, {&call, nullptr, gpu.multiprocessors, 0}) {
  std::fill_n(digits_, kMaxChoices, kUnknown);
  for (size_t i = 0; i < call.info->guards.size(); ++i) {
    int64_t holds;
    if (!value(call.info->guards[i], &holds) || !holds) failing_ |= uint64_t{1} << i;
  }
  for (size_t slot = 0; slot < call.info->slots(); ++slot) {
    const auto bit = uint32_t{1} << slot;
    if (fast_ == Addressing::offset32 && !near(slot)) unreached_.all |= bit;
    if (!strides_suit(slot)) unreached_.strided |= bit;
  }
}

bool Survey::work(const KernelInfo& kernel, WorkOfCall* work) const noexcept {
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
int16_t Survey::shared_digit(const ChoiceInfo& choice) const noexcept {
  int64_t number;
  if (!value(choice.value, &number)) return -1;
  const int found = index_of(choice, number);
  if (found >= 0 && choice.round_up && beyond_lead(choice, choice.values[static_cast<size_t>(found)])) return -1;
  return static_cast<int16_t>(found);
}

bool Survey::beyond_lead(const ChoiceInfo& choice, int64_t rounded) const noexcept {
  for (const ChoiceInfo& of_lead : call.info->lead().choices) {
    int64_t wanted;
    if (!of_lead.round_up || strcmp(of_lead.name, choice.name)) continue;
    if (!value(of_lead.value, &wanted)) continue;
    const int found = index_of(of_lead, wanted);
    if (found >= 0) return of_lead.values[static_cast<size_t>(found)] < rounded;
  }
  return false;
}

// Without a tensor nothing is in the way.
bool Survey::given(size_t slot) const noexcept {
  return call[slot].sizes && (call[slot].data || !call.info->slot(slot).optional);
}

// Whether buffer instructions reach all of the tensor.
bool Survey::near(size_t slot) const noexcept {
  constexpr int64_t kBufferLimit = int64_t{1} << 31;  // bytes
  if (slot < call.info->operands.size()) return call.extents[slot] < kBufferLimit;
  return !given(slot) || extent(call.info->slot(slot), call[slot]) < kBufferLimit;
}

// Whether the fast way can follow the tensor's strides.
bool Survey::strides_suit(size_t slot) const noexcept {
  constexpr uint64_t kMostPacked = 16;        // along the second of four dimensions, by any description
  constexpr uint64_t kSizeLimit = INT32_MAX;  // elements along a dimension, of a tensor map's argument
  constexpr int64_t kAlignment = 16;          // bytes, of both
  if (!given(slot)) return true;
  const OperandInfo& operand = call.info->slot(slot);
  const View& view = call[slot];
  if (!aligned_to(view.data, kAlignment) || (call.misaligned >> call.from[slot] & 1)) return false;
  const bool swapped = operand.layout == Layout::strided && transposed(operand, view);
  const size_t rank = operand.dims.size(), contiguous = rank - 1 - swapped;
  const int shift = std::countr_zero(static_cast<uint64_t>(bytes_of(view.dtype)));  // of bytes to elements
  const uint64_t limit = static_cast<uint64_t>(kMapStrideLimit) >> shift;
  const int64_t partial = (kAlignment >> shift) - 1;
  // Each is below a power of two where all of them are, bit by bit.
  uint64_t sizes = 0, strides = 0;
  int64_t least = 1;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t size = view.sizes[i], stride = size == 1 || i == contiguous ? partial + 1 : view.strides[i];
    const auto bits = static_cast<uint64_t>(stride);
    sizes |= static_cast<uint64_t>(size);
    strides |= rank == 4 && i == 1 ? bits * kMostPacked | bits : bits;
    least = std::min({least, size, stride});
  }
  if (sizes > kSizeLimit || strides >= limit || (strides & static_cast<uint64_t>(partial)) || least < 1) return false;
  if (view.sizes[contiguous] > 1 && view.strides[contiguous] != 1) return false;
  // A descriptor's store ends at a multiple of 16 bytes, where the next element may not be ours.
  return !(operand.written && fast_ == Addressing::descriptor && (view.sizes[contiguous] & partial));
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
