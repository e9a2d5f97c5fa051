// Operators and kernels as constant data: what the generator writes from rules/, and the runner evaluates.
#pragma once

#include <aotriton/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "program/backend.h"
#include "program/cost.h"
#include "program/expression.h"
#include "program/lut.h"
#include "program_limits.h"

namespace aotriton::v2::inline abi1 {

// How a kernel takes an argument.
enum class Pass : uint8_t {
  tensor,  // data pointer of `slot`, or its descriptor where `block` and the image takes descriptors; `value`, if it
           // has code: how many neighbours along the second dimension are packed, where that is `dim`, or the rows of
           // a box, where `dim` is theirs
  stride,  // of dimension `dim` of `slot`, but where that is passed as a descriptor
  i32,     // `value`
  i64,     // `value`
  fp32,    // scalar number `slot`
};

// `levels`: those whose images take it, as bits.
struct Argument {
  Pass pass;
  bool block;
  uint8_t slot;
  uint8_t dim;
  Expression value;
  uint8_t levels = 0xff;

  bool is_of(const Image& image) const noexcept { return levels >> image.level & 1; }

  // Whether the plan of a launch has to look at it: it is a number that follows from the call, or it may be a map of a
  // workspace tensor. `operands`: of the operator, without its workspace.
  constexpr bool is_planned(size_t operands) const noexcept {
    if (pass == Pass::tensor) return !value.code.empty() || (block && slot >= operands);
    return pass == Pass::i32 || pass == Pass::i64;
  }
};

// One that is, by its number. `step`: kNoStep where its value has none, or it may be a map of a workspace tensor.
struct PlannedArgument {
  uint16_t number;
  StepNumber step;
  uint8_t levels;
  bool is_i32;
};
template <const auto& kArguments, size_t kOperands>
struct PlannedArguments {
  static constexpr size_t kCount = [] {
    size_t count = 0;
    for (const Argument& one : kArguments) count += one.is_planned(kOperands);
    return count;
  }();
  static constexpr std::array<PlannedArgument, kCount> kAll = [] {
    std::array<PlannedArgument, kCount> all = {};
    size_t count = 0, number = 0;
    for (const Argument& one : kArguments) {
      const bool is_map = one.pass == Pass::tensor && one.slot >= kOperands;
      if (one.is_planned(kOperands))
        all[count++] = {static_cast<uint16_t>(number), is_map ? kNoStep : one.value.step, one.levels,
                        one.pass == Pass::i32};
      ++number;
    }
    return all;
  }();
};

// The tensors that a kernel takes, a bit for each slot. `strided`: those whose strides it follows, which must then suit
// the arch's addressing.
struct Uses {
  uint32_t all, strided;
};
inline constexpr uint32_t kSteered = uint32_t{1} << 31;  // in `strided`: it takes pointers if Call::by_pointer
static_assert(kMaxOperands < 32);

inline constexpr uint8_t kNoNumber = 255;

// A digit of the godel number: the index of `value` among `values`; the first that is not smaller where `round_up`.
// `number`: its index among the choices of the operator that kernels share; kNoNumber of the kernel's addressing.
// `of_lead`: the index of the lead's own choice of this name, where both round up; kNoNumber where there is none.
struct ChoiceInfo {
  const char* name;
  Expression value;
  bool round_up;
  std::span<const int64_t> values;
  std::span<const char* const> texts;  // of the values
  uint8_t number = kNoNumber;
  uint8_t of_lead = kNoNumber;

  bool of_addressing() const noexcept { return value.code.size() == 1 && value.code[0].code == Code::addressing; }
};

struct KeyInfo {
  const char* name;
  Expression value;
};

// A kernel serves a call only where `condition` is not 0.
struct GuardInfo {
  Expression condition;
  const char* why;
};

struct KernelInfo {
  const char* name;
  std::span<const Argument> arguments;
  Uses uses;
  Expression grid[3];
  std::span<const GuardInfo> guards;
  std::span<const ChoiceInfo> choices;
  std::span<const KeyInfo> keys;               // in table order
  std::span<const char* const> tunables;       // in the order of Entry::tunables
  const WorkInfo* work;                        // what its time is predicted from; null: cells alone decide
  Expression schedule;                         // AOTRITON_BFS or AOTRITON_DFS; empty: its order is not described
  std::span<const KernelTable* const> tables;  // by arch, as kArchs; null where this build has none
  // Its number among the operator's kernels whose functional follows from the values of the operator's choices, its
  // guards and the kernel's addressing; kNoNumber of others.
  uint8_t number = kNoNumber;
  uint64_t guard_bits = 0;                               // of the operator's guards those that are this kernel's
  bool begins_early = false;                             // it may while the kernel before it in its backend runs
  CompiledWork compiled_work{};                          // of `work`
  std::span<const PlannedArgument> planned_arguments{};  // empty where it is not known which are
};

enum class Layout : uint8_t {
  rows,        // any strides with a contiguous last dimension
  contiguous,  // no strides of its own
  strided,     // any strides
};

struct OperandInfo {
  const char* name;
  std::span<const uint8_t> dims;  // sizes by number, outermost first
  DType dtype;                    // none: the call's
  Layout layout;
  bool written;
  bool optional;
  uint16_t alignment;                        // bytes that data must be aligned to, beyond its element
  float if_empty;                            // what a result holds whose call has a size of 0
  std::span<const uint8_t> paged_dims = {};  // its sizes in a call with a block table; empty: as in any other
  uint16_t other_dtypes = 0;                 // that it may have in place of the call's, as bits

  bool may_have(DType other) const noexcept {
    const auto bit = static_cast<uint32_t>(other);
    return bit < 16 && (other_dtypes >> bit & 1);
  }
};

// Of an fp32 scalar that the caller leaves to the operator: a NaN of its own, which no computation makes.
inline constexpr float kNotGiven = __builtin_nanf("0xa0a0");
inline bool is_given(float scalar) noexcept {
  return __builtin_bit_cast(uint32_t, scalar) != __builtin_bit_cast(uint32_t, kNotGiven);
}

enum class ScalarType : uint8_t { fp32, i32, boolean };

struct ScalarInfo {
  const char* name;
  ScalarType type;
  float fallback;  // where the caller gives none; kNotGiven: the operator's checks put in what follows from
                   // the call
  bool internal;   // no caller's, but set by the operator's checks
  std::span<const char* const> values;  // the names of 0, 1 and so on; empty where they have none
};

// The number of the value of this name, or -1.
inline int value_named(const ScalarInfo& scalar, std::string_view name) noexcept {
  for (size_t i = 0; i < scalar.values.size(); ++i)
    if (name == scalar.values[i]) return static_cast<int>(i);
  return -1;
}

struct DerivedSize {
  uint8_t size;  // its number
  Expression value;
};

// Kernels in launch order. `tunables_of`: the kernel whose tunables the derived sizes take, if any does.
struct BackendInfo {
  const char* name;
  std::span<const KernelInfo* const> kernels;
  std::span<const uint8_t> workspace;  // its tensors by slot, in the order in which they lie
  std::span<const DerivedSize> sizes;
  uint8_t tunables_of;
  bool sizes_follow_tunables;
  bool own_shapes;  // its kernels are measured on other shapes than the first backend's
};

enum class Data : bool;
enum class Look;

// What is asked of each operand, compiled for those of an operator (call/operands.h).
struct CompiledOperands {
  Look (*look)(Call& call, Data data, bool paged) noexcept;
  int64_t* (*write_words)(const Call& call, int64_t* words, uint64_t* hash) noexcept;
  uint32_t (*unsuited)(const Call& call, bool by_descriptor) noexcept;
  size_t plain_operands;
};

using CompiledShapes = bool (*)(Call& call) noexcept;  // as shape_workspace()

// From the values of an operator's steps, which all fit, its guards that do not hold, as bits.
using CompiledGuards = uint64_t (*)(const int64_t* steps) noexcept;
template <const auto& kGuards>
constexpr CompiledGuards compiled_guards() noexcept {
  for (const Expression& one : kGuards)
    if (one.step == kNoStep) return nullptr;
  return [](const int64_t* steps) noexcept {
    return [steps]<size_t... kIndices>(std::index_sequence<kIndices...>) __attribute__((always_inline)) {
      constexpr size_t kLast = std::size(kGuards) - 1;
      uint64_t failing = 0;  // to which a comparison's carry is added
      ((failing += failing + (static_cast<uint64_t>(steps[kGuards[kLast - kIndices].step]) < 1)), ...);
      return failing;
    }(std::make_index_sequence<std::size(kGuards)>());
  };
}

// Operands that are no features, which are a run of several at the end that may be left out: all that a caller has to
// name where it does not ask for features.
constexpr size_t plain_operands(std::span<const OperandInfo> operands) noexcept {
  size_t count = operands.size();
  while (count && operands[count - 1].optional) --count;
  while (count < operands.size() && operands[count].written) ++count;
  return operands.size() - count > 1 ? count : operands.size();
}

struct OperatorInfo {
  const char* name;
  std::span<const char* const> sizes;      // with the derived ones behind
  size_t given_sizes;                      // that are not derived
  std::span<const OperandInfo> operands;   // slots from 0 on
  std::span<const OperandInfo> workspace;  // slots behind the operands
  std::span<const ScalarInfo> scalars;
  std::span<const int64_t> dtypes;               // that the call may choose from
  std::span<const BackendInfo> backends;         // the first one serves everything that the build covers
  std::span<const OperatorTable* const> tables;  // by arch; null: the first backend everywhere
  bool fills_when_empty;
  std::span<const Step> steps;         // what choosing asks of a call
  CompiledSteps compiled_steps;        // of these
  CompiledOperands compiled;           // without functions: of operands that are not constants
  CompiledShapes compiled_shapes{};    // of the workspace, or null
  std::span<const Expression> guards;  // of all kernels, each condition once
  CompiledGuards compiled_guards;      // of these, or null
  Uses uses = {~0u, ~0u};              // of all kernels; the slots of others are not looked at
  std::span<const uint16_t> choices;   // of all kernels, the steps of their values, each once
  Expression flops;         // floating-point operations of a call; empty where the operator does not count them
  bool exact_cells;         // a call with all keys at representatives is the problem that was measured for its cell
  uint8_t cut = kNoNumber;  // the size along which a call may be made in chunks; kNoNumber for none
  uint8_t block_table = kNoNumber;      // the operand with the pages of some others; kNoNumber for none
  bool scratch = false;                 // images of its kernels may need scratch memory, which lies in the workspace
  Error (*check)(Call& call) noexcept;  // the operator's own checks, after the general ones; may be null

  size_t slots() const noexcept { return operands.size() + workspace.size(); }

  bool takes_workspace() const noexcept { return scratch || !workspace.empty(); }

  size_t plain_operands() const noexcept {
    return compiled.plain_operands ? compiled.plain_operands : abi1::plain_operands(operands);
  }
  const OperandInfo& slot(size_t index) const noexcept {
    return index < operands.size() ? operands[index] : workspace[index - operands.size()];
  }
  // The kernel whose functionals and cells a backend is chosen for.
  const KernelInfo& lead() const noexcept { return *backends[0].kernels[backends[0].kernels.size() - 1]; }
};

struct FamilyInfo {
  const char* name;
  std::span<const OperatorInfo* const> operators;
};

// The families that this library was built with.
std::span<const FamilyInfo* const> families() noexcept;

// Null where there is none of this name.
const OperatorInfo* find_operator(const char* name) noexcept;

}  // namespace aotriton::v2::inline abi1
