// Host time of one warm attn_fwd and attn_bwd through the C++ API, and through a prepared call, beside bare
// cuLaunchKernel calls of the same kernels and arguments.
//
//   launch [--json FILE] [--batches N]
//
// They take turns in batches that the GPU works off before the next begins, so none waits for room in its queue.
#include <aotriton/flash.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <vector>

#include "driver/driver.h"
#include "driver/library.h"

using namespace aotriton::v2;

namespace {

constexpr int kBatch = 200;  // launches; a CUDA stream takes about a thousand before the host has to wait
constexpr int kWarmUp = 20;  // batches
constexpr int64_t kHeads = 1, kSeqlen = 64, kHeadDim = 64;  // one or two programs: the GPU is faster than the host

struct {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*device_name)(char*, int, int);
  int (*driver_version)(int*);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*stream_create)(void**, unsigned);
  int (*stream_synchronize)(void*);
  int (*allocate)(uint64_t*, size_t);
  int (*set_bytes)(uint64_t, unsigned char, size_t);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
} cuda;

void check(int status, const char* what) {
  if (!status) return;
  std::fprintf(stderr, "launch: CUDA could not %s: error %d\n", what, status);
  std::exit(1);
}

void check(Error error) {
  if (error == Error::success) return;
  std::fprintf(stderr, "launch: %s: %s\n", error_name(error), last_error_message());
  std::exit(1);
}

// The launches of a call that went through the library's driver table, with arguments of their own.
struct Captured {
  Launch launch;
  std::vector<std::vector<uint64_t>> values;  // each as aligned as a tensor map, in a buffer that is larger
  std::vector<void*> pointers;
};
std::vector<Captured> captured;

const Driver* real = nullptr;

Status capture(const Launch& launch) {
  Captured& made = captured.emplace_back(Captured{launch, {}, {}});
  for (int i = 0; i < launch.argument_count; ++i) {
    std::vector<uint64_t>& value = made.values.emplace_back(launch.sizes[i] / 8 + 9);
    const auto start = (reinterpret_cast<uintptr_t>(value.data()) + 63) / 64 * 64;
    made.pointers.push_back(reinterpret_cast<void*>(start));
    std::memcpy(made.pointers.back(), launch.arguments[i], launch.sizes[i]);
  }
  return real->launch(launch);
}

void* allocate(size_t bytes) {
  uint64_t address = 0;
  check(cuda.allocate(&address, bytes), "allocate memory");
  check(cuda.set_bytes(address, 0x3c, bytes), "fill memory");
  return reinterpret_cast<void*>(address);
}

Tensor<4> tensor(int64_t row_stride) {
  return {allocate(static_cast<size_t>(kHeads * kSeqlen * row_stride) * 2),
          DType::bfloat16,
          {1, kHeads, kSeqlen, kHeadDim},
          {kHeads * kSeqlen * row_stride, kSeqlen * row_stride, row_stride, 1}};
}

// One forward or backward on tensors with this row stride, and the pointers that a prepared call takes.
struct Forward {
  attn_fwd_params params;
  explicit Forward(int64_t row_stride) {
    params.q = tensor(row_stride);
    params.k = tensor(row_stride);
    params.v = tensor(row_stride);
    params.out = tensor(row_stride);
  }
  Error call(Stream stream) { return attn_fwd(params, stream); }
  std::vector<void*> pointers() {
    return {params.q.data, params.k.data, params.v.data, params.out.data, nullptr, nullptr};
  }
};

struct Backward {
  attn_bwd_params params;
  Backward(int64_t row_stride, Stream stream) {
    aotriton_tensor4* const all[] = {&params.q,    &params.k,  &params.v,  &params.out,
                                     &params.dout, &params.dq, &params.dk, &params.dv};
    for (aotriton_tensor4* one : all) *one = tensor(row_stride);
    params.logsumexp =
        Tensor<3>{allocate(kHeads * kSeqlen * 4), DType::float32, {1, kHeads, kSeqlen}, {kHeads * kSeqlen, kSeqlen, 1}};
    check(attn_bwd_workspace_size(params, stream, &params.workspace_size));
    params.workspace = allocate(params.workspace_size);
  }
  Error call(Stream stream) { return attn_bwd(params, stream); }
  std::vector<void*> pointers() {
    return {params.q.data,         params.k.data,  params.v.data,  params.out.data, params.dout.data,
            params.logsumexp.data, params.dq.data, params.dk.data, params.dv.data,  params.workspace};
  }
};

// Microseconds of host time for one call, averaged over a batch.
template <class Call>
double time_batch(void* stream, Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kBatch; ++i) call();
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
  check(cuda.stream_synchronize(stream), "run the kernels");
  return taken.count() / kBatch;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Result {
  const char* what;
  size_t launches;
  int arguments;
  double library_us, prepared_us, bare_us;
};

template <class Operation>
Result measure(const char* what, Operation operation, Stream stream, int batches) {
  check(operation.call(stream));  // loads the images
  Driver capturing = *real;
  capturing.launch = capture;
  captured.clear();
  PreparedCall prepared;
  const std::vector<void*> pointers = operation.pointers();
  replace_driver(&capturing);
  check(prepare(operation.params, stream, &prepared));
  check(prepared.launch(pointers.data(), pointers.size(), stream));
  replace_driver(real);
  check(prepare(operation.params, stream, &prepared));
  check(cuda.stream_synchronize(stream.handle), "run the kernels");

  int status = 0, arguments = 0;
  for (const Captured& one : captured) arguments += one.launch.argument_count;
  Error error = Error::success;
  auto bare = [&] {
    for (Captured& one : captured) {
      const Launch& l = one.launch;
      status |= cuda.launch(l.function, l.grid[0], l.grid[1], l.grid[2], l.threads, 1, 1, l.shared, stream.handle,
                            one.pointers.data(), nullptr);
    }
  };
  auto library = [&] {
    if (const Error e = operation.call(stream); e != Error::success) error = e;
  };
  auto prepared_call = [&] {
    if (const Error e = prepared.launch(pointers.data(), pointers.size(), stream); e != Error::success) error = e;
  };
  std::vector<double> taken[3];
  for (int i = -kWarmUp; i < batches; ++i) {
    for (int turn = 0; turn < 3; ++turn) {
      const int which = (turn + i + kWarmUp) % 3;
      const double us = which == 0   ? time_batch(stream.handle, library)
                        : which == 1 ? time_batch(stream.handle, prepared_call)
                                     : time_batch(stream.handle, bare);
      if (i >= 0) taken[which].push_back(us);
    }
  }
  check(error);
  check(status, "launch the kernel");
  return {what, captured.size(), arguments, median(taken[0]), median(taken[1]), median(taken[2])};
}

void open_cuda_functions() {
  Library library;
  if (!library.open({"libcuda.so.1"})) {
    std::fprintf(stderr, "launch: libcuda.so.1 was not found\n");
    std::exit(3);
  }
  library.find(cuda.init, "cuInit");
  library.find(cuda.device_get, "cuDeviceGet");
  library.find(cuda.device_name, "cuDeviceGetName");
  library.find(cuda.driver_version, "cuDriverGetVersion");
  library.find(cuda.retain, "cuDevicePrimaryCtxRetain");
  library.find(cuda.set_current, "cuCtxSetCurrent");
  library.find(cuda.stream_create, "cuStreamCreate");
  library.find(cuda.stream_synchronize, "cuStreamSynchronize");
  library.find(cuda.allocate, "cuMemAlloc_v2");
  library.find(cuda.set_bytes, "cuMemsetD8_v2");
  library.find(cuda.launch, "cuLaunchKernel");
  if (library.missing()) {
    std::fprintf(stderr, "launch: libcuda.so.1 has no %s\n", library.missing());
    std::exit(3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* json = nullptr;
  int batches = 301;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && !std::strcmp(argv[i], "--json")) {
      json = argv[i + 1];
    } else if (i + 1 < argc && !std::strcmp(argv[i], "--batches") && std::atoi(argv[i + 1]) > 0) {
      batches = std::atoi(argv[i + 1]);
    } else {
      std::fprintf(stderr, "usage: launch [--json FILE] [--batches N]\n");
      return 2;
    }
  }
  open_cuda_functions();
  int device = 0, version = 0;
  char name[96] = "";
  void *context = nullptr, *stream = nullptr;
  check(cuda.init(0), "start");
  check(cuda.device_get(&device, 0), "open the first device");
  check(cuda.device_name(name, sizeof name, device), "name the device");
  check(cuda.driver_version(&version), "tell its version");
  check(cuda.retain(&context, device), "retain the primary context");
  check(cuda.set_current(context), "make the primary context current");
  check(cuda.stream_create(&stream, 1), "create a stream");
  real = driver();
  if (!real) check(Error::no_driver);

  const Stream on{stream};
  const Result results[] = {measure("forward", Forward(kHeadDim), on, batches),
                            measure("backward", Backward(kHeadDim, on), on, batches),
                            measure("forward, odd row strides", Forward(kHeadDim + 1), on, batches),
                            measure("backward, odd row strides", Backward(kHeadDim + 1, on), on, batches)};
  std::printf("%-26s %8s %9s %10s %12s %8s %8s %9s\n", "call", "launches", "arguments", "library us", "prepared us",
              "bare us", "library", "prepared");
  for (const Result& r : results)
    std::printf("%-26s %8zu %9d %10.3f %12.3f %8.3f %8.3f %9.3f\n", r.what, r.launches, r.arguments, r.library_us,
                r.prepared_us, r.bare_us, r.library_us / r.bare_us, r.prepared_us / r.bare_us);
  if (!json) return 0;
  std::FILE* file = std::fopen(json, "w");
  if (!file) {
    std::perror(json);
    return 1;
  }
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  std::fprintf(file, "{\n \"gpu\": \"%s\",\n \"cuda_driver\": %d,\n", name, version);
  std::fprintf(file, " \"library\": \"%s\",\n \"date\": \"%s\",\n", aotriton_version(), date);
  std::fprintf(file, " \"batches\": %d,\n \"launches_per_batch\": %d,\n \"cases\": [\n", batches, kBatch);
  for (const Result& r : results)
    std::fprintf(
        file,
        "  {\"call\": \"%s\", \"launches\": %zu, \"arguments\": %d, \"library_us\": %.4f, \"prepared_us\": %.4f, "
        "\"bare_us\": %.4f, \"library\": %.4f, \"prepared\": %.4f}%s\n",
        r.what, r.launches, r.arguments, r.library_us, r.prepared_us, r.bare_us, r.library_us / r.bare_us,
        r.prepared_us / r.bare_us, &r == std::end(results) - 1 ? "" : ",");
  std::fprintf(file, " ]\n}\n");
  return std::fclose(file) ? 1 : 0;
}
