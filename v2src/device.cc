#include "device.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>

#include "error.h"
#include "lock.h"

namespace aotriton::v2::inline abi1 {

namespace {

// One context that was met. `id` is written last and read first, so a reader sees whole records only.
struct Record {
  std::atomic<uint64_t> id;
  void* context;
  DeviceFacts facts;
  Record* next;
};
std::atomic<Record*> records{nullptr};  // grows at the front, and never shrinks

const Record* find(uint64_t id) {
  for (const Record* record = records.load(std::memory_order_acquire); record; record = record->next)
    if (record->id.load(std::memory_order_acquire) == id) return record;
  return nullptr;
}

Error add(const char* who, const Driver& driver, const Contexts& contexts, DeviceFacts* facts) {
  const std::lock_guard lock(slow_path());
  if (const Record* record = find(contexts.id)) {  // another thread was faster
    *facts = record->facts;
    return Error::success;
  }
  DeviceProperties properties = {};
  if (const int status = driver.properties(&properties))
    return driver_failure(driver, status, who, "read the device's properties");
  int arch = -1;
  for (int i = 0; i < kArchCount; ++i)
    if (!strcmp(kArchs[i].arch, properties.arch) && !strcmp(kArchs[i].vendor, driver.vendor)) arch = i;
  if (arch < 0) return fail(Error::unknown_arch, "%s: no kernels for the device's arch %s", who, properties.arch);
  const ProductChoice found =
      nearest_product(products(arch), {properties.name, properties.multiprocessors, properties.memory});
  *facts = {{arch, found.product, properties.multiprocessors, found.exact}, properties.ordinal};

  // A context that is gone leaves its record to the next one at its address: records do not pile up.
  Record* record = records.load(std::memory_order_relaxed);
  while (record && record->context != contexts.of_stream) record = record->next;
  const bool known = record != nullptr;
  if (!known) record = new (std::nothrow) Record{{0}, contexts.of_stream, {}, records.load(std::memory_order_relaxed)};
  if (!record) return Error::success;  // out of memory: asked again by the next call
  record->id.store(0, std::memory_order_release);
  record->facts = *facts;
  record->id.store(contexts.id, std::memory_order_release);
  if (!known) records.store(record, std::memory_order_release);
  return Error::success;
}

}  // namespace

Error enter_device(const char* who, Stream stream, Device* device) noexcept {
  device->driver = driver();
  if (!device->driver) return Error::no_driver;
  const Driver& driver = *device->driver;
  Contexts& contexts = device->contexts;
  if (const int status = driver.contexts(stream.handle, &contexts))
    return driver_failure(driver, status, who, "say which device the stream is on");
  if (!contexts.of_stream)
    return fail(Error::no_context, "%s: no device is current: select one first, or pass a stream", who);
  if (contexts.of_stream != contexts.current)
    if (const int status = driver.enter(contexts.of_stream))
      return driver_failure(driver, status, who, "make the stream's device current");
  if (const Record* record = find(contexts.id)) {
    device->facts = record->facts;
    return Error::success;
  }
  const Error error = add(who, driver, contexts, &device->facts);
  return error == Error::success ? error : leave_device(who, *device, error);
}

Error leave_device(const char* who, const Device& device, Error error) noexcept {
  if (device.contexts.of_stream == device.contexts.current) return error;
  const int status = device.driver->leave(device.contexts.current);
  if (!status || error != Error::success) return error;
  return driver_failure(*device.driver, status, who, "make the previous device current again");
}

void forget_devices() noexcept {
  for (Record* record = records.load(); record; record = record->next) record->id = 0;
}

}  // namespace aotriton::v2::inline abi1
