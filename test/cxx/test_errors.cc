// Every way to call wrongly: its own error, with a message that names the argument, before any driver call.
#include <cmath>
#include <functional>
#include <limits>

#include "calls.h"

using namespace aotriton::v2;

namespace {

struct Fwd {
  std::function<void(attn_fwd_params&)> spoil;
  Error error;
  const char* message;
};

struct Bwd {
  std::function<void(attn_bwd_params&)> spoil;
  Error error;
  const char* message;
};

constexpr int64_t kBig = std::numeric_limits<int64_t>::max();

void resize(attn_fwd_params& p, int dim, int64_t q, int64_t k) {
  p.q.sizes[dim] = p.out.sizes[dim] = q;
  p.k.sizes[dim] = p.v.sizes[dim] = k;
}

}  // namespace

TEST("attn_fwd refuses every wrong argument by name") {
  const Fwd cases[] = {
      {[](auto& p) { p.q.data = nullptr; }, Error::null_pointer, "attn_fwd: q has no data"},
      {[](auto& p) { p.out.data = nullptr; }, Error::null_pointer, "attn_fwd: out has no data"},
      {[](auto& p) { p.k.data = pointer(0x20001); }, Error::misaligned_pointer, "attn_fwd: k is at 0x20001"},
      {[](auto& p) { p.logsumexp.data = pointer(0x50004); }, Error::misaligned_pointer, "logsumexp is at 0x50004"},
      {[](auto& p) { p.q.dtype = DType::float32; }, Error::invalid_dtype, "attn_fwd: q has dtype float32"},
      {[](auto& p) { p.v.dtype = DType::none; }, Error::invalid_dtype, "attn_fwd: v has dtype none"},
      {[](auto& p) { p.v.dtype = static_cast<DType>(77); }, Error::invalid_dtype, "attn_fwd: v has dtype unknown"},
      {[](auto& p) { p.out.dtype = DType::float16; }, Error::invalid_dtype,
       "out has dtype float16, others have bfloat16"},
      {[](auto& p) { p.logsumexp.dtype = DType::bfloat16; }, Error::invalid_dtype, "logsumexp has dtype bfloat16"},
      {[](auto& p) { p.k.sizes[3] = 72; }, Error::invalid_shape, "attn_fwd: k has head_dim 72, q has 64"},
      {[](auto& p) { resize(p, 3, 64, 72); }, Error::invalid_shape, "attn_fwd: k has head_dim 72, q has 64"},
      {[](auto& p) { p.v.sizes[2] = 71; }, Error::invalid_shape, "attn_fwd: v has seqlen 71, k has 70"},
      {[](auto& p) { p.out.sizes[1] = 2; }, Error::invalid_shape, "attn_fwd: out has heads 2, q has 4"},
      {[](auto& p) { resize(p, 0, 2, 3); }, Error::invalid_shape, "attn_fwd: k has batch 3, q has 2"},
      {[](auto& p) { resize(p, 1, 4, 3); }, Error::invalid_shape,
       "q has 4 heads, which must be a multiple of the 3 of k"},
      {[](auto& p) { resize(p, 2, 0, 70); }, Error::invalid_shape, "attn_fwd: q has seqlen 0"},
      {[](auto& p) { p.k.sizes[0] = -1; }, Error::invalid_shape, "attn_fwd: k has batch -1"},
      {[](auto& p) { p.logsumexp.sizes[2] = 1; }, Error::invalid_shape, "logsumexp has seqlen 1, which must be 100"},
      {[](auto& p) { resize(p, 3, 12, 12); }, Error::not_supported, "q has head_dim 12"},
      {[](auto& p) { resize(p, 3, 264, 264); }, Error::not_supported, "q has head_dim 264"},
      {[](auto& p) { resize(p, 0, 65536, 65536); }, Error::not_supported, "q has batch 65536"},
      {[](auto& p) { resize(p, 1, 65536, 2); }, Error::not_supported, "q has heads 65536"},
      {[](auto& p) { resize(p, 2, kBig, 70); }, Error::not_supported, "q has seqlen 9223372036854775807"},
      {[](auto& p) { resize(p, 2, 100, 1LL << 31); }, Error::not_supported, "k has seqlen 2147483648"},
      {[](auto& p) { resize(p, 0, 65535, 65535), resize(p, 1, 65535, 65535); }, Error::not_supported, "batch x heads"},
      {[](auto& p) { p.causal = true; }, Error::not_supported, "causal needs equal seqlens, q has 100, k has 70"},
      {[](auto& p) { p.q.strides[3] = 2; }, Error::invalid_stride, "attn_fwd: q has head_dim stride 2"},
      {[](auto& p) { p.v.strides[2] = -64; }, Error::invalid_stride, "attn_fwd: v has a negative seqlen stride, -64"},
      {[](auto& p) { p.out.strides[1] = 0; }, Error::invalid_stride, "out is written, but its heads stride is 0"},
      {[](auto& p) { p.k.strides[0] = kBig / 2; }, Error::invalid_stride, "k has strides that reach beyond"},
      {[](auto& p) { p.k.strides[1] = kBig; }, Error::invalid_stride, "k has strides that reach beyond"},
      {[](auto& p) { p.logsumexp.strides[1] = 101; }, Error::invalid_stride, "logsumexp has heads stride 101"},
      {[](auto& p) { p.sm_scale = NAN; }, Error::invalid_argument, "attn_fwd: sm_scale is nan"},
      {[](auto& p) { p.sm_scale = INFINITY; }, Error::invalid_argument, "attn_fwd: sm_scale is inf"},
      {[](auto& p) { p.sm_scale = -1; }, Error::invalid_argument, "attn_fwd: sm_scale is -1"},
  };
  for (const auto& [spoil, error, message] : cases) {
    Recording& recording = start("cuda");
    attn_fwd_params p = fwd_call();
    spoil(p);
    CHECK_EQ(error_name(attn_fwd(p, {})), std::string(error_name(error)));
    CHECK_CONTAINS(last_error_message(), message);
    CHECK_EQ(recording.calls, 0);
  }
}

TEST("attn_bwd refuses every wrong argument by name") {
  const Bwd cases[] = {
      {[](auto& p) { p.dout.data = nullptr; }, Error::null_pointer, "attn_bwd: dout has no data"},
      {[](auto& p) { p.logsumexp.data = nullptr; }, Error::null_pointer, "attn_bwd: logsumexp has no data"},
      {[](auto& p) { p.dv.dtype = DType::float16; }, Error::invalid_dtype, "attn_bwd: dv has dtype float16"},
      {[](auto& p) { p.dk.sizes[1] = 4; }, Error::invalid_shape, "attn_bwd: dk has heads 4, k has 2"},
      {[](auto& p) { p.dq.strides[2] = 0; }, Error::invalid_stride,
       "attn_bwd: dq is written, but its seqlen stride is 0"},
      {[](auto& p) { p.causal = true; }, Error::not_supported, "attn_bwd: causal needs equal seqlens"},
      {[](auto& p) { p.workspace = nullptr; }, Error::workspace_too_small,
       "workspace is null, 208128 bytes are needed"},
      {[](auto& p) { p.workspace_size = 208127; }, Error::workspace_too_small,
       "workspace has 208127 bytes, 208128 are needed"},
      {[](auto& p) { p.deterministic = true, p.workspace_size = 3199; }, Error::workspace_too_small,
       "workspace has 3199 bytes, 3200 are needed"},
      {[](auto& p) { p.workspace = pointer(0xA0080); }, Error::misaligned_pointer, "attn_bwd: workspace is at 0xa0080"},
  };
  for (const auto& [spoil, error, message] : cases) {
    Recording& recording = start("cuda");
    attn_bwd_params p = bwd_call();
    spoil(p);
    CHECK_EQ(error_name(attn_bwd(p, {})), std::string(error_name(error)));
    CHECK_CONTAINS(last_error_message(), message);
    CHECK_EQ(recording.calls, 0);
  }
}

TEST("a functional outside the build's coverage is no_winner, and nothing is launched") {
  Recording& recording = start("cuda");
  CHECK_EQ(attn_fwd(fwd_call({.head_dim = 16}), {}), Error::no_winner);
  CHECK_CONTAINS(last_error_message(), "attn_fwd sm_90: T=bf16 BLOCK_DMODEL=32 CAUSAL=False ADDRESSING=descriptor");
  attn_bwd_params p = bwd_call({.head_dim = 32});
  CHECK_EQ(attn_bwd(p, {}), Error::no_winner);
  CHECK_CONTAINS(last_error_message(), "attn_bwd_dq sm_90: T=bf16 BLOCK_DMODEL=32 CAUSAL=False ADDRESSING=descriptor");
  CHECK(recording.launches.empty() && recording.loads.empty());
}

TEST("a delta of more than 63 bits of bytes is refused by the workspace query") {
  for (const int64_t seqlen : {int64_t{1} << 30, (int64_t{1} << 31) - 1024}) {
    attn_bwd_params p = bwd_call({.heads_k = 1});
    for (Tensor<4>* t : {&p.q, &p.out, &p.dout, &p.dq, &p.k, &p.v, &p.dk, &p.dv}) {
      t->sizes[0] = 65535;
      t->strides[0] = t->strides[1] = t->strides[2] = 8;
    }
    for (Tensor<4>* t : {&p.q, &p.out, &p.dout, &p.dq}) t->sizes[1] = 32768, t->sizes[2] = seqlen;
    p.logsumexp = {nullptr, DType::float32, {65535, 32768, seqlen}, {32768 * seqlen, seqlen, 1}};
    size_t bytes = 0;
    CHECK_EQ(attn_bwd_workspace_size(p, &bytes), Error::not_supported);
    CHECK_CONTAINS(last_error_message(), "overflows 63 bits");
    p.deterministic = true;
    const bool fits = seqlen == 1 << 30;  // 65535 * 2^15 * 2^30 * 4 is just below 2^63
    CHECK_EQ(attn_bwd_workspace_size(p, &bytes), fits ? Error::success : Error::not_supported);
    CHECK_EQ(bytes, fits ? size_t{65535} << 47 : 0);
    if (!fits) CHECK_CONTAINS(last_error_message(), "attn_bwd: batch x heads x seqlen overflows");
  }
  CHECK_EQ(attn_bwd_workspace_size(bwd_call(), nullptr), Error::null_pointer);
}

TEST("an error's name is its enumerator and its message stays until the next error of the thread") {
  CHECK_EQ(error_name(Error::success), std::string("success"));
  CHECK_EQ(error_name(Error::workspace_too_small), std::string("workspace_too_small"));
  CHECK_EQ(error_name(static_cast<Error>(-5)), std::string("unknown_error"));
  start("cuda");
  attn_fwd_params p = fwd_call();
  p.q.data = nullptr;
  CHECK_EQ(attn_fwd(p, {}), Error::null_pointer);
  CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
  CHECK_CONTAINS(last_error_message(), "q has no data");
}

TEST("a machine without a GPU gets no_driver with both libraries' reasons; one with a GPU gets its driver") {
  replace_driver(nullptr);
  if (const Driver* found = driver()) {
    CHECK(found->name == std::string("CUDA") || found->name == std::string("HIP"));
    return;
  }
  CHECK_EQ(attn_fwd(fwd_call(), {}), Error::no_driver);
  CHECK_CONTAINS(last_error_message(), "libcuda.so.1");
  CHECK_CONTAINS(last_error_message(), "libamdhip64.so");
}
