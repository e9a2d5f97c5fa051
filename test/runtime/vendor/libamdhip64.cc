// Stands in for libamdhip64.so: exports the entry points that driver/hip.cc uses, with the signatures of
// hip_runtime_api.h, and writes down each call. Devices are gfx942 with 304 multiprocessors.
#include <cstdio>
#include <cstring>
#include <string>

namespace {

std::string calls;
int current = 0;
int capture_mode = 0;  // global

template <class... Values>
int note(const char* format, Values... values) {
  char text[256];
  snprintf(text, sizeof text, format, values...);
  calls += text;
  return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int fake_hip_devices = 2;

const char* fake_hip_calls() {
  static std::string seen;
  seen.swap(calls);
  calls.clear();
  return seen.c_str();
}

int hipInit(unsigned flags) { return note("init %u;", flags); }
int hipGetDeviceCount(int* count) { return *count = fake_hip_devices, 0; }
// hipDeviceProp_tR0600 of ROCm 6 and 7: multiProcessorCount at byte 388, gcnArchName[256] at 1160, 1,472 bytes in all.
int hipGetDevicePropertiesR0600(void* properties, int device) {
  memset(properties, 0xff, 1472);
  const int multiprocessors = 304;
  memcpy(static_cast<char*>(properties) + 388, &multiprocessors, sizeof multiprocessors);
  strcpy(static_cast<char*>(properties) + 1160, "gfx942:sramecc+:xnack-");
  return note("properties of %d;", device);
}
int hipDeviceGetName(char* name, int size, int device) {
  snprintf(name, static_cast<size_t>(size), "AMD Instinct MI300X");
  return note("name of %d;", device);
}
int hipDeviceTotalMem(size_t* bytes, int device) { return *bytes = size_t{192} << 30, note("memory of %d;", device); }
int hipStreamGetDevice(void* stream, int* device) { return *device = 1, note("device of %p;", stream); }
int hipGetDevice(int* device) { return *device = current, 0; }
int hipSetDevice(int device) { return current = device, note("device %d;", device); }
int hipModuleLoadData(void** module, const void* image) {
  *module = reinterpret_cast<void*>(0x200);
  return note("load %s;", static_cast<const char*>(image));
}
int hipModuleUnload(void* module) { return note("unload %p;", module); }
int hipModuleGetFunction(void** function, void* module, const char* name) {
  *function = reinterpret_cast<void*>(0x300);
  return note("function %p %s;", module, name);
}
int hipStreamIsCapturing(void* stream, int* status) { return *status = stream == reinterpret_cast<void*>(0x999), 0; }
int hipThreadExchangeStreamCaptureMode(int* mode) {
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return note("mode %d;", capture_mode);
}
int hipMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, void* stream) {
  return note("fill8 %p %zu %d %zu %zu %p;", to, pitch, value, width, height, stream);
}
int hipMemsetD16Async(void* to, unsigned short value, size_t count, void* stream) {
  return note("fill16 %p %x %zu %p;", to, value, count, stream);
}
int hipMemsetD32Async(void* to, int value, size_t count, void* stream) {
  return note("fill32 %p %x %zu %p;", to, value, count, stream);
}
int hipModuleLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** arguments, void** extra) {
  return note("launch %p %u,%u,%u %u,%u,%u %u %p %d %p;", function, x, y, z, bx, by, bz, shared, stream,
              *static_cast<int*>(arguments[0]), static_cast<void*>(extra));
}
const char* hipGetErrorName(int status) { return status == 2 ? "hipErrorOutOfMemory" : "hipErrorUnknown"; }
const char* hipGetErrorString(int status) { return status == 2 ? "out of memory" : "unknown error"; }

}  // extern "C"
#pragma GCC visibility pop
