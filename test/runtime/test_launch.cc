// Every argument, grid, block and shared size of every launch, on the stand-ins for CUDA and HIP.
#include <algorithm>

#include "call/checks.h"
#include "calls.h"
#include "dispatch/survey.h"
#include "program/registry.h"

using namespace aotriton::v2;

namespace {

void sizes(Reader& reader, const Sizes& s) { reader.numbers({s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim}); }

// attn_fwd's arguments after its tensors. Descriptors have their strides with them.
void fwd_rest(Reader& reader, const attn_fwd_params& p, const Sizes& s, bool descriptors) {
  reader.value(p.logsumexp.data);
  reader.value(int32_t{p.logsumexp.data != nullptr});
  reader.value(p.sm_scale);
  if (!descriptors)
    for (const aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out}) reader.strides(*t);
  sizes(reader, s);
  reader.end();
}

void fwd_by_descriptor(const RecordedLaunch& launch, const attn_fwd_params& p, const Sizes& s, uint32_t q_rows,
                       uint32_t k_rows) {
  Reader reader(launch);
  reader.descriptor(p.q, q_rows);
  reader.descriptor(p.k, k_rows);
  reader.descriptor(p.v, k_rows);
  reader.descriptor(p.out, q_rows);
  fwd_rest(reader, p, s, true);
}

void fwd_by_pointer(const RecordedLaunch& launch, const attn_fwd_params& p, const Sizes& s) {
  Reader reader(launch);
  for (const aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out}) reader.value(t->data);
  fwd_rest(reader, p, s, false);
}

void preprocess(const RecordedLaunch& launch, const attn_bwd_params& p, const Sizes& s) {
  Reader reader(launch);
  for (void* data : {p.out.data, p.dout.data, p.workspace}) reader.value(data);
  reader.strides(p.out);
  reader.strides(p.dout);
  reader.numbers({s.heads, s.seqlen_q, s.head_dim});
  reader.end();
}

// The arguments of dk_dv and dq after their tensors, whose strides are passed where there are `strided` ones.
void bwd_rest(Reader& reader, const attn_bwd_params& p, std::initializer_list<const aotriton_tensor4*> strided,
              const Sizes& s) {
  reader.value(p.logsumexp.data);
  reader.value(p.workspace);
  reader.value(p.sm_scale);
  for (const aotriton_tensor4* t : strided) reader.strides(*t);
  sizes(reader, s);
  reader.end();
}

}  // namespace

TEST("attn_fwd on CUDA passes aligned tensors as descriptors, without strides of their own") {
  Recording& recording = start("cuda");
  const Sizes s;
  const attn_fwd_params p = fwd_call(s);
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
  const RecordedLaunch& launch = recording.launches[0];
  CHECK_EQ(launch.entry, "attn_fwd");
  CHECK_EQ(launch.context, kContext);
  CHECK_EQ(launch.max_shared, 0u);             // 40,000 bytes need no opt-in
  check_shape(launch, 2 * 4 * 2, 128, 40000);  // 100 rows in tiles of 64, of 4 heads in 2 batches
  fwd_by_descriptor(launch, p, s, 64, 32);
}

TEST("columns in two parts have two descriptors for each tensor, and both follow its pointer") {
  Recording& recording = start("cuda");
  hints slim;
  CHECK_EQ(slim.parse("backend=hopper_slim"), Error::success);
  const Sizes s = {.head_dim = 160};
  attn_fwd_params p = fwd_call(s);
  p.hints = &slim;
  for (int call = 0; call < 2; ++call) {
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    const RecordedLaunch& launch = recording.launches.at(static_cast<size_t>(call));
    CHECK_EQ(launch.entry, "attn_fwd_hopper_slim");
    Reader reader(launch);
    for (int part = 0; part < 2; ++part) {
      reader.packed(p.q, 64, 2);
      for (const aotriton_tensor4* t : {&p.k, &p.v}) reader.descriptor(*t, 64);
      reader.packed(p.out, 64, 2);
    }
    reader.value(p.logsumexp.data);
    reader.value(int32_t{1});
    reader.value(p.sm_scale);
    sizes(reader, s);
    reader.numbers({s.batch, 1});
    reader.end();
    for (aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out}) t->data = static_cast<char*>(t->data) + 4096;
  }
}

TEST("attn_fwd takes float16, any aligned strides, and no logsumexp") {
  Recording& recording = start("cuda");
  const Sizes s = {.batch = 1, .heads = 3, .heads_k = 1, .seqlen_q = 1, .seqlen_k = 129, .head_dim = 40};
  attn_fwd_params p = fwd_call(s);
  for (aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out}) {
    t->dtype = AOTRITON_FLOAT16;
    for (int i = 0; i < 3; ++i) t->strides[i] = t->sizes[i] == 1 ? 7 : t->strides[i] + 8;  // 7: of a size-1 dimension
  }
  p.logsumexp = {};
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  check_shape(recording.launches.at(0), 3, 128, 40000);
  fwd_by_descriptor(recording.launches.at(0), p, s, 64, 32);
}

TEST("the sizes of a logsumexp that is not given are not looked at") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call();
  p.logsumexp.data = nullptr;
  p.logsumexp.sizes[2] = -7;
  p.logsumexp.dtype = 77;
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  fwd_by_descriptor(recording.launches.at(0), p, {}, 64, 32);
}

TEST("attn_fwd on CUDA passes pointers where one tensor is not aligned, in base or stride, or is broadcast") {
  const Sizes s;
  for (int which = 0; which < 3; ++which) {
    Recording& recording = start("cuda");
    attn_fwd_params p = fwd_call(s);
    if (which == 0) p.v.data = pointer(0x30008);
    if (which == 1) p.k.strides[1] += 4;
    if (which == 2) p.k.strides[0] = 0;
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    check_shape(recording.launches.at(0), 2 * 4 * 2, 128, 40000);
    fwd_by_pointer(recording.launches.at(0), p, s);
  }
}

TEST("a filled GPU and longer sequences get the other entry, with its grid and its shared memory above 48 KiB") {
  Recording& recording = start("cuda");
  const Sizes s = {.batch = 8, .heads = 16, .heads_k = 16, .seqlen_q = 1000, .seqlen_k = 1000};
  CHECK_EQ(attn_fwd(fwd_call(s), {}), Error::success);
  const RecordedLaunch& launch = recording.launches.at(0);
  CHECK_EQ(launch.max_shared, 60000u);
  check_shape(launch, 8 * 16 * 8, 256, 60000);
  fwd_by_descriptor(launch, fwd_call(s), s, 128, 128);
}

// The sm_scale that each launch of a call on HIP passes, but the preprocessing's, which takes none.
std::vector<float> scales(const Recording& recording) {
  std::vector<float> passed;
  for (const RecordedLaunch& launch : recording.launches) {
    if (launch.entry == "attn_fwd") passed.push_back(launch.argument<float>(6));
    if (launch.entry == "attn_bwd_dk_dv") passed.push_back(launch.argument<float>(8));
    if (launch.entry == "attn_bwd_dq") passed.push_back(launch.argument<float>(7));
  }
  return passed;
}

TEST("an sm_scale that a C++ program sets is passed, 0 as well, and one that it does not set is 1 / sqrt(head_dim)") {
  constexpr float kUnset = -1;
  for (const float given : {0.0f, 0.3f, kUnset}) {
    Recording& recording = start("hip");
    attn_fwd_params forward = fwd_call();
    attn_bwd_params backward = bwd_call();
    forward.sm_scale = given == kUnset ? attn_fwd_params().sm_scale : given;
    backward.sm_scale = given == kUnset ? attn_bwd_params().sm_scale : given;
    for (int again = 0; again < 2; ++again) {
      CHECK_EQ(attn_fwd(forward, {}), Error::success);
      CHECK_EQ(attn_bwd(backward, {}), Error::success);
    }
    CHECK(scales(recording) == std::vector<float>(6, given == kUnset ? 0.125f : given));  // a head_dim of 64
  }
}

TEST("a forward with ALiBi passes no scale that slopes cannot be divided by, when it is repeated, too") {
  for (const float given : {0.0f, 1e-35f, 0.3f}) {
    Recording& recording = start("hip");
    attn_fwd_params p = fwd_call();
    p.sm_scale = given;
    p.features.alibi_slopes = {pointer(address_of(9)), AOTRITON_FLOAT32, {2, 4}, {4, 1}};
    for (int again = 0; again < 2; ++again) CHECK_EQ(attn_fwd(p, {}), Error::success);
    CHECK_EQ(recording.launches.size(), 2u);
    for (const RecordedLaunch& launch : recording.launches)
      CHECK_EQ(launch.argument<float>(6), std::max(given, 1e-29f));
  }
}

TEST("attn_fwd on HIP passes pointers, by 32-bit offsets where tensors are aligned and below 2 GiB") {
  const Sizes s;
  std::string images[2];
  for (const bool aligned : {true, false}) {
    Recording& recording = start("hip");
    attn_fwd_params p = fwd_call(s);
    if (!aligned) p.q.strides[0] = int64_t{1} << 30;  // 2 GiB between the two batches
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    const RecordedLaunch& launch = recording.launches.at(0);
    CHECK_EQ(launch.max_shared, 0u);
    check_shape(launch, 2 * 4 * 2, 256, 40000);
    fwd_by_pointer(launch, p, s);
    images[aligned] = launch.head;
    Explanation explanation;
    CHECK_EQ(explain(p, "gfx942", 0, &explanation), Error::success);
    CHECK_EQ(explanation.kernels[0].image, image_of(launch, "gfx942"));
    CHECK_CONTAINS(explanation.kernels[0].functional, aligned ? "ADDRESSING=offset32" : "ADDRESSING=general");
  }
  CHECK(images[0] != images[1]);
}

TEST("a logsumexp of 2 GiB rules out 32-bit offsets on HIP") {
  const auto reached = [](int64_t batch) {
    const Sizes s = {.batch = batch, .heads = 1 << 14, .heads_k = 1, .seqlen_q = 2, .seqlen_k = 1, .head_dim = 64};
    attn_bwd_params p = bwd_call(s);
    for (aotriton_tensor4* t : {&p.q, &p.out, &p.dout}) t->strides[0] = t->strides[1] = t->strides[2] = 8;
    Call call(*find_operator("attn_bwd"));
    const aotriton_tensor4* const tensors[] = {&p.q, &p.k, &p.v, &p.out, &p.dout, nullptr, &p.dq, &p.dk, &p.dv};
    for (size_t slot = 0; slot < std::size(tensors); ++slot)
      call.views[slot] = tensors[slot] ? View::of(*tensors[slot]) : View::of(p.logsumexp);
    call.set_real(0, 0.125f);
    call.set_whole(1, 0);
    call.set_whole(2, 0);
    CHECK_EQ(check_call(call, Data::optional).error(), Error::success);
    shape_workspace(call);
    Gpu gpu;
    CHECK_EQ(find_gpu("test", "gfx942", nullptr, 0, &gpu), Error::success);
    // Of dk_dv, which dq does not concern.
    return Survey(call, gpu).addressing(*call.info->backends[0].kernels[1]);
  };
  CHECK(reached(1 << 14) == Addressing::general);
  CHECK(reached(1 << 13) == Addressing::offset32);
}

TEST("attn_bwd on CUDA launches preprocess, dk_dv and dq, in this order") {
  Recording& recording = start("cuda");
  const Sizes s;
  const attn_bwd_params p = bwd_call(s);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 3u);
  CHECK_EQ(recording.launches[0].entry, "attn_bwd_preprocess");
  CHECK_EQ(recording.launches[1].entry, "attn_bwd_dk_dv");
  CHECK_EQ(recording.launches[2].entry, "attn_bwd_dq");

  check_shape(recording.launches[0], 4 * 2, 256, 60000);  // seqlen_q is in preprocess's second bin: BLOCK_M 128
  preprocess(recording.launches[0], p, s);

  check_shape(recording.launches[1], 3 * 2 * 2, 128, 40000);  // 70 keys in tiles of 32, heads of k
  Reader dk_dv(recording.launches[1]);
  dk_dv.descriptor(p.q, 32);
  for (const aotriton_tensor4* t : {&p.k, &p.v}) dk_dv.descriptor(*t, 32);
  dk_dv.descriptor(p.dout, 32);
  for (const aotriton_tensor4* t : {&p.dk, &p.dv}) dk_dv.descriptor(*t, 32);
  bwd_rest(dk_dv, p, {}, s);

  check_shape(recording.launches[2], 4 * 4 * 2, 128, 40000);  // 100 rows in tiles of 32
  Reader dq(recording.launches[2]);
  dq.descriptor(p.q, 32);
  for (const aotriton_tensor4* t : {&p.k, &p.v}) dq.descriptor(*t, 32);
  for (const aotriton_tensor4* t : {&p.dout, &p.dq}) dq.descriptor(*t, 32);
  bwd_rest(dq, p, {}, s);
}

TEST("attn_bwd on HIP launches the same three kernels with pointers") {
  Recording& recording = start("hip");
  const Sizes s;
  const attn_bwd_params p = bwd_call(s);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 3u);
  preprocess(recording.launches[0], p, s);
  Reader dk_dv(recording.launches[1]);
  for (const aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}) dk_dv.value(t->data);
  bwd_rest(dk_dv, p, {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}, s);
  Reader dq(recording.launches[2]);
  for (const aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.dout, &p.dq}) dq.value(t->data);
  bwd_rest(dq, p, {&p.q, &p.k, &p.v, &p.dout, &p.dq}, s);
}

TEST("each kernel of attn_bwd looks at its own tensors' alignment only") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call();
  p.dq.data = pointer(0x70002);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(1).arguments.at(0).size(), sizeof(TensorMap));
  CHECK_EQ(recording.launches.at(2).argument<void*>(0), p.q.data);
  CHECK_EQ(recording.launches.at(2).argument<void*>(4), p.dq.data);
}

TEST("batch and heads above 65,535 run, as all programs are along x") {
  for (const char* vendor : {"cuda", "hip"}) {
    for (const bool in_batch : {false, true}) {
      Recording& recording = start(vendor);
      const int64_t many = 100000;
      const Sizes s = {
          .batch = in_batch ? many : 1, .heads = in_batch ? 1 : many, .heads_k = 1, .seqlen_q = 65, .seqlen_k = 65};
      CHECK_EQ(attn_fwd(fwd_call(s), {}), Error::success);
      CHECK_EQ(attn_bwd(bwd_call(s), {}), Error::success);
      CHECK_EQ(recording.launches.at(0).grid[0], 100000u);      // a tile of 128 rows of each
      CHECK_EQ(recording.launches.at(3).entry, "attn_bwd_dq");  // its tiles are of 128 rows, or of 64
      CHECK_EQ(recording.launches.at(3).grid[0], vendor[0] == 'c' ? 100000u : 200000u);
      for (const RecordedLaunch& launch : recording.launches) CHECK_EQ(launch.grid[1] * launch.grid[2], 1u);
    }
  }
}

TEST("sizes that no launch has are refused by all that asks for a call, with the same words") {
  const Sizes sizes[] = {{.batch = 3'000'000'000, .heads = 1, .heads_k = 1, .seqlen_q = 1, .seqlen_k = 1},
                         {.batch = 1 << 20, .heads = 1 << 13, .heads_k = 1, .seqlen_q = 1, .seqlen_k = 1}};
  for (const char* vendor : {"cuda", "hip"})
    for (const Sizes& s : sizes) {
      Recording& recording = start(vendor);
      const attn_fwd_params p = fwd_call(s);
      CHECK(attn_fwd(p, {}) != Error::success);
      const std::string why = last_error_message();
      CHECK(!supported(p, {}));
      CHECK_EQ(last_error_message(), why);
      size_t bytes = 0;
      CHECK(attn_fwd_workspace_size(p, {}, &bytes) != Error::success);
      CHECK_EQ(last_error_message(), why);
      Explanation explanation;
      CHECK(explain(p, vendor[0] == 'c' ? "sm_90" : "gfx942", 132, &explanation) != Error::success);
      CHECK(recording.launches.empty());
    }
}

TEST("more programs than a driver launches are refused, and nothing is launched") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call({.batch = 1 << 16, .heads = 1 << 16, .heads_k = 1, .seqlen_q = 1, .seqlen_k = 1});
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: more than 2147483647 programs of attn_fwd along x");
  CHECK(recording.launches.empty());

  Recording& hip = start("hip");  // which counts threads in 32 bits
  p = fwd_call({.batch = 1 << 12, .heads = 1 << 12, .heads_k = 1, .seqlen_q = 1, .seqlen_k = 1});
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: HIP has more threads of attn_fwd along x than can be launched");
  CHECK(hip.launches.empty());
}
