// From an attention call's parameters to its checked sizes, and to the way in which kernels may reach its tensors.
#pragma once

#include <aotriton/types.h>

#include <cstdint>
#include <initializer_list>
#include <span>

#include "archs.h"

namespace aotriton::v2::inline abi1::flash {

// Sizes that every kernel of a call shares. Products of two of them fit in 64 bits.
struct Problem {
  DType dtype;
  int32_t batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim;
  float sm_scale;
  bool causal;
  bool deterministic = false;
};

enum class Side { query, key };  // sized like q or like k
enum class Access { read, write };

// A [batch, heads, seqlen, head_dim] tensor of a call. The first operand of each side gives the sizes.
struct Operand {
  const char* name;
  const Tensor<4>& tensor;
  Side side;
  Access access;
};

// A contiguous float32 [batch, heads_q, seqlen_q] tensor of a call.
struct RowOperand {
  const char* name;
  const Tensor<3>& tensor;
};

enum class Data { checked, ignored };  // ignored: an explanation or a query, which has no memory yet

// Checks everything about the call that needs no device. `op` begins every message.
Error check_problem(const char* op, std::span<const Operand> operands, std::span<const RowOperand> rows, float sm_scale,
                    bool causal, Data data, Problem* problem) noexcept;

// Bytes of a float32 [batch, heads_q, seqlen_q] tensor; not_supported where they do not fit in 63 bits.
Error row_bytes(const char* op, const Problem& problem, int64_t* bytes) noexcept;

// The [batch, heads_q, seqlen_q] tensor at `data`.
Tensor<3> row_tensor(const Problem& problem, void* data) noexcept;

// The contiguous float32 [batch, heads_q, seqlen_q, head_dim] tensor at `data`.
Tensor<4> query_sum(const Problem& problem, void* data) noexcept;

// `aligned`, the arch's addressing for aligned tensors, where all these tensors allow it, else general.
Addressing usable_addressing(Addressing aligned, std::initializer_list<const Tensor<4>*> tensors,
                             std::initializer_list<const Tensor<3>*> rows) noexcept;

// The compiled head dim that holds this one: a power of two from 32 on.
int32_t padded_head_dim(int32_t head_dim) noexcept;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How often batch x heads x tiles of 128 rows fill the GPU, rounded up, as rules/binning.py counts it.
int64_t waves(int64_t batch, int64_t heads, int64_t seqlen, int multiprocessors) noexcept;

}  // namespace aotriton::v2::inline abi1::flash
