// Sixteen threads at once, on contexts that last and on contexts that come and go, and forks beside a thread, under the
// thread sanitizer. The address sanitizer would not do for a fork: its allocator may be locked in the child.
#include <aotriton/runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "calls.h"
#include "vendor/contexts.h"

using namespace aotriton::v2;

namespace {

constexpr int kDevices = 4, kThreads = 16, kRounds = 2000;

void* primary_context(int device) {
  void* context;
  return cuDevicePrimaryCtxRetain(&context, device) ? nullptr : context;
}

Stream new_stream() {
  Stream stream;
  return cuStreamCreate(&stream.handle, 1) ? Stream{} : stream;
}

// Fewer shapes than a thread remembers, or more.
Sizes random_sizes(std::mt19937_64& random) {
  Sizes s;
  s.seqlen_q = static_cast<int64_t>(1 + random() % (random() % 2 ? 20 : 500));
  s.head_dim = int64_t{64} << random() % 3;
  return s;
}

Error random_call(std::mt19937_64& random, Stream stream) {
  const Sizes s = random_sizes(random);
  if (random() % 2) return attn_bwd(bwd_call(s), stream);
  return attn_fwd(fwd_call(s), stream);
}

// What a thread does in a round; success where it went as it should.
using Work = std::function<Error(std::mt19937_64&)>;

// On streams of contexts that all threads share, and on the current one's.
Error shared_contexts(std::mt19937_64& random) {
  static thread_local Stream streams[kDevices];
  const size_t device = random() % kDevices;
  if (!streams[device].handle) {
    cuCtxSetCurrent(primary_context(static_cast<int>(device)));
    streams[device] = new_stream();
  }
  return random_call(random, random() % 4 ? streams[device] : Stream{});
}

// In a context of this thread alone, at an address that another thread's had.
Error own_context(std::mt19937_64& random) {
  void* context;
  cuCtxCreate_v2(&context, 0, static_cast<int>(random() % kDevices));
  Error error = random_call(random, {});
  for (int i = 0; i < 3 && error == Error::success; ++i) error = random_call(random, {});
  cuCtxDestroy_v2(context);
  return error;
}

Error preloading(std::mt19937_64& random) {
  const int device = kDevices + static_cast<int>(random() % 2);
  cuCtxSetCurrent(primary_context(device));
  return preload({});
}

// What asks only, and what is refused: each thread has its own message.
Error questions(std::mt19937_64& random) {
  const Sizes s = random_sizes(random);
  Explanation explanation;
  size_t bytes = 0;
  cuCtxSetCurrent(primary_context(0));
  Error error = explain(bwd_call(s), random() % 2 ? "sm_90" : "gfx942", 0, &explanation);
  if (error == Error::success) error = attn_bwd_workspace_size(bwd_call(s), {}, &bytes);
  attn_fwd_params p = fwd_call(s);
  p.k.sizes[0] = static_cast<int64_t>(3 + random() % 1000);
  const std::string wanted = "attn_fwd: k has batch " + std::to_string(p.k.sizes[0]) + ", q has 2";
  if (attn_fwd(p, {}) != Error::invalid_shape || last_error_message() != wanted) return Error::invalid_argument;
  return error;
}

// One thread at a time uses a call that any of them has prepared.
Error prepared_calls(std::mt19937_64& random) {
  static std::mutex mutex;
  static PreparedCall call;
  static int launches = 0;
  const std::lock_guard lock(mutex);
  cuCtxSetCurrent(primary_context(1));
  const attn_fwd_params p = fwd_call(random_sizes(random));
  if (launches++ % 10 == 0) return prepare(p, {}, &call);
  return call.launch({p.q.data, p.k.data, p.v.data, p.out.data, p.logsumexp.data, nullptr}, {});
}

}  // namespace

TEST("sixteen threads call, prepare, preload and ask at once, and each call is right and of a context that lives") {
  const struct {
    int threads;
    Work work;
  } shares[] = {{6, shared_contexts}, {4, own_context}, {2, preloading}, {2, questions}, {2, prepared_calls}};
  std::barrier gate(kThreads);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (const auto& share : shares)
    for (int i = 0; i < share.threads; ++i)
      threads.emplace_back([&, seed = threads.size()] {
        std::mt19937_64 random(seed);
        gate.arrive_and_wait();
        for (int round = 0; round < kRounds; ++round) wrong += share.work(random) != Error::success;
      });
  CHECK_EQ(threads.size(), size_t{kThreads});
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong, 0);
  CHECK_EQ(fake_cuda_seen()->stale, 0);
  CHECK(fake_cuda_seen()->launches > kRounds * 10);
}

TEST("a child of fork gets an answer, also where another thread was loading images") {
  std::atomic<bool> stop{false};
  std::thread loading([&] {
    for (int device = 11; !stop; device = device == 40 ? 11 : device + 1) {
      cuCtxSetCurrent(primary_context(device));
      cuDevicePrimaryCtxReset_v2(device);  // what a round before this one has loaded
      cuCtxSetCurrent(primary_context(device));
      CHECK_EQ(preload({}), Error::success);
    }
  });
  int answered = 0;
  constexpr int kForks = 50;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    if (!child) {
      alarm(20);  // ends a child that hangs
      cuCtxSetCurrent(primary_context(50));
      const bool right = attn_fwd(fwd_call(), {}) == Error::success && supported(bwd_call(), {});
      _exit(right ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    answered += status == 0;
  }
  stop = true;
  loading.join();
  CHECK_EQ(answered, kForks);
}
