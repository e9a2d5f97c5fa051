// Runs the README's example, or random attention problems, on a GPU and compares with double precision on the CPU.
#include <aotriton/flash.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.h"
#include "problem.h"
#include "reference.h"

bool attention(void* q, void* k, void* v, void* out, void* stream);  // readme_example.cc

namespace {

using namespace aotriton::v2;

constexpr uint16_t kNaN = 0x7fff, kBackground = 0x3c00;

std::vector<double> random_values(std::mt19937_64& random, size_t count, double spread, DType dtype) {
  std::normal_distribution<double> normal(0, spread);
  std::vector<double> values(count);
  for (double& value : values) value = decode(encode(normal(random), dtype), dtype);
  return values;
}

// The largest ratio of error to allowed error, in total and in the worst row. What is allowed follows from what an
// ordinary low-precision implementation gets: twice its error, half a unit roundoff, and float32 rounding of the sums.
// NaN is infinite.
double badness(const std::vector<double>& result, const std::vector<double>& truth, const std::vector<double>& ordinary,
               const std::vector<double>& bound, double unit) {
  const size_t rows = bound.size(), width = result.size() / rows;
  double total[4] = {}, worst[4] = {};
  for (size_t row = 0; row < rows; ++row) {
    double squares[4] = {0, 0, 0, bound[row] * bound[row]};
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
      squares[0] += (result[i] - truth[i]) * (result[i] - truth[i]);
      squares[1] += (ordinary[i] - truth[i]) * (ordinary[i] - truth[i]);
      squares[2] += truth[i] * truth[i];
    }
    if (!(squares[0] <= 1e300)) return INFINITY;
    for (int i = 0; i < 4; ++i) total[i] += squares[i], worst[i] = std::max(worst[i], squares[i]);
  }
  double ratio = 0;
  for (const double* size : {total, worst}) {
    const double allowed = 2 * std::sqrt(size[1]) + unit / 2 * std::sqrt(size[2]) + std::ldexp(std::sqrt(size[3]), -20);
    if (size[0] > 0) ratio = std::max(ratio, std::sqrt(size[0]) / allowed);
  }
  return ratio;
}

int explain_failure(const char* what, Error error) {
  std::fprintf(stderr, "%s: %s: %s\n", what, error_name(error), last_error_message());
  return 1;
}

struct Score {
  double badness[5] = {};  // out, logsumexp, dq, dk, dv
  size_t changed = 0;      // elements outside the tensors that were written
  bool good() const { return changed == 0 && *std::max_element(badness, badness + 5) <= 1; }
};

constexpr const char* kResults[5] = {"out", "logsumexp", "dq", "dk", "dv"};

// Forward and backward of one problem. Exits on an error of the library.
Score run(Device& device, const Problem& problem, std::mt19937_64& random) {
  const DType dtype = problem.dtype;
  const size_t q_rows = static_cast<size_t>(problem.batch * problem.heads_q * problem.seqlen_q);
  const size_t d = static_cast<size_t>(problem.head_dim);
  const size_t k_size = static_cast<size_t>(problem.batch * problem.heads_k * problem.seqlen_k) * d;
  const auto q = random_values(random, q_rows * d, problem.spread, dtype),
             dout = random_values(random, q_rows * d, 1, dtype);
  const auto k = random_values(random, k_size, 1, dtype), v = random_values(random, k_size, 1, dtype);

  Tensor<4> tensors[kNames];
  void* buffers[kNames];
  for (int name = 0; name < kNames; ++name) {
    const Layout& layout = problem.layouts[name];
    const std::vector<double>* input = name == kQ      ? &q
                                       : name == kK    ? &k
                                       : name == kV    ? &v
                                       : name == kDout ? &dout
                                                       : nullptr;
    const std::vector<double> poison(name == kDk || name == kDv ? k_size : q_rows * d, NAN);
    buffers[name] = device.upload(scatter(layout, input ? *input : poison, dtype, input ? kNaN : kBackground));
    tensors[name].data = static_cast<uint16_t*>(buffers[name]) + layout.offset;
    tensors[name].dtype = static_cast<aotriton_dtype>(dtype);
    std::copy_n(layout.sizes, 4, tensors[name].sizes);
    std::copy_n(layout.strides, 4, tensors[name].strides);
  }
  const int64_t heads = problem.heads_q, rows = problem.seqlen_q;
  Tensor<3> logsumexp{
      device.allocate(q_rows * 4), DType::float32, {problem.batch, heads, rows}, {heads * rows, rows, 1}};
  device.fill(logsumexp.data, q_rows * 4, 0xff);  // NaN

  attn_fwd_params forward;
  forward.q = tensors[kQ];
  forward.k = tensors[kK];
  forward.v = tensors[kV];
  forward.out = tensors[kOut];
  forward.logsumexp = logsumexp;
  forward.sm_scale = problem.sm_scale;
  forward.causal = problem.causal;
  attn_bwd_params backward;
  backward.q = tensors[kQ];
  backward.k = tensors[kK];
  backward.v = tensors[kV];
  backward.out = tensors[kOut];
  backward.dout = tensors[kDout];
  backward.logsumexp = logsumexp;
  backward.dq = tensors[kDq];
  backward.dk = tensors[kDk];
  backward.dv = tensors[kDv];
  backward.sm_scale = problem.sm_scale;
  backward.causal = problem.causal;
  Error error = attn_fwd(forward, Stream{});
  if (error != Error::success) std::exit(explain_failure(problem.text().c_str(), error));
  error = attn_bwd_workspace_size(backward, Stream{}, &backward.workspace_size);
  if (error != Error::success) std::exit(explain_failure(problem.text().c_str(), error));
  backward.workspace = device.allocate(backward.workspace_size);
  device.fill(backward.workspace, backward.workspace_size, 0xff);
  error = attn_bwd(backward, Stream{});
  if (error != Error::success) std::exit(explain_failure(problem.text().c_str(), error));

  const Attention truth = attention(problem, q, k, v, dout, false), ordinary = attention(problem, q, k, v, dout, true);
  Score score;
  auto compare = [&](int result, int name, auto values, auto bound) {
    const Layout& layout = problem.layouts[name];
    const auto buffer = device.download<uint16_t>(buffers[name], layout.length);
    score.changed += changed_outside(layout, buffer, kBackground);
    score.badness[result] =
        badness(gather(layout, buffer, dtype), truth.*values, ordinary.*values, truth.*bound, unit_roundoff(dtype));
  };
  compare(0, kOut, &Attention::out, &Attention::out_bound);
  compare(2, kDq, &Attention::dq, &Attention::dq_bound);
  compare(3, kDk, &Attention::dk, &Attention::dk_bound);
  compare(4, kDv, &Attention::dv, &Attention::dv_bound);
  const auto lse = device.download<float>(logsumexp.data, q_rows);
  score.badness[1] = badness({lse.begin(), lse.end()}, truth.logsumexp, ordinary.logsumexp, truth.logsumexp_bound, 0);
  device.free_all();
  return score;
}

int run_random(Device& device, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Score worst;
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    const Problem problem = random_problem(random);
    const Score score = run(device, problem, random);
    for (int r = 0; r < 5; ++r) worst.badness[r] = std::max(worst.badness[r], score.badness[r]);
    worst.changed += score.changed;
    if (score.good()) continue;
    ++wrong;
    std::printf("wrong: problem %d, %s:", i, problem.text().c_str());
    for (int r = 0; r < 5; ++r) std::printf(" %s %.2f", kResults[r], score.badness[r]);
    std::printf(", %zu elements written outside\n", score.changed);
  }
  std::printf("%-10s  largest error / allowed error, %d problems, seed %llu\n", "result", count,
              static_cast<unsigned long long>(seed));
  for (int r = 0; r < 5; ++r) std::printf("%-10s  %.3f\n", kResults[r], worst.badness[r]);
  std::printf("%d right, %d wrong\n", count - wrong, wrong);
  return wrong ? 1 : 0;
}

int run_readme_example(Device& device) {
  Problem problem{2, 16, 16, 1024, 1024, 64, DType::bfloat16, true, 1, 0.125f, {}};
  const size_t size = 2 * 16 * 1024 * 64;
  std::mt19937_64 random(1);
  const Layout layout{{2, 16, 1024, 64}, {16 * 1024 * 64, 1024 * 64, 64, 1}, 0, size};
  std::vector<double> values[3];
  void* inputs[3];
  for (int i = 0; i < 3; ++i) {
    values[i] = random_values(random, size, 1, problem.dtype);
    inputs[i] = device.upload(scatter(layout, values[i], problem.dtype, kNaN));
  }
  void* out = device.upload(std::vector<uint16_t>(size, kNaN));
  if (!attention(inputs[0], inputs[1], inputs[2], out, nullptr)) return 1;
  const auto result = gather(layout, device.download<uint16_t>(out, size), problem.dtype);
  const Attention truth = attention(problem, values[0], values[1], values[2], values[0], false);
  const Attention ordinary = attention(problem, values[0], values[1], values[2], values[0], true);
  const double ratio = badness(result, truth.out, ordinary.out, truth.out_bound, unit_roundoff(problem.dtype));
  std::printf("the README's example is %s: error / allowed error %.3f\n", ratio <= 1 ? "right" : "wrong", ratio);
  device.free_all();
  return ratio <= 1 ? 0 : 1;
}

}  // namespace

// Exit status: 0 right, 1 wrong or refused, 2 wrong use or a failing device, 3 no GPU driver.
int main(int argc, char** argv) {
  int count = 0;
  uint64_t seed = 1;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && !std::strcmp(argv[i], "--random")) {
      count = std::atoi(argv[i + 1]);
    } else if (i + 1 < argc && !std::strcmp(argv[i], "--seed")) {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: consumer [--random COUNT [--seed SEED]]\n");
      return 2;
    }
  }
  Device device;
  if (!device.open()) {
    // What the library says to a program that calls it all the same; it must not touch this memory.
    std::vector<uint16_t> host(64);
    // As it is with a GPU, the result is apart.
    attention(host.data(), host.data(), host.data(), reinterpret_cast<void*>(uintptr_t{1} << 60), nullptr);
    std::fprintf(stderr, "consumer: %s\n", device.why());
    return 3;
  }
  return count > 0 ? run_random(device, count, seed) : run_readme_example(device);
}
