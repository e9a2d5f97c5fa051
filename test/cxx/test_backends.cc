// Which backend a call gets, what the Hopper one is given, and what is left to the portable one.
#include "calls.h"
#include "flash/candidate.h"
#include "flash/request.h"
#include "load.h"
#include "lookup.h"

using namespace aotriton::v2;

namespace {

// In the first entry of the hopper backend's table, and in the second.
constexpr Sizes kSmall = {.head_dim = 256};
constexpr Sizes kLarge = {.batch = 8, .heads = 16, .heads_k = 4, .seqlen_q = 1000, .seqlen_k = 777, .head_dim = 200};

void hopper(const RecordedLaunch& launch, const attn_fwd_params& p, const Sizes& s, uint32_t key_rows) {
  CHECK_EQ(launch.entry, "attn_fwd_hopper");
  Reader reader(launch);
  reader.descriptor(p.q, 64);
  reader.descriptor(p.k, key_rows);
  reader.descriptor(p.v, key_rows);
  reader.descriptor(p.out, 64);
  reader.value(p.logsumexp.data);
  reader.value(int32_t{p.logsumexp.data != nullptr});
  reader.value(p.sm_scale);
  for (const int64_t size : {s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim, s.batch})
    reader.value(static_cast<int32_t>(size));
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
  CHECK_EQ(explanation.kernel_count, 1);
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
  const RecordedLaunch& launch = recording.launches.at(0);
  CHECK_EQ(recording.launches.size(), 1u);
  check_shape(launch, 8, 1, 1, 384, 40000);  // 100 rows in tiles of 128, of 4 heads in 2 batches
  hopper(launch, p, kSmall, 32);
}

TEST("its programs are as many as multiprocessors, but not more than tiles") {
  for (const int multiprocessors : {132, 1000}) {
    Recording& recording = start("cuda");
    recording.devices[kContext].multiprocessors = multiprocessors;
    attn_fwd_params p = fwd_call(kLarge);
    p.logsumexp = {};
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    const RecordedLaunch& launch = recording.launches.at(0);
    check_shape(launch, multiprocessors == 132 ? 132 : 6 * 16 * 8, 1, 1, 768, 60000);  // tiles of 192 rows
    hopper(launch, p, kLarge, 128);
  }
}

TEST("what the hopper backend does not serve, or is slower at, falls to the portable one") {
  CHECK_EQ(entry_of(fwd_call(kSmall)), "attn_fwd_hopper");
  Sizes few = kSmall;
  few.seqlen_q = 64;  // the bin where the portable backend is faster
  CHECK_EQ(entry_of(fwd_call(few)), "attn_fwd");
  CHECK_EQ(entry_of(fwd_call()), "attn_fwd");  // another head dim
  CHECK_EQ(entry_of(fwd_call(kSmall), "hip"), "attn_fwd");

  attn_fwd_params p = fwd_call(kSmall);
  p.v.data = pointer(0x30008);  // no descriptor
  CHECK_EQ(entry_of(p), "attn_fwd");
  p = fwd_call({.seqlen_k = 100, .head_dim = 256});
  p.causal = true;  // chosen, but its table has no such functional
  CHECK_EQ(entry_of(p), "attn_fwd");
}

TEST("more tiles than 32 bits count fall to the portable backend") {
  attn_fwd_params p = fwd_call({.batch = 1, .heads = 1 << 9, .heads_k = 1, .seqlen_q = 1 << 28, .head_dim = 256});
  p.logsumexp = {};
  CHECK_EQ(entry_of(p), "attn_fwd");
  p.q.sizes[1] = p.out.sizes[1] = 1 << 7;
  CHECK_EQ(entry_of(p), "attn_fwd_hopper");
}

TEST("explain names the backend and what each takes, in the log line too") {
  const KernelChoice faster = explained(kSmall);
  CHECK_EQ(faster.kernel, std::string("attn_fwd_hopper"));
  CHECK_EQ(faster.backend, std::string("hopper"));
  CHECK_EQ(faster.backend_count, 2);
  CHECK_EQ(faster.backends[0].name, std::string("portable"));
  CHECK_EQ(faster.backends[0].median_us, 20.0f);
  CHECK_EQ(faster.backends[1].name, std::string("hopper"));
  CHECK_EQ(faster.backends[1].median_us, 15.0f);
  CHECK_CONTAINS(line_of(faster), "; backend hopper, portable takes 20 us");

  Sizes few = kSmall;
  few.seqlen_q = 10;
  CHECK_EQ(explained(few).kernel, std::string("attn_fwd"));
  CHECK_CONTAINS(line_of(explained(few)), "; backend portable, hopper takes 11 us");
  CHECK_CONTAINS(line_of(explained({})), "; backend portable, hopper was not compared");
  CHECK_EQ(explained(kSmall, "gfx942").backends[1].median_us, 0.0f);
}

TEST("the hopper backward adds up dq behind delta in the workspace") {
  Recording& recording = start("cuda");
  const Sizes s = {.head_dim = 128};
  const attn_bwd_params p = bwd_call(s);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 3u);
  const Tensor<4> sum = tensor(0xA0000 + 3328, s.batch, s.heads, s.seqlen_q, s.head_dim, DType::float32);
  const auto sizes = [](Reader& reader, std::initializer_list<int64_t> values) {
    for (const int64_t value : values) reader.value(static_cast<int32_t>(value));
  };

  const RecordedLaunch& prepare = recording.launches.at(0);
  CHECK_EQ(prepare.entry, "attn_bwd_hopper_prepare");
  check_shape(prepare, 2, 4, 2, 384, 40000);  // 100 rows in tiles of 64, of 4 heads in 2 batches
  Reader first(prepare);
  for (void* data : {p.out.data, p.dout.data, p.workspace, sum.data}) first.value(data);
  first.strides(p.out);
  first.strides(p.dout);
  sizes(first, {s.heads, s.seqlen_q, s.head_dim});
  first.end();

  const RecordedLaunch& main = recording.launches.at(1);
  CHECK_EQ(main.entry, "attn_bwd_hopper");
  check_shape(main, 1, 2, 2, 384, 40000);  // 70 keys in tiles of 128, of 2 key heads in 2 batches
  Reader second(main);
  second.descriptor(p.q, 64);
  second.descriptor(p.k, 128);
  second.descriptor(p.v, 128);
  second.descriptor(p.dout, 64);
  second.descriptor(p.dk, 128);
  second.descriptor(p.dv, 128);
  second.descriptor(sum, 64);
  second.value(p.logsumexp.data);
  second.value(p.workspace);
  second.value(p.sm_scale);
  sizes(second, {s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim});
  second.end();

  const RecordedLaunch& finish = recording.launches.at(2);
  CHECK_EQ(finish.entry, "attn_bwd_hopper_finish");
  check_shape(finish, 2, 4, 2, 384, 40000);
  Reader third(finish);
  third.value(sum.data);
  third.value(p.dq.data);
  third.value(p.sm_scale);
  third.strides(sum);
  third.strides(p.dq);
  sizes(third, {s.seqlen_q, s.head_dim});
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
    for (const int64_t size : {s.heads, s.heads_k, s.seqlen_q, s.seqlen_k, s.head_dim})
      reader.value(static_cast<int32_t>(size));
    reader.end();
  };

  const RecordedLaunch& keys = recording.launches.at(1);
  CHECK_EQ(keys.entry, "attn_bwd_hopper_dk_dv");
  check_shape(keys, 2, 2, 2, 384, 40000);  // 70 keys in tiles of 64, of 2 key heads in 2 batches
  Reader first(keys);
  for (const Tensor<4>* t : {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}) first.descriptor(*t, 64);
  rest(first);

  const RecordedLaunch& queries = recording.launches.at(2);
  CHECK_EQ(queries.entry, "attn_bwd_hopper_dq");
  check_shape(queries, 1, 4, 2, 384, 40000);  // 100 rows in tiles of 128, of 4 heads in 2 batches
  Reader second(queries);
  for (const Tensor<4>* t : {&p.q, &p.k, &p.v, &p.dout, &p.dq}) second.descriptor(*t, 64);
  rest(second);
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
  CHECK_EQ(explanation.kernels[0].backend, std::string("hopper"));
}

TEST("a candidate of either kernel of attn_fwd is launched, whatever the tables say") {
  Recording& recording = start("cuda");
  flash::Candidate candidate = {.kernel = "attn_fwd_hopper",
                                .arch = "sm_90",
                                .T = DType::bfloat16,
                                .BLOCK_DMODEL = 64,
                                .ADDRESSING = Addressing::descriptor,
                                .psels = {32, 2}};
  const unsigned char binary[] = "an image of the hopper kernel";
  Image& image = candidate.image;
  image.name = "made_up";
  image.entry = "attn_fwd_hopper";
  image.data = binary;
  image.size = image.unpacked_size = sizeof binary;
  image.threads = 384;
  image.descriptor_count = 4;
  for (const int i : {0, 1, 2, 3}) image.descriptors[i] = {4, 3, {1, 1, static_cast<uint16_t>(i % 3 ? 32 : 64), 64}};
  const Sizes s;
  attn_fwd_params p = fwd_call(s);
  CHECK_EQ(flash::launch_attn_fwd(candidate, p, {}), Error::success);
  check_shape(recording.launches.at(0), 8, 1, 1, 384, 0);
  hopper(recording.launches.at(0), p, s, 32);

  p.k.strides[0] = 0;  // a broadcast, which no descriptor reaches
  CHECK_EQ(flash::launch_attn_fwd(candidate, p, {}), Error::invalid_argument);
  CHECK_CONTAINS(last_error_message(), "made_up: has ADDRESSING=descriptor, the tensors' layout allows general");
  candidate.kernel = "attn_bwd_dq";
  CHECK_EQ(flash::launch_attn_fwd(candidate, fwd_call(s), {}), Error::invalid_argument);
  CHECK_CONTAINS(last_error_message(), "made_up: is an image of attn_bwd_dq, not of attn_fwd");
  CHECK_EQ(unload_image(image), Error::success);
}
