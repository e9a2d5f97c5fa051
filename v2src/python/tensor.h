// From a Python tensor to a view of it.
#pragma once

#include <aotriton/types.h>
#include <pybind11/pybind11.h>

namespace aotriton::v2::python {

// The memory, layout and device of a Python tensor, of any rank up to 4.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::none;
  int rank = 0;
  int64_t sizes[4] = {};
  int64_t strides[4] = {};
  int64_t element_size = 0;
  int device = -1;  // ordinal of the GPU; -1 where the tensor does not tell
};

// Reads data_ptr(), shape, stride(), dtype and device where the object has them, else __dlpack__.
// TypeError where it has neither; ValueError for a tensor that is not on a GPU or has more than 4 dimensions.
// The view holds no reference: the caller keeps the object alive.
TensorView view_of(pybind11::handle object, const char* name);

// The handle of torch's current stream on that GPU where the object is torch's, else 0.
void* current_stream(pybind11::handle object, int device);

}  // namespace aotriton::v2::python
