// The model's small kernels. Each function launches one on the stream. C++17.
#pragma once

#include <cuda_runtime_api.h>

#include "model.h"

// One for each sequence of the batch, in device memory; what a graph reads and advances. The host needs none of it.
struct Progress {
  int32_t* tokens;        // that are computed next
  int32_t* keys;          // with these: seqused_k of kv_append and attn_fwd
  const int32_t* limits;  // of keys
  const int32_t* firsts;  // tokens of sequences that begin
  int32_t* step;          // one number: of this step
  Choice* choices;        // [steps, batch]
};

// residual = the tokens' rows of the embedding.
cudaError_t embed(const int32_t* tokens, const bfloat16* embedding, float* residual, int rows, cudaStream_t stream);

// residual += x, where that is given; normed = rms_norm(residual) weight.
cudaError_t add_and_norm(const bfloat16* x, float* residual, const bfloat16* weight, bfloat16* normed, int rows,
                         cudaStream_t stream);

// inner = silu(gate) up, of rows that hold both.
cudaError_t silu_and_gate(const bfloat16* gate_up, bfloat16* inner, int rows, cudaStream_t stream);

// The largest logit of each sequence's last row; `starts` as cu_seqlens.
cudaError_t choose(const bfloat16* logits, const int32_t* starts, const Progress& progress, int batch,
                   cudaStream_t stream);

// Chosen tokens become the next ones, and sequences that are at their limit begin anew.
cudaError_t advance(const Progress& progress, int batch, cudaStream_t stream);
