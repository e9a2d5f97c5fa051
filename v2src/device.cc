#include "device.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "error.h"
#include "image.h"

namespace aotriton::v2::inline abi1 {

namespace {

// Filled from the front. `context` is written last and read first, so a reader sees whole slots only.
struct Slot {
  std::atomic<void*> context{nullptr};
  const ArchInfo* arch = nullptr;
  int multiprocessors = 0;
};
Slot slots[kMaxDevices];
std::mutex filling;

// Slot of the context, or -1.
int find(void* context) {
  for (int i = 0; i < kMaxDevices; ++i) {
    void* there = slots[i].context.load(std::memory_order_acquire);
    if (there == context) return i;
    if (!there) break;
  }
  return -1;
}

Error add(const char* who, const Driver& driver, void* context, int* slot) {
  const std::lock_guard lock(filling);
  *slot = find(context);
  if (*slot >= 0) return Error::success;
  DeviceProperties properties = {};
  if (const int status = driver.properties(&properties))
    return driver_failure(driver, status, who, "read the device's properties");
  const ArchInfo* arch = nullptr;
  for (const ArchInfo& known : kArchs)
    if (!strcmp(known.arch, properties.arch) && !strcmp(known.vendor, driver.vendor)) arch = &known;
  if (!arch) return fail(Error::unknown_arch, "%s: no kernels for the device's arch %s", who, properties.arch);
  int free = 0;
  while (free < kMaxDevices && slots[free].context.load(std::memory_order_relaxed)) ++free;
  if (free == kMaxDevices)
    return fail(Error::not_supported, "%s: more than %d devices or contexts in one process", who, kMaxDevices);
  slots[free].arch = arch;
  slots[free].multiprocessors = properties.multiprocessors;
  slots[free].context.store(context, std::memory_order_release);
  *slot = free;
  return Error::success;
}

}  // namespace

Error enter_device(const char* who, Stream stream, Device* device) noexcept {
  device->driver = driver();
  if (!device->driver) return Error::no_driver;
  const Driver& driver = *device->driver;
  if (const int status = driver.contexts(stream.handle, &device->context, &device->previous))
    return driver_failure(driver, status, who, "say which device the stream is on");
  if (!device->context)
    return fail(Error::no_context, "%s: no device is current: select one first, or pass a stream", who);
  if (device->context != device->previous)
    if (const int status = driver.enter(device->context))
      return driver_failure(driver, status, who, "make the stream's device current");
  device->slot = find(device->context);
  if (device->slot < 0)
    if (const Error error = add(who, driver, device->context, &device->slot); error != Error::success)
      return leave_device(who, *device, error);
  device->arch = slots[device->slot].arch;
  device->multiprocessors = slots[device->slot].multiprocessors;
  return Error::success;
}

Error leave_device(const char* who, const Device& device, Error error) noexcept {
  if (device.context == device.previous) return error;
  const int status = device.driver->leave(device.previous);
  if (!status || error != Error::success) return error;
  return driver_failure(*device.driver, status, who, "make the previous device current again");
}

void* device_context(int slot) noexcept { return slots[slot].context.load(std::memory_order_acquire); }

void forget_devices() noexcept {
  const std::lock_guard lock(filling);
  for (Slot& slot : slots) slot.context.store(nullptr, std::memory_order_release);
}

}  // namespace aotriton::v2::inline abi1
