#include "launch/load.h"

#include <memory>
#include <mutex>
#include <new>

#ifdef AOTRITON_HAVE_ZLIB
#include <zlib.h>
#endif

#include "base/error.h"
#include "base/lock.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr uint32_t kSharedWithoutOptIn = 48 * 1024;  // CUDA wants to be asked for more

#ifdef AOTRITON_HAVE_ZLIB
bool inflate_data(const Image& image, unsigned char* to) {
  uLongf size = image.unpacked_size;
  return uncompress(to, &size, image.data, image.size) == Z_OK && size == image.unpacked_size;
}

// `to` has room for the image, and for its base behind it.
bool unpack_whole(const Image& image, unsigned char* to) {
  if (!inflate_data(image, to)) return false;
  if (!image.base) return true;
  const uint32_t size = image.unpacked_size;
  const unsigned char* const base = to + size;
  if (image.base->unpacked_size != size || !inflate_data(*image.base, to + size)) return false;
  for (uint32_t i = 0; i < size; ++i) to[i] ^= base[i];
  return true;
}
#endif

Error unpack(Image& image, unsigned char* unpacked) {
#ifdef AOTRITON_HAVE_ZLIB
  if (!image.damaged && unpack_whole(image, unpacked)) return Error::success;
  image.damaged = true;  // so that it is not tried again at each call
  return fail(Error::damaged_image, "%s: the embedded image does not unpack", image.name);
#else
  static_cast<void>(unpacked);
  return fail(Error::damaged_image, "%s: the embedded image is compressed, but this library has no zlib", image.name);
#endif
}

}  // namespace

Error load_image_slow(const Device& device, Image& image, Stream stream, void** function) noexcept {
  const Driver& driver = *device.driver;
  const std::lock_guard lock(slow_path());
  *function = loaded(image, device.contexts.id);
  if (*function) return Error::success;

  bool capturing = false;
  if (const Status status = driver.is_capturing(stream.handle, &capturing))
    return driver_failure(driver, status, image.name, "say whether the stream is capturing");
  if (capturing)
    return fail(Error::not_loaded, "%s: not loaded, and the stream is capturing: call preload() before", image.name);

  const unsigned char* binary = image.data;
  std::unique_ptr<unsigned char[]> unpacked;
  if (image.size != image.unpacked_size) {
    const size_t room = size_t{image.unpacked_size} * (image.base ? 2 : 1);
    unpacked.reset(new (std::nothrow) unsigned char[room]);
    if (!unpacked) return fail(Error::out_of_memory, "%s: no memory for %zu bytes", image.name, room);
    AOTRITON_TRY(unpack(image, unpacked.get()));
    binary = unpacked.get();
  }
  // A context that is gone leaves its handle to the next one at its address: handles do not pile up.
  ImageHandle* handle = image.handles.load(std::memory_order_relaxed);
  while (handle && handle->context != device.contexts.of_stream) handle = handle->next;
  std::unique_ptr<ImageHandle> made;
  if (!handle) {
    made.reset(new (std::nothrow) ImageHandle{{0}, device.contexts.of_stream, nullptr, nullptr, nullptr});
    if (!made) return fail(Error::out_of_memory, "%s: no memory for a handle", image.name);
    handle = made.get();
  }

  void *module = nullptr, *found = nullptr;
  if (const Status status = driver.load_module(&module, binary))
    return driver_failure(driver, status, image.name, "load the image");
  const char* what = "find the image's function";
  Status status = driver.get_function(&found, module, image.entry);
  if (!status && image.shared > kSharedWithoutOptIn) {
    what = "give the image its shared memory";
    status = driver.set_max_shared(found, image.shared);
  }
  if (status) {
    const Error error = driver_failure(driver, status, image.name, what);
    static_cast<void>(driver.unload_module(module));  // the first error is the one to tell
    return error;
  }
  handle->id.store(0, std::memory_order_release);
  handle->module = module;
  handle->function = found;
  handle->id.store(device.contexts.id, std::memory_order_release);
  if (made) {
    made->next = image.handles.load(std::memory_order_relaxed);
    image.handles.store(made.release(), std::memory_order_release);
  }
  *function = found;
  return Error::success;
}

Error load_anew(const Device& device, Image& image, Stream stream, void** function) noexcept {
  {
    const std::lock_guard lock(slow_path());
    for (ImageHandle* handle = image.handles.load(std::memory_order_relaxed); handle; handle = handle->next)
      if (handle->id.load(std::memory_order_relaxed) == device.contexts.id && handle->function == *function)
        handle->id.store(0, std::memory_order_release);
  }
  return load_image(device, image, stream, function);
}

Error unload_image(Image& image) noexcept {
  const std::lock_guard lock(slow_path());
  Error error = Error::success;
  for (ImageHandle* handle = image.handles.exchange(nullptr, std::memory_order_acq_rel); handle;) {
    const std::unique_ptr<ImageHandle> owned(handle);
    handle = handle->next;
    if (error != Error::success || !owned->id) continue;
    const Driver* const used = driver();  // the one that loaded it
    Contexts contexts;
    Status status = used->contexts(nullptr, &contexts);
    if (!status) status = used->enter(owned->context);
    if (status) {
      error = driver_failure(*used, status, image.name, "make the image's device current");
      continue;
    }
    status = used->unload_module(owned->module);
    const Status left = used->leave(contexts.current);
    if (status || left) error = driver_failure(*used, status ? status : left, image.name, "unload the image");
  }
  return error;
}

}  // namespace aotriton::v2::inline abi1
