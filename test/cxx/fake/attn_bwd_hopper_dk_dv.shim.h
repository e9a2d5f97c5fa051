// Stands in for the generated file of this name, in the C++ tests.
#pragma once

#include <cstdint>

#include "archs.h"
#include "kernel.h"
#include "lut.h"

namespace aotriton::v2::inline abi1::flash {

// What the caller asks for.
struct AttnBwdHopperDkDvFunctional {
  DType T;
  int32_t BLOCK_DMODEL;
  bool CAUSAL;
  Addressing ADDRESSING;

  int godel_number() const noexcept;  // -1: not a functional of this kernel
};

// What the winner picked.
struct AttnBwdHopperDkDvPsels {
  int32_t BLOCK_M;

  explicit constexpr AttnBwdHopperDkDvPsels(const int32_t* psels) : BLOCK_M(psels[0]) {}
};

// The runtime quantities that pick the bin: laid out as the array that Lut::cell takes.
struct AttnBwdHopperDkDvKeys {
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  int64_t waves;
};

// Every runtime argument in the kernel's order; strides follow from the tensors.
struct AttnBwdHopperDkDvArguments {
  const Tensor<4>& Q;
  const Tensor<4>& K;
  const Tensor<4>& V;
  const Tensor<4>& DO;
  const Tensor<4>& DK;
  const Tensor<4>& DV;
  const Tensor<3>& L;
  const Tensor<3>& Delta;
  float sm_scale;
  int32_t num_heads_q;
  int32_t num_heads_k;
  int32_t max_seqlen_q;
  int32_t max_seqlen_k;
  int32_t head_dim;

  void collect(ArgumentList& list) const noexcept;
};

extern const KernelInfo attn_bwd_hopper_dk_dv_info;

}  // namespace aotriton::v2::inline abi1::flash
