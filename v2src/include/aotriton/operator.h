// From the C functions of an operator to the C++ functions that every operator has. C++17.
#pragma once

#include <aotriton/explain.h>
#include <aotriton/types.h>

// For parameters NAME_params, which derive from aotriton_NAME_params:
//
//   NAME: launches on the stream and returns without waiting. After an error nothing was launched, unless it is
//   driver_failed from a later kernel of several.
//
//   NAME_workspace_size: bytes of workspace that the call needs on the stream's device.
//
//   prepare: the call, ready to be launched again and again with other pointers.
//
//   supported: whether the call would run; last_error_message() says why not.
//
//   preload: loads what the call needs.
//
//   hint_outcomes: what becomes of each of the call's hints on the stream's device.
//
//   explain: what the call would run on `device`, a product such as NVIDIA H200 or an arch such as sm_90; see c.h.
//   Needs no GPU.
//
// Where data is null, all but NAME and prepare take it for aligned.
#define AOTRITON_OPERATOR(NAME)                                                                                       \
  inline Error NAME(const NAME##_params& params, Stream stream) noexcept {                                            \
    return static_cast<Error>(aotriton_##NAME(&params, stream.handle));                                               \
  }                                                                                                                   \
  inline Error NAME##_workspace_size(const NAME##_params& params, Stream stream, size_t* bytes) noexcept {            \
    return static_cast<Error>(aotriton_##NAME##_workspace_size(&params, stream.handle, bytes));                       \
  }                                                                                                                   \
  inline Error prepare(const NAME##_params& params, Stream stream, PreparedCall* prepared) noexcept {                 \
    return static_cast<Error>(                                                                                        \
        aotriton_##NAME##_prepare(&params, stream.handle, prepared ? prepared->reset() : nullptr));                   \
  }                                                                                                                   \
  inline bool supported(const NAME##_params& params, Stream stream) noexcept {                                        \
    return aotriton_##NAME##_supported(&params, stream.handle) != 0;                                                  \
  }                                                                                                                   \
  inline Error preload(const NAME##_params& params, Stream stream) noexcept {                                         \
    return static_cast<Error>(aotriton_##NAME##_preload(&params, stream.handle));                                     \
  }                                                                                                                   \
  inline Error hint_outcomes(const NAME##_params& params, Stream stream, HintOutcomes* outcomes) noexcept {           \
    if (!outcomes) return Error::null_pointer;                                                                        \
    outcomes->count = AOTRITON_MOST_OUTCOMES;                                                                         \
    return static_cast<Error>(                                                                                        \
        aotriton_##NAME##_hint_outcomes(&params, stream.handle, outcomes->list, &outcomes->count));                   \
  }                                                                                                                   \
  inline Error explain(const NAME##_params& params, const char* device, int multiprocessors,                          \
                       Explanation* explanation) noexcept {                                                           \
    if (!explanation) return Error::null_pointer;                                                                     \
    explanation->kernel_count = kMaxKernels;                                                                          \
    explanation->kernels[0].size = sizeof(KernelChoice);                                                              \
    return static_cast<Error>(                                                                                        \
        aotriton_explain_##NAME(&params, device, multiprocessors, explanation->kernels, &explanation->kernel_count)); \
  }
