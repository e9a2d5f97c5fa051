// Stands in for libcuda.so.1 where contexts come and go: they are made, destroyed and reset, at addresses that are used
// again; functions die with their context; captures forbid what CUDA says they forbid. All of it from any thread.
#include <pthread.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "vendor/contexts.h"

namespace {

constexpr int kDevices = 64;
constexpr int kInvalidContext = 201, kInvalidHandle = 400, kContextIsDestroyed = 709, kCaptureUnsupported = 900,
              kCaptureInvalidated = 901;  // CUresult

struct Context {
  int device;
  uint64_t life;  // never that of another context
  bool alive;
};

struct Module {
  const Context* context;
  uint64_t life;
};

struct Stream {
  Context* context;
  bool capturing, broken;
  int mode;
};

Seen seen;
std::mutex mutex;
uint64_t lives = 0;
Context* primary[kDevices];
std::vector<Context*> destroyed;  // whose addresses are used again, last ones first
std::vector<Stream*> streams;
std::vector<Module*> modules;
thread_local std::vector<Context*> stack;
thread_local int capture_mode = kGlobal;

using Lock = std::lock_guard<std::mutex>;

// A child of fork() finds the lock free.
const int registered = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });

Context* current() { return stack.empty() ? nullptr : stack.back(); }

bool is_default(void* stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

// Whether a call that may not be made during a capture must fail, which breaks the captures that it is forbidden in.
bool breaks_captures() {
  if (capture_mode == kRelaxed) return false;
  bool broken = false;
  for (Stream* stream : streams)
    if (stream->capturing && stream->mode == kGlobal) broken = stream->broken = true;
  seen.broken += broken;
  return broken;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

Seen* fake_cuda_seen() { return &seen; }

int cuInit(unsigned) { return registered; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = kDevices, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return *value = attribute == 16 ? 132 : attribute == 75 ? 9 : 0, 0;  // sm_90
}
int cuDeviceGetName(char* name, int size, int) { return snprintf(name, static_cast<size_t>(size), "an sm_90"), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{80} << 30, 0; }

int cuCtxCreate_v2(void** context, unsigned, int device) {
  const Lock lock(mutex);
  Context* made = destroyed.empty() ? new Context : destroyed.back();
  if (!destroyed.empty()) destroyed.pop_back();
  *made = {device, ++lives, true};
  stack.push_back(made);
  return *context = made, 0;
}
int cuCtxDestroy_v2(void* context) {
  const Lock lock(mutex);
  auto* const gone = static_cast<Context*>(context);
  gone->alive = false;
  destroyed.push_back(gone);
  if (current() == gone) stack.pop_back();
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  const Lock lock(mutex);
  if (!primary[device]) primary[device] = new Context{device, 0, false};
  if (!primary[device]->alive) *primary[device] = {device, ++lives, true};
  return *context = primary[device], 0;
}
int cuDevicePrimaryCtxReset_v2(int device) {  // its address stays
  const Lock lock(mutex);
  primary[device]->alive = false;
  return 0;
}
int cuCtxSetCurrent(void* context) {
  if (!stack.empty()) stack.pop_back();
  if (context) stack.push_back(static_cast<Context*>(context));
  return 0;
}
int cuCtxGetCurrent(void** context) { return *context = current(), 0; }
int cuCtxPushCurrent_v2(void* context) { return stack.push_back(static_cast<Context*>(context)), 0; }
int cuCtxPopCurrent_v2(void** context) {
  if (stack.empty()) return kInvalidContext;
  *context = current();
  stack.pop_back();
  return 0;
}
int cuCtxGetDevice(int* device) { return current() ? (*device = current()->device, 0) : kInvalidContext; }
int cuCtxGetId(void* context, unsigned long long* id) {
  const Lock lock(mutex);
  return *id = static_cast<Context*>(context)->life, 0;
}

int cuStreamCreate(void** stream, unsigned) {
  const Lock lock(mutex);
  streams.push_back(new Stream{current(), false, false, kGlobal});
  return *stream = streams.back(), 0;
}
int cuStreamGetCtx(void* stream, void** context) {
  *context = is_default(stream) ? current() : static_cast<Stream*>(stream)->context;
  return *context ? 0 : kInvalidContext;
}
int cuStreamBeginCapture_v2(void* stream, int mode) {
  const Lock lock(mutex);
  auto* const begun = static_cast<Stream*>(stream);
  *begun = {begun->context, true, false, mode};
  return 0;
}
int cuStreamEndCapture(void* stream, void** graph) {
  const Lock lock(mutex);
  auto* const ended = static_cast<Stream*>(stream);
  ended->capturing = false;
  *graph = ended->broken ? nullptr : stream;
  return ended->broken ? kCaptureInvalidated : 0;
}
int cuStreamIsCapturing(void* stream, int* status) {
  const Lock lock(mutex);
  *status = !is_default(stream) && static_cast<Stream*>(stream)->capturing;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, capture_mode), 0; }

int cuModuleLoadData(void** module, const void*) {
  const Lock lock(mutex);
  ++seen.loads;
  if (!current()) return kInvalidContext;
  if (!current()->alive) return kContextIsDestroyed;
  if (breaks_captures()) return kCaptureUnsupported;
  modules.push_back(new Module{current(), current()->life});
  return *module = modules.back(), 0;
}
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void* module, const char*) { return *function = module, 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }

int cuTensorMapEncodeTiled(void* map, int, uint32_t, void* address, const uint64_t*, const uint64_t*, const uint32_t*,
                           const uint32_t*, int, int, int, int) {
  memset(map, 0, 128);
  return memcpy(map, &address, sizeof address), 0;
}
int cuTensorMapReplaceAddress(void* map, void* address) { return memcpy(map, &address, sizeof address), 0; }
int cuMemsetD2D16Async(uint64_t, size_t, unsigned short, size_t, size_t, void*) { return 0; }
int cuMemsetD2D32Async(uint64_t, size_t, unsigned, size_t, size_t, void*) { return 0; }

int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
                   void**, void**) {
  const Lock lock(mutex);
  ++seen.launches;
  if (!current()) return kInvalidContext;
  const auto& of = *static_cast<const Module*>(function);
  const bool stale = of.context != current() || of.life != current()->life || !current()->alive;
  seen.stale += stale;
  return stale || (!is_default(stream) && static_cast<Stream*>(stream)->context != current()) ? kInvalidHandle : 0;
}

int cuLaunchKernelEx(const void*, void*, void**, void**) { return kInvalidHandle; }  // no kernel begins early

int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_OF_THE_STANDIN", 0; }
int cuGetErrorString(int, const char** text) { return *text = "stand-in", 0; }

}  // extern "C"
#pragma GCC visibility pop
