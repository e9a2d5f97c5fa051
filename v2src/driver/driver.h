// One table of functions for both vendors' drivers, which are opened at run time: no SDK is needed to build.
#pragma once

#include <aotriton/types.h>

#include <cstddef>
#include <cstdint>

namespace aotriton::v2::inline abi1 {

// A CUtensorMap: opaque to all but the driver that encodes it.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// What a tensor map describes. Innermost dimension first, as the driver counts.
struct TensorMapRequest {
  DType dtype;
  int rank;
  void* address;
  uint64_t sizes[5];
  uint64_t strides[4];  // bytes, without the innermost
  uint32_t box[5];
  int swizzle;
};

struct Launch {
  void* function;
  uint32_t grid[3];
  uint32_t threads;
  uint32_t shared;  // dynamic shared memory, bytes
  void* stream;
  void** arguments;
  const uint16_t* sizes;  // bytes of each argument
  int argument_count;
  bool early = false;  // it may begin while the launch before it on the stream still runs, for which it waits itself
};

struct DeviceProperties {
  char arch[64];
  char name[256];  // of the product, as the driver spells it
  int multiprocessors;
  int ordinal;
  uint64_t memory;  // bytes
};

// The context of a stream and the one that is current; null where there is none. An `id` is never used again for
// another context, as an address may be.
struct Contexts {
  void* of_stream;
  void* current;
  uint64_t id;  // of of_stream; 0 where that is null
};

// What a driver's function returns: 0, or the driver's own error number. `if (status)` asks whether it failed.
struct [[nodiscard]] Status {
  int number = 0;

  explicit operator bool() const noexcept { return number != 0; }
};

// A context is a CUcontext; on HIP it stands for a device.
struct Driver {
  const char* name;
  const char* vendor;  // as in ArchInfo

  Status (*contexts)(void* stream, Contexts* contexts);
  Status (*enter)(void* context);
  Status (*leave)(void* previous);                           // undoes enter
  Status (*properties)(DeviceProperties* properties);        // of the current context
  Status (*primary_context)(int ordinal, void** context);    // of a device; it stays
  Status (*load_module)(void** module, const void* binary);  // also while another thread captures a stream
  Status (*unload_module)(void* module);
  Status (*get_function)(void** function, void* module, const char* name);
  Status (*set_max_shared)(void* function, uint32_t bytes);
  Status (*is_capturing)(void* stream, bool* capturing);
  Status (*encode_tensor_map)(TensorMap* map, const TensorMapRequest& request);  // null where the vendor has none
  Status (*replace_address)(TensorMap* map, void* address);                      // likewise
  // Enqueues: sets rows x width elements of `bytes` bytes each to `pattern`. `pitch` is in bytes.
  Status (*fill)(void* data, uint32_t pattern, int64_t bytes, int64_t width, int64_t rows, int64_t pitch, void* stream);
  Status (*launch)(const Launch& launch);
  // Whether a launch failed since its function is gone, with all that was loaded on the device. Null where contexts()
  // has another id then.
  bool (*is_gone)(Status status);
  void (*describe_error)(Status status, char* text, size_t size);
};

// The driver of this process, opened by the first call: CUDA where it has a device, else HIP.
// Null, with the reason in last_error_message(), where neither has one: that is found out once, and holds for good.
const Driver* driver() noexcept;

// The same where a call has opened it before, else null.
const Driver* opened_driver() noexcept;

// Makes driver() return `replacement`; null goes back to the real one. For tests.
void replace_driver(const Driver* replacement) noexcept;

// The vendors' drivers. Null, with the reason in `why`, where the library or a device is missing.
const Driver* open_cuda(char* why, size_t size) noexcept;
const Driver* open_hip(char* why, size_t size) noexcept;

// driver_failed, with a message such as "scale: CUDA could not launch: CUDA_ERROR_... (...)".
[[gnu::cold]] Error driver_failure(const Driver& driver, Status status, const char* who, const char* what) noexcept;

}  // namespace aotriton::v2::inline abi1
