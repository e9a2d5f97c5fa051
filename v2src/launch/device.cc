#include "launch/device.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>

#include "base/error.h"
#include "base/lock.h"

namespace aotriton::v2::inline abi1 {

namespace {

// One context that was met. `id` is written last and read first, so a reader sees whole records only.
struct Record {
  std::atomic<uint64_t> id;
  void* context;
  DeviceFacts facts;
  Record* next;
};
// By the address of their context, one record an address. A list grows at the front, and never shrinks.
constexpr size_t kBuckets = 256;
std::atomic<Record*> records[kBuckets];

std::atomic<Record*>& records_of(const void* context) {
  return records[(reinterpret_cast<uintptr_t>(context) * 0x9E3779B97F4A7C15u) >> 56];
}

Record* find(const void* context) {
  Record* record = records_of(context).load(std::memory_order_acquire);
  while (record && record->context != context) record = record->next;
  return record;
}

const Record* find(const Contexts& contexts) {
  const Record* const record = find(contexts.of_stream);
  return record && record->id.load(std::memory_order_acquire) == contexts.id ? record : nullptr;
}

Error add(const char* who, const Driver& driver, const Contexts& contexts, DeviceFacts* facts) {
  const std::lock_guard lock(slow_path());
  if (const Record* record = find(contexts)) {  // another thread was faster
    *facts = record->facts;
    return Error::success;
  }
  DeviceProperties properties = {};
  if (const Status status = driver.properties(&properties))
    return driver_failure(driver, status, who, "read the device's properties");
  int arch = -1;
  for (int i = 0; i < kArchCount; ++i)
    if (!strcmp(kArchs[i].arch, properties.arch) && !strcmp(kArchs[i].vendor, driver.vendor)) arch = i;
  if (arch < 0) return fail(Error::unknown_arch, "%s: no kernels for the device's arch %s", who, properties.arch);
  const ProductChoice found =
      nearest_product(products(arch), {properties.name, properties.multiprocessors, properties.memory});
  *facts = {{arch, found.product, properties.multiprocessors, found.exact}, properties.ordinal};

  // A context that is gone leaves its record to the next one at its address: records do not pile up.
  Record* record = find(contexts.of_stream);
  const bool known = record != nullptr;
  std::atomic<Record*>& all = records_of(contexts.of_stream);
  if (!known) record = new (std::nothrow) Record{{0}, contexts.of_stream, {}, all.load(std::memory_order_relaxed)};
  if (!record) return Error::success;  // out of memory: asked again by the next call
  record->id.store(0, std::memory_order_release);
  record->facts = *facts;
  record->id.store(contexts.id, std::memory_order_release);
  if (!known) all.store(record, std::memory_order_release);
  return Error::success;
}

}  // namespace

[[gnu::hot]] Error enter_device(const char* who, Stream stream, Device* device, const Contexts* known) noexcept {
  device->driver = driver();
  if (!device->driver) return Error::no_driver;
  const Driver& driver = *device->driver;
  Contexts& contexts = device->contexts;
  if (known)
    contexts = *known;
  else if (const Status status = driver.contexts(stream.handle, &contexts))
    return driver_failure(driver, status, who, "say which device the stream is on");
  if (!contexts.of_stream)
    return fail(Error::no_context, "%s: no device is current: select one first, or pass a stream", who);
  if (contexts.of_stream != contexts.current)
    if (const Status status = driver.enter(contexts.of_stream))
      return driver_failure(driver, status, who, "make the stream's device current");
  if (const Record* record = find(contexts)) {
    device->facts = record->facts;
    return Error::success;
  }
  const Error error = add(who, driver, contexts, &device->facts);
  return error == Error::success ? error : leave_device(who, *device, error);
}

[[gnu::hot]] Error leave_device(const char* who, const Device& device, Error error) noexcept {
  if (device.contexts.of_stream == device.contexts.current) return error;
  const Status status = device.driver->leave(device.contexts.current);
  if (!status || error != Error::success) return error;
  return driver_failure(*device.driver, status, who, "make the previous device current again");
}

void forget_devices() noexcept {
  for (std::atomic<Record*>& all : records)
    for (Record* record = all.load(); record; record = record->next) record->id = 0;
}

}  // namespace aotriton::v2::inline abi1
