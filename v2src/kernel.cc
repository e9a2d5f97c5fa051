#include "kernel.h"

#include "error.h"

namespace aotriton::v2::inline abi1 {

namespace {

uint64_t bytes_of(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

}  // namespace

void* ArgumentList::reserve(size_t size, size_t alignment) noexcept {
  const size_t begin = (used_ + alignment - 1) / alignment * alignment;
  if (count_ == kMaxArguments || begin + size > kMaxBytes) {
    if (error_ == Error::success) error_ = fail(Error::not_supported, "%s: takes too many arguments", image_.name);
    return nullptr;
  }
  pointers_[count_] = storage_ + begin;
  sizes_[count_++] = static_cast<uint16_t>(size);
  used_ = begin + size;
  return storage_ + begin;
}

// Triton passes a host descriptor as the tensor map, then every size as i32, then every stride as i64, in elements and
// with the innermost one.
void ArgumentList::descriptor(int rank, void* data, DType dtype, const int64_t* sizes,
                              const int64_t* strides) noexcept {
  const int index = descriptors_++;
  void* const map = reserve(sizeof(TensorMap), alignof(TensorMap));
  for (int i = 0; i < rank; ++i) value(static_cast<int32_t>(sizes[i]));
  for (int i = 0; i < rank; ++i) value(strides[i]);
  if (error_ != Error::success) return;

  const DescriptorLayout& layout = image_.descriptors[index];
  if (index >= image_.descriptor_count || layout.rank != rank) {
    error_ = fail(Error::damaged_image, "%s: descriptor %d is not as the host code passes it", image_.name, index);
    return;
  }
  if (!driver_.encode_tensor_map) {
    error_ = fail(Error::not_supported, "%s: %s has no tensor descriptors", image_.name, driver_.name);
    return;
  }
  TensorMapRequest request = {
      .dtype = dtype, .rank = rank, .address = data, .sizes = {}, .strides = {}, .box = {}, .swizzle = layout.swizzle};
  for (int i = 0; i < rank; ++i) {
    const int from = rank - 1 - i;
    request.sizes[i] = static_cast<uint64_t>(sizes[from]);
    request.box[i] = layout.block[from];
    // No access follows the stride of a dimension of size 1, but the driver wants it to be a multiple of 16 all the
    // same.
    if (i > 0) request.strides[i - 1] = sizes[from] == 1 ? 16 : static_cast<uint64_t>(strides[from]) * bytes_of(dtype);
  }
  if (const int status = driver_.encode_tensor_map(static_cast<TensorMap*>(map), request))
    error_ = driver_failure(driver_, status, image_.name, "encode a tensor descriptor");
}

Error ArgumentList::finish() noexcept {
  value(static_cast<void*>(nullptr));  // global scratch
  value(static_cast<void*>(nullptr));  // profile scratch
  if (error_ == Error::success && image_.global_scratch)
    error_ = fail(Error::not_supported, "%s: needs scratch memory, which is not provided", image_.name);
  if (error_ == Error::success && descriptors_ != image_.descriptor_count)
    error_ = fail(Error::damaged_image, "%s: takes %d descriptors, the host code passes %d", image_.name,
                  image_.descriptor_count, descriptors_);
  return error_;
}

Error launch(const Device& device, const Image& image, void* function, const Grid& grid, ArgumentList& arguments,
             Stream stream) noexcept {
  const Launch launch = {
      .function = function,
      .grid = {static_cast<uint32_t>(grid.x), static_cast<uint32_t>(grid.y), static_cast<uint32_t>(grid.z)},
      .threads = image.threads,
      .shared = image.shared,
      .stream = stream.handle,
      .arguments = arguments.pointers(),
      .sizes = arguments.sizes(),
      .argument_count = arguments.count(),
  };
  const int status = device.driver->launch(launch);
  return status ? driver_failure(*device.driver, status, image.name, "launch") : Error::success;
}

}  // namespace aotriton::v2::inline abi1
