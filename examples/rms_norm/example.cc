// Normalises random rows on the GPU and compares them with the host's arithmetic; without a GPU it says which kernel
// would run. Usage: example [ROWS WIDTH]
#include <dlfcn.h>
#include <rms_norm.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace aotriton::v2;

namespace {

// As much of CUDA's or HIP's runtime as this program needs, from whichever is there.
struct Gpu {
  int (*allocate)(void**, size_t) = nullptr;
  int (*copy)(void*, const void*, size_t, int) = nullptr;
  int (*wait)() = nullptr;

  Gpu() {
    const struct {
      const char *library, *prefix;
    } vendors[] = {
        {"libcudart.so", "cuda"}, {"libcudart.so.13", "cuda"}, {"libcudart.so.12", "cuda"}, {"libamdhip64.so", "hip"}};
    for (const auto& [library, prefix] : vendors) {
      void* const opened = dlopen(library, RTLD_NOW);
      if (!opened) continue;
      const auto find = [&](const char* name) { return dlsym(opened, (std::string(prefix) + name).c_str()); };
      int count = 0;
      const auto devices = reinterpret_cast<int (*)(int*)>(find("GetDeviceCount"));
      if (!devices || devices(&count) || !count) continue;
      allocate = reinterpret_cast<decltype(allocate)>(find("Malloc"));
      copy = reinterpret_cast<decltype(copy)>(find("Memcpy"));
      wait = reinterpret_cast<decltype(wait)>(find("DeviceSynchronize"));
      return;
    }
  }
};

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_bfloat16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

int failed(const char* what, Error error) {
  std::fprintf(stderr, "%s: %s: %s\n", what, error_name(error), last_error_message());
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t rows = count > 2 ? std::atoll(arguments[1]) : 1000, width = count > 2 ? std::atoll(arguments[2]) : 4096;
  if (rows < 1 || width < 1 || count == 2) {
    std::fprintf(stderr, "usage: example [ROWS WIDTH]\n");
    return 2;
  }
  rms_norm::rms_norm_params params;
  params.x = Tensor<2>(nullptr, DType::bfloat16, {rows, width}, {width, 1});
  params.weight = Tensor<1>(nullptr, DType::bfloat16, {width}, {1});
  params.out = params.x;

  Explanation explanation;
  if (const Error error = explain(params, "sm_90", 0, &explanation); error != Error::success)
    return failed("explain", error);
  std::printf("on an H100: %s, %s %s\n", explanation.kernels[0].image, explanation.kernels[0].tunables,
              explanation.kernels[0].compile_options);

  const Gpu gpu;
  if (!gpu.allocate) {
    std::printf("no GPU here: nothing was run\n");
    return 0;
  }
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(static_cast<size_t>(rows * width)), weight(static_cast<size_t>(width)), out(x.size());
  for (uint16_t& value : x) value = to_bfloat16(normal(random));
  for (uint16_t& value : weight) value = to_bfloat16(normal(random));
  const size_t bytes = x.size() * 2;
  int status = gpu.allocate(&params.x.data, bytes) | gpu.allocate(&params.weight.data, weight.size() * 2) |
               gpu.allocate(&params.out.data, bytes);
  constexpr int kToDevice = 1, kToHost = 2;
  status |= gpu.copy(params.x.data, x.data(), bytes, kToDevice);
  status |= gpu.copy(params.weight.data, weight.data(), weight.size() * 2, kToDevice);
  if (const Error error = rms_norm::rms_norm(params, Stream{}); error != Error::success)
    return failed("rms_norm", error);
  status |= gpu.wait() | gpu.copy(out.data(), params.out.data, bytes, kToHost);
  if (status) {
    std::fprintf(stderr, "the GPU's runtime failed\n");
    return 1;
  }

  double worst = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const uint16_t* const line = x.data() + row * width;
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += std::pow(static_cast<double>(from_bfloat16(line[i])), 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
    for (int64_t i = 0; i < width; ++i) {
      const double wanted = from_bfloat16(line[i]) * scale * from_bfloat16(weight[static_cast<size_t>(i)]);
      const double error = std::abs(from_bfloat16(out[static_cast<size_t>(row * width + i)]) - wanted);
      worst = std::fmax(worst, error / (std::abs(wanted) + 1e-3));
    }
  }
  // A bfloat16 has 8 bits: rounding the exact result once is an error of at most 1 in 256.
  std::printf("%lld x %lld: largest relative error %.5f, %s\n", static_cast<long long>(rows),
              static_cast<long long>(width), worst, worst < 1.0 / 200 ? "right" : "WRONG");
  return worst < 1.0 / 200 ? 0 : 1;
}
