#include "load.h"

#include <memory>
#include <mutex>
#include <new>

#ifdef AOTRITON_HAVE_ZLIB
#include <zlib.h>
#endif

#include "error.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr uint32_t kSharedWithoutOptIn = 48 * 1024;  // CUDA wants to be asked for more
std::mutex loading;

Error unpack(const Image& image, unsigned char* unpacked) {
#ifdef AOTRITON_HAVE_ZLIB
  uLongf size = image.unpacked_size;
  if (uncompress(unpacked, &size, image.data, image.size) == Z_OK && size == image.unpacked_size) return Error::success;
  return fail(Error::damaged_image, "%s: the embedded image does not unpack", image.name);
#else
  static_cast<void>(unpacked);
  return fail(Error::damaged_image, "%s: the embedded image is compressed, but this library has no zlib", image.name);
#endif
}

}  // namespace

Error load_image_slow(const Device& device, Image& image, Stream stream, void** function) noexcept {
  const Driver& driver = *device.driver;
  const std::lock_guard lock(loading);
  *function = image.functions[device.slot].load(std::memory_order_relaxed);
  if (*function) return Error::success;

  bool capturing = false;
  if (const int status = driver.is_capturing(stream.handle, &capturing))
    return driver_failure(driver, status, image.name, "say whether the stream is capturing");
  if (capturing)
    return fail(Error::not_loaded, "%s: not loaded, and the stream is capturing: call preload() before", image.name);

  const unsigned char* binary = image.data;
  std::unique_ptr<unsigned char[]> unpacked;
  if (image.size != image.unpacked_size) {
    unpacked.reset(new (std::nothrow) unsigned char[image.unpacked_size]);
    if (!unpacked) return fail(Error::damaged_image, "%s: no memory for %u bytes", image.name, image.unpacked_size);
    AOTRITON_TRY(unpack(image, unpacked.get()));
    binary = unpacked.get();
  }
  void *module = nullptr, *found = nullptr;
  if (const int status = driver.load_module(&module, binary))
    return driver_failure(driver, status, image.name, "load the image");
  const char* what = "find the image's function";
  int status = driver.get_function(&found, module, image.entry);
  if (!status && image.shared > kSharedWithoutOptIn) {
    what = "give the image its shared memory";
    status = driver.set_max_shared(found, image.shared);
  }
  if (status) {
    const Error error = driver_failure(driver, status, image.name, what);
    driver.unload_module(module);
    return error;
  }
  image.modules[device.slot] = module;
  image.functions[device.slot].store(found, std::memory_order_release);
  *function = found;
  return Error::success;
}

Error unload_image(Image& image) noexcept {
  const std::lock_guard lock(loading);
  for (int slot = 0; slot < kMaxDevices; ++slot) {
    if (!image.functions[slot].exchange(nullptr, std::memory_order_acq_rel)) continue;
    const Driver* const used = driver();  // the one that loaded it
    void *context, *current;
    int status = used->contexts(nullptr, &context, &current);
    if (!status) status = used->enter(device_context(slot));
    if (status) return driver_failure(*used, status, image.name, "make the image's device current");
    status = used->unload_module(image.modules[slot]);
    const int left = used->leave(current);
    if (status || left) return driver_failure(*used, status ? status : left, image.name, "unload the image");
  }
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
