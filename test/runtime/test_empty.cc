// Calls with a size of 0: nothing is launched, and results are what they are without keys or queries.
#include "calls.h"

using namespace aotriton::v2;

namespace {

constexpr uint32_t kMinusInfinity = 0xff800000;

// What a fill writes, dense: bytes, from `data` on, without gaps.
int64_t bytes_of(const RecordedFill& fill) {
  CHECK(fill.rows == 1 || fill.pitch == fill.width * fill.bytes);
  return fill.bytes * fill.width * fill.rows;
}

}  // namespace

TEST("without queries, heads or batch the forward does nothing, and needs no data") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    Sizes none[] = {{.seqlen_q = 0}, {.batch = 0}, {.heads = 0, .heads_k = 0}, {.heads = 0, .heads_k = 2}};
    for (const Sizes& s : none) {
      attn_fwd_params p = fwd_call(s);
      CHECK_EQ(attn_fwd(p, {}), Error::success);
      p.q.data = p.out.data = p.logsumexp.data = nullptr;
      CHECK_EQ(attn_fwd(p, {}), Error::success);
    }
    CHECK(recording.launches.empty() && recording.fills.empty() && recording.loads.empty());
  }
}

TEST("without keys out is 0 and logsumexp minus infinity") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    const attn_fwd_params p = fwd_call({.seqlen_k = 0});
    for (int calls = 1; calls < 3; ++calls) {  // cold and warm
      recording.fills.clear();
      CHECK_EQ(attn_fwd(p, {}), Error::success);
      CHECK_EQ(recording.fills.size(), 2u);
      CHECK_EQ(recording.fills[0].data, p.out.data);
      CHECK_EQ(recording.fills[0].pattern, 0u);
      CHECK_EQ(recording.fills[0].bytes, 2);
      CHECK_EQ(bytes_of(recording.fills[0]), 2 * 4 * 100 * 64 * 2);
      CHECK_EQ(recording.fills[1].data, p.logsumexp.data);
      CHECK_EQ(recording.fills[1].pattern, kMinusInfinity);
      CHECK_EQ(recording.fills[1].bytes, 4);
      CHECK_EQ(bytes_of(recording.fills[1]), 2 * 4 * 100 * 4);
    }
    CHECK(recording.launches.empty());
  }
}

TEST("no element outside of a strided result is filled, and each inside once") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call({.batch = 2, .heads = 3, .heads_k = 3, .seqlen_q = 5, .seqlen_k = 0, .head_dim = 8});
  p.logsumexp = {};
  p.out.strides[0] = 1000, p.out.strides[1] = 10, p.out.strides[2] = 50;  // gaps behind each dimension
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  std::vector<int> written(2000);
  for (const RecordedFill& fill : recording.fills)
    for (int64_t row = 0; row < fill.rows; ++row)
      for (int64_t i = 0; i < fill.width; ++i) {
        const char* const at = static_cast<char*>(fill.data) + row * fill.pitch + i * fill.bytes;
        ++written.at(static_cast<size_t>(at - static_cast<char*>(p.out.data)) / 2);
      }
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 3; ++h)
      for (int s = 0; s < 5; ++s)
        for (int d = 0; d < 8; ++d) --written[static_cast<size_t>(b * 1000 + h * 10 + s * 50 + d)];
  for (const int left : written) CHECK_EQ(left, 0);
}

TEST("the backward without keys or without queries fills the gradients that there are with 0") {
  Recording& recording = start("cuda");
  const attn_bwd_params no_keys = bwd_call({.seqlen_k = 0}), no_queries = bwd_call({.seqlen_q = 0});
  CHECK_EQ(attn_bwd(no_keys, {}), Error::success);
  CHECK_EQ(recording.fills.size(), 1u);
  CHECK_EQ(recording.fills[0].data, no_keys.dq.data);
  recording.fills.clear();
  CHECK_EQ(attn_bwd(no_queries, {}), Error::success);
  CHECK_EQ(recording.fills.size(), 2u);
  CHECK_EQ(recording.fills[0].data, no_queries.dk.data);
  CHECK_EQ(recording.fills[1].data, no_queries.dv.data);
  for (const RecordedFill& fill : recording.fills) CHECK_EQ(fill.pattern, 0u);
  CHECK(recording.launches.empty());
}

TEST("an empty call needs no workspace, is supported, has nothing to load, and explains no kernels") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call({.seqlen_k = 0});
  p.workspace = nullptr;
  p.workspace_size = 0;
  size_t bytes = 1;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &bytes), Error::success);
  CHECK_EQ(bytes, 0u);
  CHECK(supported(p, {}));
  CHECK_EQ(preload(p, {}), Error::success);
  Explanation explanation;
  CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernel_count, 0u);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK(recording.loads.empty());
}

TEST("an empty call is checked as any other one") {
  start("cuda");
  attn_fwd_params p = fwd_call({.seqlen_k = 0});
  p.out.data = nullptr;
  CHECK_EQ(attn_fwd(p, {}), Error::null_pointer);
  p = fwd_call({.seqlen_k = 0});
  p.v.dtype = AOTRITON_FLOAT32;
  CHECK_EQ(attn_fwd(p, {}), Error::invalid_dtype);
  p = fwd_call({.seqlen_k = 0});
  p.features.causal_variant = 2;
  CHECK_EQ(attn_fwd(p, {}), Error::invalid_argument);
}

TEST("a fill that the driver fails is driver_failed") {
  for (int fail_at = 3; fail_at <= 4; ++fail_at) {  // contexts, properties, and the two fills
    Recording& recording = start("cuda");
    recording.fail_at = fail_at;
    CHECK_EQ(attn_fwd(fwd_call({.seqlen_k = 0}), {}), Error::driver_failed);
    CHECK_CONTAINS(last_error_message(), "attn_fwd: CUDA could not fill a result");
  }
}
