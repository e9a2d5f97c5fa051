// From Python's tensors and numbers by name to a call on the device that they are on.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <optional>

#include "call/call.h"
#include "python/tensor.h"

namespace aotriton::v2::python {

class BoundCall {
 public:
  explicit BoundCall(const OperatorInfo& info);
  BoundCall(const BoundCall&) = delete;
  BoundCall& operator=(const BoundCall&) = delete;

  // An operand or workspace tensor by slot. None is one that is not given. ValueError where its rank or device is
  // wrong.
  void set_operand(size_t slot, pybind11::handle tensor);

  // The workspace as one tensor of bytes.
  void set_workspace(pybind11::handle tensor);

  // None is one that is not given. TypeError where it is no number, and not the name of a value that has one.
  void set_scalar(size_t scalar, pybind11::handle value);

  // A size that no operand of the call has: an operand's own is in its place.
  void set_size(size_t number, int64_t size) { call_.sizes[number] = size; }

  // The name of a scalar without a default that is not given; null where there is none.
  const char* missing_scalar() const;

  // As hints_of() has them. None: none.
  void set_hints(pybind11::handle given);

  // Runs body(call, stream) without the interpreter's lock, on `stream`, which must be one of the tensors' device; None
  // is torch's current stream there, or the default one. Raises what fails.
  void run(pybind11::handle stream, const std::function<Error(Call&, Stream)>& body);

 private:
  void note_device(pybind11::handle tensor, const TensorView& view, const char* name);

  Call call_;
  TensorView views_[kMaxOperands];
  std::optional<hints> hints_;
  int device_ = -1;
  const char* device_of_ = nullptr;  // the operand that named the device
  pybind11::object first_;           // that operand
};

// Slot of an operand or workspace tensor, or number of a scalar or size; -1 where there is none of this name.
int find_slot(const OperatorInfo& info, const std::string& name);
int find_size(const OperatorInfo& info, const std::string& name);
int find_scalar(const OperatorInfo& info, const std::string& name);

// The scalar's value of this name. ValueError where it has names, and this is none of them; TypeError where it has
// none.
double value_of(const OperatorInfo& info, const ScalarInfo& scalar, const std::string& name);

// Raises AotritonError for an error.
void raise_if(Error error);
void make_error_type(pybind11::module_& m);

}  // namespace aotriton::v2::python
