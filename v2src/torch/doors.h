// What the kernels share that may take the place of torch's own: each computes what the library supports, and hands on
// the rest.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string>

#include "torch/attention.h"

namespace aotriton_torch {

// Why the call cannot run here; empty where it has. An error of the driver is no reason to go on.
std::string reason(aotriton_error error);

// Counts that torch's own kernel is called, and why; without a name of `op` it is not counted. Fails where there is
// none.
void require_own_kernel(const Tensor& query, bool exists, const char* op, const std::string& why);

// As the interface of AOTInductor takes an optional tensor.
AtenTensorHandle* handle_of(const Maybe& tensor, AtenTensorHandle* handle);

// Sets what a forward drops, if anything: that follows from its state of dropout.
void set_dropout(double dropout, const Tensor& state, Features& features);

// A forward's state of dropout, which is set: a tensor of these sizes, whose first number torch's generator draws, and
// of which no other is used. It is of the type `ours`, of 64 bits, where there is dropout. torch's own forwards keep
// theirs in the type `torchs`, by which a backward sees whose forward it was: each drops other weights from the same
// numbers.
Tensor state_of(double dropout, const std::vector<int64_t>& sizes, int32_t ours, int32_t torchs, const Tensor& like,
                Features& features);

// For a backward that cannot run here: fails where no other kernel can take it, either, as only this library knows what
// its forward dropped.
void require_no_dropout(double dropout, const std::string& why);

// The bias with the sizes of all scores.
Maybe expanded(const Maybe& bias, const Tensor& query, const Tensor& key);

// Puts the kernels of sequences of different lengths in the place of torch's.
void take_varlen(torch::stable::detail::StableLibrary& library);

}  // namespace aotriton_torch
