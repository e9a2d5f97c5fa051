// Stands in for the generated file of this name, in the C++ tests.
#pragma once

#include <cstdint>

#include "archs.h"
#include "kernel.h"
#include "lut.h"

namespace aotriton::v2::inline abi1::flash {

// What the caller asks for.
struct AttnBwdHopperFinishFunctional {
  DType T;
  int32_t BLOCK_DMODEL;
  Addressing ADDRESSING;

  int godel_number() const noexcept;  // -1: not a functional of this kernel
};

// What the winner picked.
struct AttnBwdHopperFinishPsels {
  int32_t BLOCK_M;

  explicit constexpr AttnBwdHopperFinishPsels(const int32_t* psels) : BLOCK_M(psels[0]) {}
};

// The runtime quantities that pick the bin: laid out as the array that Lut::cell takes.
struct AttnBwdHopperFinishKeys {
  int64_t max_seqlen_q;
};

// Every runtime argument in the kernel's order; strides follow from the tensors.
struct AttnBwdHopperFinishArguments {
  const Tensor<4>& DQSum;
  const Tensor<4>& DQ;
  float sm_scale;
  int32_t max_seqlen_q;
  int32_t head_dim;

  void collect(ArgumentList& list) const noexcept;
};

extern const KernelInfo attn_bwd_hopper_finish_info;

}  // namespace aotriton::v2::inline abi1::flash
