// What a thread remembers of its calls: nothing stale, and a call that is known costs no more than its launch.
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "base/lock.h"
#include "calls.h"

using namespace aotriton::v2;

// The sanitizers' own: they tell of every allocation, by whichever function.
extern "C" size_t __sanitizer_get_current_allocated_bytes();
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void*, size_t),
                                                         void (*freed)(const volatile void*));

namespace {

const Stream kStream = {pointer(0x5000)};

bool same(const RecordedLaunch& a, const RecordedLaunch& b) {
  return a.context == b.context && a.stream == b.stream && a.entry == b.entry && a.head == b.head &&
         std::equal(a.grid, a.grid + 3, b.grid) && a.threads == b.threads && a.shared == b.shared &&
         a.early == b.early && a.arguments == b.arguments;
}

// What a call does: its error, and its launches and fills.
struct Done {
  Error error;
  std::vector<RecordedLaunch> launches;
  std::vector<RecordedFill> fills;
};

Done done(Recording& recording, const std::function<Error()>& call) {
  recording.launches.clear();
  recording.fills.clear();
  const Error error = call();
  return {error, recording.launches, recording.fills};
}

// The same in a thread that remembers nothing.
Done done_anew(Recording& recording, const std::function<Error()>& call) {
  Done made = {};
  std::thread([&] {
    set_current_context(kContext);
    made = done(recording, call);
  }).join();
  return made;
}

void check_same(const Done& a, const Done& b) {
  CHECK_EQ(a.error, b.error);
  CHECK_EQ(a.launches.size(), b.launches.size());
  CHECK_EQ(a.fills.size(), b.fills.size());
  for (size_t i = 0; i < a.launches.size() && i < b.launches.size(); ++i) CHECK(same(a.launches[i], b.launches[i]));
  for (size_t i = 0; i < a.fills.size() && i < b.fills.size(); ++i) CHECK_EQ(a.fills[i].data, b.fills[i].data);
}

// A driver that passes all on to the recording one, whose own allocations are not counted.
std::atomic<int> allocations{0};
thread_local int in_driver = 0;
const Driver* recorder;

struct InDriver {
  InDriver() { ++in_driver; }
  ~InDriver() { --in_driver; }
};

void note_allocation(const volatile void*, size_t) { allocations += !in_driver; }
void note_free(const volatile void*) {}

const Driver& quiet_driver() {
  static Driver quiet;
  recorder = driver();
  quiet = *recorder;
  quiet.contexts = [](void* stream, Contexts* contexts) {
    const InDriver inside;
    return recorder->contexts(stream, contexts);
  };
  quiet.enter = [](void* context) {
    const InDriver inside;
    return recorder->enter(context);
  };
  quiet.launch = [](const Launch& launch) {
    const InDriver inside;
    return recorder->launch(launch);
  };
  return quiet;
}

}  // namespace

TEST("a call that is known asks the driver where its stream is and launches: nothing is loaded or encoded again") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    const attn_fwd_params p = fwd_call();
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    const int cold = recording.calls, encoded = recording.encoded;
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    CHECK_EQ(recording.calls - cold, 2);
    CHECK_EQ(recording.encoded, encoded);
    CHECK_EQ(recording.replaced, 0);
    CHECK(same(recording.launches.at(0), recording.launches.at(1)));
  }
}

TEST("other pointers are put in place: a tensor map gets another address, and is not encoded again") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call();
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  const int encoded = recording.encoded;
  p.k.data = pointer(address_of(11));
  p.logsumexp.data = pointer(address_of(12));
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.encoded, encoded);
  CHECK_EQ(recording.loads.size(), 1u);
  CHECK_EQ(recording.launches.at(1).tensor_map(9).address, p.k.data);
  CHECK_EQ(recording.launches.at(1).argument<void*>(4 * 9), p.logsumexp.data);
  CHECK_EQ(recording.launches.at(1).tensor_map(0).address, p.q.data);
}

TEST(
    "nothing is stale: whatever changes from call to call, each does what it does in a thread that remembers nothing") {
  hints portable, refused;
  CHECK_EQ(portable.parse("backend=portable"), Error::success);
  CHECK_EQ(refused.parse("backend=nothing"), Error::success);
  const std::vector<std::function<void(attn_bwd_params&)>> changes = {
      [](auto& p) { p.q.data = p.dq.data = pointer(address_of(20)); },  // overlap of an input and a result
      [](auto& p) { p.dv.data = pointer(address_of(21)); },
      [](auto& p) { p.dv.data = pointer(address_of(21) + 8); },  // not aligned
      [](auto& p) { p.dout.data = pointer(address_of(22) + 2); },
      [](auto& p) { p.dout.data = pointer(address_of(22) + 6); },
      [](auto& p) { p.k.data = pointer(address_of(22) + 1); },  // refused
      [](auto& p) { p.v.data = nullptr; },
      [](auto& p) { p.dk.data = p.dv.data; },
      [](auto& p) { p.dk.data = pointer(UINTPTR_MAX - 255); },
      [](auto& p) { p = bwd_call({.seqlen_q = 101}); },
      [](auto& p) { p = bwd_call({.seqlen_k = 71}); },
      [](auto& p) { p = bwd_call({.seqlen_k = 0}); },
      [](auto& p) { p = bwd_call({.head_dim = 128}); },
      [](auto& p) { p = bwd_call({.head_dim = 256}); },
      [](auto& p) { p = bwd_call({.head_dim = 16}); },  // not in this build
      [](auto& p) { p = bwd_call({.seqlen_q = 70}), p.causal = true; },
      [](auto& p) { p = bwd_call({.seqlen_q = 70}), p.causal = 2; },
      [](auto& p) { p.deterministic = true; },
      [](auto& p) { p.sm_scale = 0; },
      [](auto& p) { p.sm_scale = -0.0f; },
      [](auto& p) { p.sm_scale = 1 / 8.f; },
      [](auto& p) { p.sm_scale = 0.3f; },
      [](auto& p) { p.sm_scale = -1; },
      [](auto& p) { p.q.strides[0] += 64; },
      [](auto& p) { p.dk.strides[1] += 8; },
      [](auto& p) { p.k.strides[0] = 0; },
      [](auto& p) { p.dq.strides[2] += 4; },
      [](auto& p) {
        for (aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv})
          t->dtype = AOTRITON_FLOAT16;
      },
      [](auto& p) { p.workspace = pointer(address_of(23)); },
      [](auto& p) { p.workspace = pointer(address_of(23) + 16); },
      [](auto& p) { p.workspace = nullptr; },
      [](auto& p) { p.workspace_size = 3199; },
      [](auto& p) { p.workspace_size = 3200; },
      [](auto& p) { p.workspace = p.dq.data; },
      [](auto& p) { p.dq.data = p.workspace; },
      [](auto& p) { p.features.softcap = 1; },
      [](auto& p) { p.features.sinks = {pointer(address_of(24)), AOTRITON_FLOAT32, {4}, {1}}; },
      [](auto& p) { p.features.sinks = {pointer(address_of(25)), AOTRITON_FLOAT32, {4}, {1}}; },
      [](auto& p) { p.features.alibi_slopes = {pointer(address_of(24)), AOTRITON_FLOAT32, {2, 4}, {4, 1}}; },
      [](auto& p) { p.features.seqused_k = {pointer(address_of(26)), AOTRITON_INT32, {2}, {1}}; },
      [](auto& p) { p.features.dropout_seed = pointer(address_of(27)); },
      [](auto& p) { p.size = offsetof(aotriton_attn_bwd_params, dbias); },  // as callers of an older version have it
      [&](auto& p) { p.hints = &portable; },
      [&](auto& p) { p.hints = &refused; },
  };
  std::mt19937_64 random(1);
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    add_context(recording, pointer(0xC8), vendor);
    recording.stream_contexts[kStream.handle] = pointer(0xC8);
    for (int i = 0; i < 3000; ++i) {
      attn_bwd_params p = bwd_call();
      for (uint64_t count = random() % 3; count; --count) changes[random() % changes.size()](p);
      const Stream stream = random() % 4 ? Stream{} : kStream;
      if (random() % 50 == 0) add_context(recording, random() % 2 ? kContext : pointer(0xC8), vendor);
      if (random() % 50 == 0)
        recording.devices[kContext].multiprocessors = 1, recording.devices[kContext].life = ++lives;
      const auto call = [&] {
        if (random() % 2) return attn_bwd(p, stream);
        attn_fwd_params forward;
        forward.q = p.q, forward.k = p.k, forward.v = p.v, forward.out = p.dq, forward.logsumexp = p.logsumexp;
        forward.sm_scale = p.sm_scale, forward.causal = p.causal, forward.features = p.features;
        forward.hints = p.hints;
        if (i % 2) forward.workspace = p.workspace, forward.workspace_size = p.workspace_size;
        if (i % 3) forward.logsumexp.data = nullptr;
        return attn_fwd(forward, stream);
      };
      const std::mt19937_64 before = random;
      const Done anew = done_anew(recording, call);
      for (int again = 0; again < 3; ++again) {  // from the third one on it is known by its parameters
        random = before;
        check_same(done(recording, call), anew);
      }
    }
  }
}

TEST(
    "calls of other sizes, in any order, run the images and pass the arguments that they do where nothing came "
    "before") {
  std::mt19937_64 random(2);
  const auto one_of = [&](std::initializer_list<int64_t> values) {
    return *(values.begin() + random() % values.size());
  };
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    Sizes s;
    bool causal = false;
    for (int i = 0; i < 1500; ++i) {
      if (random() % 8 == 0) {  // else a call of the same kind as the last one
        s.heads_k = one_of({1, 2, 4});
        s.heads = s.heads_k * one_of({1, 2, 8});
        s.head_dim = one_of({64, 64, 128, 256});
        causal = random() % 2;
      }
      s.batch = one_of({1, 2, 3, 8});
      s.seqlen_q = one_of({1, 64, 100, 127, 1024, 4000});
      s.seqlen_k = causal || random() % 2 ? s.seqlen_q : one_of({1, 64, 77, 2048, 9000});
      attn_bwd_params backward = bwd_call(s);
      backward.workspace_size = size_t{1} << 40;
      backward.causal = causal;
      if (random() % 4 == 0) backward.k.strides[1] += 8;
      if (random() % 8 == 0) backward.dout.data = pointer(address_of(6) + 4);  // by pointers only
      if (random() % 8 == 0) backward.deterministic = true;
      attn_fwd_params forward = fwd_call(s);
      forward.causal = causal;
      if (random() % 2) forward.logsumexp.data = nullptr;
      if (random() % 2) forward.workspace = pointer(address_of(11)), forward.workspace_size = size_t{1} << 40;
      const bool is_backward = random() % 2;
      const auto call = [&] { return is_backward ? attn_bwd(backward, {}) : attn_fwd(forward, {}); };
      const Done after_others = done(recording, call);
      CHECK_EQ(after_others.error, Error::success);
      check_same(after_others, done_anew(recording, call));
      backward.workspace = pointer(address_of(12));  // into which the arguments of the same call point now
      check_same(done(recording, call), done_anew(recording, call));
    }
  }
}

TEST("a call that is known is refused for pointers that can not be, as an unknown one is, and works again afterwards") {
  Recording& recording = start("cuda");
  struct Case {
    void (*spoil)(attn_bwd_params&);
    const char* message;
  };
  const Case cases[] = {
      {[](auto& p) { p.out.data = nullptr; }, "attn_bwd: out has no data"},
      {[](auto& p) { p.k.data = pointer(address_of(11) + 1); }, "k is at 0xb00000000000001, which is not aligned"},
      {[](auto& p) { p.logsumexp.data = pointer(address_of(11) + 8); }, "must be 16-byte aligned"},
      {[](auto& p) { p.dk.data = p.dv.data; }, "attn_bwd: dk and dv are written, but overlap"},
      {[](auto& p) { p.v.data = pointer(UINTPTR_MAX - 15); }, "reaches beyond the end of the address space"},
      {[](auto& p) { p.workspace = nullptr; }, "attn_bwd: workspace is null"},
      {[](auto& p) { p.workspace = pointer(address_of(11) + 128); }, "must be 256-byte aligned"},
      {[](auto& p) { p.workspace = p.dq.data; }, "attn_bwd: workspace and dq overlap"},
      {[](auto& p) { p.dv.data = p.workspace; }, "attn_bwd: workspace and dv overlap"},
      {[](auto& p) { p.workspace_size = 5; }, "attn_bwd: workspace has 5 bytes"},
  };
  for (const auto& [spoil, message] : cases) {
    CHECK_EQ(attn_bwd(bwd_call(), {}), Error::success);
    recording.launches.clear();
    attn_bwd_params p = bwd_call();
    spoil(p);
    CHECK(attn_bwd(p, {}) != Error::success);
    CHECK_CONTAINS(last_error_message(), message);
    CHECK(recording.launches.empty());
    CHECK_EQ(attn_bwd(bwd_call(), {}), Error::success);
    Reader(recording.launches.at(0)).value(bwd_call().out.data);
  }
}

TEST("a call that is known, with pointers for other kernels, runs and leaves the last message") {
  start("cuda");
  attn_bwd_params refused = bwd_call();
  refused.sm_scale = -1;
  CHECK(attn_bwd(refused, {}) != Error::success);
  const std::string before = last_error_message();
  for (int known = 1; known <= 3; ++known) {
    attn_bwd_params p = bwd_call();
    for (int i = 0; i < known; ++i) CHECK_EQ(attn_bwd(p, {}), Error::success);
    p.dv.data = pointer(address_of(21) + 8);  // not aligned to 16 bytes
    CHECK_EQ(attn_bwd(p, {}), Error::success);
    CHECK_EQ(last_error_message(), before);
  }
}

TEST("calls that a thread makes in turns stay known: eight of them, be they alike but for their devices") {
  Recording& recording = start("cuda");
  add_context(recording, pointer(0xC8), "cuda");
  recording.stream_contexts[kStream.handle] = pointer(0xC8);
  const auto calls = [&] {
    for (const int64_t seqlen : {101, 102, 103, 104})
      for (const Stream stream : {Stream{}, kStream})
        CHECK_EQ(attn_fwd(fwd_call({.seqlen_q = seqlen}), stream), Error::success);
  };
  calls();
  const int encoded = recording.encoded;
  calls();
  CHECK_EQ(recording.encoded, encoded);
}

TEST("more shapes than a thread remembers work, each with its own arguments") {
  Recording& recording = start("cuda");
  for (int round = 0; round < 3; ++round)
    for (int64_t seqlen = 1; seqlen <= 300; ++seqlen) {
      recording.launches.clear();
      CHECK_EQ(attn_fwd(fwd_call({.seqlen_q = seqlen}), {}), Error::success);
      CHECK_EQ(recording.launches.at(0).argument<int32_t>(4 * 9 + 5), seqlen);
    }
}

TEST("what a thread keeps of many shapes is bounded, and goes with it") {
  start("cuda");
  static Driver forgetful;  // which does not record launches
  forgetful = *driver();
  forgetful.launch = [](const Launch&) { return Status{}; };
  forgetful.fill = [](void*, uint32_t, int64_t, int64_t, int64_t, int64_t, void*) { return Status{}; };
  forgetful.encode_tensor_map = [](TensorMap*, const TensorMapRequest&) { return Status{}; };
  replace_driver(&forgetful);
  const auto allocated = [] { return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes()); };
  int64_t kept = 0, left = 0;
  const auto calls = [&] {
    set_current_context(kContext);
    const int64_t before = allocated();
    for (int64_t seqlen = 1; seqlen <= 500; ++seqlen)
      CHECK_EQ(attn_bwd(bwd_call({.seqlen_q = seqlen}), {}), Error::success);
    kept = allocated() - before;
  };
  std::thread(calls).join();  // loads the images, which stay
  left = allocated();
  std::thread(calls).join();
  left = allocated() - left;
  CHECK(kept > 100 << 10);
  CHECK(kept < 256 << 10);
  CHECK(left < 4 << 10);
}

TEST("a call that is known allocates nothing") {
  __sanitizer_install_malloc_and_free_hooks(note_allocation, note_free);
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    replace_driver(&quiet_driver());
    add_context(recording, pointer(0xC8), vendor);
    recording.stream_contexts[kStream.handle] = pointer(0xC8);
    attn_bwd_params p = bwd_call();
    hints own;
    CHECK_EQ(own.parse("backend=portable schedule=dfs"), Error::success);
    const auto calls = [&] {
      Error error = attn_bwd(p, kStream);
      for (const hints* some : std::initializer_list<const hints*>{nullptr, &own}) {
        attn_fwd_params forward = fwd_call();
        forward.hints = some;
        if (error == Error::success) error = attn_fwd(forward, {});
      }
      return error;
    };
    CHECK_EQ(calls(), Error::success);
    int before = allocations;
    CHECK_EQ(calls(), Error::success);
    p.q.data = pointer(address_of(11));
    p.workspace = pointer(address_of(12));
    CHECK_EQ(calls(), Error::success);
    CHECK_EQ(allocations - before, 0);

    before = allocations;  // the count counts: a new thread remembers nothing
    std::thread([] {
      set_current_context(kContext);
      CHECK_EQ(attn_fwd(fwd_call({.seqlen_q = 1}), {}), Error::success);
    }).join();
    CHECK(allocations - before > 0);
  }
}

TEST("a call that is known takes no lock") {
  start("cuda");
  std::promise<void> warm, locked;
  std::future<void> is_locked = locked.get_future();
  std::future<Error> called = std::async(std::launch::async, [&] {
    set_current_context(kContext);
    CHECK_EQ(attn_bwd(bwd_call(), {}), Error::success);
    warm.set_value();
    is_locked.wait();
    return attn_bwd(bwd_call(), {});
  });
  warm.get_future().wait();
  std::unique_lock lock(slow_path());
  locked.set_value();
  CHECK(called.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  lock.unlock();
  CHECK_EQ(called.get(), Error::success);
}
