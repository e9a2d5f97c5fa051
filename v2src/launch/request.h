// From sizes alone to an explanation: the call that contiguous tensors of these sizes would make.
#pragma once

#include <aotriton/explain.h>

#include <cstdint>
#include <span>

#include "program/program.h"

namespace aotriton::v2::inline abi1 {

// A size or a scalar by name. A name that several sizes begin with, such as rows of rows_a and rows_b, stands for all
// of those that are not named themselves. transposed_x, not 0, has operand x lie by columns, where
// it may have any strides. float8_e4m3fn_x, not 0, has x, and all operands that may, of this type and not of the
// call's. The name of an operand that may be left out, not 0, has it given.
struct Named {
  const char* name;
  double value;
};

struct ExplainRequest {
  const char* op = nullptr;
  const char* arch = nullptr;   // such as "sm_90", or a product alone
  const char* dtype = nullptr;  // "fp16", "bf16", "fp32", or "float16" and so on
  std::span<const Named> values;
  int multiprocessors = 0;        // 0: the product's
  const char* product = nullptr;  // such as "NVIDIA H200"; null: the arch's usual one
  bool by_cell = false;           // what the call's bin alone would choose, without predicted times
  const aotriton_hints* hints = nullptr;
};

// invalid_argument for a name that is unknown or missing; else as explain() of run.h.
Error explain(const ExplainRequest& request, Explanation* explanation) noexcept;

// The operand that a name such as transposed_x is about; null where it is no such name.
const OperandInfo* transposed_operand(const OperatorInfo& info, const char* name) noexcept;

// The type that a name such as float8_e4m3fn_x has an operand of, in place of the call's; none where it is no such
// name.
DType other_dtype(const OperatorInfo& info, const char* name) noexcept;

// The operand with this name that a call may leave out; null where there is none.
const OperandInfo* optional_operand(const OperatorInfo& info, const char* name) noexcept;

// Whether a size is that of one number in device memory, which needs no name in a request.
bool is_one(const char* size) noexcept;

// The archs of this build; the index of each is its number in KernelInfo::tables.
std::span<const char* const> arch_names() noexcept;

// The names of all operators, with a comma between them.
const char* operator_names() noexcept;

}  // namespace aotriton::v2::inline abi1
