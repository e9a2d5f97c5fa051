// The driver table over libamdhip64.so, ROCm 6 and later. Declarations follow hip_runtime_api.h; enumerations travel as
// int.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "driver/driver.h"
#include "driver/library.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr int kCaptureModeRelaxed = 2;                                                       // hipStreamCaptureMode
constexpr int kInvalidDeviceFunction = 98, kInvalidHandle = 400, kContextIsDestroyed = 709;  // hipError_t

// hipDeviceProp_tR0600: 1,472 bytes, of which only these are read.
struct HipProperties {
  char before[388];
  int multiprocessors;
  char between[1160 - 392];
  char arch[256];
  char after[4096 - 1416];  // spare room: the structure has grown before
};
static_assert(sizeof(HipProperties) == 4096);

struct {
  Status (*init)(unsigned);
  Status (*device_count)(int*);
  Status (*properties)(HipProperties*, int);
  Status (*device_name)(char*, int size, int);
  Status (*device_memory)(size_t*, int);
  Status (*stream_device)(void*, int*);
  Status (*get_device)(int*);
  Status (*set_device)(int);
  Status (*load_data)(void**, const void*);
  Status (*unload)(void*);
  Status (*get_function)(void**, void*, const char*);
  Status (*is_capturing)(void*, int*);
  Status (*exchange_capture_mode)(int*);
  Status (*fill8)(void*, size_t pitch, int, size_t width, size_t height, void* stream);
  Status (*fill16)(void*, unsigned short, size_t count, void* stream);
  Status (*fill32)(void*, int, size_t count, void* stream);
  Status (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  const char* (*error_name)(int);
  const char* (*error_string)(int);
} hip;

// A context is the device's number plus one, so that none is null.
void* context_of(int device) { return reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1); }
int device_of(void* context) { return static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1; }

Status contexts(void* stream, Contexts* contexts) {
  int device = 0;
  Status status = hip.get_device(&device);
  contexts->current = context_of(device);
  if (!status && stream) status = hip.stream_device(stream, &device);
  contexts->of_stream = context_of(device);
  contexts->id = static_cast<uint64_t>(device) + 1;
  return status;
}

Status enter(void* context) { return hip.set_device(device_of(context)); }
Status leave(void* previous) { return hip.set_device(device_of(previous)); }

Status properties(DeviceProperties* properties) {
  int device = 0;
  size_t memory = 0;
  HipProperties found = {};
  Status status = hip.get_device(&device);
  if (!status) status = hip.properties(&found, device);
  if (!status) status = hip.device_name(properties->name, sizeof properties->name, device);
  if (!status) status = hip.device_memory(&memory, device);
  found.arch[strcspn(found.arch, ":")] = '\0';  // "gfx942:sramecc+:xnack-"
  snprintf(properties->arch, sizeof properties->arch, "%.*s", static_cast<int>(sizeof properties->arch) - 1,
           found.arch);
  properties->multiprocessors = found.multiprocessors;
  properties->ordinal = device;
  properties->memory = memory;
  return status;
}

Status primary_context(int ordinal, void** context) {
  *context = context_of(ordinal);
  return {};
}

Status load_module(void** module, const void* binary) {
  int mode = kCaptureModeRelaxed;
  Status status = hip.exchange_capture_mode(&mode);
  if (status) return status;
  status = hip.load_data(module, binary);
  const Status restored = hip.exchange_capture_mode(&mode);
  return status ? status : restored;
}

Status unload_module(void* module) { return hip.unload(module); }
Status get_function(void** function, void* module, const char* name) {
  return hip.get_function(function, module, name);
}
Status set_max_shared(void*, uint32_t) { return {}; }  // LDS needs no opt-in

Status is_capturing(void* stream, bool* capturing) {
  int capture = 0;
  const Status status = hip.is_capturing(stream, &capture);
  *capturing = capture != 0;
  return status;
}

Status fill(void* data, uint32_t pattern, int64_t bytes, int64_t width, int64_t rows, int64_t pitch, void* stream) {
  const auto columns = static_cast<size_t>(width);
  const size_t length = columns * static_cast<size_t>(bytes);
  if (!pattern)
    return hip.fill8(data, rows > 1 ? static_cast<size_t>(pitch) : length, 0, length, static_cast<size_t>(rows),
                     stream);
  for (int64_t row = 0; row < rows; ++row) {
    char* const to = static_cast<char*>(data) + row * pitch;
    const Status status = bytes == 2 ? hip.fill16(to, static_cast<unsigned short>(pattern), columns, stream)
                                     : hip.fill32(to, static_cast<int>(pattern), columns, stream);
    if (status) return status;
  }
  return {};
}

Status launch(const Launch& l) {
  return hip.launch(l.function, l.grid[0], l.grid[1], l.grid[2], l.threads, 1, 1, l.shared, l.stream, l.arguments,
                    nullptr);
}

// What hipDeviceReset leaves of a function. A device's number is the same after it.
bool is_gone(Status status) {
  return status.number == kInvalidDeviceFunction || status.number == kInvalidHandle ||
         status.number == kContextIsDestroyed;
}

void describe_error(Status status, char* text, size_t size) {
  snprintf(text, size, "%s, %d (%s)", hip.error_name(status.number), status.number, hip.error_string(status.number));
}

constexpr Driver table = {
    .name = "HIP",
    .vendor = "hip",
    .contexts = contexts,
    .enter = enter,
    .leave = leave,
    .properties = properties,
    .primary_context = primary_context,
    .load_module = load_module,
    .unload_module = unload_module,
    .get_function = get_function,
    .set_max_shared = set_max_shared,
    .is_capturing = is_capturing,
    .encode_tensor_map = nullptr,
    .replace_address = nullptr,
    .fill = fill,
    .launch = launch,
    .is_gone = is_gone,
    .describe_error = describe_error,
};

}  // namespace

const Driver* open_hip(char* why, size_t size) noexcept {
  Library library;
  if (!library.open({"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"})) {
    snprintf(why, size, "libamdhip64.so was not found");
    return nullptr;
  }
  library.find(hip.init, "hipInit");
  library.find(hip.device_count, "hipGetDeviceCount");
  library.find(hip.properties, "hipGetDevicePropertiesR0600");
  library.find(hip.device_name, "hipDeviceGetName");
  library.find(hip.device_memory, "hipDeviceTotalMem");
  library.find(hip.stream_device, "hipStreamGetDevice");
  library.find(hip.get_device, "hipGetDevice");
  library.find(hip.set_device, "hipSetDevice");
  library.find(hip.load_data, "hipModuleLoadData");
  library.find(hip.unload, "hipModuleUnload");
  library.find(hip.get_function, "hipModuleGetFunction");
  library.find(hip.is_capturing, "hipStreamIsCapturing");
  library.find(hip.exchange_capture_mode, "hipThreadExchangeStreamCaptureMode");
  library.find(hip.fill8, "hipMemset2DAsync");
  library.find(hip.fill16, "hipMemsetD16Async");
  library.find(hip.fill32, "hipMemsetD32Async");
  library.find(hip.launch, "hipModuleLaunchKernel");
  library.find(hip.error_name, "hipGetErrorName");
  library.find(hip.error_string, "hipGetErrorString");
  if (library.missing()) {
    snprintf(why, size, "libamdhip64.so is too old, it has no %s", library.missing());
    return nullptr;
  }
  int devices = 0;
  Status status = hip.init(0);
  if (!status) status = hip.device_count(&devices);
  if (status) {
    char text[120];
    describe_error(status, text, sizeof text);
    snprintf(why, size, "libamdhip64.so did not start: %s", text);
  } else if (!devices) {
    snprintf(why, size, "libamdhip64.so has no device");
  }
  return devices ? &table : nullptr;
}

}  // namespace aotriton::v2::inline abi1
