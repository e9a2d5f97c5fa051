// Every way to call wrongly: its own error, with a message that names the argument, and nothing launched.
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>

#include "calls.h"
#include "scale.h"

using namespace aotriton::v2;

namespace {

// More than there may be programs along an axis.
toy::scale_params many_heads() {
  toy::scale_params p;
  p.x = tensor(address_of(1), 1, 65536, 1, 32);
  p.w = {pointer(address_of(2)), DType::bfloat16, {7, 32}, {32, 1}};
  p.y = tensor(address_of(4), 1, 65536, 1, 32);
  p.workspace = pointer(address_of(5));
  p.workspace_size = 1 << 20;
  return p;
}

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

// Two sequences of a query each, with keys in pages.
attn_fwd_params paged_call(int64_t pages, int64_t page_size, int64_t of_sequence) {
  attn_fwd_params p = fwd_call({.seqlen_q = 1});
  p.k = tensor(address_of(2), pages, 2, page_size, 64);
  p.v = tensor(address_of(3), pages, 2, page_size, 64);
  p.features.block_table = {pointer(address_of(6)), AOTRITON_INT32, {2, of_sequence}, {of_sequence, 1}};
  p.features.seqused_k = {pointer(address_of(7)), AOTRITON_INT32, {2}, {1}};
  p.workspace = pointer(address_of(8));
  p.workspace_size = 1 << 20;
  return p;
}

void resize(attn_fwd_params& p, int dim, int64_t q, int64_t k) {
  p.q.sizes[dim] = p.out.sizes[dim] = q;
  p.k.sizes[dim] = p.v.sizes[dim] = k;
}

}  // namespace

TEST("attn_fwd refuses every wrong argument by name, having asked no more than where the stream is") {
  const Fwd cases[] = {
      {[](auto& p) { p.q.data = nullptr; }, Error::null_pointer, "attn_fwd: q has no data"},
      {[](auto& p) { p.out.data = nullptr; }, Error::null_pointer, "attn_fwd: out has no data"},
      {[](auto& p) { p.k.data = pointer(0x20001); }, Error::misaligned_pointer, "attn_fwd: k is at 0x20001"},
      {[](auto& p) { p.logsumexp.data = pointer(0x50004); }, Error::misaligned_pointer, "logsumexp is at 0x50004"},
      {[](auto& p) { p.q.dtype = AOTRITON_INT32; }, Error::invalid_dtype, "attn_fwd: q has dtype int32"},
      {[](auto& p) { p.v.dtype = AOTRITON_NO_DTYPE; }, Error::invalid_dtype, "attn_fwd: v has dtype none"},
      {[](auto& p) { p.v.dtype = 77; }, Error::invalid_dtype,
       "v has dtype unknown, which must be float16 or bfloat16 or float32"},
      {[](auto& p) { p.out.dtype = AOTRITON_FLOAT16; }, Error::invalid_dtype,
       "out has dtype float16, others have bfloat16"},
      {[](auto& p) { p.logsumexp.dtype = AOTRITON_BFLOAT16; }, Error::invalid_dtype,
       "logsumexp has dtype bfloat16, which must be float32"},
      {[](auto& p) { p.k.sizes[3] = 72; }, Error::invalid_shape, "attn_fwd: k has head_dim 72, q has 64"},
      {[](auto& p) { resize(p, 3, 64, 72); }, Error::invalid_shape, "attn_fwd: k has head_dim 72, q has 64"},
      {[](auto& p) { p.v.sizes[3] = 72; }, Error::invalid_shape, "attn_fwd: out has head_dim_v 64, v has 72"},
      {[](auto& p) { p.v.sizes[2] = 71; }, Error::invalid_shape, "attn_fwd: v has seqlen_k 71, k has 70"},
      {[](auto& p) { p.out.sizes[1] = 2; }, Error::invalid_shape, "attn_fwd: out has heads_q 2, q has 4"},
      {[](auto& p) { resize(p, 0, 2, 3); }, Error::invalid_shape, "attn_fwd: k has batch 3, q has 2"},
      {[](auto& p) { resize(p, 1, 4, 3); }, Error::invalid_shape,
       "q has 4 heads, which must be a multiple of the 3 of k"},
      {[](auto& p) { resize(p, 1, 4, 0); }, Error::invalid_shape,
       "q has 4 heads, which must be a multiple of the 0 of k"},
      {[](auto& p) { p.k.sizes[0] = -1; }, Error::invalid_shape, "k has batch -1, which must not be negative"},
      {[](auto& p) { p.logsumexp.sizes[2] = 1; }, Error::invalid_shape, "logsumexp has seqlen_q 1, q has 100"},
      {[](auto& p) { p = fwd_call({.head_dim = 513}); }, Error::not_supported,
       "q has head_dim 513, which must be from 1 to 512"},
      {[](auto& p) { p = fwd_call({.head_dim_v = 520}); }, Error::not_supported,
       "v has head_dim_v 520, which must be from 1 to 512"},
      {[](auto& p) { p.q.sizes[3] = p.k.sizes[3] = 0; }, Error::not_supported,
       "q has head_dim 0, which must be from 1 to 512"},
      {[](auto& p) { resize(p, 2, kBig, 70), p.logsumexp = {}; }, Error::not_supported,
       "attn_fwd: q has more elements than 63 bits count"},
      {[](auto& p) { p.features.causal_variant = 2; }, Error::invalid_argument,
       "attn_fwd: causal_variant is 2, which is none of those in c.h"},
      {[](auto& p) { p.q.strides[3] = 2; }, Error::invalid_stride, "attn_fwd: q has head_dim stride 2"},
      {[](auto& p) { p.v.strides[2] = -64; }, Error::invalid_stride, "attn_fwd: v has a negative seqlen_k stride, -64"},
      {[](auto& p) { p.out.strides[1] = 0; }, Error::invalid_stride, "out is written, but its heads_q stride is 0"},
      {[](auto& p) { p.out.strides[2] = 63; }, Error::invalid_stride, "out is written, but its elements overlap"},
      {[](auto& p) { p.k.strides[0] = kBig / 2; }, Error::invalid_stride, "k has strides that reach beyond"},
      {[](auto& p) { p.k.strides[1] = kBig; }, Error::invalid_stride, "k has strides that reach beyond"},
      {[](auto& p) { p.logsumexp.strides[1] = 101; }, Error::invalid_stride,
       "logsumexp has heads_q stride 101, but must be contiguous"},
      {[](auto& p) { p.logsumexp.data = p.out.data; }, Error::invalid_stride,
       "attn_fwd: out and logsumexp are written, but overlap"},
      {[](auto& p) { p.v.data = pointer(UINTPTR_MAX - 0xff); }, Error::invalid_stride,
       "attn_fwd: v is at 0xffffffffffffff00 and reaches beyond the end of the address space"},
      {[](auto& p) { p.sm_scale = NAN; }, Error::invalid_argument, "attn_fwd: sm_scale is nan"},
      {[](auto& p) { p.sm_scale = INFINITY; }, Error::invalid_argument, "attn_fwd: sm_scale is inf"},
      {[](auto& p) { p.sm_scale = FLT_MAX; }, Error::invalid_argument, "attn_fwd: sm_scale is 3.4"},  // times log2(e)
      {[](auto& p) { p.sm_scale = -1; }, Error::invalid_argument, "attn_fwd: sm_scale is -1"},
  };
  for (const auto& [spoil, error, message] : cases) {
    Recording& recording = start("cuda");
    attn_fwd_params p = fwd_call();
    spoil(p);
    CHECK_EQ(error_name(attn_fwd(p, {})), std::string(error_name(error)));
    CHECK_CONTAINS(last_error_message(), message);
    CHECK_EQ(recording.calls, 1);
    // Asked beforehand it is no call that would run, unless all that it lacks is memory.
    CHECK_EQ(supported(p, {}), error == Error::null_pointer);
    if (error != Error::null_pointer) CHECK_CONTAINS(last_error_message(), message);
  }
}

TEST("attn_bwd refuses every wrong argument by name, and launches nothing") {
  const Bwd cases[] = {
      {[](auto& p) { p.dout.data = nullptr; }, Error::null_pointer, "attn_bwd: dout has no data"},
      {[](auto& p) { p.logsumexp.data = nullptr; }, Error::null_pointer, "attn_bwd: logsumexp has no data"},
      {[](auto& p) { p.dv.dtype = AOTRITON_FLOAT16; }, Error::invalid_dtype, "attn_bwd: dv has dtype float16"},
      {[](auto& p) { p.dk.sizes[1] = 4; }, Error::invalid_shape, "attn_bwd: dk has heads_k 4, k has 2"},
      {[](auto& p) { p.dq.strides[2] = 0; }, Error::invalid_stride,
       "attn_bwd: dq is written, but its seqlen_q stride is 0"},
      {[](auto& p) { p.dv.data = p.dk.data; }, Error::invalid_stride, "attn_bwd: dk and dv are written, but overlap"},
      {[](auto& p) { p.features.causal_variant = 255; }, Error::invalid_argument,
       "attn_bwd: causal_variant is 255, which is none of those in c.h"},
      {[](auto& p) { p.workspace = nullptr; }, Error::workspace_too_small,
       "workspace is null, 527616 bytes are needed"},
      {[](auto& p) { p.workspace_size = 527615; }, Error::workspace_too_small,
       "workspace has 527615 bytes, 527616 are needed"},
      {[](auto& p) { p.deterministic = true, p.workspace_size = 3199; }, Error::workspace_too_small,
       "workspace has 3199 bytes, 3200 are needed"},
      {[](auto& p) { p.workspace = pointer(0xA0080); }, Error::misaligned_pointer,
       "attn_bwd: workspace is at 0xa0080, which must be 256-byte aligned"},
      {[](auto& p) { p.workspace = pointer(UINTPTR_MAX - 0xfff); }, Error::invalid_argument,
       "attn_bwd: workspace is at 0xfffffffffffff000 and reaches beyond the end of the address space"},
      {[](auto& p) { p.workspace = static_cast<char*>(p.dk.data) - 0x100; }, Error::invalid_argument,
       "attn_bwd: workspace and dk overlap"},
  };
  for (const auto& [spoil, error, message] : cases) {
    Recording& recording = start("cuda");
    attn_bwd_params p = bwd_call({.head_dim = 128});
    spoil(p);
    CHECK_EQ(error_name(attn_bwd(p, {})), std::string(error_name(error)));
    CHECK_CONTAINS(last_error_message(), message);
    CHECK(recording.launches.empty());
  }
}

TEST("a workspace that is not needed is not looked at") {
  attn_fwd_params p = fwd_call();
  p.workspace = pointer(3);
  start("cuda");
  CHECK_EQ(attn_fwd(p, {}), Error::success);
}

TEST("sequences of more rows than kernels count are refused by name") {
  start("cuda");
  constexpr int64_t kMost = (int64_t{1} << 31) - 1 - 1023;
  for (const int64_t seqlen : {kMost, kMost + 1}) {
    const Error wanted = seqlen == kMost ? Error::success : Error::not_supported;
    CHECK_EQ(attn_fwd(fwd_call({.batch = 1, .heads = 1, .heads_k = 1, .seqlen_q = seqlen}), {}), wanted);
    if (seqlen > kMost) CHECK_CONTAINS(last_error_message(), "attn_fwd: seqlen_q is more than 2147482624");
    CHECK_EQ(attn_fwd(fwd_call({.batch = 1, .heads = 1, .heads_k = 1, .seqlen_k = seqlen}), {}), wanted);
    if (seqlen > kMost) CHECK_CONTAINS(last_error_message(), "attn_fwd: seqlen_k is more than 2147482624");
  }
}

TEST("a backward refuses each scale by its name") {
  const struct {
    const char* name;
    void (*ask)(aotriton_attn_features&);
  } features[] = {
      {"q_descale", [](auto& f) { f.q_descale.data = pointer(0x100); }},
      {"k_descale", [](auto& f) { f.k_descale.data = pointer(0x100); }},
      {"v_descale", [](auto& f) { f.v_descale.data = pointer(0x100); }},
  };
  Recording& recording = start("cuda");
  for (const auto& [name, ask] : features) {
    attn_bwd_params backward = bwd_call();
    ask(backward.features);
    CHECK(!supported(backward, {}));
    CHECK_EQ(last_error_message(), std::string("attn_bwd: no kernel has ") + name + " yet; served without it");
  }
  CHECK_EQ(recording.calls, 0);
}

TEST("queries of 8 bits have keys of their type, and a mask of plain calls") {
  const auto narrow = [] {
    attn_fwd_params p = fwd_call();
    p.q.dtype = p.k.dtype = p.v.dtype = AOTRITON_FLOAT8_E4M3FN;
    return p;
  };
  const struct {
    void (*change)(attn_fwd_params&);
    Error error;
    const char* message;
  } rows[] = {
      {[](auto& p) { p.k.dtype = p.v.dtype = p.out.dtype; }, Error::invalid_dtype,
       "attn_fwd: q has dtype float8_e4m3fn, k has bfloat16"},
      {[](auto& p) {
         p.q.dtype = p.out.dtype;
         p.features.q_descale = Tensor<2>{pointer(0x100), DType::float32, {p.q.sizes[0], p.k.sizes[1]}, {2, 1}};
       },
       Error::invalid_argument, "attn_fwd: q_descale is given, and q has dtype bfloat16, which has no scale"},
      {[](auto& p) { p.features.softcap = 30; }, Error::not_supported,
       "attn_fwd: no kernel has q of dtype float8_e4m3fn together with other features yet; served without them, or "
       "with q of dtype bfloat16"},
      {[](auto& p) { p.features.windowed = 1, p.features.window_left = 3, p.features.window_right = -1; },
       Error::not_supported,
       "attn_fwd: no kernel has q of dtype float8_e4m3fn with a window, or causal with unequal lengths, yet; served "
       "with q of dtype bfloat16"},
      {[](auto& p) { p.q.strides[2] += 8; }, Error::not_supported,
       "attn_fwd: with k of dtype float8_e4m3fn, out must be float16 or bfloat16, and head_dim, head_dim_v and the "
       "strides of all of 8 bits multiples of 16"},
      {[](auto& p) { p.features.q_descale = Tensor<2>{pointer(0x100), DType::float32, {7, p.k.sizes[1]}, {2, 1}}; },
       Error::invalid_shape, nullptr},
  };
  Recording& recording = start("cuda");
  for (const auto& row : rows) {
    attn_fwd_params p = narrow();
    row.change(p);
    CHECK_EQ(attn_fwd(p, {}), row.error);
    if (row.message) CHECK_EQ(last_error_message(), std::string(row.message));
  }
  CHECK(recording.launches.empty());
}

TEST("a backward has no pages, and a forward says what its pages lack") {
  Recording& recording = start("cuda");
  attn_bwd_params backward = bwd_call();
  backward.features.block_table.data = pointer(0x100);
  CHECK(!supported(backward, {}));
  CHECK_EQ(last_error_message(), std::string("attn_bwd: no kernel has block_table yet; served without it"));
  const struct {
    int64_t pages, page_size, of_sequence;
    void (*change)(attn_fwd_params&);
    Error error;
    const char* message;
  } rows[] = {
      {40, 16, 20, [](auto& p) { p.features.seqused_k = {}; }, Error::null_pointer,
       "attn_fwd: block_table is given, seqused_k is not"},
      {40, 24, 20, [](auto&) {}, Error::invalid_shape,
       "attn_fwd: k has page_size 24, which must be a positive multiple of 16"},
      {0, 16, 20, [](auto&) {}, Error::invalid_shape, "attn_fwd: block_table is given, and k has no pages"},
      {40, 16, int64_t{1} << 40, [](auto&) {}, Error::not_supported,
       "attn_fwd: block_table has 1099511627776 pages of 16 rows for a sequence, too many"},
      {40, 16, 20, [](auto& p) { p.features.cu_seqlens_k = p.features.seqused_k; }, Error::invalid_argument,
       "attn_fwd: block_table and cu_seqlens_k are given, of which one says where keys lie"},
      {40, 16, 20, [](auto& p) { p.k.data = pointer(0x10000002); }, Error::not_supported,
       "attn_fwd: with a block_table, tensors are aligned to 16 bytes"},
      {40, 16, 20, [](auto& p) { p.features.dropout = 0.5f; }, Error::not_supported,
       "attn_fwd: no kernel has dropout together with block_table yet; served without dropout, or without block_table"},
      {40, 16, 20, [](auto& p) { p.q.sizes[3] = p.k.sizes[3] = 264; }, Error::not_supported,
       "attn_fwd: with block_table, q has head_dim 264, which must be from 1 to 256"},
      {40, 16, 20,
       [](auto& p) {
         p.v.sizes[3] = p.out.sizes[3] = 512;
         for (size_t dim = 0; dim < 3; ++dim) p.out.strides[dim] *= 8;
       },
       Error::not_supported, "attn_fwd: with block_table, v has head_dim_v 512, which must be from 1 to 256"},
      {40, 16, 20, [](auto& p) { p.v.sizes[0] = 39; }, Error::invalid_shape, "attn_fwd: v has pages 39, k has 40"},
      {40, 16, 20, [](auto& p) { p.features.block_table.sizes[0] = 3; }, Error::invalid_shape,
       "attn_fwd: block_table has sequences 3, seqused_k has 2"},
  };
  for (const auto& row : rows) {
    attn_fwd_params p = paged_call(row.pages, row.page_size, row.of_sequence);
    row.change(p);
    CHECK(!supported(p, {}));
    CHECK_EQ(last_error_message(), std::string(row.message));
    CHECK_EQ(attn_fwd(p, {}), row.error);
  }
  CHECK(recording.launches.empty());
}

TEST("a window that the call does not say to have is no mistake that passes") {
  Recording& recording = start("cuda");
  for (const bool left : {false, true}) {
    attn_fwd_params p = fwd_call();
    (left ? p.features.window_left : p.features.window_right) = left ? 1 : -1;
    CHECK_EQ(attn_fwd(p, {}), Error::invalid_argument);
    CHECK_EQ(last_error_message(),
             left ? std::string("attn_fwd: window_left is 1 and window_right 0, but windowed is 0")
                  : std::string("attn_fwd: window_left is 0 and window_right -1, but windowed is 0"));
    p.features.windowed = 1;
    CHECK(supported(p, {}));
  }
  CHECK_EQ(recording.launches.size(), 0u);
}

TEST("what only the backward could have is refused by its name, as are results of another head dim") {
  const Bwd cases[] = {
      {[](auto& p) { p.skip_gradients = 8; }, Error::invalid_argument,
       "skip_gradients is 8, which must be from 0 to 7"},
      {[](auto& p) { p.dv.sizes[3] = 32; }, Error::invalid_shape, "dv has head_dim_v 32, v has 64"},
      {[](auto& p) { p.dout.sizes[3] = 32; }, Error::invalid_shape, "dout has head_dim_v 32, v has 64"},
      {[](auto& p) { p.dk.sizes[3] = 32; }, Error::invalid_shape, "dk has head_dim 32, q has 64"},
  };
  start("cuda");
  for (const auto& [spoil, error, message] : cases) {
    attn_bwd_params p = bwd_call();
    spoil(p);
    CHECK_EQ(attn_bwd(p, {}), error);
    CHECK_EQ(last_error_message(), std::string("attn_bwd: ") + message);
  }
}

TEST("a functional outside the build's coverage is no_winner, and nothing is launched") {
  Recording& recording = start("cuda");
  CHECK_EQ(attn_fwd(fwd_call({.head_dim = 16}), {}), Error::no_winner);
  CHECK_CONTAINS(last_error_message(),
                 "attn_fwd sm_90: LEVEL=0 T=bf16 BLOCK_DMODEL=32 CAUSAL=False ADDRESSING=descriptor");
  attn_bwd_params p = bwd_call({.head_dim = 32});
  CHECK_EQ(attn_bwd(p, {}), Error::no_winner);
  CHECK_CONTAINS(last_error_message(),
                 "attn_bwd_dq sm_90: LEVEL=0 T=bf16 BLOCK_DMODEL=32 CAUSAL=False ADDRESSING=descriptor");
  CHECK(recording.launches.empty() && recording.loads.empty());
}

TEST("an error's name is its enumerator and its message stays until the next error of the thread") {
  CHECK_EQ(error_name(Error::success), std::string("success"));
  CHECK_EQ(error_name(Error::workspace_too_small), std::string("workspace_too_small"));
  CHECK_EQ(error_name(Error::out_of_memory), std::string("out_of_memory"));
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

TEST("a call that succeeds leaves the last error's message, whatever it tried on the way") {
  start("cuda");
  attn_fwd_params wrong = fwd_call();
  wrong.sm_scale = -1;
  CHECK_EQ(attn_fwd(wrong, {}), Error::invalid_argument);
  const std::string message = last_error_message();
  // Of so many heads the first backend's launch is too large, and another one is asked.
  const toy::scale_params many = many_heads();
  CHECK_EQ(toy::scale(many, {}), Error::success);
  CHECK(toy::supported(many, {}));
  size_t bytes;
  CHECK_EQ(toy::scale_workspace_size(many, {}, &bytes), Error::success);
  CHECK_EQ(toy::preload(many, {}), Error::success);
  attn_bwd_params p = bwd_call();
  for (aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) t->data = nullptr;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &bytes), Error::success);
  CHECK_EQ(last_error_message(), message);
}
