#include "launch/empty_results.h"

#include <cmath>

#include "base/error.h"

namespace aotriton::v2::inline abi1 {

namespace {

// The bits of 0 or an infinity in an element.
uint32_t pattern_of(DType dtype, float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  if (bytes_of(dtype) >= 4) return bits;
  if (dtype == DType::bfloat16) return bits >> 16;
  return std::isinf(value) ? (value < 0 ? 0xfc00 : 0x7c00) : 0;
}

// Fills dimensions `dim` to the last of `view`, from `data` on.
Status fill(const Driver& driver, Stream stream, const View& view, int rank, int dim, char* data, uint32_t pattern) {
  const int64_t bytes = bytes_of(view.dtype);
  const auto* sizes = view.sizes;
  if (rank - dim <= 2) {
    const int64_t rows = rank - dim == 2 ? sizes[dim] : 1, pitch = rank - dim == 2 ? view.strides[dim] * bytes : 0;
    return driver.fill(data, pattern, bytes, sizes[rank - 1], rows, pitch, stream.handle);
  }
  for (int64_t i = 0; i < sizes[dim]; ++i)
    if (const Status status = fill(driver, stream, view, rank, dim + 1, data + i * view.strides[dim] * bytes, pattern))
      return status;
  return {};
}

}  // namespace

Error fill_results(const Call& call, const Driver& driver, Stream stream) noexcept {
  for (size_t slot = 0; slot < call.info->operands.size(); ++slot) {
    const OperandInfo& operand = call.info->operands[slot];
    const View& view = call[slot];
    if (!operand.written || !view.data || !call.extents[slot]) continue;
    // Dimensions that follow each other without a gap are one. A stride that nothing follows may be anything.
    int64_t sizes[kMaxRank + 1], strides[kMaxRank + 1];
    int rank = 0;
    for (size_t i = 0; i < operand.dims.size(); ++i) {
      if (view.sizes[i] == 1) continue;
      int64_t step;
      const bool follows = rank && !__builtin_mul_overflow(view.sizes[i], view.strides[i], &step);
      if (follows && strides[rank - 1] == step)
        sizes[rank - 1] *= view.sizes[i], strides[rank - 1] = view.strides[i];
      else
        sizes[rank] = view.sizes[i], strides[rank++] = view.strides[i];
    }
    if (!rank || strides[rank - 1] != 1) sizes[rank] = strides[rank] = 1, ++rank;
    const View merged = {view.data, view.dtype, sizes, strides};
    const uint32_t pattern = pattern_of(view.dtype, operand.if_empty);
    if (const Status status = fill(driver, stream, merged, rank, 0, static_cast<char*>(view.data), pattern))
      return driver_failure(driver, status, call.info->name, "fill a result");
  }
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
