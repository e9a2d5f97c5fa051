#include "call/call.h"

#include <algorithm>

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

int64_t shape_tensor(Call& call, size_t slot) noexcept {
  const OperandInfo& operand = call.info->slot(slot);
  auto& [sizes, strides] = call.dims[slot];
  int64_t elements = 1;
  bool fits = true;
  for (size_t i = operand.dims.size(); i-- > 0;) {
    sizes[i] = call.sizes[operand.dims[i]];
    strides[i] = elements;
    fits &= !__builtin_mul_overflow(elements, sizes[i], &elements);
  }
  call.views[slot] = {nullptr, operand.dtype == DType::none ? call.dtype : operand.dtype, sizes, strides};
  return fits ? elements : -1;
}

bool shape_workspace(Call& call) noexcept {
  const OperatorInfo& info = *call.info;
  bool fits = true;
  for (size_t slot = info.operands.size(); slot < info.slots(); ++slot) {
    const std::span<const uint8_t> dims = info.slot(slot).dims;
    if (std::ranges::any_of(dims, [&](uint8_t dim) { return dim >= info.given_sizes; }))
      call.views[slot] = View::none();
    else
      fits &= shape_tensor(call, slot) >= 0;
  }
  return fits;
}

}  // namespace aotriton::v2::inline abi1
