// Calls at the end of a thread and of the process, when what a thread remembers of its calls may be gone, and what the
// log remembers of images.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "calls.h"

using namespace aotriton::v2;

namespace {

// A driver without any state of its own, which would be gone, too.
int handle;
constexpr Driver kDriver = {
    .name = "CUDA",
    .vendor = "cuda",
    .contexts = [](void*, Contexts* contexts) { return *contexts = {&handle, &handle, 1}, Status{}; },
    .enter = [](void*) { return Status{}; },
    .leave = [](void*) { return Status{}; },
    .properties =
        [](DeviceProperties* properties) {
          *properties = {"sm_90", "NVIDIA H100 80GB HBM3", 132, 0, 0};
          return Status{};
        },
    .primary_context = [](int, void** context) { return *context = &handle, Status{}; },
    .load_module = [](void** module, const void*) { return *module = &handle, Status{}; },
    .unload_module = [](void*) { return Status{}; },
    .get_function = [](void** function, void*, const char*) { return *function = &handle, Status{}; },
    .set_max_shared = [](void*, uint32_t) { return Status{}; },
    .is_capturing = [](void*, bool* capturing) { return *capturing = false, Status{}; },
    .encode_tensor_map = [](TensorMap*, const TensorMapRequest&) { return Status{}; },
    .replace_address = [](TensorMap*, void*) { return Status{}; },
    .fill = [](void*, uint32_t, int64_t, int64_t, int64_t, int64_t, void*) { return Status{}; },
    .launch = [](const Launch&) { return Status{}; },
    .is_gone = nullptr,
    .describe_error = [](Status, char* text, size_t) { *text = '\0'; },
};

Error call() { return attn_fwd(fwd_call(), {}); }

// Ends the process in failure: no test is there any more to report it.
void call_at_end(const char* when) {
  if (call() == Error::success) return;
  std::fprintf(stderr, "a call %s failed: %s\n", when, last_error_message());
  _exit(1);
}

// Made before the first call, so its destructor runs after whatever the library has made.
struct CallsWhenDestroyed {
  const char* when;
  ~CallsWhenDestroyed() { call_at_end(when); }
};
CallsWhenDestroyed of_process{"from a static destructor"};
const int logged = setenv("AOTRITON_LOG", "info", 1);
const int registered = std::atexit([] { call_at_end("from an atexit handler"); });

}  // namespace

TEST("a call from the destructor of an earlier thread_local works, also after the thread's memo is gone") {
  replace_driver(&kDriver);
  std::thread([] {
    static thread_local CallsWhenDestroyed earlier{"from a thread_local's destructor"};
    static_cast<void>(earlier.when);
    for (int64_t seqlen = 1; seqlen < 40; ++seqlen)
      CHECK_EQ(attn_fwd(fwd_call({.seqlen_q = seqlen}), {}), Error::success);
  }).join();
}

TEST("calls go on in static destructors and atexit handlers") {
  CHECK_EQ(registered, 0);
  CHECK_EQ(logged, 0);
  replace_driver(&kDriver);
  CHECK_EQ(call(), Error::success);  // the others follow when the process ends: a failure there ends it in failure
}
