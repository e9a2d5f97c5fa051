// Stands in for libcuda.so.1: exports the entry points that driver/cuda.cc and bench/latency.cc use, with the
// signatures of cuda.h, and writes down each call. Two contexts, of devices 0 and 1, which are an H200: sm_90 with
// 132 multiprocessors.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace {

std::string calls;
void* stack[8] = {reinterpret_cast<void*>(0x100)};
int depth = 0;
int capture_mode = 0;  // global

template <class... Values>
int note(const char* format, Values... values) {
  char text[256];
  snprintf(text, sizeof text, format, values..., 0);  // one more than it takes, as some take none
  calls += text;
  return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int fake_cuda_devices = 1;
int fake_cuda_version = 13000;
int fake_cuda_argument = 0;  // the one of a launch that is written down, by its number

const char* fake_cuda_calls() {
  static std::string seen;
  seen.swap(calls);
  calls.clear();
  return seen.c_str();
}

int cuInit(unsigned flags) { return note("init %u;", flags); }
int cuDriverGetVersion(int* version) { return *version = fake_cuda_version, 0; }
int cuDeviceGetCount(int* count) { return *count = fake_cuda_devices, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
  return note("attribute %d of %d;", attribute, device);
}
int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, static_cast<size_t>(size), "NVIDIA H200");
  return note("name of %d;", device);
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = size_t{141} << 30, note("memory of %d;", device); }
int cuStreamGetCtx(void* stream, void** context) {
  *context = reinterpret_cast<void*>(0x101);
  return note("context of %p;", stream);
}
int cuCtxGetCurrent(void** context) { return *context = stack[depth], 0; }
int cuCtxPushCurrent_v2(void* context) { return stack[++depth] = context, note("push %p;", context); }
int cuCtxPopCurrent_v2(void** context) { return *context = stack[depth--], note("pop;"); }
int cuCtxGetId(void* context, unsigned long long* id) {
  *id = reinterpret_cast<uintptr_t>(context) + 0x1000;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(0x100 + device));
  return note("retain %d;", device);
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return note("mode %d;", capture_mode);
}
int cuCtxGetDevice(int* device) { return *device = stack[depth] == reinterpret_cast<void*>(0x101), 0; }
int cuModuleLoadData(void** module, const void* image) {
  *module = reinterpret_cast<void*>(0x200);
  return note("load %s;", static_cast<const char*>(image));
}
int cuModuleUnload(void* module) { return note("unload %p;", module); }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = reinterpret_cast<void*>(0x300);
  return note("function %p %s;", module, name);
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return note("set %p %d %d;", function, attribute, value);
}
int cuStreamIsCapturing(void* stream, int* status) { return *status = stream == reinterpret_cast<void*>(0x999), 0; }
int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                           int interleave, int swizzle, int promotion, int fill) {
  *static_cast<uint64_t*>(map) = 1;
  return note("encode %d %u %p %lu,%lu %lu %u,%u %u,%u %d %d %d %d;", type, rank, address, sizes[0], sizes[1],
              strides[0], box[0], box[1], element_strides[0], element_strides[1], interleave, swizzle, promotion, fill);
}
int cuTensorMapReplaceAddress(void* map, void* address) {
  static_cast<uint64_t*>(map)[1] = reinterpret_cast<uint64_t>(address);
  return note("replace %p;", address);
}
int cuMemsetD2D16Async(uint64_t to, size_t pitch, unsigned short value, size_t width, size_t height, void* stream) {
  return note("fill16 0x%lx %zu %x %zu %zu %p;", to, pitch, value, width, height, stream);
}
int cuMemsetD2D32Async(uint64_t to, size_t pitch, unsigned value, size_t width, size_t height, void* stream) {
  return note("fill32 0x%lx %zu %x %zu %zu %p;", to, pitch, value, width, height, stream);
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
  return note("launch %p %u,%u,%u %u,%u,%u %u %p %d %p;", function, x, y, z, bx, by, bz, shared, stream,
              *static_cast<int*>(arguments[fake_cuda_argument]), static_cast<void*>(extra));
}
// A CUlaunchConfig of one CUlaunchAttribute, read as cuda.h lays them out.
int cuLaunchKernelEx(const char* config, void* function, void** arguments, void** extra) {
  const auto read = [&]<class Value>(const char* from, Value value) {
    memcpy(&value, from, sizeof value);
    return value;
  };
  unsigned grid_block_shared[7];
  memcpy(grid_block_shared, config, sizeof grid_block_shared);
  const auto [x, y, z, bx, by, bz, shared] = grid_block_shared;
  const char* const attribute = read(config + 40, static_cast<const char*>(nullptr));
  return note("launch %p %u,%u,%u %u,%u,%u %u %p %d %p with %u: %d=%d;", function, x, y, z, bx, by, bz, shared,
              read(config + 32, static_cast<void*>(nullptr)), *static_cast<int*>(arguments[fake_cuda_argument]),
              static_cast<void*>(extra), read(config + 48, 0u), read(attribute, 0), read(attribute + 8, 0));
}
int cuStreamSynchronize(void* stream) { return note("synchronize %p;", stream); }
int cuEventRecord(void* event, void* stream) { return note("record %p %p;", event, stream); }
int cuGetErrorName(int status, const char** name) { return status == 2 ? (*name = "CUDA_ERROR_OUT_OF_MEMORY", 0) : 1; }
int cuGetErrorString(int status, const char** text) { return status == 2 ? (*text = "out of memory", 0) : 1; }

}  // extern "C"
#pragma GCC visibility pop
