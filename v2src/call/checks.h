// Checks of everything about a call that needs no device.
#pragma once

#include "call/call.h"

namespace aotriton::v2::inline abi1 {

// A call that check_call() has found right, with sizes, extents and dtype set. It refers to the Call.
class CheckedCall {
 public:
  Call& operator*() const noexcept { return *call_; }
  Call* operator->() const noexcept { return call_; }

 private:
  friend Result<CheckedCall> check_call(Call& call, Data data, bool partial) noexcept;
  friend class Chunk;  // a part of a checked call is right, too

  explicit CheckedCall(Call& call) noexcept : call_(&call) {}

  Call* call_;
};

// Checks everything about the call that needs no device and sets its sizes; the operator then checks what is its own.
// `partial`: operands may be missing, as in a launch of one kernel of several, workspace tensors may be given, and
// derived sizes are what the caller has set.
Result<CheckedCall> check_call(Call& call, Data data, bool partial = false) noexcept;

// Whether a result shares memory with another result, or with what is read: invalid_stride.
Error check_overlap(const Call& call, bool partial = false) noexcept;

// Whether the workspace is there, aligned, in the address space and apart from all operands, whose bytes are `extents`
// by slot, 0 of what is not given.
Error check_workspace(const OperatorInfo& info, void* workspace, size_t needed, void* const* pointers,
                      const int64_t* extents) noexcept;

}  // namespace aotriton::v2::inline abi1
