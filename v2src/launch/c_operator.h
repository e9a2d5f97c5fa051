// The functions that c.h has for every operator, as one template: from a parameter struct to what can be done with the
// call.
#pragma once

#include <aotriton/c.h>

#include <cstring>

#include "base/abi.h"
#include "base/error.h"
#include "call/hints.h"
#include "launch/params_layout.h"
#include "launch/run.h"

namespace aotriton::v2::inline abi1 {

// The caller's parameters as a struct of this library's size: the caller's own struct, or a copy where that is of an
// older or a newer version.
template <class Params>
class VersionedParams {
 public:
  Error read(const char* who, std::span<const Field> fields, const Params* given) noexcept {
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

// An operator's functions, which its extern "C" functions call. `kInfo` is the generated description, `kFields` are all
// fields of the struct, `kMoving` its plain operands, and `bind` sets the call's views, scalars and workspace.
template <class Params, const OperatorInfo& kInfo, const auto& kFields, const auto& kMoving,
          Error (*bind)(const Params&, Call*) noexcept>
class COperator {
 public:
  [[gnu::hot]] static aotriton_error run(const Params* params, void* stream) noexcept {
    Error error;
    if (params && run_again(kLayout, params, {stream}, &error)) [[likely]]
      return code(error);
    return code(with_call(params, [&](Call& call) {
      // Of a struct of another version, or with hints, equal bytes do not say that all is equal.
      const bool says_all = params->size == sizeof(Params) && !call.hints;
      return abi1::run(call, {stream}, says_all ? &kLayout : nullptr, params);
    }));
  }

  static aotriton_error workspace_size(const Params* params, void* stream, size_t* bytes) noexcept {
    return code(with_call(params, [&](Call& call) { return abi1::workspace_size(call, {stream}, bytes); }));
  }

  static int supported(const Params* params, void* stream) noexcept {
    return with_call(params, [&](Call& call) { return abi1::supported(call, {stream}); }) == Error::success;
  }

  static aotriton_error hint_outcomes(const Params* params, void* stream, aotriton_hint_outcome* outcomes,
                                      size_t* count) noexcept {
    return code(with_call(params, [&](Call& call) { return abi1::hint_outcomes(call, {stream}, outcomes, count); }));
  }

  static aotriton_error preload(const Params* params, void* stream) noexcept {
    return code(with_call(params, [&](Call& call) { return abi1::preload(call, {stream}); }));
  }

  static aotriton_error prepare(const Params* params, void* stream, aotriton_prepared** prepared) noexcept {
    if (!prepared) return code(fail(Error::null_pointer, "%s_prepare: prepared is null", kInfo.name));
    return code(with_call(
        params, [&](Call& call) { return abi1::prepare(call, {stream}, reinterpret_cast<Prepared**>(prepared)); }));
  }

  static aotriton_error explain(const Params* params, const char* device, int32_t multiprocessors,
                                aotriton_kernel_choice* kernels, size_t* count) noexcept {
    return code(with_call(
        params, [&](Call& call) { return abi1::explain(call, device, nullptr, multiprocessors, kernels, count); }));
  }

 private:
  static constexpr ParamsLayout kLayout = params_layout<Params, kInfo, kMoving>();

  static aotriton_error code(Error error) noexcept { return static_cast<aotriton_error>(error); }

  // Runs body(call) -> Error on the bound call.
  template <class Body>
  [[gnu::hot]] static Error with_call(const Params* given, Body&& body) noexcept {
    VersionedParams<Params> params;
    AOTRITON_TRY(params.read(kInfo.name, kFields, given));
    Call call(kInfo);
    AOTRITON_TRY(bind(*params, &call));
    AOTRITON_TRY(take_hints(params->hints, &call));
    return body(call);
  }
};

}  // namespace aotriton::v2::inline abi1
