// What bench/latency.py times of the library: one warm attn_fwd through the C++ API, without Python in between.
//
// Functions return null, or what went wrong. Each timing makes the same call once untimed and waits for it, so that the
// timed call finds the GPU idle and caches as the call itself left them.
#include <aotriton/flash.h>

#include <chrono>
#include <string>

#include "driver/library.h"

using namespace aotriton::v2;

namespace {

struct {
  int (*synchronize)(void* stream);
  int (*record)(void* event, void* stream);
} cuda;

// Contiguous bfloat16 tensors and a stream; `Problem` in latency.py has the same layout.
struct Problem {
  void *q, *k, *v, *out, *logsumexp, *stream;
  int64_t batch, heads, seqlen, head_dim;
  float sm_scale;
  int32_t causal;
};

// The whole call as an application makes it, from pointers and sizes on.
Error call(const Problem& p) noexcept {
  const int64_t rows = p.heads * p.seqlen;
  auto tensor = [&](void* data) {
    return Tensor<4>{data,
                     DType::bfloat16,
                     {p.batch, p.heads, p.seqlen, p.head_dim},
                     {rows * p.head_dim, p.seqlen * p.head_dim, p.head_dim, 1}};
  };
  attn_fwd_params params;
  params.q = tensor(p.q);
  params.k = tensor(p.k);
  params.v = tensor(p.v);
  params.out = tensor(p.out);
  params.logsumexp = Tensor<3>{p.logsumexp, DType::float32, {p.batch, p.heads, p.seqlen}, {rows, p.seqlen, 1}};
  params.sm_scale = p.sm_scale;
  params.causal = p.causal != 0;
  return attn_fwd(params, Stream{p.stream});
}

const char* failure(Error error) {
  static thread_local std::string text;
  text = std::string(error_name(error)) + ": " + last_error_message();
  return text.c_str();
}

const char* failure(int status) {
  static thread_local std::string text;
  text = "CUDA error " + std::to_string(status);
  return text.c_str();
}

const char* warm_up(const Problem& p) {
  if (const Error error = call(p); error != Error::success) return failure(error);
  if (const int status = cuda.synchronize(p.stream)) return failure(status);
  return nullptr;
}

int64_t nanoseconds(std::chrono::steady_clock::duration taken) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// To be called before the others.
EXPORT const char* latency_open() {
  Library library;
  if (!library.open({"libcuda.so.1"})) return "libcuda.so.1 was not found";
  library.find(cuda.synchronize, "cuStreamSynchronize");
  library.find(cuda.record, "cuEventRecord");
  return library.missing() ? "libcuda.so.1 lacks cuStreamSynchronize or cuEventRecord" : nullptr;
}

// The call alone, without waiting for it.
EXPORT const char* latency_call(const Problem* p) {
  const Error error = call(*p);
  return error == Error::success ? nullptr : failure(error);
}

// Nanoseconds from before the call to its return, and to the end of a stream synchronise after it.
EXPORT const char* latency_host(const Problem* p, int64_t* to_return, int64_t* to_end) {
  using clock = std::chrono::steady_clock;
  if (const char* failed = warm_up(*p)) return failed;
  const auto start = clock::now();
  const Error error = call(*p);
  const auto returned = clock::now();
  const int status = cuda.synchronize(p->stream);
  const auto end = clock::now();
  if (error != Error::success) return failure(error);
  if (status) return failure(status);
  *to_return = nanoseconds(returned - start);
  *to_end = nanoseconds(end - start);
  return nullptr;
}

// Records two events of the caller right around the call, and waits for them.
EXPORT const char* latency_events(const Problem* p, void* start, void* end) {
  if (const char* failed = warm_up(*p)) return failed;
  const int started = cuda.record(start, p->stream);
  const Error error = call(*p);
  const int ended = cuda.record(end, p->stream);
  const int done = cuda.synchronize(p->stream);
  if (error != Error::success) return failure(error);
  for (const int status : {started, ended, done})
    if (status) return failure(status);
  return nullptr;
}

}  // extern "C"
