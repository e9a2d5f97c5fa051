#include "python/bound_call.h"

#include <string>

#include "base/error.h"
#include "call/hints.h"
#include "launch/device.h"
#include "python/named_hints.h"

namespace py = pybind11;

namespace aotriton::v2::python {

namespace {

PyObject* error_type = nullptr;  // AotritonError

// The default streams, of the thread's current device.
bool is_default(const Stream& stream) { return reinterpret_cast<uintptr_t>(stream.handle) <= 2; }

// Runs body with the tensors' device current, where the stream does not say which one it is on.
template <class Body>
Error on_ordinal(const char* who, int ordinal, Stream stream, Body body) {
  const Driver* const found = driver();
  if (!found || ordinal < 0 || !is_default(stream)) return body();
  void* context;
  if (const Status status = found->primary_context(ordinal, &context))
    return driver_failure(*found, status, who, "make the tensors' device current");
  Contexts contexts;
  if (const Status status = found->contexts(nullptr, &contexts))
    return driver_failure(*found, status, who, "say which device is current");
  if (contexts.current == context) return body();
  if (const Status status = found->enter(context))
    return driver_failure(*found, status, who, "make the tensors' device current");
  const Error error = body();
  const Status status = found->leave(contexts.current);
  if (!status || error != Error::success) return error;
  return driver_failure(*found, status, who, "make the previous device current again");
}

}  // namespace

void make_error_type(py::module_& m) {
  error_type = PyErr_NewExceptionWithDoc("aotriton.AotritonError",
                                         "What the library refused or failed to do; `code` is the error's name.",
                                         PyExc_RuntimeError, nullptr);
  m.attr("AotritonError") = py::handle(error_type);
}

void raise_if(Error error) {
  if (error == Error::success) return;
  const py::object raised = py::reinterpret_borrow<py::object>(error_type)(last_error_message());
  raised.attr("code") = error_name(error);
  PyErr_SetObject(error_type, raised.ptr());
  throw py::error_already_set();
}

int find_slot(const OperatorInfo& info, const std::string& name) {
  for (size_t slot = 0; slot < info.slots(); ++slot)
    if (name == info.slot(slot).name) return static_cast<int>(slot);
  return -1;
}

int find_size(const OperatorInfo& info, const std::string& name) {
  for (size_t i = 0; i < info.sizes.size(); ++i)
    if (name == info.sizes[i]) return static_cast<int>(i);
  return -1;
}

int find_scalar(const OperatorInfo& info, const std::string& name) {
  for (size_t i = 0; i < info.scalars.size(); ++i)
    if (name == info.scalars[i].name) return static_cast<int>(i);
  return -1;
}

BoundCall::BoundCall(const OperatorInfo& info) : call_(info) {
  for (size_t slot = 0; slot < info.slots(); ++slot) call_.views[slot] = View::none();
  for (size_t i = 0; i < info.sizes.size(); ++i) call_.sizes[i] = 0;
  for (size_t i = 0; i < info.scalars.size(); ++i)
    if (info.scalars[i].type == ScalarType::fp32)
      call_.set_real(i, info.scalars[i].fallback);
    else
      call_.set_whole(i, static_cast<int64_t>(info.scalars[i].fallback));
}

void BoundCall::note_device(py::handle tensor, const TensorView& view, const char* name) {
  if (!first_) first_ = py::reinterpret_borrow<py::object>(tensor);
  if (view.device < 0) return;
  if (device_ >= 0 && view.device != device_)
    throw py::value_error(std::string(name) + " is on GPU " + std::to_string(view.device) + ", " + device_of_ +
                          " on GPU " + std::to_string(device_));
  device_ = view.device;
  device_of_ = name;
}

void BoundCall::set_operand(size_t slot, py::handle tensor) {
  if (tensor.is_none()) return;
  const OperandInfo& operand = call_.info->slot(slot);
  TensorView& view = views_[slot] = view_of(tensor, operand.name);
  if (view.rank != static_cast<int>(operand.dims.size()))
    throw py::value_error(std::string(operand.name) + " has " + std::to_string(view.rank) + " dimensions, not " +
                          std::to_string(operand.dims.size()));
  note_device(tensor, view, operand.name);
  call_.views[slot] = {view.data, view.dtype, view.sizes, view.strides};
}

void BoundCall::set_workspace(py::handle tensor) {
  if (tensor.is_none()) return;
  const TensorView bytes = view_of(tensor, "workspace");
  if (bytes.rank != 1 || bytes.element_size != 1) throw py::value_error("workspace must be a 1-D tensor of bytes");
  note_device(tensor, bytes, "workspace");
  call_.workspace = bytes.data;
  call_.workspace_size = static_cast<size_t>(bytes.sizes[0]);
}

double value_of(const OperatorInfo& info, const ScalarInfo& scalar, const std::string& name) {
  const int value = value_named(scalar, name);
  if (value >= 0) return value;
  std::string names;
  for (const char* const one : scalar.values) names += std::string(names.empty() ? "" : ", ") + one;
  const std::string what = std::string(info.name) + ": " + scalar.name + " is '" + name + "', which must be ";
  if (names.empty()) throw py::type_error(what + "a number");
  throw py::value_error(what + "one of " + names);
}

void BoundCall::set_scalar(size_t scalar, py::handle value) {
  if (value.is_none()) return;
  if (py::isinstance<py::str>(value))
    return call_.set_whole(
        scalar, static_cast<int64_t>(value_of(*call_.info, call_.info->scalars[scalar], py::cast<std::string>(value))));
  if (call_.info->scalars[scalar].type == ScalarType::fp32)
    call_.set_real(scalar, py::cast<float>(py::float_(py::reinterpret_borrow<py::object>(value))));
  else
    call_.set_whole(scalar, py::cast<int64_t>(py::int_(py::reinterpret_borrow<py::object>(value))));
}

const char* BoundCall::missing_scalar() const {
  for (size_t i = 0; i < call_.info->scalars.size(); ++i) {
    const ScalarInfo& scalar = call_.info->scalars[i];
    if (scalar.type == ScalarType::fp32 && !is_given(call_.scalars[i].real)) return scalar.name;
  }
  return nullptr;
}

void BoundCall::set_hints(py::handle given) {
  if (!given.is_none()) hints_ = hints_of(given);
}

void BoundCall::run(py::handle stream, const std::function<Error(Call&, Stream)>& body) {
  raise_if(take_hints(hints_ ? &*hints_ : nullptr, &call_));
  Stream on;
  if (!stream.is_none())
    on.handle = reinterpret_cast<void*>(py::cast<uintptr_t>(stream));
  else if (first_)
    on.handle = current_stream(first_, device_);
  const char* const who = call_.info->name;
  int stream_device = -1;
  Error error;
  {
    const py::gil_scoped_release release;
    error = on_ordinal(who, device_, on, [&] {
      if (device_ < 0 || is_default(on)) return body(call_, on);
      AOTRITON_TRY(on_device(who, on, [&](const Device& device) {
        stream_device = device.facts.ordinal;
        return Error::success;
      }));
      return stream_device == device_ ? body(call_, on) : Error::success;
    });
  }
  if (stream_device >= 0 && stream_device != device_)
    throw py::value_error("the stream is on GPU " + std::to_string(stream_device) + ", " + device_of_ + " on GPU " +
                          std::to_string(device_));
  raise_if(error);
}

}  // namespace aotriton::v2::python
