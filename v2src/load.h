// From an image to its function on a device, unpacked and loaded once for each device.
#pragma once

#include "device.h"
#include "image.h"

namespace aotriton::v2::inline abi1 {

// not_loaded where the stream is capturing and the image would have to be loaded; damaged_image where its data does not
// unpack; driver_failed. The device must be entered. An image that is loaded costs one atomic read.
Error load_image_slow(const Device& device, Image& image, Stream stream, void** function) noexcept;

inline Error load_image(const Device& device, Image& image, Stream stream, void** function) noexcept {
  *function = image.functions[device.slot].load(std::memory_order_acquire);
  return *function ? Error::success : load_image_slow(device, image, stream, function);
}

// Unloads the image from every device. No launch of it may be under way.
Error unload_image(Image& image) noexcept;

}  // namespace aotriton::v2::inline abi1
