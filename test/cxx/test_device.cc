// Devices, contexts, threads, capture and failing drivers.
#include <aotriton/runtime.h>

#include <barrier>
#include <thread>
#include <vector>

#include "calls.h"
#include "image.h"

using namespace aotriton::v2;

namespace {

const Stream kStream = {pointer(0x5000)};
const Sizes kLarge = {.batch = 1, .heads = 64, .heads_k = 64, .seqlen_q = 128, .seqlen_k = 128};

}  // namespace

TEST("a call runs in its stream's context, and the current one is current again afterwards") {
  Recording& recording = start("cuda");
  void* const other = pointer(0xC8);
  recording.devices[other] = {"sm_90", 132};
  recording.stream_contexts[kStream.handle] = other;
  CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::success);
  CHECK_EQ(recording.launches.at(0).context, other);
  CHECK_EQ(recording.launches.at(0).stream, kStream.handle);
  CHECK_EQ(recording.loads.at(0).context, other);
  CHECK_EQ(current_context(), kContext);
}

TEST("each context loads its own image, once") {
  Recording& recording = start("cuda");
  void* const other = pointer(0xC8);
  recording.devices[other] = {"sm_90", 132};
  recording.stream_contexts[kStream.handle] = other;
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
    CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::success);
  }
  CHECK_EQ(recording.loads.size(), 2u);
  CHECK_EQ(recording.launches.size(), 6u);
}

TEST("a warm call asks the driver for the contexts and for the launch only, besides tensor maps") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
    const int cold = recording.calls;
    CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
    CHECK_EQ(recording.calls - cold, vendor[0] == 'c' ? 2 + 4 : 2);
  }
}

TEST("the waves key counts the multiprocessors of the stream's own device") {
  Recording& recording = start("cuda");
  void* const small = pointer(0xC8);
  recording.devices[small] = {"sm_90", 63};
  recording.stream_contexts[kStream.handle] = small;
  CHECK_EQ(attn_fwd(fwd_call(kLarge), {}), Error::success);  // 64 tiles on 132 multiprocessors: one wave
  CHECK_EQ(attn_fwd(fwd_call(kLarge), kStream), Error::success);
  CHECK_EQ(recording.launches.at(0).head, "sm_90 aligned0 a");
  CHECK_EQ(recording.launches.at(1).head, "sm_90 aligned1 a");
}

TEST("a device of an unknown arch is unknown_arch, naming it") {
  Recording& recording = start("cuda");
  recording.devices[kContext].arch = "sm_80";
  CHECK_EQ(attn_fwd(fwd_call(), {}), Error::unknown_arch);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: no kernels for the device's arch sm_80");
}

TEST("no current context and no stream is no_context") {
  start("cuda");
  set_current_context(nullptr);
  CHECK_EQ(attn_fwd(fwd_call(), {}), Error::no_context);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: no device is current");
}

TEST("sixteen contexts work, the seventeenth is refused, and the others still work") {
  Recording& recording = start("cuda");
  for (uintptr_t i = 0; i <= kMaxDevices; ++i) {
    void* const context = pointer(0xD0 + i);
    recording.devices[context] = {"sm_90", 132};
    set_current_context(context);
    CHECK_EQ(attn_fwd(fwd_call(), {}), i < kMaxDevices ? Error::success : Error::not_supported);
  }
  CHECK_CONTAINS(last_error_message(), "more than 16 devices or contexts");
  set_current_context(pointer(0xD0));
  CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
}

TEST("eight threads that make the first call at once load each image once") {
  Recording& recording = start("cuda");
  constexpr int kThreads = 8, kCalls = 20;
  std::barrier gate(kThreads);
  std::vector<Error> errors(kThreads, Error::success);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      set_current_context(kContext);
      gate.arrive_and_wait();
      for (int call = 0; call < kCalls; ++call) {
        const Error error = i % 2 ? attn_fwd(fwd_call(), {}) : attn_bwd(bwd_call(), {});
        if (error != Error::success) errors[i] = error;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Error error : errors) CHECK_EQ(error, Error::success);
  CHECK_EQ(recording.loads.size(), 4u);
  CHECK_EQ(recording.launches.size(), size_t{kThreads / 2 * kCalls * (1 + 3)});
}

TEST("a capturing stream without its image loaded is not_loaded, and nothing is launched") {
  Recording& recording = start("cuda");
  recording.stream_contexts[kStream.handle] = kContext;
  recording.capturing.insert(kStream.handle);
  CHECK_EQ(attn_bwd(bwd_call(), kStream), Error::not_loaded);
  CHECK_CONTAINS(last_error_message(), "attn_bwd_preprocess_sm_90_aligned1: not loaded");
  CHECK_CONTAINS(last_error_message(), "preload()");
  CHECK(recording.loads.empty() && recording.launches.empty());
}

TEST("after preload a capturing stream launches, with no load") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    recording.stream_contexts[kStream.handle] = kContext;
    CHECK_EQ(preload(kStream), Error::success);
    const size_t images = vendor[0] == 'c' ? 40 : 16;  // four of each kernel that the arch has
    CHECK_EQ(recording.loads.size(), images);
    recording.capturing.insert(kStream.handle);
    CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::success);
    CHECK_EQ(attn_bwd(bwd_call(), kStream), Error::success);
    CHECK_EQ(recording.loads.size(), images);
    CHECK_EQ(recording.launches.size(), 4u);
  }
}

TEST("a driver that fails at any one call gives driver_failed, leaves no module behind, and the next call works") {
  for (const char* vendor : {"cuda", "hip"}) {
    int failed = 0;
    for (int fail_at = 1;; ++fail_at) {
      Recording& recording = start(vendor);
      void* const other = pointer(0xC8);
      recording.devices[other] = recording.devices[kContext];
      recording.stream_contexts[kStream.handle] = other;
      recording.fail_at = fail_at;
      const Error error = attn_bwd(bwd_call(kLarge), kStream);
      CHECK_EQ(current_context(), kContext);
      if (recording.calls < fail_at) {
        CHECK_EQ(error, Error::success);
        break;
      }
      ++failed;
      CHECK_EQ(error, Error::driver_failed);
      CHECK_CONTAINS(last_error_message(), "RECORDED_FAILURE, 999");
      int loaded = 0;
      for (const KernelInfo* kernel : flash::kKernels)
        for (const KernelTable& table : kernel->tables)
          for (const Image* image : table.images)
            for (const auto& function : image->functions) loaded += function != nullptr;
      CHECK_EQ(recording.modules, loaded);
      recording.launches.clear();
      CHECK_EQ(attn_bwd(bwd_call(kLarge), kStream), Error::success);
      CHECK_EQ(recording.launches.size(), 3u);
    }
    CHECK(failed >= 17);  // contexts, enter, properties, leave, and for each kernel capture, load, function and launch
  }
}

TEST("the errors of a failing driver say what it could not do") {
  Recording& recording = start("cuda");
  recording.fail_at = 4;  // contexts, properties, capture, load
  CHECK_EQ(attn_fwd(fwd_call(), {}), Error::driver_failed);
  CHECK_CONTAINS(last_error_message(), "attn_fwd_sm_90_aligned0: CUDA could not load the image: RECORDED_FAILURE");
}
