#include "flash/problem.h"

#include <bit>
#include <cinttypes>
#include <climits>
#include <cmath>
#include <cstring>

#include "dispatch.h"
#include "flash/checks.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

constexpr const char* kDims[] = {"batch", "heads", "seqlen", "head_dim"};
constexpr int64_t kMaxGrid = 65535;               // of the y and z axes, which walk heads and batch
constexpr int64_t kMaxSeqlen = INT32_MAX - 1023;  // kernels count rows in 32 bits, up to the end of the last tile
constexpr int kElement = 2;                       // bytes
constexpr uintptr_t kRowAlignment = 16;           // of L and Delta, which kernels access in vectors

bool aligned_to(const void* data, uintptr_t alignment) { return reinterpret_cast<uintptr_t>(data) % alignment == 0; }

// Bytes from the first to the last element, or -1 where that overflows. Strides must not be negative.
int64_t extent(const Tensor<4>& tensor) {
  int64_t elements = 1;
  for (int i = 0; i < 4; ++i) {
    int64_t span;
    if (__builtin_mul_overflow(tensor.sizes[i] - 1, tensor.strides[i], &span) ||
        __builtin_add_overflow(elements, span, &elements))
      return -1;
  }
  int64_t bytes;
  return __builtin_mul_overflow(elements, int64_t{kElement}, &bytes) ? -1 : bytes;
}

// Batch and head_dim are those of q; heads and seqlen those of the operand's side.
Error check_sizes(const char* op, const Operand& operand, const Operand& q, const Operand& of_side) {
  for (int i = 0; i < 4; ++i) {
    const Operand& like = i == 0 || i == 3 ? q : of_side;
    const int64_t size = operand.tensor.sizes[i], wanted = like.tensor.sizes[i];
    if (size <= 0)
      return fail(Error::invalid_shape, "%s: %s has %s %" PRId64 ", which must be positive", op, operand.name, kDims[i],
                  size);
    if (size != wanted)
      return fail(Error::invalid_shape, "%s: %s has %s %" PRId64 ", %s has %" PRId64, op, operand.name, kDims[i], size,
                  like.name, wanted);
  }
  return Error::success;
}

Error check_layout(const char* op, const Operand& operand, DType dtype, Data data) {
  const Tensor<4>& tensor = operand.tensor;
  if (tensor.dtype != DType::float16 && tensor.dtype != DType::bfloat16)
    return fail(Error::invalid_dtype, "%s: %s has dtype %s, which must be float16 or bfloat16", op, operand.name,
                dtype_name(tensor.dtype));
  if (tensor.dtype != dtype)
    return fail(Error::invalid_dtype, "%s: %s has dtype %s, others have %s", op, operand.name, dtype_name(tensor.dtype),
                dtype_name(dtype));
  if (tensor.strides[3] != 1)
    return fail(Error::invalid_stride, "%s: %s has head_dim stride %" PRId64 ", which must be 1", op, operand.name,
                tensor.strides[3]);
  for (int i = 0; i < 3; ++i) {
    if (tensor.strides[i] < 0)
      return fail(Error::invalid_stride, "%s: %s has a negative %s stride, %" PRId64, op, operand.name, kDims[i],
                  tensor.strides[i]);
    if (tensor.strides[i] == 0 && tensor.sizes[i] > 1 && operand.access == Access::write)
      return fail(Error::invalid_stride, "%s: %s is written, but its %s stride is 0", op, operand.name, kDims[i]);
  }
  if (extent(tensor) < 0)
    return fail(Error::invalid_stride, "%s: %s has strides that reach beyond 63 bits", op, operand.name);
  if (data == Data::ignored) return Error::success;
  if (!tensor.data) return fail(Error::null_pointer, "%s: %s has no data", op, operand.name);
  if (!aligned_to(tensor.data, kElement))
    return fail(Error::misaligned_pointer, "%s: %s is at %p, which is not aligned to its elements", op, operand.name,
                tensor.data);
  return Error::success;
}

Error check_rows(const char* op, const RowOperand& operand, const Problem& problem, Data data) {
  const Tensor<3>& tensor = operand.tensor;
  const Tensor<3> wanted = row_tensor(problem, nullptr);
  if (tensor.dtype != DType::float32)
    return fail(Error::invalid_dtype, "%s: %s has dtype %s, which must be float32", op, operand.name,
                dtype_name(tensor.dtype));
  for (int i = 0; i < 3; ++i)
    if (tensor.sizes[i] != wanted.sizes[i])
      return fail(Error::invalid_shape, "%s: %s has %s %" PRId64 ", which must be %" PRId64, op, operand.name, kDims[i],
                  tensor.sizes[i], wanted.sizes[i]);
  for (int i = 0; i < 3; ++i)
    if (tensor.strides[i] != wanted.strides[i] && tensor.sizes[i] > 1)
      return fail(Error::invalid_stride, "%s: %s has %s stride %" PRId64 ", but must be contiguous", op, operand.name,
                  kDims[i], tensor.strides[i]);
  if (data == Data::ignored) return Error::success;
  if (!tensor.data) return fail(Error::null_pointer, "%s: %s has no data", op, operand.name);
  if (!aligned_to(tensor.data, kRowAlignment))
    return fail(Error::misaligned_pointer, "%s: %s is at %p, which must be 16-byte aligned", op, operand.name,
                tensor.data);
  return Error::success;
}

// What the kernels can do of what is a valid call.
Error check_limits(const char* op, const Operand& q, const Operand& k, bool causal) {
  const int64_t head_dim = q.tensor.sizes[3];
  if (head_dim % 8 || head_dim > 256)
    return fail(Error::not_supported, "%s: %s has head_dim %" PRId64 ", which must be a multiple of 8 up to 256", op,
                q.name, head_dim);
  for (const Operand* operand : {&q, &k}) {
    for (int i = 0; i < 3; ++i) {
      const int64_t limit = i < 2 ? kMaxGrid : kMaxSeqlen;
      if (operand->tensor.sizes[i] > limit)
        return fail(Error::not_supported, "%s: %s has %s %" PRId64 ", kernels go up to %" PRId64, op, operand->name,
                    kDims[i], operand->tensor.sizes[i], limit);
    }
  }
  if (q.tensor.sizes[0] * q.tensor.sizes[1] > INT32_MAX)
    return fail(Error::not_supported, "%s: %s has batch x heads %" PRId64 ", kernels go up to %d", op, q.name,
                q.tensor.sizes[0] * q.tensor.sizes[1], INT32_MAX);
  if (causal && q.tensor.sizes[2] != k.tensor.sizes[2])
    return fail(Error::not_supported, "%s: causal needs equal seqlens, %s has %" PRId64 ", %s has %" PRId64, op, q.name,
                q.tensor.sizes[2], k.name, k.tensor.sizes[2]);
  return Error::success;
}

}  // namespace

Error check_problem(const char* op, std::span<const Operand> operands, std::span<const RowOperand> rows, float sm_scale,
                    bool causal, Data data, Problem* problem) noexcept {
  const Operand& q = operands[0];
  const Operand* first_key = nullptr;
  for (const Operand& operand : operands)
    if (operand.side == Side::key && !first_key) first_key = &operand;
  const Operand& k = first_key ? *first_key : q;

  for (const Operand& operand : operands)
    AOTRITON_TRY(check_sizes(op, operand, q, operand.side == Side::query ? q : k));
  if (q.tensor.sizes[1] % k.tensor.sizes[1])
    return fail(Error::invalid_shape, "%s: %s has %" PRId64 " heads, which must be a multiple of the %" PRId64 " of %s",
                op, q.name, q.tensor.sizes[1], k.tensor.sizes[1], k.name);
  AOTRITON_TRY(check_limits(op, q, k, causal));
  for (const Operand& operand : operands) AOTRITON_TRY(check_layout(op, operand, q.tensor.dtype, data));
  if (!std::isfinite(sm_scale) || sm_scale < 0)
    return fail(Error::invalid_argument, "%s: sm_scale is %g, which must be finite and not negative", op,
                static_cast<double>(sm_scale));
  const auto size = [](const Operand& operand, int dim) { return static_cast<int32_t>(operand.tensor.sizes[dim]); };
  *problem = {q.tensor.dtype, size(q, 0), size(q, 1), size(k, 1), size(q, 2), size(k, 2), size(q, 3), sm_scale, causal};
  for (const RowOperand& operand : rows) AOTRITON_TRY(check_rows(op, operand, *problem, data));
  return Error::success;
}

Error find_arch(const KernelInfo& kernel, const char* arch, int multiprocessors, ArchInfo* found) noexcept {
  if (!arch) return fail(Error::null_pointer, "explain: arch is null");
  if (multiprocessors < 0)
    return fail(Error::invalid_argument, "explain: multiprocessors is %d, which must not be negative", multiprocessors);
  for (const ArchInfo& known : kArchs) {
    if (strcmp(known.arch, arch)) continue;
    *found = known;
    if (multiprocessors) found->multiprocessors = multiprocessors;
    return Error::success;
  }
  return unknown_arch(kernel, arch);
}

Error row_bytes(const char* op, const Problem& problem, int64_t* bytes) noexcept {
  const int64_t rows = int64_t{problem.heads_q} * problem.seqlen_q;  // below 2^47
  if (__builtin_mul_overflow(rows * 4, int64_t{problem.batch}, bytes))
    return fail(Error::not_supported, "%s: batch x heads x seqlen overflows 63 bits", op);
  return Error::success;
}

Tensor<3> row_tensor(const Problem& problem, void* data) noexcept {
  const int64_t heads = problem.heads_q, seqlen = problem.seqlen_q;
  return {data, DType::float32, {problem.batch, heads, seqlen}, {heads * seqlen, seqlen, 1}};
}

Tensor<4> query_sum(const Problem& problem, void* data) noexcept {
  const int64_t heads = problem.heads_q, seqlen = problem.seqlen_q, head_dim = problem.head_dim;
  return {data,
          DType::float32,
          {problem.batch, heads, seqlen, head_dim},
          {heads * seqlen * head_dim, seqlen * head_dim, head_dim, 1}};
}

Addressing usable_addressing(Addressing aligned, std::initializer_list<const Tensor<4>*> tensors,
                             std::initializer_list<const Tensor<3>*> rows) noexcept {
  constexpr int64_t kBufferLimit = int64_t{1} << 31;  // bytes that AMD buffer instructions reach
  constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes, of a tensor map
  for (const Tensor<4>* tensor : tensors) {
    if (!aligned_to(tensor->data, 16)) return Addressing::general;
    for (int i = 0; i < 3; ++i) {
      const int64_t stride = tensor->strides[i];
      if (tensor->sizes[i] > 1 && (stride % 8 || stride == 0 || stride >= kStrideLimit / kElement))
        return Addressing::general;
    }
    if (aligned == Addressing::offset32 && extent(*tensor) >= kBufferLimit) return Addressing::general;
  }
  if (aligned == Addressing::offset32)
    for (const Tensor<3>* row : rows)
      if (row->sizes[0] * row->strides[0] >= kBufferLimit / 4) return Addressing::general;
  return aligned;
}

int32_t padded_head_dim(int32_t head_dim) noexcept {
  const auto padded = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(head_dim)));
  return padded < 32 ? 32 : padded;
}

int64_t waves(int64_t batch, int64_t heads, int64_t seqlen, int multiprocessors) noexcept {
  constexpr int64_t kReferenceTile = 128;
  return ceil_div(batch * heads * ceil_div(seqlen, kReferenceTile), multiprocessors);
}

}  // namespace aotriton::v2::inline abi1::flash
