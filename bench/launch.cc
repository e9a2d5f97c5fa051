// Host time of one warm attn_fwd through the C++ API, beside a bare cuLaunchKernel of the same kernel and arguments.
//
//   launch [--json FILE] [--batches N]
//
// The two take turns in batches that the GPU works off before the next begins, so neither waits for room in its queue.
#include <aotriton/flash.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

// The last launch that went through the library's driver table, with arguments of its own.
struct Captured {
  Launch launch;
  std::vector<std::vector<uint64_t>> values;  // each as aligned as a tensor map, in a buffer that is larger
  std::vector<void*> pointers;
} captured;

const Driver* real = nullptr;

int capture(const Launch& launch) {
  captured = {launch, {}, {}};
  for (int i = 0; i < launch.argument_count; ++i) {
    std::vector<uint64_t>& value = captured.values.emplace_back(launch.sizes[i] / 8 + 9);
    const auto start = (reinterpret_cast<uintptr_t>(value.data()) + 63) / 64 * 64;
    captured.pointers.push_back(reinterpret_cast<void*>(start));
    std::memcpy(captured.pointers.back(), launch.arguments[i], launch.sizes[i]);
  }
  return real->launch(launch);
}

Tensor<4> tensor(int64_t row_stride) {
  uint64_t address = 0;
  const size_t bytes = static_cast<size_t>(kHeads * kSeqlen * row_stride) * 2;
  check(cuda.allocate(&address, bytes), "allocate memory");
  check(cuda.set_bytes(address, 0x3c, bytes), "fill memory");
  return {reinterpret_cast<void*>(address),
          DType::bfloat16,
          {1, kHeads, kSeqlen, kHeadDim},
          {kHeads * kSeqlen * row_stride, kSeqlen * row_stride, row_stride, 1}};
}

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
  const char* tensors;
  int arguments;
  double library_us, bare_us;
};

Result measure(const char* tensors, int64_t row_stride, void* stream, int batches) {
  attn_fwd_params params;
  params.q = tensor(row_stride);
  params.k = tensor(row_stride);
  params.v = tensor(row_stride);
  params.out = tensor(row_stride);
  params.sm_scale = 0.125f;
  check(attn_fwd(params, Stream{stream}));  // loads the image

  Driver capturing = *real;
  capturing.launch = capture;
  replace_driver(&capturing);
  check(attn_fwd(params, Stream{stream}));
  replace_driver(real);
  check(cuda.stream_synchronize(stream), "run the kernels");

  const Launch& l = captured.launch;
  int status = 0;
  Error error = Error::success;
  auto bare = [&] {
    status |= cuda.launch(l.function, l.grid[0], l.grid[1], l.grid[2], l.threads, 1, 1, l.shared, stream,
                          captured.pointers.data(), nullptr);
  };
  auto library = [&] {
    if (const Error e = attn_fwd(params, Stream{stream}); e != Error::success) error = e;
  };
  std::vector<double> library_us, bare_us;
  for (int i = -kWarmUp; i < batches; ++i) {
    const bool library_first = i % 2 == 0;
    double first = library_first ? time_batch(stream, library) : time_batch(stream, bare);
    double second = library_first ? time_batch(stream, bare) : time_batch(stream, library);
    if (!library_first) std::swap(first, second);
    if (i >= 0) library_us.push_back(first), bare_us.push_back(second);
  }
  check(error);
  check(status, "launch the kernel");
  return {tensors, l.argument_count, median(library_us), median(bare_us)};
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

  const Result results[] = {measure("aligned", kHeadDim, stream, batches),
                            measure("odd row strides", kHeadDim + 1, stream, batches)};
  std::printf("%-16s %10s %12s %10s %6s\n", "tensors", "arguments", "library us", "bare us", "ratio");
  for (const Result& r : results)
    std::printf("%-16s %10d %12.3f %10.3f %6.3f\n", r.tensors, r.arguments, r.library_us, r.bare_us,
                r.library_us / r.bare_us);
  if (!json) return 0;
  std::FILE* file = std::fopen(json, "w");
  if (!file) {
    std::perror(json);
    return 1;
  }
  std::fprintf(file, "{\n \"gpu\": \"%s\",\n \"cuda_driver\": %d,\n", name, version);
  std::fprintf(file, " \"batches\": %d,\n \"launches_per_batch\": %d,\n \"cases\": [\n", batches, kBatch);
  for (const Result& r : results)
    std::fprintf(file,
                 "  {\"tensors\": \"%s\", \"arguments\": %d, \"library_us\": %.4f, \"bare_us\": %.4f, "
                 "\"ratio\": %.4f}%s\n",
                 r.tensors, r.arguments, r.library_us, r.bare_us, r.library_us / r.bare_us, &r == results ? "," : "");
  std::fprintf(file, " ]\n}\n");
  return std::fclose(file) ? 1 : 0;
}
