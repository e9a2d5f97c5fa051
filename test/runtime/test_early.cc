// Launches that may begin while the one before them still runs: which ones they are, in a backend of three kernels that
// is made of the made-up family's.
#include <algorithm>
#include <string_view>

#include "call/hints.h"
#include "calls.h"
#include "launch/candidate.h"
#include "launch/load.h"
#include "launch/run.h"
#include "scale.operator.h"

using namespace aotriton::v2;

namespace {

const OperatorInfo& scale = toy::scale_operator;

const KernelInfo& kernel_of(const char* name) {
  for (const BackendInfo& backend : scale.backends)
    for (const KernelInfo* kernel : backend.kernels)
      if (kernel->name == std::string_view(name)) return *kernel;
  throw std::out_of_range(name);
}

int32_t number_of_taps() {
  for (size_t i = 0; i < scale.sizes.size(); ++i)
    if (scale.sizes[i] == std::string_view("taps")) return static_cast<int32_t>(i);
  throw std::out_of_range("taps");
}

KernelInfo early(KernelInfo kernel) {
  kernel.begins_early = true;
  return kernel;
}

// scale_rows_weigh with a program for each of `taps`, so none without, and scale_rows_apply twice, each of which begins
// early: both behind it, or one on each side. The workspace is one row for each of `batch`, which chunks divide.
template <bool kBetween = false>
const OperatorInfo& three_kernels() {
  static const Instruction taps[] = {{Code::size, number_of_taps()}};
  static const KernelInfo weigh = [] {
    KernelInfo kernel = kernel_of("scale_rows_weigh");
    kernel.grid[0] = {taps};
    return kernel;
  }();
  static const KernelInfo apply = early(kernel_of("scale_rows_apply")), again = apply;
  static const KernelInfo* const kernels[] = {kBetween ? &apply : &weigh, kBetween ? &weigh : &apply, &again};
  static const uint8_t batch_and_width[] = {0, 3};
  static const OperandInfo workspace[] = {[] {
    OperandInfo partial = scale.workspace[0];
    partial.dims = batch_and_width;
    return partial;
  }()};
  static const BackendInfo backends[] = {[] {
    BackendInfo split = scale.backends[2];
    split.kernels = kernels;
    return split;
  }()};
  static const OperatorTable* const tables[kArchCount] = {};
  static const OperatorInfo made = [] {
    OperatorInfo info = scale;
    info.workspace = workspace;
    info.backends = backends;
    info.tables = tables;
    return info;
  }();
  return made;
}

// A call of it, whose numbers must stay where they are.
struct Scaled {
  static constexpr int64_t kHeads = 3, kRows = 70, kWidth = 64;

  Scaled(const OperatorInfo& info, int64_t batch, int64_t taps)
      : x_sizes{batch, kHeads, kRows, kWidth}, w_sizes{taps, kWidth}, call(info) {
    for (size_t slot = 0; slot < info.slots(); ++slot) call.views[slot] = View::none();
    const DType bf16 = DType::bfloat16;
    call.views[0] = {pointer(address_of(1)), bf16, x_sizes, x_strides};
    call.views[1] = {pointer(address_of(2)), bf16, w_sizes, row_strides};
    call.views[3] = {pointer(address_of(4)), bf16, x_sizes, x_strides};
    call.set_real(0, 1);
    call.set_whole(1, 1);
    call.workspace = pointer(address_of(5));
    call.workspace_size = 1 << 20;
  }
  Scaled(const Scaled&) = delete;
  Scaled& operator=(const Scaled&) = delete;

  int64_t x_sizes[4], x_strides[4] = {kHeads * kRows * kWidth, kRows * kWidth, kWidth, 1};
  int64_t w_sizes[2], row_strides[2] = {kWidth, 1};
  Call call;
};

// "plain" or "early" of each launch since the last time.
std::string launched(Recording& recording) {
  std::string text;
  for (const RecordedLaunch& one : recording.launches) text += one.early ? "early " : "plain ";
  recording.launches.clear();
  return text;
}

}  // namespace

TEST("a kernel that begins early does so behind each kernel of the call, when the call is known, too") {
  Recording& recording = start("cuda");
  for (int calls = 0; calls < 3; ++calls) {
    Scaled scaled(three_kernels(), 2, 20);
    CHECK_EQ(run(scaled.call, {}), Error::success);
    CHECK_EQ(launched(recording), "plain early early ");
  }
}

TEST("a kernel that has no programs in this call is not before it") {
  Recording& recording = start("cuda");
  for (int calls = 0; calls < 3; ++calls) {
    Scaled first(three_kernels(), 2, 0), between(three_kernels<true>(), 2, 0), all(three_kernels<true>(), 2, 20);
    CHECK_EQ(run(first.call, {}), Error::success);
    CHECK_EQ(launched(recording), "plain early ");
    CHECK_EQ(run(between.call, {}), Error::success);
    CHECK_EQ(launched(recording), "plain early ");
    CHECK_EQ(run(all.call, {}), Error::success);
    CHECK_EQ(launched(recording), "plain plain early ");
  }
}

TEST("a prepared call launches as the call does") {
  Recording& recording = start("cuda");
  for (const int64_t taps : {20, 0}) {
    Scaled scaled(three_kernels(), 2, taps);
    Prepared* prepared = nullptr;
    CHECK_EQ(prepare(scaled.call, {}, &prepared), Error::success);
    void* const pointers[] = {scaled.call[0].data, scaled.call[1].data, nullptr, scaled.call[3].data,
                              scaled.call.workspace};
    for (int launches = 0; launches < 2; ++launches) {
      CHECK_EQ(launch(prepared, pointers, std::size(pointers), {}), Error::success);
      CHECK_EQ(launched(recording), taps ? "plain early early " : "plain early ");
    }
    Prepared::destroy(prepared);
  }
}

TEST("the first launch of each chunk is plain") {
  Recording& recording = start("cuda");
  for (int calls = 0; calls < 2; ++calls) {
    Scaled scaled(three_kernels(), 5, 20);
    hints limit;
    CHECK_EQ(limit.parse("workspace_limit=512"), Error::success);  // two of batch, each a row of 256 bytes
    CHECK_EQ(take_hints(&limit, &scaled.call), Error::success);
    CHECK_EQ(run(scaled.call, {}), Error::success);
    CHECK_EQ(launched(recording), "plain early early plain early early plain early early ");
  }
}

TEST("the backward with a window begins early behind its first kernel, and behind that of sinks") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call({.seqlen_q = 512, .seqlen_k = 512});
  p.causal = p.features.windowed = true;
  p.features.window_left = 200;
  p.workspace_size *= 2;
  hints wish;
  CHECK_EQ(wish.parse("backend=hopper_features"), Error::success);
  p.hints = &wish;
  for (const bool sinks : {false, true}) {
    if (sinks) {
      p.features.sinks = aotriton_tensor1{pointer(address_of(11)), AOTRITON_FLOAT32, {4}, {1}};
      p.dsinks = aotriton_tensor1{pointer(address_of(12)), AOTRITON_FLOAT32, {4}, {1}};
    }
    CHECK_EQ(attn_bwd(p, {}), Error::success);
    std::string entries;
    for (const RecordedLaunch& one : recording.launches) entries += one.entry + " ";
    CHECK_EQ(launched(recording), sinks ? "plain plain early early " : "plain early early ");
    CHECK(entries.find("attn_bwd_hopper_features_finish") != std::string::npos);
  }
}

TEST("kernels that do not begin early are launched plainly") {
  Recording& recording = start("cuda");
  CHECK_EQ(attn_bwd(bwd_call(), {}), Error::success);
  CHECK(recording.launches.size() > 1);
  for (const RecordedLaunch& one : recording.launches) CHECK(!one.early);
}

TEST("a candidate, which runs alone, is launched plainly") {
  Recording& recording = start("cuda");
  static constexpr unsigned char binary[64] = "a binary of the test";
  static const KernelInfo weigh = early(kernel_of("scale_rows_weigh"));
  Candidate candidate;
  candidate.kernel = &weigh;
  candidate.values[1] = 1;  // 64 columns
  candidate.image.name = "candidate";
  candidate.image.entry = "scale_rows_weigh";
  candidate.image.data = binary;
  candidate.image.size = candidate.image.unpacked_size = sizeof binary;
  candidate.image.threads = 128;
  Scaled scaled(scale, 2, 20);
  const int64_t sizes[] = {4, Scaled::kWidth};
  scaled.call.views[4] = {pointer(address_of(6)), DType::float32, sizes, scaled.row_strides};
  CHECK_EQ(run(candidate, scaled.call, {}), Error::success);
  CHECK_EQ(launched(recording), "plain ");
  CHECK_EQ(unload_image(candidate.image), Error::success);
}
