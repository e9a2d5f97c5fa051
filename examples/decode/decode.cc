// Decodes with a small model on the GPU, from a cache in pages: one captured graph is each step, and the host does
// nothing but replay it. Then float64 judges every token. Usage: decode [STEPS]
#include <aotriton/flash.h>
#include <aotriton/gemm.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels.h"
#include "model.h"

using namespace aotriton::v2;

namespace {

// Logits lie between -8 and 8, where a bfloat16 is off by up to 1/64. All that is rounded on the way to them moves them
// by some times as much at most; a key that is missing moves them by more.
constexpr double kAllowed = 0.125;

void check(const char* what, Error error) {
  if (error != Error::success)
    throw std::runtime_error(std::string(what) + ": " + error_name(error) + ": " + last_error_message());
}

void check(const char* what, cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// ---- the model's weights and requests, the same each time -----------------------------------------------------------

using Random = std::mt19937;

std::vector<bfloat16> numbers(Random& random, size_t count, double deviation, double mean = 0) {
  std::vector<bfloat16> made(count);
  for (bfloat16& one : made)
    one = to_bfloat16(static_cast<float>(mean + deviation * std::sqrt(12.0) * (random() / 4294967296.0 - 0.5)));
  return made;
}

Weights<std::vector<bfloat16>> random_weights(Random& random) {
  const auto matrix = [&](int inputs, int outputs, double size = 1) {
    return numbers(random, static_cast<size_t>(inputs) * outputs, size / std::sqrt(inputs));
  };
  const auto norm = [&] { return numbers(random, kHidden, 0.1, 1); };
  Weights<std::vector<bfloat16>> made{numbers(random, kVocabulary * kHidden, 1), {}, norm(), {}};
  for (Layer<std::vector<bfloat16>>& layer : made.layers)
    layer = {norm(), matrix(kHidden, kRow, 1.5),  matrix(kQueries, kHidden),
             norm(), matrix(kHidden, 2 * kInner), matrix(kInner, kHidden, 2)};
  made.logits = matrix(kHidden, kVocabulary, 2);
  return made;
}

std::vector<Request> random_requests(Random& random) {
  std::vector<Request> made;
  for (const auto& [length, limit] : {std::pair{1, kLongest}, {200, kLongest}, {37, 300}, {64, 97}, {150, 700}}) {
    made.push_back({std::vector<int32_t>(length), limit, static_cast<int32_t>(random() % kVocabulary)});
    for (int32_t& token : made.back().prompt) token = static_cast<int32_t>(random() % kVocabulary);
  }
  return made;
}

Rotary make_rotary() {
  Rotary made;
  for (int position = 0; position < kLongest; ++position)
    for (int pair = 0; pair < kPairs; ++pair) {
      const double angle = position * std::pow(10000.0, -static_cast<double>(pair) / kPairs);
      made.cos.push_back(static_cast<float>(std::cos(angle)));
      made.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  return made;
}

// ---- memory of the GPU ----------------------------------------------------------------------------------------------

// What it makes is there until the program ends.
template <class T>
T* allocated(size_t count) {
  void* data = nullptr;
  check("cudaMalloc", cudaMalloc(&data, std::max<size_t>(count, 1) * sizeof(T)));
  return static_cast<T*>(data);
}

template <class T>
T* copied(const std::vector<T>& values) {
  T* const data = allocated<T>(values.size());
  check("cudaMemcpy", cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

// What all steps share: between kernels, a token is a row of each.
struct Buffers {
  explicit Buffers(size_t rows)
      : residual(allocated<float>(rows * kHidden)),
        normed(allocated<bfloat16>(rows * kHidden)),
        qkv(allocated<bfloat16>(rows * kRow)),
        attended(allocated<bfloat16>(rows * kQueries)),
        sum(allocated<bfloat16>(rows * kHidden)),
        gate_up(allocated<bfloat16>(rows * 2 * kInner)),
        inner(allocated<bfloat16>(rows * kInner)),
        logits(allocated<bfloat16>(rows * kVocabulary)) {}

  float* residual;
  bfloat16 *normed, *qkv, *attended, *sum, *gate_up, *inner, *logits;
};

// Keys and values of all layers in pages of [kPageSize, kHeadsK, kHeadDim], the table of each sequence's pages, in any
// order, and the angles.
struct Cache {
  Cache(Random& random, int batch, const Rotary& rotary) : batch(batch), pages(batch * kPagesOfSequence + 3) {
    const size_t count = 2 * kLayers * size();
    data = allocated<bfloat16>(count);
    check("cudaMemset", cudaMemset(data, 0xff, count * sizeof(bfloat16)));  // no numbers
    std::vector<int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    for (int i = pages - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    order.resize(static_cast<size_t>(batch) * kPagesOfSequence);
    table = Tensor<2>(copied(order), DType::int32, {batch, kPagesOfSequence}, {kPagesOfSequence, 1});
    cos = Tensor<2>(copied(rotary.cos), DType::float32, {kLongest, kPairs}, {kPairs, 1});
    sin = Tensor<2>(copied(rotary.sin), DType::float32, {kLongest, kPairs}, {kPairs, 1});
  }

  size_t size() const { return static_cast<size_t>(pages) * kPageSize * kKeys; }

  Tensor<4> keys(int layer) const { return of(2 * layer); }
  Tensor<4> values(int layer) const { return of(2 * layer + 1); }

  Tensor<4> of(int which) const {
    return Tensor<4>(data + which * size(), DType::bfloat16, {pages, kHeadsK, kPageSize, kHeadDim},
                     {kPageSize * kKeys, kHeadDim, kKeys, 1});
  }

  int batch, pages;
  bfloat16* data = nullptr;
  Tensor<2> table, cos, sin;
};

// ---- a pass through the model ---------------------------------------------------------------------------------------

gemm_params product(bfloat16* a, bfloat16* weight, bfloat16* d, int rows, int inputs, int outputs) {
  const auto matrix = [](bfloat16* data, int64_t count, int64_t width) {
    return Tensor<3>(data, DType::bfloat16, {1, count, width}, {count * width, width, 1});
  };
  gemm_params params;
  params.a = matrix(a, rows, inputs);
  params.b = matrix(weight, inputs, outputs);
  params.d = matrix(d, rows, outputs);
  return params;
}

// Of one token of each sequence, or of prompts that follow each other, if `longest` says how long they are at most.
class Pass {
 public:
  Pass(const Weights<bfloat16*>& weights, const Buffers& buffers, const Cache& cache, const Progress& progress,
       const int32_t* tokens, const std::vector<int32_t>& starts, int longest = 0)
      : weights_(weights),
        buffers_(buffers),
        progress_(progress),
        tokens_(tokens),
        starts_(copied(starts)),
        rows_(starts.back()),
        batch_(cache.batch) {
    // Heads of rows that are so wide.
    const auto heads = [&](bfloat16* data, int64_t count, int64_t width) {
      return longest
                 ? Tensor<4>(data, DType::bfloat16, {1, count, rows_, kHeadDim}, {rows_ * width, kHeadDim, width, 1})
                 : Tensor<4>(data, DType::bfloat16, {batch_, count, 1, kHeadDim}, {width, kHeadDim, width, 1});
    };
    const Tensor<1> keys(progress.keys, DType::int32, {batch_}, {1});
    const Tensor<1> begins(longest ? starts_ : nullptr, DType::int32, {batch_ + 1}, {1});
    for (int i = 0; i < kLayers; ++i) {
      const Layer<bfloat16*>& layer = weights.layers[i];
      Calls& calls = calls_[i];
      calls.qkv = product(buffers.normed, layer.qkv, buffers.qkv, rows_, kHidden, kRow);

      kv_append_params& append = calls.append;
      append.q = heads(buffers.qkv, kHeads, kRow);
      append.k = heads(buffers.qkv + kQueries, kHeadsK, kRow);
      append.v = heads(buffers.qkv + kQueries + kKeys, kHeadsK, kRow);
      append.k_cache = cache.keys(i);
      append.v_cache = cache.values(i);
      append.block_table = cache.table;
      append.seqused_k = keys;
      append.rotary_cos = cache.cos;
      append.rotary_sin = cache.sin;
      if (longest) append.cu_seqlens_k = begins;

      attn_fwd_params& attend = calls.attend;
      attend.q = append.q;
      attend.k = append.k_cache;
      attend.v = append.v_cache;
      attend.out = heads(buffers.attended, kHeads, kQueries);
      attend.features.block_table = append.block_table;
      attend.features.seqused_k = append.seqused_k;
      attend.features.max_seqlen_k = kLongest;
      if (longest) {
        attend.causal = true;
        attend.features.causal_variant = AOTRITON_CAUSAL_BOTTOM_RIGHT;
        attend.features.cu_seqlens_q = begins;
        attend.features.max_seqlen_q = longest;
      }

      calls.output = product(buffers.attended, layer.output, buffers.sum, rows_, kQueries, kHidden);
      calls.gate_up = product(buffers.normed, layer.gate_up, buffers.gate_up, rows_, kHidden, 2 * kInner);
      calls.down = product(buffers.inner, layer.down, buffers.sum, rows_, kInner, kHidden);
    }
    logits_ = product(buffers.normed, weights.logits, buffers.logits, rows_, kHidden, kVocabulary);
  }

  // The most that one of the calls needs: they run one after the other.
  size_t workspace_size(Stream stream) {
    size_t most = 0, bytes = 0;
    for_each([&](const auto& params) {
      check("workspace_size", workspace_size(params, stream, &bytes));
      most = std::max(most, bytes);
    });
    return most;
  }

  // Gives all calls the workspace, and loads their images, which a capture cannot.
  void prepare(void* workspace, size_t bytes, Stream stream) {
    for_each([&](auto& params) {
      if constexpr (requires { params.workspace; }) {
        params.workspace = workspace;
        params.workspace_size = bytes;
      }
      check("preload", preload(params, stream));
    });
  }

  // From tokens to the next tokens.
  void launch(cudaStream_t stream) {
    const Stream own{stream};
    const Buffers& x = buffers_;
    const bfloat16* sum = nullptr;
    check("embed", embed(tokens_, weights_.embedding, x.residual, rows_, stream));
    for (int i = 0; i < kLayers; ++i) {
      const Layer<bfloat16*>& layer = weights_.layers[i];
      const Calls& calls = calls_[i];
      check("norm", add_and_norm(sum, x.residual, layer.attention_norm, x.normed, rows_, stream));
      check("queries, keys and values", gemm(calls.qkv, own));
      check("kv_append", kv_append(calls.append, own));
      check("attn_fwd", attn_fwd(calls.attend, own));
      check("output", gemm(calls.output, own));
      sum = x.sum;
      check("norm", add_and_norm(sum, x.residual, layer.inner_norm, x.normed, rows_, stream));
      check("gate and up", gemm(calls.gate_up, own));
      check("silu", silu_and_gate(x.gate_up, x.inner, rows_, stream));
      check("down", gemm(calls.down, own));
    }
    check("norm", add_and_norm(sum, x.residual, weights_.last_norm, x.normed, rows_, stream));
    check("logits", gemm(logits_, own));
    check("choose", choose(x.logits, starts_, progress_, batch_, stream));
    check("advance", advance(progress_, batch_, stream));
  }

 private:
  struct Calls {
    gemm_params qkv, output, gate_up, down;
    kv_append_params append;
    attn_fwd_params attend;
  };

  static Error workspace_size(const gemm_params& params, Stream stream, size_t* bytes) {
    return gemm_workspace_size(params, stream, bytes);
  }
  static Error workspace_size(const kv_append_params& params, Stream stream, size_t* bytes) {
    return kv_append_workspace_size(params, stream, bytes);
  }
  static Error workspace_size(const attn_fwd_params& params, Stream stream, size_t* bytes) {
    return attn_fwd_workspace_size(params, stream, bytes);
  }

  template <class F>
  void for_each(const F& f) {
    for (Calls& calls : calls_)
      f(calls.qkv), f(calls.append), f(calls.attend), f(calls.output), f(calls.gate_up), f(calls.down);
    f(logits_);
  }

  const Weights<bfloat16*>& weights_;
  const Buffers& buffers_;
  const Progress& progress_;
  const int32_t* tokens_;
  int32_t* starts_;
  int rows_, batch_;
  std::array<Calls, kLayers> calls_;
  gemm_params logits_;
};

// ---- decoding -------------------------------------------------------------------------------------------------------

struct Decoded {
  std::vector<std::vector<Choice>> choices;  // of each sequence
  float milliseconds;                        // of all steps but the prompts'
};

Decoded decode(const Weights<std::vector<bfloat16>>& host_weights, const std::vector<Request>& requests,
               const Rotary& rotary, Random& random, int steps) {
  const int batch = static_cast<int>(requests.size());
  std::vector<int32_t> tokens, starts{0}, lengths, limits, firsts, one_each(batch + 1);
  for (const Request& request : requests) {
    tokens.insert(tokens.end(), request.prompt.begin(), request.prompt.end());
    starts.push_back(static_cast<int32_t>(tokens.size()));
    lengths.push_back(static_cast<int32_t>(request.prompt.size()));
    limits.push_back(request.limit);
    firsts.push_back(request.first);
  }
  std::iota(one_each.begin(), one_each.end(), 0);

  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreate(&stream));
  const auto weights = each(host_weights, [](const std::vector<bfloat16>& one) { return copied(one); });
  const Buffers buffers(std::max<size_t>(tokens.size(), batch));
  const Cache cache(random, batch, rotary);
  const size_t chosen = static_cast<size_t>(steps + 1) * batch;
  const Progress progress{allocated<int32_t>(batch), copied(lengths),          copied(limits), copied(firsts),
                          copied(std::vector{0}),    allocated<Choice>(chosen)};

  const int longest = *std::max_element(lengths.begin(), lengths.end());
  Pass prompts(weights, buffers, cache, progress, copied(tokens), starts, longest);
  Pass step(weights, buffers, cache, progress, progress.tokens, one_each);
  const size_t bytes = std::max(prompts.workspace_size({stream}), step.workspace_size({stream}));
  char* const workspace = allocated<char>(bytes);
  for (Pass* const pass : {&prompts, &step}) pass->prepare(workspace, bytes, {stream});

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replayed = nullptr;
  check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  step.launch(stream);
  check("cudaStreamEndCapture", cudaStreamEndCapture(stream, &graph));
  check("cudaGraphInstantiate", cudaGraphInstantiate(&replayed, graph, 0));

  cudaEvent_t begin = nullptr, end = nullptr;
  check("cudaEventCreate", cudaEventCreate(&begin));
  check("cudaEventCreate", cudaEventCreate(&end));
  prompts.launch(stream);
  check("cudaEventRecord", cudaEventRecord(begin, stream));
  for (int i = 0; i < steps; ++i) check("cudaGraphLaunch", cudaGraphLaunch(replayed, stream));
  check("cudaEventRecord", cudaEventRecord(end, stream));
  check("cudaStreamSynchronize", cudaStreamSynchronize(stream));

  std::vector<Choice> all(chosen);
  check("cudaMemcpy", cudaMemcpy(all.data(), progress.choices, chosen * sizeof(Choice), cudaMemcpyDeviceToHost));
  Decoded made{std::vector<std::vector<Choice>>(batch), 0};
  for (size_t i = 0; i < chosen; ++i) made.choices[i % batch].push_back(all[i]);
  check("cudaEventElapsedTime", cudaEventElapsedTime(&made.milliseconds, begin, end));
  return made;
}

int run(int steps) {
  Random random(1);
  const auto weights = random_weights(random);
  const std::vector<Request> requests = random_requests(random);
  const Rotary rotary = make_rotary();
  const Decoded decoded = decode(weights, requests, rotary, random, steps);
  const int count = static_cast<int>(requests.size()), total = count * (steps + 1);
  std::printf("%d sequences, %d steps by one graph: %.0f tokens per second\n", count, steps,
              1e3 * count * steps / decoded.milliseconds);

  const auto exact = each(weights, [](const std::vector<bfloat16>& one) {
    std::vector<double> wide(one.size());
    std::transform(one.begin(), one.end(), wide.begin(), from_bfloat16);
    return wide;
  });
  std::vector<Judgement> found(count);
  std::vector<std::thread> judges;
  for (int z = 0; z < count; ++z)
    judges.emplace_back([&, z] { found[z] = judge(exact, rotary, requests[z], decoded.choices[z]); });
  for (std::thread& one : judges) one.join();
  Judgement all;
  for (const Judgement& one : found) {
    all.agreed += one.agreed;
    all.difference = std::max(all.difference, one.difference);
    all.behind = std::max(all.behind, one.behind);
  }
  // Two logits are compared, so a token may be as far behind as both may be off.
  const bool right = all.difference <= kAllowed && all.behind <= 2 * kAllowed;
  std::printf(
      "logits differ from float64 by %.4f at most (allowed: %.4f); %d of %d tokens agree, others are behind by "
      "%.4f at most (allowed: %.4f): %s\n",
      all.difference, kAllowed, all.agreed, total, all.behind, 2 * kAllowed, right ? "right" : "WRONG");
  return right ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const int steps = count > 1 ? std::atoi(arguments[1]) : 1000;
  if (count > 2 || steps < 1) {
    std::fprintf(stderr, "usage: decode [STEPS]\n");
    return 2;
  }
  try {
    return run(steps);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
