// Which backend a call gets, what the Hopper ones are given, and what is left to the portable one.
#include <algorithm>

#include "calls.h"
#include "dispatch/explain.h"

using namespace aotriton::v2;

namespace {

// In the bins of the first image of the hopper backend, and of the last one.
constexpr Sizes kSmall = {.head_dim = 256};
constexpr Sizes kLarge = {.batch = 8, .heads = 16, .heads_k = 4, .seqlen_q = 1000, .seqlen_k = 777, .head_dim = 200};

void hopper(const RecordedLaunch& launch, const attn_fwd_params& p, const Sizes& s, uint32_t key_rows) {
  CHECK_EQ(launch.entry, "attn_fwd_hopper");
  const int64_t group = s.heads / s.heads_k;
  const uint32_t packed = static_cast<uint32_t>(std::min(group & -group, int64_t{16}));
  Reader reader(launch);
  reader.packed(p.q, 64, packed);
  reader.descriptor(p.k, key_rows);
  reader.descriptor(p.v, key_rows);
  reader.packed(p.out, 64, packed);
  reader.value(p.logsumexp.data);
  reader.value(int32_t{p.logsumexp.data != nullptr});
  reader.value(p.sm_scale);
  reader.numbers({s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim, s.batch, __builtin_ctz(packed)});
  reader.end();
}

std::string entry_of(const attn_fwd_params& p, const char* vendor = "cuda") {
  Recording& recording = start(vendor);
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
  return recording.launches.at(0).entry;
}

KernelChoice explained(const Sizes& s, const char* arch = "sm_90") {
  Explanation explanation;
  CHECK_EQ(explain(fwd_call(s), arch, 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernel_count, 1u);
  return explanation.kernels[0];
}

std::string line_of(const KernelChoice& choice) {
  char line[1024];
  format_line(choice, line, sizeof line);
  return line;
}

}  // namespace

TEST("the hopper backend takes tiles of 64 rows for each consumer") {
  Recording& recording = start("cuda");
  const attn_fwd_params p = fwd_call(kSmall);
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
  check_shape(recording.launches.at(0), 4 * 2 * 2, 128, 40000);  // 200 rows in tiles of 64, of 2 pairs in 2 batches
  hopper(recording.launches.at(0), p, kSmall, 64);
}

TEST("its programs are as many as multiprocessors, but not more than tiles") {
  for (const int multiprocessors : {132, 1000}) {
    Recording& recording = start("cuda");
    recording.devices[kContext].multiprocessors = multiprocessors;
    attn_fwd_params p = fwd_call(kLarge);
    p.logsumexp = {};
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    const RecordedLaunch& launch = recording.launches.at(0);
    check_shape(launch, multiprocessors == 132 ? 132 : 21 * 4 * 8, 128, 60000);  // tiles of 192 rows, of 4 heads
    hopper(launch, p, kLarge, 128);
  }
}

TEST("heads of a group that are a power of two, sixteen at most, share the rows of a tile") {
  for (const int64_t heads : {6, 24, 96}) {  // groups of 3, 12 and 48: 1, 4 and 16 heads
    Recording& recording = start("cuda");
    Sizes s = kLarge;
    s.heads = heads, s.heads_k = 2;
    attn_fwd_params p = fwd_call(s);
    for (aotriton_tensor4* t : {&p.q, &p.out}) {  // rows of all heads behind each other
      t->strides[1] = s.head_dim;
      t->strides[2] = s.heads * s.head_dim;
    }
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    hopper(recording.launches.at(0), p, s, 128);
  }
}

TEST("what the hopper backend does not serve, or is slower at, falls to the portable one") {
  CHECK_EQ(entry_of(fwd_call(kSmall)), "attn_fwd_hopper");
  Sizes few = kSmall;
  few.seqlen_q = 64;  // the bin where the portable backend is faster
  CHECK_EQ(entry_of(fwd_call(few)), "attn_fwd");
  CHECK_EQ(entry_of(fwd_call()), "attn_fwd");  // a head dim that it was not measured for
  CHECK_EQ(entry_of(fwd_call(kSmall), "hip"), "attn_fwd");

  attn_fwd_params p = fwd_call(kSmall);
  p.v.data = pointer(0x30008);  // no descriptor
  CHECK_EQ(entry_of(p), "attn_fwd");
}

TEST("more tiles than 32 bits count fall to the portable backend") {
  // Tiles are of 64 rows at least, and a round of programs lies beyond the last: 30 bits of tiles are counted.
  attn_fwd_params p = fwd_call({.batch = 1023, .heads = 1, .heads_k = 1, .seqlen_q = 1 << 26, .head_dim = 256});
  p.logsumexp = {};
  CHECK_EQ(entry_of(p), "attn_fwd_hopper");
  for (aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out}) t->sizes[0] = 1024;
  CHECK_EQ(entry_of(p), "attn_fwd");
}

TEST("explain names the backend and what each takes; the log line names the one that runs") {
  const KernelChoice faster = explained(kSmall);
  CHECK_EQ(faster.kernel, std::string("attn_fwd_hopper"));
  CHECK_EQ(faster.backend, std::string("hopper"));
  CHECK_EQ(faster.backend_count, 12);
  // A choice that the lead has not is spelled as another kernel spells it.
  CHECK_EQ(faster.backends[11].name, std::string("hopper_fp8"));
  CHECK_EQ(faster.backend_states[11].choice, std::string("KEYS"));
  CHECK_EQ(faster.backend_states[11].choice_value, std::string("rows"));
  CHECK_EQ(faster.backends[0].name, std::string("portable"));
  CHECK_EQ(faster.backends[0].median_us, 10.0f);
  CHECK_EQ(faster.backends[1].name, std::string("hopper"));
  CHECK_EQ(faster.backends[1].median_us, 4.0f);
  CHECK_CONTAINS(line_of(faster), " waves=1, hopper");

  Sizes few = kSmall;
  few.seqlen_q = 10;
  CHECK_EQ(explained(few).kernel, std::string("attn_fwd"));
  CHECK_CONTAINS(line_of(explained(few)), " waves=1, portable");
  CHECK_EQ(explained(few).backends[1].median_us, 30.0f);
  CHECK_EQ(explained({}).backends[1].median_us, 0.0f);
  CHECK_EQ(explained(kSmall, "gfx942").backends[1].median_us, 0.0f);
}

TEST("the hopper backward adds up dq behind delta in the workspace") {
  Recording& recording = start("cuda");
  const Sizes s = {.head_dim = 128};
  const attn_bwd_params p = bwd_call(s);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 3u);
  const Tensor<4> sum =
      dq_sum(reinterpret_cast<uintptr_t>(p.workspace) + 3328, s.batch, s.heads, s.seqlen_q, s.head_dim);

  const RecordedLaunch& prepare = recording.launches.at(0);
  CHECK_EQ(prepare.entry, "attn_bwd_hopper_prepare");
  check_shape(prepare, 2 * 4 * 2, 256, 60000);  // 100 rows in tiles of 64, of 4 heads in 2 batches
  Reader first(prepare);
  for (void* data : {p.out.data, p.dout.data, p.workspace, sum.data}) first.value(data);
  first.strides(p.out);
  first.strides(p.dout);
  first.numbers({s.heads, s.seqlen_q, s.head_dim, 128});
  first.end();

  const RecordedLaunch& main = recording.launches.at(1);
  CHECK_EQ(main.entry, "attn_bwd_hopper_pair");
  check_shape(main, 2 * 2, 128, 40000);  // 70 keys in tiles of 128, of 2 key heads in 2 batches
  Reader second(main);
  second.descriptor(p.q, 64);
  second.descriptor(p.k, 128);
  second.descriptor(p.v, 128);
  second.descriptor(p.dout, 64);
  second.descriptor(p.dk, 64);  // of a consumer
  second.descriptor(p.dv, 64);
  second.descriptor(sum, {1, 1, 64, 64}, false);
  second.value(p.logsumexp.data);
  second.value(p.workspace);
  second.value(p.sm_scale);
  second.numbers({s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim, s.batch});
  second.numbers({2 * 2});  // all key heads together are less than a round
  second.end();

  const RecordedLaunch& finish = recording.launches.at(2);
  CHECK_EQ(finish.entry, "attn_bwd_hopper_finish");
  check_shape(finish, 2 * 4 * 2, 256, 60000);
  Reader third(finish);
  third.value(sum.data);
  third.value(p.dq.data);
  third.value(p.sm_scale);
  third.strides(p.dq);
  third.numbers({s.heads, s.seqlen_q, s.head_dim, 128});
  third.end();
}

TEST("programs of the hopper backward are as many as multiprocessors, and take heads together that stay in L2") {
  Recording& recording = start("cuda");
  const Sizes s = {.batch = 8, .heads = 16, .heads_k = 16, .seqlen_q = 1000, .seqlen_k = 1000};
  attn_bwd_params p = bwd_call(s);
  p.causal = true;
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 3u);
  CHECK_EQ(recording.launches.at(0).entry, "attn_bwd_hopper_prepare");
  CHECK_EQ(recording.launches.at(2).entry, "attn_bwd_hopper_finish");
  const Tensor<4> sum =
      dq_sum(reinterpret_cast<uintptr_t>(p.workspace) + 8 * 16 * 1000 * 4, s.batch, s.heads, s.seqlen_q, s.head_dim);

  const RecordedLaunch& main = recording.launches.at(1);
  CHECK_EQ(main.entry, "attn_bwd_hopper_pair");
  check_shape(main, 132, 128, 60000);
  Reader reader(main);
  for (const aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.dout}) reader.descriptor(*t, 128);
  for (const aotriton_tensor4* t : {&p.dk, &p.dv}) reader.descriptor(*t, 64);
  reader.descriptor(sum, {1, 1, 64, 64}, false);
  reader.value(p.logsumexp.data);
  reader.value(p.workspace);
  reader.value(p.sm_scale);
  reader.numbers({s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim, s.batch});
  // 33 key heads have 8 tiles each for two rounds, 66 for four; of 512,000 bytes in q, dout and the sum, 65 in 32 MiB.
  reader.numbers({65});
  reader.end();
}

TEST("the hopper backward in parts has parts that fill the multiprocessors, and adds up dk and dv behind dq") {
  Recording& recording = start("cuda");
  const Sizes s = {.seqlen_q = 400, .seqlen_k = 400, .head_dim = 128};
  attn_bwd_params p = bwd_call(s);
  p.causal = true;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &p.workspace_size), Error::success);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 3u);
  constexpr uintptr_t kDelta = 2 * 4 * 400 * 4, kOfQ = 2 * 4 * 448 * 4 * 128, kOfK = kDelta * 128 / 2;
  const uintptr_t workspace = reinterpret_cast<uintptr_t>(p.workspace), behind = workspace + kDelta + kOfQ;
  const Tensor<4> dq = dq_sum(workspace + kDelta, s.batch, s.heads, s.seqlen_q, s.head_dim);
  const Tensor<4> dk = tensor(behind, s.batch, s.heads_k, s.seqlen_k, s.head_dim, DType::float32);
  const Tensor<4> dv = tensor(behind + kOfK, s.batch, s.heads_k, s.seqlen_k, s.head_dim, DType::float32);
  const auto sizes = [&](Reader& reader) { reader.numbers({s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim}); };

  const RecordedLaunch& prepare = recording.launches.at(0);
  CHECK_EQ(prepare.entry, "attn_bwd_hopper_parts_prepare");
  check_shape(prepare, (4 + 2) * 7 * 2, 256, 60000);  // 400 rows in tiles of 64, of 4 heads and 2 key heads
  Reader first(prepare);
  for (void* data : {p.out.data, p.dout.data, p.workspace, dq.data, dk.data, dv.data}) first.value(data);
  for (const aotriton_tensor4* t : {&p.out, &p.dout}) first.strides(*t);
  sizes(first);
  first.numbers({128});
  first.end();

  const RecordedLaunch& main = recording.launches.at(1);
  CHECK_EQ(main.entry, "attn_bwd_hopper_parts");
  check_shape(main, 2 * 2 * 4 * 8, 128, 40000);  // 400 keys in tiles of 128, of 2 key heads in 2 batches, in 8 parts
  Reader second(main);
  second.descriptor(p.q, 64);
  for (const aotriton_tensor4* t : {&p.k, &p.v}) second.descriptor(*t, 128);
  second.descriptor(p.dout, 64);
  for (const Tensor<4>* t : {&dk, &dv}) second.descriptor(*t, 64);
  second.descriptor(dq, {1, 1, 64, 64}, false);
  second.value(p.logsumexp.data);
  second.value(p.workspace);
  second.value(p.sm_scale);
  sizes(second);
  second.numbers({8, 4});  // parts, and all key heads begin together
  second.end();

  const RecordedLaunch& finish = recording.launches.at(2);
  CHECK_EQ(finish.entry, "attn_bwd_hopper_parts_finish");
  check_shape(finish, (4 + 2) * 7 * 2, 256, 60000);
  Reader third(finish);
  for (void* data : {dq.data, dk.data, dv.data, p.dq.data, p.dk.data, p.dv.data}) third.value(data);
  third.value(p.sm_scale);
  for (const aotriton_tensor4* t : {&p.dq, &p.dk, &p.dv}) third.strides(*t);
  sizes(third);
  third.numbers({128});
  third.end();
}

TEST("the split hopper backward has delta from the portable kernel, and tiles of 64 keys and 128 queries") {
  Recording& recording = start("cuda");
  const Sizes s = {.head_dim = 256};
  attn_bwd_params p = bwd_call(s);
  p.deterministic = true;  // it adds in a fixed order
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 3u);
  CHECK_EQ(recording.launches.at(0).entry, "attn_bwd_preprocess");
  const auto rest = [&](Reader& reader) {
    reader.value(p.logsumexp.data);
    reader.value(p.workspace);
    reader.value(p.sm_scale);
    reader.numbers({s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim});
    reader.end();
  };

  const RecordedLaunch& keys = recording.launches.at(1);
  CHECK_EQ(keys.entry, "attn_bwd_hopper_dk_dv");
  check_shape(keys, 2 * 2 * 2, 128, 60000);  // 70 keys in tiles of 64, of 2 key heads in 2 batches
  Reader first(keys);
  for (int part = 0; part < 2; ++part) {
    for (const aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}) first.descriptor(*t, 64);
  }
  rest(first);

  const RecordedLaunch& queries = recording.launches.at(2);
  CHECK_EQ(queries.entry, "attn_bwd_hopper_dq");
  check_shape(queries, 4 * 2, 128, 60000);  // 100 rows in tiles of 128, of 4 heads in 2 batches
  Reader second(queries);
  for (const aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.dout, &p.dq}) second.descriptor(*t, 64);
  rest(second);
}

TEST("the split hopper backward in parts adds up dk and dv, and its queries are those of the one without") {
  Recording& recording = start("cuda");
  const Sizes s = {.seqlen_q = 400, .seqlen_k = 400, .head_dim = 256};
  attn_bwd_params p = bwd_call(s);
  p.causal = true;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &p.workspace_size), Error::success);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 4u);
  constexpr uintptr_t kDelta = 2 * 4 * 400 * 4, kOfK = kDelta * 256 / 2;
  CHECK_EQ(p.workspace_size, kDelta + 2 * kOfK);
  const auto sum = [&](uintptr_t offset) {
    return tensor(reinterpret_cast<uintptr_t>(p.workspace) + offset, s.batch, s.heads_k, s.seqlen_k, s.head_dim,
                  DType::float32);
  };
  const Tensor<4> dk = sum(kDelta), dv = sum(kDelta + kOfK);
  const auto sizes = [&](Reader& reader) { reader.numbers({s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim}); };

  const RecordedLaunch& prepare = recording.launches.at(0);
  CHECK_EQ(prepare.entry, "attn_bwd_hopper_split_prepare");
  check_shape(prepare, (4 + 2) * 4 * 2, 256, 60000);  // 400 rows in tiles of 128, of 4 heads and 2 key heads
  Reader first(prepare);
  for (void* data : {p.out.data, p.dout.data, p.workspace, dk.data, dv.data}) first.value(data);
  for (const aotriton_tensor4* t : {&p.out, &p.dout}) first.strides(*t);
  sizes(first);
  first.end();

  const RecordedLaunch& main = recording.launches.at(1);
  CHECK_EQ(main.entry, "attn_bwd_hopper_dk_dv_parts");
  check_shape(main, 2 * 2 * 7 * 4, 128, 60000);  // 400 keys in tiles of 64, of 2 key heads in 2 batches, in 4 parts
  Reader second(main);
  for (int part = 0; part < 2; ++part) {
    for (const aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.dout}) second.descriptor(*t, 64);
    for (const Tensor<4>* t : {&dk, &dv}) second.descriptor(*t, 64);
  }
  second.value(p.logsumexp.data);
  second.value(p.workspace);
  second.value(p.sm_scale);
  sizes(second);
  second.numbers({4, 4});  // parts, and all key heads begin together
  second.end();
  CHECK_EQ(recording.launches.at(2).entry, "attn_bwd_hopper_dq");

  const RecordedLaunch& finish = recording.launches.at(3);
  CHECK_EQ(finish.entry, "attn_bwd_hopper_split_finish");
  check_shape(finish, 7 * 2 * 2, 256, 60000);  // 400 keys in tiles of 64
  Reader third(finish);
  for (void* data : {dk.data, dv.data, p.dk.data, p.dv.data}) third.value(data);
  third.value(p.sm_scale);
  for (const aotriton_tensor4* t : {&p.dk, &p.dv}) third.strides(*t);
  third.numbers({s.heads_k, s.seqlen_k, s.head_dim});
  third.end();
}

TEST("a deterministic backward is the portable one, and needs no more than delta") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call({.head_dim = 128});
  p.deterministic = true;
  p.workspace_size = 3200;
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).entry, "attn_bwd_preprocess");
  CHECK_EQ(recording.launches.at(2).entry, "attn_bwd_dq");
  Explanation explanation;
  CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernels[0].backend, std::string("portable"));
  p.deterministic = false;
  CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernels[0].backend, std::string("hopper_pair"));
}
