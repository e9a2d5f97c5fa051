// What choosing computes once for a call, for all kernels and backends.
#pragma once

#include "call/call.h"
#include "call/gpu.h"
#include "call/operands.h"
#include "program/cost.h"

namespace aotriton::v2::inline abi1 {

// The functionals of an operator's kernels for calls of one kind: all that they follow from is the same. A thread keeps
// those of its last calls, as tensors of other sizes are mostly of a kind that it had before.
struct Kind {
  struct Functional {
    const Lut* lut;  // null: the kernel can not serve such calls
    int godel_number;
  };

  static constexpr size_t kMost = 40;  // kernels

  uint64_t version;  // no other kind of the thread has the same
  const OperatorInfo* info;
  int arch, product;
  uint64_t failing;
  Uses unreached;
  int64_t choices[kMaxChoices];   // the values of the operator's
  uint64_t known;                 // kernels by number, as bits, whose functional is known
  Functional functionals[kMost];  // by the kernel's number
  unsigned unserved;              // backends, as bits, of which a kernel can not serve such calls
  // Where to begin with the next call, whose choice is mostly the same: the backend of the last one, and of each
  // backend the kernel that took the longest. Neither changes what is chosen.
  uint8_t backend;
  uint8_t longest[kMaxBackends];
};

class Survey {
 public:
  // The call is checked, and its workspace tensors have the sizes that are not derived.
  Survey(const Call& call, const Gpu& gpu) noexcept;
  Survey(const Survey&) = delete;
  Survey& operator=(const Survey&) = delete;

  // How the kernel reaches its tensors as they lie: the arch's fast way where all of them allow it. Data that is not
  // given counts as aligned, but for what the call says is not.
  Addressing addressing(const KernelInfo& kernel) const noexcept {
    const Uses& uses = kernel.uses;
    return (uses.all & unreached_.all) | (uses.strided & unreached_.strided) ? Addressing::general : fast_;
  }

  // False where the number does not fit in 63 bits.
  bool value(const Expression& expression, int64_t* value) const noexcept {
    return values_.get(expression.step, value) || own_value(expression, value);
  }

  // Why the kernel's guards refuse the call, or null.
  const char* refusal(const KernelInfo& kernel) const noexcept {
    if (kernel.guard_bits && !(kernel.guard_bits & failing_)) [[likely]]
      return nullptr;
    for (const GuardInfo& guard : kernel.guards) {
      int64_t holds;
      if (!value(guard.condition, &holds) || !holds) return guard.why;
    }
    return nullptr;
  }

  // The digit of a choice of the kernel, reached in this way; -1 where none serves the call.
  int digit(const ChoiceInfo& choice, Addressing reached) noexcept {
    if (choice.number == kNoNumber) return own_digit(choice, reached);
    int16_t& digit = digits_[choice.number];
    if (digit == kUnknown) digit = shared_digit(choice);
    return digit;
  }

  // What the kernel has to compute for the call on the GPU; false where a number does not fit in 63 bits.
  bool work(const KernelInfo& kernel, WorkOfCall* work) const noexcept {
    const CompiledWork& compiled = kernel.compiled_work;
    const int64_t* const steps = values_.sound(compiled.count);
    if (!compiled.function || !steps) [[unlikely]]
      return own_work(kernel, work);
    work->multiprocessors = gpu.multiprocessors;
    compiled.function(steps, work);
    return true;
  }

  // What a thread keeps of the call's kind; null where it keeps nothing.
  Kind* kind() const noexcept { return kind_ && kind_->version == version_ ? kind_ : nullptr; }

  const Values& steps() const noexcept { return values_; }

  const Call& call;
  const Gpu& gpu;

 private:
  static constexpr int16_t kUnknown = -2;

  Kind* find_kind() const noexcept;  // null where a choice has no value
  bool own_work(const KernelInfo& kernel, WorkOfCall* work) const noexcept;
  bool own_value(const Expression& expression, int64_t* value) const noexcept;
  int own_digit(const ChoiceInfo& choice, Addressing reached) const noexcept;
  int16_t shared_digit(const ChoiceInfo& choice) noexcept;
  bool beyond_lead(const ChoiceInfo& choice, int64_t rounded) noexcept;
  bool given(size_t slot) const noexcept { return is_given(call.info->slot(slot), call[slot]); }
  bool near(size_t slot) const noexcept;

  const Addressing fast_;
  Uses unreached_ = {};  // slots that the fast way does not reach, and of which it can not follow the strides
  const Values values_;
  uint64_t failing_ = 0;         // guards of the operator that do not hold, as bits
  int16_t digits_[kMaxChoices];  // by the choice's number; kUnknown where it is not computed yet
  Kind* kind_;
  uint64_t version_;  // of the kind, unless another survey has needed its room since
};

// The digit of a choice; -1 where the call has no value of it.
int digit(const ChoiceInfo& choice, const Environment& environment) noexcept;

// Why the kernel cannot serve the call, or null. `tunables` may be null.
const char* refusal(const KernelInfo& kernel, const Environment& environment) noexcept;

}  // namespace aotriton::v2::inline abi1
