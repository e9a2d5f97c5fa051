// Stands in for the generated file of this name, in the C++ tests.
#pragma once

#include <cstdint>

#include "archs.h"
#include "kernel.h"
#include "lut.h"

namespace aotriton::v2::inline abi1::flash {

// What the caller asks for.
struct AttnBwdHopperPrepareFunctional {
  DType T;
  int32_t BLOCK_DMODEL;
  Addressing ADDRESSING;

  int godel_number() const noexcept;  // -1: not a functional of this kernel
};

// What the winner picked.
struct AttnBwdHopperPreparePsels {
  int32_t BLOCK_M;

  explicit constexpr AttnBwdHopperPreparePsels(const int32_t* psels) : BLOCK_M(psels[0]) {}
};

// The runtime quantities that pick the bin: laid out as the array that Lut::cell takes.
struct AttnBwdHopperPrepareKeys {
  int64_t max_seqlen_q;
};

// Every runtime argument in the kernel's order; strides follow from the tensors.
struct AttnBwdHopperPrepareArguments {
  const Tensor<4>& Out;
  const Tensor<4>& DO;
  const Tensor<3>& Delta;
  const Tensor<4>& DQSum;
  int32_t num_heads_q;
  int32_t max_seqlen_q;
  int32_t head_dim;

  void collect(ArgumentList& list) const noexcept;
};

extern const KernelInfo attn_bwd_hopper_prepare_info;

}  // namespace aotriton::v2::inline abi1::flash
