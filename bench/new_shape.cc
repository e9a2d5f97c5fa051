// What calls of new shapes cost the host: the library's own time over a driver that does nothing. Needs no GPU.
//
//   new-shape [--json FILE]
//
// A serving engine meets new sequence lengths at every step, so such a call is neither remembered nor prepared. Memory
// is what a thread's calls leave allocated. Each time is the least of several passes over all of them: where a host is
// shared, its cores' speed changes from one second to the next.
#include <aotriton/flash.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <thread>
#include <vector>

#include "driver/driver.h"

using namespace aotriton::v2;

namespace {

constexpr int kBatch = 200, kBatches = 101, kPasses = 7;

// The driver: one H200, whose functions all succeed at once.
int one;  // what all handles point at
uint64_t context_id = 1;

Status do_contexts(void*, Contexts* contexts) {
  void* const context = reinterpret_cast<void*>(context_id << 8);
  *contexts = {context, context, context_id};
  return {};
}
Status do_properties(DeviceProperties* properties) {
  std::strcpy(properties->arch, "sm_90");
  std::strcpy(properties->name, "NVIDIA H200");
  properties->multiprocessors = 132;
  properties->ordinal = 0;
  properties->memory = uint64_t{141} << 30;
  return {};
}
constexpr Driver kDriver = {
    .name = "nothing",
    .vendor = "cuda",
    .contexts = do_contexts,
    .enter = [](void*) { return Status{}; },
    .leave = [](void*) { return Status{}; },
    .properties = do_properties,
    .primary_context = [](int, void** context) { return *context = &one, Status{}; },
    .load_module = [](void** module, const void*) { return *module = &one, Status{}; },
    .unload_module = [](void*) { return Status{}; },
    .get_function = [](void** function, void*, const char*) { return *function = &one, Status{}; },
    .set_max_shared = [](void*, uint32_t) { return Status{}; },
    .is_capturing = [](void*, bool* capturing) { return *capturing = false, Status{}; },
    .encode_tensor_map = [](TensorMap*, const TensorMapRequest&) { return Status{}; },
    .replace_address = [](TensorMap*, void*) { return Status{}; },
    .fill = [](void*, uint32_t, int64_t, int64_t, int64_t, int64_t, void*) { return Status{}; },
    .launch = [](const Launch&) { return Status{}; },
    .is_gone = nullptr,
    .describe_error = [](Status, char* text, size_t) { *text = '\0'; },
};

void check(Error error) {
  if (error == Error::success) return;
  std::fprintf(stderr, "new-shape: %s: %s\n", error_name(error), last_error_message());
  std::exit(1);
}

void* address(uintptr_t number) { return reinterpret_cast<void*>(number << 36); }

constexpr int64_t kHeads = 16, kHeadsK = 4, kHeadDim = 128;

Tensor<4> tensor(uintptr_t number, int64_t batch, int64_t heads, int64_t seqlen) {
  return {address(number),
          DType::bfloat16,
          {batch, heads, seqlen, kHeadDim},
          {heads * seqlen * kHeadDim, seqlen * kHeadDim, kHeadDim, 1}};
}

// The n-th shape: no two of some 60,000 are alike.
int64_t batch_of(int n) { return 1 + n % 8; }
int64_t seqlen_of(int n) { return 16 + (n / 8) * 37 % 8192; }

attn_fwd_params forward(int n) {
  attn_fwd_params p;
  const int64_t batch = batch_of(n), seqlen = seqlen_of(n);
  p.q = tensor(1, batch, kHeads, seqlen);
  p.k = tensor(2, batch, kHeadsK, seqlen);
  p.v = tensor(3, batch, kHeadsK, seqlen);
  p.out = tensor(4, batch, kHeads, seqlen);
  p.logsumexp = Tensor<3>{address(5), DType::float32, {batch, kHeads, seqlen}, {kHeads * seqlen, seqlen, 1}};
  p.sm_scale = 0.125f;
  p.causal = true;
  return p;
}

attn_bwd_params backward(int n) {
  const attn_fwd_params f = forward(n);
  attn_bwd_params p;
  p.q = f.q, p.k = f.k, p.v = f.v, p.out = f.out, p.logsumexp = f.logsumexp;
  p.dout = f.out, p.dq = f.q, p.dk = f.k, p.dv = f.v;
  p.dout.data = address(6);
  p.dq.data = address(7);
  p.dk.data = address(8);
  p.dv.data = address(9);
  p.sm_scale = 0.125f;
  p.causal = true;
  p.workspace = address(10);
  p.workspace_size = size_t{1} << 36;
  return p;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Median nanoseconds of call(n) for n that count up, over batches of `batch` calls whose parameters are made before.
template <class Make, class Call>
double time_of(Make make, Call call, int begin, int period, int batch = kBatch) {
  std::vector<double> batches;
  using Params = decltype(make(0));
  std::vector<Params> params;
  for (int i = 0, n = begin; i < kBatches; ++i) {
    params.clear();
    for (int j = 0; j < batch; ++j, ++n) params.push_back(make(period ? n % period : n));
    const auto start = std::chrono::steady_clock::now();
    for (const Params& one : params) check(call(one));
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    if (i) batches.push_back(taken.count() / batch);
  }
  return median(batches);
}

struct Row {
  const char* what;
  double value;
  const char* unit;
};

}  // namespace

int main(int argc, char** argv) {
  const char* json = nullptr;
  if (argc == 3 && !std::strcmp(argv[1], "--json")) {
    json = argv[2];
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: new-shape [--json FILE]\n");
    return 2;
  }
  replace_driver(&kDriver);
  const Stream stream{&one};
  const auto run_forward = [&](const attn_fwd_params& p) { return attn_fwd(p, stream); };
  const auto run_backward = [&](const attn_bwd_params& p) { return attn_bwd(p, stream); };
  hints wishes;
  check(wishes.parse("workspace_limit=1000000"));
  const auto limited = [&](int n) {
    attn_bwd_params p = backward(n);
    p.hints = &wishes;
    return p;
  };
  std::vector<Row> rows;
  const auto add = [&](const char* what, double value, const char* unit) {
    for (Row& row : rows)
      if (!std::strcmp(row.what, what)) {
        row.value = std::min(row.value, value);
        return;
      }
    rows.push_back({what, value, unit});
  };
  const auto time_calls = [&] {
    add("forward, warm", time_of(forward, run_forward, 0, 1), "ns");
    add("backward, warm", time_of(backward, run_backward, 0, 1), "ns");
    add("forward, new shape", time_of(forward, run_forward, 0, 0), "ns");
    add("backward, new shape", time_of(backward, run_backward, 0, 0), "ns");
    add("backward, new shape, workspace_limit", time_of(limited, run_backward, 0, 0, 50), "ns");
    add("forward, 200 shapes in turn", time_of(forward, run_forward, 0, 200), "ns");
    add("backward, 200 shapes in turn", time_of(backward, run_backward, 0, 200), "ns");
  };
  for (int pass = 0; pass < kPasses; ++pass) time_calls();
  double kept[2];
  for (const bool is_backward : {false, true})
    std::thread([&] {
      const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
      for (int n = 0; n < 200; ++n) check(is_backward ? run_backward(backward(n)) : run_forward(forward(n)));
      kept[is_backward] = static_cast<double>(mallinfo2().uordblks + mallinfo2().hblkhd - before) / 1024;
    }).join();
  add("a thread keeps, after 200 forward shapes", kept[0], "KiB");
  add("a thread keeps, after 200 backward shapes", kept[1], "KiB");
  for (; context_id < 2000; ++context_id) check(run_forward(forward(0)));
  context_id = 1;
  for (int pass = 0; pass < kPasses; ++pass)
    add("forward, new shape, the first of 2,000 contexts", time_of(forward, run_forward, 30000, 0), "ns");
  for (const Row& row : rows) std::printf("%-52s %10.1f %s\n", row.what, row.value, row.unit);
  if (!json) return 0;
  std::FILE* file = std::fopen(json, "w");
  if (!file) {
    std::perror(json);
    return 1;
  }
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  std::fprintf(file, "{\n \"library\": \"%s\",\n \"date\": \"%s\",\n \"rows\": [\n", aotriton_version(), date);
  for (const Row& row : rows)
    std::fprintf(file, "  {\"what\": \"%s\", \"value\": %.1f, \"unit\": \"%s\"}%s\n", row.what, row.value, row.unit,
                 &row == &rows.back() ? "" : ",");
  std::fprintf(file, " ]\n}\n");
  return std::fclose(file) ? 1 : 0;
}
