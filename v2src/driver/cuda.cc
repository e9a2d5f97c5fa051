// The driver table over libcuda.so.1. Declarations follow cuda.h; enumerations travel as int.
#include <cstddef>
#include <cstdio>

#include "driver/driver.h"
#include "driver/library.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76,
              kMultiprocessorCount = 16;                              // CUdevice_attribute
constexpr int kMaxDynamicSharedSize = 8;                              // CUfunction_attribute
constexpr int kUint8 = 0, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;  // CUtensorMapDataType
constexpr int kCaptureModeRelaxed = 2;                                // CUstreamCaptureMode
constexpr int kInterleaveNone = 0, kL2Promotion128B = 2, kFillZero = 0;
constexpr int kProgrammaticStreamSerialization = 6;  // CUlaunchAttributeID
// The first driver that is asked for early launches. A capture makes edges of a kind of their own of them, and the
// edges of a graph have had a kind since CUDA 12.3.
constexpr int kFirstEarly = 12030;

// CUlaunchAttribute: of the union behind `id` only the number that is used.
struct LaunchAttribute {
  alignas(8) int id;
  alignas(8) int value;
  char rest[60];
};
static_assert(offsetof(LaunchAttribute, value) == 8 && sizeof(LaunchAttribute) == 72);

// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(offsetof(LaunchConfig, stream) == 32 && offsetof(LaunchConfig, attribute_count) == 48);
static_assert(sizeof(LaunchConfig) == 56);

struct {
  Status (*init)(unsigned);
  Status (*version)(int*);
  Status (*device_count)(int*);
  Status (*device_attribute)(int*, int, int);
  Status (*device_name)(char*, int size, int);
  Status (*device_memory)(size_t*, int);
  Status (*stream_context)(void*, void**);
  Status (*current)(void**);
  Status (*push)(void*);
  Status (*pop)(void**);
  Status (*context_device)(int*);
  Status (*context_id)(void*, unsigned long long*);
  Status (*retain_primary)(void**, int);
  Status (*device)(int*, int);
  Status (*exchange_capture_mode)(int*);
  Status (*load_data)(void**, const void*);
  Status (*unload)(void*);
  Status (*get_function)(void**, void*, const char*);
  Status (*set_attribute)(void*, int, int);
  Status (*is_capturing)(void*, int*);
  Status (*encode_tiled)(TensorMap*, int type, uint32_t rank, void* address, const uint64_t* sizes,
                         const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave,
                         int swizzle, int promotion, int fill);
  Status (*replace_address)(TensorMap*, void*);
  Status (*fill16)(uint64_t, size_t pitch, unsigned short, size_t width, size_t height, void* stream);
  Status (*fill32)(uint64_t, size_t pitch, unsigned, size_t width, size_t height, void* stream);
  Status (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  Status (*launch_with)(const LaunchConfig*, void*, void**, void**);  // null: all launches are plain
  Status (*error_name)(int, const char**);
  Status (*error_string)(int, const char**);
} cuda;

// Null, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are of whichever context is current.
bool has_context(void* stream) { return reinterpret_cast<uintptr_t>(stream) > 2; }

Status contexts(void* stream, Contexts* contexts) {
  Status status = cuda.current(&contexts->current);
  contexts->of_stream = contexts->current;
  if (!status && has_context(stream)) status = cuda.stream_context(stream, &contexts->of_stream);
  unsigned long long id = 0;
  if (!status && contexts->of_stream) status = cuda.context_id(contexts->of_stream, &id);
  contexts->id = id;
  return status;
}

Status enter(void* context) { return cuda.push(context); }

Status leave(void*) {
  void* popped;
  return cuda.pop(&popped);
}

Status properties(DeviceProperties* properties) {
  int device, major, minor;
  size_t memory = 0;
  Status status = cuda.context_device(&device);
  if (!status) status = cuda.device_attribute(&major, kComputeCapabilityMajor, device);
  if (!status) status = cuda.device_attribute(&minor, kComputeCapabilityMinor, device);
  if (!status) status = cuda.device_attribute(&properties->multiprocessors, kMultiprocessorCount, device);
  if (!status) status = cuda.device_name(properties->name, sizeof properties->name, device);
  if (!status) status = cuda.device_memory(&memory, device);
  if (status) return status;
  snprintf(properties->arch, sizeof properties->arch, "sm_%d%d", major, minor);
  properties->ordinal = device;
  properties->memory = memory;
  return {};
}

Status primary_context(int ordinal, void** context) {
  int device;
  const Status status = cuda.device(&device, ordinal);
  return status ? status : cuda.retain_primary(context, device);
}

// Loading is forbidden, and ends the capture, where a thread captures in the global mode; not to a thread in the
// relaxed one.
Status load_module(void** module, const void* binary) {
  int mode = kCaptureModeRelaxed;
  Status status = cuda.exchange_capture_mode(&mode);
  if (status) return status;
  status = cuda.load_data(module, binary);
  const Status restored = cuda.exchange_capture_mode(&mode);
  return status ? status : restored;
}

Status unload_module(void* module) { return cuda.unload(module); }
Status get_function(void** function, void* module, const char* name) {
  return cuda.get_function(function, module, name);
}

Status set_max_shared(void* function, uint32_t bytes) {
  return cuda.set_attribute(function, kMaxDynamicSharedSize, static_cast<int>(bytes));
}

Status is_capturing(void* stream, bool* capturing) {
  int capture = 0;
  const Status status = cuda.is_capturing(stream, &capture);
  *capturing = capture != 0;
  return status;
}

Status encode_tensor_map(TensorMap* map, const TensorMapRequest& request) {
  const auto type_of = [](DType dtype) {
    switch (dtype) {
      case DType::float16:
        return kFloat16;
      case DType::bfloat16:
        return kBfloat16;
      case DType::float32:
        return kFloat32;
      default:
        return kUint8;  // a map of floats of 8 bits does not say which
    }
  };
  const int type = type_of(request.dtype);
  constexpr uint32_t element_strides[5] = {1, 1, 1, 1, 1};
  return cuda.encode_tiled(map, type, static_cast<uint32_t>(request.rank), request.address, request.sizes,
                           request.strides, request.box, element_strides, kInterleaveNone, request.swizzle,
                           kL2Promotion128B, kFillZero);
}

Status replace_address(TensorMap* map, void* address) { return cuda.replace_address(map, address); }

Status fill(void* data, uint32_t pattern, int64_t bytes, int64_t width, int64_t rows, int64_t pitch, void* stream) {
  const auto to = reinterpret_cast<uint64_t>(data);
  const auto columns = static_cast<size_t>(width), height = static_cast<size_t>(rows);
  const size_t step = rows > 1 ? static_cast<size_t>(pitch) : columns * static_cast<size_t>(bytes);
  if (bytes == 2) return cuda.fill16(to, step, static_cast<unsigned short>(pattern), columns, height, stream);
  return cuda.fill32(to, step, pattern, columns, height, stream);
}

// Every image for CUDA is for sm_90, the first arch that can.
[[gnu::noinline]] Status launch_early(const Launch& l) {
  const LaunchAttribute attribute = {kProgrammaticStreamSerialization, 1, {}};
  const LaunchConfig config = {{l.grid[0], l.grid[1], l.grid[2]}, {l.threads, 1, 1}, l.shared, l.stream, &attribute, 1};
  return cuda.launch_with(&config, l.function, l.arguments, nullptr);
}

Status launch(const Launch& l) {
  if (l.early && cuda.launch_with) [[unlikely]]
    return launch_early(l);
  return cuda.launch(l.function, l.grid[0], l.grid[1], l.grid[2], l.threads, 1, 1, l.shared, l.stream, l.arguments,
                     nullptr);
}

void describe_error(Status status, char* text, size_t size) {
  const char *name = nullptr, *meaning = nullptr;
  if (cuda.error_name(status.number, &name) || !name) name = "unknown error";
  if (cuda.error_string(status.number, &meaning) || !meaning) meaning = "no description";
  snprintf(text, size, "%s, %d (%s)", name, status.number, meaning);
}

constexpr Driver table = {
    .name = "CUDA",
    .vendor = "cuda",
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
    .encode_tensor_map = encode_tensor_map,
    .replace_address = replace_address,
    .fill = fill,
    .launch = launch,
    .is_gone = nullptr,
    .describe_error = describe_error,
};

}  // namespace

const Driver* open_cuda(char* why, size_t size) noexcept {
  Library library;
  if (!library.open({"libcuda.so.1"})) {
    snprintf(why, size, "libcuda.so.1 was not found");
    return nullptr;
  }
  library.find(cuda.init, "cuInit");
  library.find(cuda.version, "cuDriverGetVersion");
  library.find(cuda.device_count, "cuDeviceGetCount");
  library.find(cuda.device_attribute, "cuDeviceGetAttribute");
  library.find(cuda.device_name, "cuDeviceGetName");
  library.find(cuda.device_memory, "cuDeviceTotalMem_v2");
  library.find(cuda.stream_context, "cuStreamGetCtx");
  library.find(cuda.current, "cuCtxGetCurrent");
  library.find(cuda.push, "cuCtxPushCurrent_v2");
  library.find(cuda.pop, "cuCtxPopCurrent_v2");
  library.find(cuda.context_device, "cuCtxGetDevice");
  library.find(cuda.context_id, "cuCtxGetId");
  library.find(cuda.retain_primary, "cuDevicePrimaryCtxRetain");
  library.find(cuda.device, "cuDeviceGet");
  library.find(cuda.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  library.find(cuda.load_data, "cuModuleLoadData");
  library.find(cuda.unload, "cuModuleUnload");
  library.find(cuda.get_function, "cuModuleGetFunction");
  library.find(cuda.set_attribute, "cuFuncSetAttribute");
  library.find(cuda.is_capturing, "cuStreamIsCapturing");
  library.find(cuda.encode_tiled, "cuTensorMapEncodeTiled");
  library.find(cuda.replace_address, "cuTensorMapReplaceAddress");
  library.find(cuda.fill16, "cuMemsetD2D16Async");
  library.find(cuda.fill32, "cuMemsetD2D32Async");
  library.find(cuda.launch, "cuLaunchKernel");
  library.find(cuda.launch_with, "cuLaunchKernelEx");
  library.find(cuda.error_name, "cuGetErrorName");
  library.find(cuda.error_string, "cuGetErrorString");
  if (library.missing()) {
    snprintf(why, size, "libcuda.so.1 is too old, it has no %s", library.missing());
    return nullptr;
  }
  int devices = 0, version = 0;
  Status status = cuda.init(0);
  if (!status) status = cuda.version(&version);
  if (version < kFirstEarly) cuda.launch_with = nullptr;
  if (!status) status = cuda.device_count(&devices);
  if (status) {
    char text[120];
    describe_error(status, text, sizeof text);
    snprintf(why, size, "libcuda.so.1 did not start: %s", text);
  } else if (!devices) {
    snprintf(why, size, "libcuda.so.1 has no device");
  }
  return devices ? &table : nullptr;
}

}  // namespace aotriton::v2::inline abi1
