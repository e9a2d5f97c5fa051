// From a parameter struct of c.h to the functions that every operator has there.
//
// AOTRITON_C_OPERATOR(NAME, FIELDS) defines them for aotriton_NAME_params, which has these fields. It takes
// `Error bind(const aotriton_NAME_params&, Call*)`, which makes the call's views and scalars, and `NAME_operator`, the
// generated description.
#pragma once

#include <aotriton/c.h>

#include <cstring>

#include "base/abi.h"
#include "base/error.h"
#include "call/hints.h"
#include "launch/run.h"

namespace aotriton::v2::inline abi1 {

// The parameters in a struct of this library's size: the caller's own, or a copy of one that is older or newer.
template <class Params>
class Whole {
 public:
  Error take(const char* who, std::span<const Field> fields, const Params* given) noexcept {
    if (!given) return fail(Error::null_pointer, "%s: params is null", who);
    params_ = given;
    if (given->size == sizeof(Params)) return Error::success;
    if (given->size < sizeof(size_t) || given->size > kMostStructBytes || !cuts_no_field(fields, given->size))
      return fail(Error::invalid_argument, "%s: params.size is %zu, which must be sizeof of the struct, %zu", who,
                  given->size, sizeof(Params));
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    for (size_t i = sizeof(Params); i < given->size; ++i)
      if (bytes[i])
        return fail(Error::not_supported, "%s: params has a field, at byte %zu, that this library does not know", who,
                    i);
    memset(&own_, 0, sizeof own_);
    memcpy(&own_, given, given->size < sizeof own_ ? given->size : sizeof own_);
    params_ = &own_;
    return Error::success;
  }

  const Params& operator*() const noexcept { return *params_; }
  const Params* operator->() const noexcept { return params_; }

 private:
  const Params* params_;
  Params own_;
};

}  // namespace aotriton::v2::inline abi1

#define AOTRITON_C_FUNCTION(NAME, FIELDS, RUN)         \
  {                                                    \
    using namespace aotriton::v2;                      \
    Whole<aotriton_##NAME##_params> whole;             \
    const Error error = [&]() -> Error {               \
      AOTRITON_TRY(whole.take(#NAME, FIELDS, params)); \
      Call call(NAME##_operator);                      \
      AOTRITON_TRY(bind(*whole, &call));               \
      AOTRITON_TRY(take_hints(whole->hints, &call));   \
      return RUN;                                      \
    }();                                               \
    return static_cast<aotriton_error>(error);         \
  }

// clang-format off: a function a line group, which it does not see
#define AOTRITON_C_OPERATOR(NAME, FIELDS)                                                                             \
  extern "C" {                                                                                                        \
  aotriton_error aotriton_##NAME(const aotriton_##NAME##_params* params, void* stream)                                \
  AOTRITON_C_FUNCTION(NAME, FIELDS, run(call, {stream}))                                                              \
                                                                                                                      \
  aotriton_error aotriton_##NAME##_workspace_size(const aotriton_##NAME##_params* params, void* stream,               \
                                                  size_t* bytes)                                                      \
  AOTRITON_C_FUNCTION(NAME, FIELDS, workspace_size(call, {stream}, bytes))                                            \
                                                                                                                      \
  static aotriton_error NAME##_is_supported(const aotriton_##NAME##_params* params, void* stream)                     \
  AOTRITON_C_FUNCTION(NAME, FIELDS, supported(call, {stream}))                                                        \
                                                                                                                      \
  int aotriton_##NAME##_supported(const aotriton_##NAME##_params* params, void* stream) {                             \
    return NAME##_is_supported(params, stream) == AOTRITON_SUCCESS;                                                   \
  }                                                                                                                   \
                                                                                                                      \
  aotriton_error aotriton_##NAME##_hint_outcomes(const aotriton_##NAME##_params* params, void* stream,                \
                                                 aotriton_hint_outcome* outcomes, size_t* count)                      \
  AOTRITON_C_FUNCTION(NAME, FIELDS, hint_outcomes(call, {stream}, outcomes, count))                                   \
                                                                                                                      \
  aotriton_error aotriton_##NAME##_preload(const aotriton_##NAME##_params* params, void* stream)                      \
  AOTRITON_C_FUNCTION(NAME, FIELDS, preload(call, {stream}))                                                          \
                                                                                                                      \
  aotriton_error aotriton_##NAME##_prepare(const aotriton_##NAME##_params* params, void* stream,                      \
                                           aotriton_prepared** prepared) {                                            \
    if (!prepared)                                                                                                    \
      return static_cast<aotriton_error>(                                                                             \
          aotriton::v2::fail(aotriton::v2::Error::null_pointer, #NAME "_prepare: prepared is null"));                 \
    AOTRITON_C_FUNCTION(NAME, FIELDS, prepare(call, {stream}, reinterpret_cast<Prepared**>(prepared)))                \
  }                                                                                                                   \
                                                                                                                      \
  aotriton_error aotriton_explain_##NAME(const aotriton_##NAME##_params* params, const char* device,                  \
                                         int32_t multiprocessors, aotriton_kernel_choice* kernels, size_t* count)     \
  AOTRITON_C_FUNCTION(NAME, FIELDS, explain(call, device, nullptr, multiprocessors, kernels, count))                  \
  }
// clang-format on
