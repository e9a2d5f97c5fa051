// The part of cuda.h that a program needs which makes contexts and streams, and what the stand-in in
// libcuda_contexts.cc has seen.
#pragma once

#include <atomic>

extern "C" {

int cuInit(unsigned flags);
int cuCtxCreate_v2(void** context, unsigned flags, int device);
int cuCtxDestroy_v2(void* context);
int cuCtxSetCurrent(void* context);
int cuCtxGetCurrent(void** context);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuDevicePrimaryCtxReset_v2(int device);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamBeginCapture_v2(void* stream, int mode);
int cuStreamEndCapture(void* stream, void** graph);

struct Seen {
  std::atomic<int> loads{0}, launches{0};
  std::atomic<int> stale{0};   // launches of functions whose context is gone
  std::atomic<int> broken{0};  // captures that a call broke
};
Seen* fake_cuda_seen();

}  // extern "C"

constexpr int kGlobal = 0, kThreadLocal = 1, kRelaxed = 2;  // CUstreamCaptureMode
