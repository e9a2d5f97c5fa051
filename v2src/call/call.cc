#include "call/call.h"

#include "call/operands.h"

namespace aotriton::v2::inline abi1 {

const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::none:
      return "none";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float32:
      return "float32";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::boolean:
      return "bool";
    case DType::int8:
      return "int8";
    case DType::uint8:
      return "uint8";
    case DType::float8_e4m3fn:
      return "float8_e4m3fn";
    case DType::float8_e5m2:
      return "float8_e5m2";
    case DType::float8_e4m3fnuz:
      return "float8_e4m3fnuz";
  }
  return "unknown";
}

int64_t extent(const OperandInfo& operand, const View& view) noexcept {
  int64_t elements = 1;
  for (size_t i = 0; i < operand.dims.size(); ++i) {
    int64_t span;
    if (__builtin_mul_overflow(view.sizes[i] - 1, view.strides[i], &span) ||
        __builtin_add_overflow(elements, span, &elements))
      return -1;
  }
  int64_t bytes;
  return __builtin_mul_overflow(elements, bytes_of(view.dtype), &bytes) ? -1 : bytes;
}

[[gnu::hot]] int64_t shape_tensor(Call& call, size_t slot) noexcept { return shape(call, slot, call.info->slot(slot)); }

bool shape_workspace(Call& call) noexcept {
  const OperatorInfo& info = *call.info;
  if (info.compiled_shapes) return info.compiled_shapes(call);
  return shape_all(call, info.operands.size(), info.given_sizes, info.uses.strided, EachAtRunTime{info.workspace});
}

}  // namespace aotriton::v2::inline abi1
