// From a Python tensor to a Tensor of the public headers.
#pragma once

#include <aotriton/types.h>
#include <pybind11/pybind11.h>

namespace aotriton::v2::python {

// A [sizes], [strides], dtype, data view of a Python tensor, of any rank up to 4.
struct View {
  void* data = nullptr;
  DType dtype = DType::none;
  int rank = 0;
  int64_t sizes[4] = {};
  int64_t strides[4] = {};
  int64_t element_size = 0;
};

// Reads data_ptr(), shape, stride() and dtype where the object has them, else __dlpack__.
// TypeError where it has neither; ValueError for a tensor that is not on a GPU or has more than 4 dimensions.
// The view holds no reference: the caller keeps the object alive.
View view_of(pybind11::handle object, const char* name);

// None is a tensor without data. ValueError where the rank is another.
template <int Rank>
Tensor<Rank> tensor_of(pybind11::handle object, const char* name) {
  Tensor<Rank> tensor;
  if (object.is_none()) return tensor;
  const View view = view_of(object, name);
  if (view.rank != Rank)
    throw pybind11::value_error(std::string(name) + " has " + std::to_string(view.rank) + " dimensions, not " +
                                std::to_string(Rank));
  tensor.data = view.data;
  tensor.dtype = view.dtype;
  for (int i = 0; i < Rank; ++i) tensor.sizes[i] = view.sizes[i], tensor.strides[i] = view.strides[i];
  return tensor;
}

}  // namespace aotriton::v2::python
