// From a stream to the device that it runs on, found without a lock.
#pragma once

#include <aotriton/types.h>

#include "base/error.h"
#include "call/gpu.h"
#include "driver/driver.h"

namespace aotriton::v2::inline abi1 {

// What is known of a device: it does not change while its context lives.
struct DeviceFacts {
  Gpu gpu;
  int ordinal;
};

// A device whose context is current, between enter_device and leave_device.
struct Device {
  const Driver* driver;
  Contexts contexts;
  DeviceFacts facts;

  const ArchInfo& arch() const noexcept { return facts.gpu.info(); }
};

// Makes the stream's context current and says what is known of its device. `who` begins the message of an error:
// no_driver, no_context, unknown_arch, driver_failed. `contexts`: those of the stream, if they are known; else null.
Error enter_device(const char* who, Stream stream, Device* device, const Contexts* contexts = nullptr) noexcept;

// Makes the previous context current again. Returns `error`, or if that is success, how the leaving went.
Error leave_device(const char* who, const Device& device, Error error) noexcept;

// Forgets every device. For tests; no call may be under way.
void forget_devices() noexcept;

// Runs body(device) -> Error with the stream's context current.
template <class Body>
Error on_device(const char* who, Stream stream, Body&& body, const Contexts* contexts = nullptr) noexcept {
  Device device;
  if (const Error error = enter_device(who, stream, &device, contexts); error != Error::success) return error;
  return leave_device(who, device, keep_message([&] { return body(device); }));
}

}  // namespace aotriton::v2::inline abi1
