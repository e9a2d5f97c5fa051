#include "launch/request.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "archs.h"
#include "base/error.h"
#include "call/call.h"
#include "call/hints.h"
#include "launch/run.h"
#include "program/registry.h"

namespace aotriton::v2::inline abi1 {

namespace {

DType dtype_of(const char* name) {
  constexpr struct {
    const char *name, *synonym;
    DType dtype;
  } dtypes[] = {{"fp16", "float16", DType::float16},
                {"bf16", "bfloat16", DType::bfloat16},
                {"fp32", "float32", DType::float32},
                {"i32", "int32", DType::int32},
                {"i64", "int64", DType::int64},
                {"i1", "bool", DType::boolean},
                {"i8", "int8", DType::int8},
                {"u8", "uint8", DType::uint8},
                {"fp8e4nv", "float8_e4m3fn", DType::float8_e4m3fn},
                {"fp8e5", "float8_e5m2", DType::float8_e5m2},
                {"fp8e4b8", "float8_e4m3fnuz", DType::float8_e4m3fnuz}};
  for (const auto& one : dtypes)
    if (!strcmp(name, one.name) || !strcmp(name, one.synonym)) return one.dtype;
  return DType::none;
}

// Whether `name` is `size`, or what comes before an underscore in it.
bool stands_for(const char* name, const char* size, bool exactly) {
  const size_t length = strlen(name);
  return !strncmp(name, size, length) && size[length] == (exactly ? '\0' : '_');
}

constexpr DType kOtherTypes[] = {DType::float8_e4m3fn, DType::float8_e5m2, DType::float8_e4m3fnuz};

// Whether the name is "<type>_<operand>".
bool names_type(const char* name, DType dtype, const char* operand) {
  const char* const type = dtype_name(dtype);
  const size_t length = strlen(type);
  return !strncmp(name, type, length) && name[length] == '_' && !strcmp(name + length + 1, operand);
}

// The value that stands for a size, or null.
const Named* find_size(std::span<const Named> values, const char* size) {
  for (const bool exactly : {true, false})
    for (const Named& one : values)
      if (stands_for(one.name, size, exactly)) return &one;
  return nullptr;
}

// Each value must stand for something.
Error check_names(const OperatorInfo& info, std::span<const Named> values) {
  for (const Named& one : values) {
    bool known = transposed_operand(info, one.name) || optional_operand(info, one.name) ||
                 other_dtype(info, one.name) != DType::none;
    for (size_t i = 0; i < info.given_sizes; ++i)
      known |= stands_for(one.name, info.sizes[i], true) || stands_for(one.name, info.sizes[i], false);
    for (const ScalarInfo& scalar : info.scalars) known |= !scalar.internal && !strcmp(scalar.name, one.name);
    if (!known) return fail(Error::invalid_argument, "explain: %s has no %s", info.name, one.name);
  }
  return Error::success;
}

// The other type that the values name for an operand, or, of one that may lie in pages, for another one that may: keys
// and values have one type.
DType other_dtype(const OperatorInfo& info, const OperandInfo& operand, std::span<const Named> values) {
  for (const Named& one : values)
    for (const OperandInfo& named : info.operands)
      for (const DType dtype : kOtherTypes) {
        const bool both_paged = !named.paged_dims.empty() && !operand.paged_dims.empty();
        if (one.value != 0 && operand.may_have(dtype) && (&named == &operand || both_paged) &&
            names_type(one.name, dtype, named.name))
          return dtype;
      }
  return DType::none;
}

// A call on tensors without data, each contiguous by rows or by columns.
class Contiguous {
 public:
  explicit Contiguous(const OperatorInfo& info) : call(info) {}

  Error make(const ExplainRequest& request, DType dtype) {
    const OperatorInfo& info = *call.info;
    const bool paged = info.block_table != kNoNumber && is_named(info.operands[info.block_table], request.values);
    int64_t sizes[kMaxSizes];
    for (size_t i = 0; i < info.given_sizes; ++i) {
      const Named* found = find_size(request.values, info.sizes[i]);
      sizes[i] = is_one(info.sizes[i]) ? 1 : kNotNamed;
      if (!found && (sizes[i] == 1 || !is_needed(i, request.values, paged))) continue;
      if (!found) return fail(Error::invalid_argument, "explain: %s of %s is missing", info.sizes[i], info.name);
      if (!(found->value >= 0 && found->value < 0x1p63) || found->value != std::floor(found->value))
        return fail(Error::invalid_argument, "explain: %s is %g, which must be a whole number, and not negative",
                    found->name, found->value);
      sizes[i] = static_cast<int64_t>(found->value);
    }
    for (size_t slot = 0; slot < info.operands.size(); ++slot) {
      const OperandInfo& operand = info.operands[slot];
      const std::span<const uint8_t> dims = dims_of(operand, paged);
      const size_t rank = dims.size();
      call.views[slot] = View::none();
      if (std::ranges::any_of(dims, [&](uint8_t dim) { return sizes[dim] == kNotNamed; })) continue;
      bool by_columns = false;
      for (const Named& one : request.values)
        by_columns |= transposed_operand(info, one.name) == &operand && one.value != 0;
      int64_t step = 1;
      for (size_t nth = 0; nth < rank; ++nth) {
        const size_t i = rank - 1 - (by_columns && nth < 2 ? 1 - nth : nth);
        sizes_[slot][i] = sizes[dims[i]];
        strides_[slot][i] = step;
        // Where that overflows the checks that follow name the size that is too large.
        if (__builtin_mul_overflow(step, sizes_[slot][i], &step)) step = 1;
      }
      // Nothing is read there. Each begins where the most aligned of tensors could, and none overlaps another.
      const bool given = operand.optional && is_named(operand, request.values);
      const auto data = reinterpret_cast<void*>(given ? (slot + 1) << 48 : 0);
      const DType other = other_dtype(info, operand, request.values);
      const DType own = operand.dtype != DType::none ? operand.dtype : operand.may_have(other) ? other : dtype;
      call.views[slot] = {data, own, sizes_[slot], strides_[slot]};
    }
    for (size_t i = 0; i < info.scalars.size(); ++i) {
      call.set_real(i, info.scalars[i].fallback);
      double value = is_given(info.scalars[i].fallback) ? static_cast<double>(info.scalars[i].fallback) : 0;
      for (const Named& one : request.values)
        if (!strcmp(one.name, info.scalars[i].name)) call.set_real(i, static_cast<float>(value = one.value));
      if (info.scalars[i].type == ScalarType::fp32) continue;
      if (!(value >= INT32_MIN && value <= INT32_MAX) || value != std::floor(value))
        return fail(Error::invalid_argument, "explain: %s is %g, which must be a whole number of 32 bits",
                    info.scalars[i].name, value);
      call.set_whole(i, static_cast<int64_t>(value));
    }
    return Error::success;
  }

  Call call;

 private:
  static constexpr int64_t kNotNamed = -1;

  static bool is_named(const OperandInfo& operand, std::span<const Named> values) {
    return std::ranges::any_of(values, [&](const Named& one) { return !strcmp(one.name, operand.name) && one.value; });
  }
  // Whether an operand of the call has the size.
  bool is_needed(size_t size, std::span<const Named> values, bool paged) const {
    return std::ranges::any_of(call.info->operands, [&](const OperandInfo& operand) {
      const std::span<const uint8_t> dims = dims_of(operand, paged);
      return (!operand.optional || is_named(operand, values)) && std::ranges::find(dims, size) != dims.end();
    });
  }

  int64_t sizes_[kMaxOperands][kMaxRank], strides_[kMaxOperands][kMaxRank];
};

}  // namespace

const OperandInfo* transposed_operand(const OperatorInfo& info, const char* name) noexcept {
  constexpr char kPrefix[] = "transposed_";
  constexpr size_t length = sizeof kPrefix - 1;
  if (strncmp(name, kPrefix, length)) return nullptr;
  for (const OperandInfo& operand : info.operands)
    if (operand.layout == Layout::strided && !strcmp(name + length, operand.name)) return &operand;
  return nullptr;
}

DType other_dtype(const OperatorInfo& info, const char* name) noexcept {
  for (const OperandInfo& operand : info.operands)
    for (const DType dtype : kOtherTypes)
      if (operand.may_have(dtype) && names_type(name, dtype, operand.name)) return dtype;
  return DType::none;
}

const OperandInfo* optional_operand(const OperatorInfo& info, const char* name) noexcept {
  for (const OperandInfo& operand : info.operands)
    if (operand.optional && !strcmp(name, operand.name)) return &operand;
  return nullptr;
}

bool is_one(const char* size) noexcept { return !strcmp(size, "one"); }

std::span<const char* const> arch_names() noexcept {
  static const char* const* const names = [] {
    static const char* all[kArchCount];
    for (int i = 0; i < kArchCount; ++i) all[i] = kArchs[i].arch;
    return all;
  }();
  return {names, static_cast<size_t>(kArchCount)};
}

const char* operator_names() noexcept {
  static thread_local char names[512];
  names[0] = '\0';
  any_operator([&](const OperatorInfo& info) {
    const size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", info.name);
    return false;
  });
  return names;
}

Error explain(const ExplainRequest& request, Explanation* explanation) noexcept {
  *explanation = {};
  const OperatorInfo* info = find_operator(request.op);
  if (!info)
    return fail(Error::invalid_argument, "explain: unknown op %s: choose from %s", request.op, operator_names());
  const DType dtype = dtype_of(request.dtype);
  if (dtype == DType::none)
    return fail(Error::invalid_argument, "explain: unknown dtype %s: choose from fp16, bf16, fp32", request.dtype);
  AOTRITON_TRY(check_names(*info, request.values));
  Contiguous contiguous(*info);
  AOTRITON_TRY(contiguous.make(request, dtype));
  AOTRITON_TRY(take_hints(request.hints, &contiguous.call));
  explanation->kernel_count = kMaxKernels;
  explanation->kernels[0].size = sizeof(KernelChoice);
  return explain(contiguous.call, request.arch, request.product, request.multiprocessors, explanation->kernels,
                 &explanation->kernel_count, request.by_cell ? By::cell : By::time);
}

}  // namespace aotriton::v2::inline abi1
