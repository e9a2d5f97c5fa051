// From an image to its function in a context, unpacked and loaded once for each.
#pragma once

#include "launch/device.h"
#include "program/image.h"

namespace aotriton::v2::inline abi1 {

// not_loaded where the stream is capturing and the image would have to be loaded; damaged_image where its data does not
// unpack; driver_failed. The device must be entered.
Error load_image_slow(const Device& device, Image& image, Stream stream, void** function) noexcept;

// The function in the context with this id, or null.
inline void* loaded(const Image& image, uint64_t id) noexcept {
  for (const ImageHandle* handle = image.handles.load(std::memory_order_acquire); handle; handle = handle->next)
    if (handle->id.load(std::memory_order_acquire) == id) return handle->function;
  return nullptr;
}

inline Error load_image(const Device& device, Image& image, Stream stream, void** function) noexcept {
  *function = loaded(image, device.contexts.id);
  return *function ? Error::success : load_image_slow(device, image, stream, function);
}

// The same where the function that it had in the context is gone: another one, unless another thread has loaded it
// since.
Error load_anew(const Device& device, Image& image, Stream stream, void** function) noexcept;

// Unloads the image from every context and forgets its handles. No launch of it may be under way.
Error unload_image(Image& image) noexcept;

}  // namespace aotriton::v2::inline abi1
