// Every argument, grid, block and shared size of every launch, on the stand-ins for CUDA and HIP.
#include "calls.h"

using namespace aotriton::v2;

namespace {

void sizes(Reader& reader, const Sizes& s) {
  for (const int64_t size : {s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim})
    reader.value(static_cast<int32_t>(size));
}

// attn_fwd's arguments after its tensors.
void fwd_rest(Reader& reader, const attn_fwd_params& p, const Sizes& s) {
  reader.value(p.logsumexp.data);
  reader.value(int32_t{p.logsumexp.data != nullptr});
  reader.value(p.sm_scale);
  for (const Tensor<4>* t : {&p.q, &p.k, &p.v, &p.out}) reader.strides(*t);
  sizes(reader, s);
  reader.end();
}

void fwd_by_pointer(const RecordedLaunch& launch, const attn_fwd_params& p, const Sizes& s) {
  Reader reader(launch);
  for (const Tensor<4>* t : {&p.q, &p.k, &p.v, &p.out}) reader.value(t->data);
  fwd_rest(reader, p, s);
}

void preprocess(const RecordedLaunch& launch, const attn_bwd_params& p, const Sizes& s) {
  Reader reader(launch);
  for (void* data : {p.out.data, p.dout.data, p.workspace}) reader.value(data);
  reader.strides(p.out);
  reader.strides(p.dout);
  for (const int64_t size : {s.heads, s.seqlen_q, s.head_dim}) reader.value(static_cast<int32_t>(size));
  reader.end();
}

// The arguments of dk_dv and dq after their tensors.
void bwd_rest(Reader& reader, const attn_bwd_params& p, std::initializer_list<const Tensor<4>*> tensors,
              const Sizes& s) {
  reader.value(p.logsumexp.data);
  reader.value(p.workspace);
  reader.value(p.sm_scale);
  for (const Tensor<4>* t : tensors) reader.strides(*t);
  sizes(reader, s);
  reader.end();
}

}  // namespace

TEST("attn_fwd on CUDA passes aligned tensors as descriptors") {
  Recording& recording = start("cuda");
  const Sizes s;
  const attn_fwd_params p = fwd_call(s);
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
  const RecordedLaunch& launch = recording.launches[0];
  CHECK_EQ(launch.entry, "attn_fwd");
  CHECK_EQ(launch.head, "sm_90 aligned0 a");
  CHECK_EQ(launch.context, kContext);
  CHECK_EQ(launch.max_shared, 0u);  // 40,000 bytes need no opt-in
  check_shape(launch, 2, 4, 2, 128, 40000);
  Reader reader(launch);
  reader.descriptor(p.q, 64);
  reader.descriptor(p.k, 32);
  reader.descriptor(p.v, 32);
  reader.descriptor(p.out, 64);
  fwd_rest(reader, p, s);
}

TEST("attn_fwd takes float16, any aligned strides, and no logsumexp") {
  Recording& recording = start("cuda");
  const Sizes s = {.batch = 1, .heads = 3, .heads_k = 1, .seqlen_q = 1, .seqlen_k = 129, .head_dim = 40};
  attn_fwd_params p = fwd_call(s);
  for (Tensor<4>* t : {&p.q, &p.k, &p.v, &p.out}) {
    t->dtype = DType::float16;
    for (int i = 0; i < 3; ++i) t->strides[i] = t->sizes[i] == 1 ? 7 : t->strides[i] + 8;  // 7: of a size-1 dimension
  }
  p.logsumexp = {};
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  const RecordedLaunch& launch = recording.launches.at(0);
  CHECK_EQ(launch.head, "sm_90 aligned0 a");
  check_shape(launch, 1, 3, 1, 128, 40000);
  Reader reader(launch);
  reader.descriptor(p.q, 64);
  reader.descriptor(p.k, 32);
  reader.descriptor(p.v, 32);
  reader.descriptor(p.out, 64);
  fwd_rest(reader, p, s);
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
    CHECK_EQ(recording.launches.at(0).head, "sm_90 plain0 att");
    fwd_by_pointer(recording.launches.at(0), p, s);
  }
}

TEST("a filled GPU and longer sequences get the other entry, with its grid and its shared memory above 48 KiB") {
  Recording& recording = start("cuda");
  const Sizes s = {.batch = 8, .heads = 16, .heads_k = 16, .seqlen_q = 1000, .seqlen_k = 1000, .head_dim = 128};
  CHECK_EQ(attn_fwd(fwd_call(s), {}), Error::success);
  const RecordedLaunch& launch = recording.launches.at(0);
  CHECK_EQ(launch.head, "sm_90 aligned1 a");
  CHECK_EQ(launch.max_shared, 60000u);
  check_shape(launch, 8, 16, 8, 256, 60000);
}

TEST("attn_fwd on HIP passes pointers, by 32-bit offsets where tensors are aligned and below 2 GiB") {
  const Sizes s;
  for (const bool aligned : {true, false}) {
    Recording& recording = start("hip");
    attn_fwd_params p = fwd_call(s);
    if (!aligned) p.q.strides[0] = int64_t{1} << 30;  // 2 GiB between the two batches
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    const RecordedLaunch& launch = recording.launches.at(0);
    CHECK_EQ(launch.head, aligned ? "gfx942 aligned0 " : "gfx942 plain0 at");
    CHECK_EQ(launch.max_shared, 0u);
    check_shape(launch, 2, 4, 2, 256, 40000);
    fwd_by_pointer(launch, p, s);
  }
}

TEST("a logsumexp of 2 GiB rules out 32-bit offsets on HIP") {
  Recording& recording = start("hip");
  attn_fwd_params p = fwd_call({.batch = 1 << 14, .heads = 1 << 14, .heads_k = 1, .seqlen_q = 2, .seqlen_k = 1});
  for (Tensor<4>* t : {&p.q, &p.out}) t->strides[0] = t->strides[1] = t->strides[2] = 8;
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).head, "gfx942 plain0 at");
  p.logsumexp = {};
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(1).head, "gfx942 aligned0 ");
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

  check_shape(recording.launches[0], 1, 4, 2, 256, 60000);  // seqlen_q is in preprocess's second bin: BLOCK_M 128
  preprocess(recording.launches[0], p, s);

  check_shape(recording.launches[1], 3, 2, 2, 128, 40000);  // 70 keys in tiles of 32, heads of k
  Reader dk_dv(recording.launches[1]);
  dk_dv.descriptor(p.q, 64);
  for (const Tensor<4>* t : {&p.k, &p.v}) dk_dv.descriptor(*t, 32);
  dk_dv.descriptor(p.dout, 64);
  for (const Tensor<4>* t : {&p.dk, &p.dv}) dk_dv.descriptor(*t, 32);
  bwd_rest(dk_dv, p, {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}, s);

  check_shape(recording.launches[2], 2, 4, 2, 128, 40000);
  Reader dq(recording.launches[2]);
  dq.descriptor(p.q, 64);
  for (const Tensor<4>* t : {&p.k, &p.v}) dq.descriptor(*t, 32);
  for (const Tensor<4>* t : {&p.dout, &p.dq}) dq.descriptor(*t, 64);
  bwd_rest(dq, p, {&p.q, &p.k, &p.v, &p.dout, &p.dq}, s);
}

TEST("attn_bwd on HIP launches the same three kernels with pointers") {
  Recording& recording = start("hip");
  const Sizes s;
  const attn_bwd_params p = bwd_call(s);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 3u);
  for (const RecordedLaunch& launch : recording.launches) CHECK_EQ(launch.head.substr(0, 14), "gfx942 aligned");
  preprocess(recording.launches[0], p, s);
  Reader dk_dv(recording.launches[1]);
  for (const Tensor<4>* t : {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}) dk_dv.value(t->data);
  bwd_rest(dk_dv, p, {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}, s);
  Reader dq(recording.launches[2]);
  for (const Tensor<4>* t : {&p.q, &p.k, &p.v, &p.dout, &p.dq}) dq.value(t->data);
  bwd_rest(dq, p, {&p.q, &p.k, &p.v, &p.dout, &p.dq}, s);
}

TEST("each kernel of attn_bwd looks at its own tensors' alignment only") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call();
  p.dq.data = pointer(0x70002);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).head, "sm_90 aligned1 a");
  CHECK_EQ(recording.launches.at(1).head, "sm_90 aligned0 a");
  CHECK_EQ(recording.launches.at(2).head, "sm_90 plain0 att");
}

TEST("attn_bwd_workspace_size is a float for each row and each element of q, or for each row where deterministic") {
  attn_bwd_params p = bwd_call();
  p.q.data = p.workspace = nullptr;
  size_t bytes = 0;
  CHECK_EQ(attn_bwd_workspace_size(p, &bytes), Error::success);
  CHECK_EQ(bytes, 3328u + 2 * 4 * 100 * 64 * 4);  // delta's 3200 bytes, rounded up to 256
  p.deterministic = true;
  CHECK_EQ(attn_bwd_workspace_size(p, &bytes), Error::success);
  CHECK_EQ(bytes, 3200u);
}
