#include "python/tensor.h"

#include <string>

#include "call/call.h"

namespace py = pybind11;

namespace aotriton::v2::python {

namespace {

// The part of dlpack.h that is read here.
struct DLTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t rank;
  uint8_t type_code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous
  uint64_t byte_offset;
};
constexpr int32_t kDLCUDA = 2, kDLROCM = 10, kDLCUDAManaged = 13;
constexpr DType kDTypes[] = {DType::float16,       DType::bfloat16,    DType::float32,        DType::int32,
                             DType::int64,         DType::boolean,     DType::int8,           DType::uint8,
                             DType::float8_e4m3fn, DType::float8_e5m2, DType::float8_e4m3fnuz};
// Type codes of DLPack, with the bits of an element.
constexpr struct {
  uint8_t code, bits;
  DType dtype;
} kDLTypes[] = {{2, 16, DType::float16},     {4, 16, DType::bfloat16},       {2, 32, DType::float32},
                {0, 32, DType::int32},       {0, 64, DType::int64},          {6, 8, DType::boolean},
                {0, 8, DType::int8},         {1, 8, DType::uint8},           {10, 8, DType::float8_e4m3fn},
                {12, 8, DType::float8_e5m2}, {11, 8, DType::float8_e4m3fnuz}};

int rank_of(size_t rank, const char* name) {
  if (rank > 4) throw py::value_error(std::string(name) + " has more than 4 dimensions");
  return static_cast<int>(rank);
}

[[noreturn]] void not_on_gpu(const char* name) { throw py::value_error(std::string(name) + " is not on a GPU"); }

TensorView view_of_torch(py::handle object, const char* name) {
  if (!py::cast<bool>(py::getattr(object, "is_cuda", py::bool_(true)))) not_on_gpu(name);
  TensorView view;
  view.data = reinterpret_cast<void*>(py::cast<uintptr_t>(object.attr("data_ptr")()));
  const std::string dtype = py::str(object.attr("dtype"));
  const std::string spelled = dtype.substr(dtype.rfind('.') + 1);
  for (const DType known : kDTypes)
    if (spelled == dtype_name(known)) view.dtype = known;
  const py::sequence shape = object.attr("shape"), strides = object.attr("stride")();
  view.rank = rank_of(shape.size(), name);
  for (size_t i = 0; i < shape.size(); ++i) {
    view.sizes[i] = py::cast<int64_t>(shape[i]);
    view.strides[i] = py::cast<int64_t>(strides[i]);
  }
  view.element_size = py::cast<int64_t>(py::getattr(object, "itemsize", py::int_(bytes_of(view.dtype))));
  const py::object device = py::getattr(object, "device", py::none());
  const py::object index = py::getattr(device, "index", py::none());
  if (py::isinstance<py::int_>(index)) view.device = py::cast<int>(index);
  return view;
}

TensorView view_of_dlpack(py::handle object, const char* name) {
  const auto device = py::cast<std::pair<int32_t, int32_t>>(object.attr("__dlpack_device__")());
  if (device.first != kDLCUDA && device.first != kDLROCM && device.first != kDLCUDAManaged) not_on_gpu(name);
  // -1: the producer need not wait for its own stream; the caller orders the work, as with every stream argument here.
  const py::object capsule = object.attr("__dlpack__")(py::arg("stream") = -1);
  const auto* tensor = static_cast<const DLTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (!tensor) throw py::error_already_set();
  TensorView view;
  view.data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  for (const auto& [code, bits, dtype] : kDLTypes)
    if (tensor->lanes == 1 && tensor->bits == bits && tensor->type_code == code) view.dtype = dtype;
  view.rank = rank_of(static_cast<size_t>(tensor->rank), name);
  int64_t contiguous = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.sizes[i] = tensor->shape[i];
    view.strides[i] = tensor->strides ? tensor->strides[i] : contiguous;
    contiguous *= tensor->shape[i];
  }
  view.element_size = tensor->bits * tensor->lanes / 8;
  view.device = device.second;
  return view;
}

}  // namespace

TensorView view_of(py::handle object, const char* name) {
  if (py::hasattr(object, "data_ptr")) return view_of_torch(object, name);
  if (py::hasattr(object, "__dlpack__")) return view_of_dlpack(object, name);
  throw py::type_error(std::string(name) + " must have data_ptr() or __dlpack__(), got " +
                       std::string(py::str(py::type::handle_of(object).attr("__name__"))));
}

void* current_stream(py::handle object, int device) {
  const std::string module = py::str(py::type::handle_of(object).attr("__module__"));
  if (module.rfind("torch", 0) || device < 0) return nullptr;
  const py::object stream = py::module_::import("torch").attr("cuda").attr("current_stream")(device);
  return reinterpret_cast<void*>(py::cast<uintptr_t>(stream.attr("cuda_stream")));
}

}  // namespace aotriton::v2::python
