// Devices, contexts, threads, capture and failing drivers.
#include <aotriton/runtime.h>

#include <barrier>
#include <set>
#include <thread>
#include <vector>

#include "calls.h"
#include "program/image.h"
#include "program/registry.h"

using namespace aotriton::v2;

namespace {

const Stream kStream = {pointer(0x5000)};
void* const kOther = pointer(0xC8);
const Sizes kLarge = {.batch = 1, .heads = 64, .heads_k = 64, .seqlen_q = 128, .seqlen_k = 128};

// A fresh recording with a stream on another device than the current one.
Recording& start_with_stream(const char* vendor = "cuda") {
  Recording& recording = start(vendor);
  add_context(recording, kOther, vendor);
  recording.stream_contexts[kStream.handle] = kOther;
  return recording;
}

// Every image of this build for an arch.
std::set<Image*> images_of(size_t arch) {
  std::set<Image*> found;
  any_operator([&](const OperatorInfo& info) {
    for (const BackendInfo& backend : info.backends)
      for (const KernelInfo* kernel : backend.kernels)
        if (const KernelTable* table = kernel->tables[arch]) found.insert(table->images.begin(), table->images.end());
    return false;
  });
  return found;
}

// Handles of images in the context at this address that has lived last.
int loaded_in(const void* context) {
  int found = 0;
  for (const size_t arch : {0, 1})
    for (const Image* image : images_of(arch))
      for (const ImageHandle* handle = image->handles; handle; handle = handle->next)
        found += handle->context == context && (handle->id & 0xffff) == lives;
  return found;
}

}  // namespace

TEST("a call runs in its stream's context, and the current one is current again afterwards") {
  Recording& recording = start_with_stream();
  for (const bool warm : {false, true}) {
    CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::success);
    CHECK_EQ(recording.launches.at(warm).context, kOther);
    CHECK_EQ(recording.launches.at(warm).stream, kStream.handle);
    CHECK_EQ(current_context(), kContext);
  }
  CHECK_EQ(recording.loads.at(0).context, kOther);
}

TEST("each context loads its own image, once") {
  Recording& recording = start_with_stream();
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
    CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::success);
  }
  CHECK_EQ(recording.loads.size(), 2u);
  CHECK_EQ(recording.launches.size(), 6u);
}

TEST("the waves key counts the multiprocessors of the stream's own device") {
  Recording& recording = start_with_stream();
  recording.devices[kOther].multiprocessors = 63;
  CHECK_EQ(attn_fwd(fwd_call(kLarge), {}), Error::success);  // 64 tiles on 132 multiprocessors: one wave
  CHECK_EQ(attn_fwd(fwd_call(kLarge), kStream), Error::success);
  CHECK_EQ(recording.launches.at(0).shared, 40000u);
  CHECK_EQ(recording.launches.at(1).shared, 60000u);
}

TEST("a device of an unknown arch is unknown_arch, naming it, each time") {
  Recording& recording = start("cuda");
  recording.devices[kContext].arch = "sm_80";
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(attn_fwd(fwd_call(), {}), Error::unknown_arch);
    CHECK_CONTAINS(last_error_message(), "attn_fwd: no kernels for the device's arch sm_80");
  }
}

TEST("no current context and no stream is no_context") {
  start("cuda");
  set_current_context(nullptr);
  CHECK_EQ(attn_fwd(fwd_call(), {}), Error::no_context);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: no device is current");
}

TEST("forty contexts work, each with its own images") {
  Recording& recording = start("cuda");
  for (const bool warm : {false, true}) {
    for (uintptr_t i = 0; i < 40; ++i) {
      void* const context = pointer(0xD0 + i);
      if (!warm) add_context(recording, context);
      set_current_context(context);
      CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
      CHECK_EQ(recording.launches.back().context, context);
    }
    CHECK_EQ(recording.loads.size(), 40u);
  }
}

TEST("a context that is made anew at the same address loads again, and its device is asked again") {
  Recording& recording = start("cuda");
  CHECK_EQ(attn_fwd(fwd_call(kLarge), {}), Error::success);
  CHECK_EQ(recording.launches.back().shared, 40000u);
  for (int i = 0; i < 10; ++i) {
    add_context(recording, kContext);
    recording.devices[kContext].multiprocessors = 63;  // another device this time
    CHECK_EQ(attn_fwd(fwd_call(kLarge), {}), Error::success);
    CHECK_EQ(attn_fwd(fwd_call(kLarge), {}), Error::success);
    CHECK_EQ(recording.launches.back().shared, 60000u);
    CHECK_EQ(recording.loads.size(), size_t{2} + static_cast<size_t>(i));
  }
}

TEST("what is kept of a context that is gone makes room for the next one at its address") {
  Recording& recording = start("cuda");
  for (int i = 0; i < 10; ++i) {
    add_context(recording, kContext);
    CHECK_EQ(preload({}), Error::success);
  }
  for (const Image* image : images_of(0)) {
    int handles = 0;
    for (const ImageHandle* handle = image->handles; handle; handle = handle->next)
      handles += handle->context == kContext;
    CHECK_EQ(handles, 1);
  }
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
  Recording& recording = start_with_stream();
  recording.capturing.insert(kStream.handle);
  CHECK_EQ(attn_bwd(bwd_call(), kStream), Error::not_loaded);
  CHECK_CONTAINS(last_error_message(), "attn_bwd_preprocess_sm_90_");
  CHECK_CONTAINS(last_error_message(), ": not loaded, and the stream is capturing: call preload() before");
  CHECK(recording.loads.empty() && recording.launches.empty());
  CHECK_EQ(current_context(), kContext);

  recording.capturing.clear();  // the refusal is not remembered
  CHECK_EQ(attn_bwd(bwd_call(), kStream), Error::success);
}

TEST("after preload a capturing stream launches, with no load") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start_with_stream(vendor);
    CHECK_EQ(preload(kStream), Error::success);
    const size_t images = images_of(vendor[0] == 'c' ? 0 : 1).size();
    CHECK_EQ(recording.loads.size(), images);
    recording.capturing.insert(kStream.handle);
    CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::success);
    CHECK_EQ(attn_bwd(bwd_call(), kStream), Error::success);
    CHECK_EQ(recording.loads.size(), images);
    CHECK_EQ(recording.launches.size(), 4u);
  }
}

TEST("preload of one call loads what that call needs, and no more") {
  Recording& recording = start_with_stream();
  attn_bwd_params p = bwd_call();
  p.q.data = p.dq.data = p.workspace = nullptr;  // it may be early for that
  CHECK_EQ(preload(p, kStream), Error::success);
  CHECK_EQ(recording.loads.size(), 3u);
  CHECK(recording.launches.empty());
  recording.capturing.insert(kStream.handle);
  CHECK_EQ(attn_bwd(bwd_call(), kStream), Error::success);
  CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::not_loaded);
}

TEST("supported says whether the call would run, loads nothing, and needs no data") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call();
  p.q.data = nullptr;
  CHECK(supported(p, {}));
  CHECK(!supported(fwd_call({.head_dim = 16}), {}));
  CHECK_CONTAINS(last_error_message(), "is not in this build's coverage");
  CHECK(recording.loads.empty() && recording.launches.empty());
}

TEST("a driver that fails at any one call gives driver_failed, leaves no module behind, and the next call works") {
  for (const char* vendor : {"cuda", "hip"}) {
    int failed = 0;
    for (int fail_at = 1;; ++fail_at) {
      Recording& recording = start_with_stream(vendor);
      recording.fail_at = fail_at;
      const Error error = attn_bwd(bwd_call(kLarge), kStream);
      CHECK_EQ(current_context(), kContext);
      if (recording.calls < fail_at) {
        CHECK_EQ(error, Error::success);
        break;
      }
      ++failed;
      if (fail_at <= 2) {  // where the stream is was asked to see whether the call is known, and is asked again
        CHECK_EQ(error, Error::success);
      } else {
        CHECK_EQ(error, Error::driver_failed);
        CHECK_CONTAINS(last_error_message(), "RECORDED_FAILURE, 999");
      }
      CHECK_EQ(recording.modules, loaded_in(kOther));
      recording.launches.clear();
      CHECK_EQ(attn_bwd(bwd_call(kLarge), kStream), Error::success);
      CHECK_EQ(recording.launches.size(), 3u);
    }
    CHECK(failed >= 17);  // contexts, enter, properties, leave, and for each kernel capture, load, function and launch
  }
}

TEST("a warm call that the driver fails is driver_failed, and the next one works") {
  for (int fail_at = 1; fail_at <= 4; ++fail_at) {
    Recording& recording = start_with_stream();
    CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::success);
    recording.fail_at = recording.calls + fail_at;
    // Contexts, whose failure is the cold road's to tell, enter, launch and leave.
    CHECK_EQ(attn_fwd(fwd_call(), kStream), fail_at == 1 ? Error::success : Error::driver_failed);
    CHECK_EQ(current_context(), kContext);
    CHECK_EQ(attn_fwd(fwd_call(), kStream), Error::success);
    CHECK_EQ(recording.loads.size(), 1u);
  }
}

TEST("the errors of a failing driver say what it could not do") {
  Recording& recording = start("cuda");
  recording.fail_at = 4;  // contexts, properties, capture, load
  CHECK_EQ(attn_fwd(fwd_call(), {}), Error::driver_failed);
  CHECK_CONTAINS(last_error_message(), "attn_fwd_sm_90_");
  CHECK_CONTAINS(last_error_message(), ": CUDA could not load the image: RECORDED_FAILURE");
}

TEST("numbers of the host come to a stream's device in its order, also while it captures") {
  const int64_t values[] = {-2, (int64_t{5} << 32) | 3};
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start_with_stream(vendor);
    recording.capturing.insert(kStream.handle);
    auto* const memory = static_cast<int64_t*>(pointer(0x10008));
    CHECK_EQ(write_int64(memory, values, 2, kStream), Error::success);
    CHECK_EQ(current_context(), kContext);
    std::vector<uint64_t> written(2);
    CHECK_EQ(recording.fills.size(), 4u);
    for (const RecordedFill& fill : recording.fills) {
      CHECK(fill.bytes == 4 && fill.width == 1 && fill.rows == 1);
      const auto at = static_cast<size_t>(static_cast<char*>(fill.data) - reinterpret_cast<char*>(memory));
      written.at(at / 8) |= uint64_t{fill.pattern} << (8 * (at % 8));
    }
    for (size_t i = 0; i < 2; ++i) CHECK_EQ(static_cast<int64_t>(written[i]), values[i]);
  }
}

TEST("numbers that cannot be written are refused by name") {
  Recording& recording = start_with_stream();
  const int64_t value = 1;
  CHECK_EQ(write_int64(nullptr, &value, 1, kStream), Error::null_pointer);
  CHECK_CONTAINS(last_error_message(), "memory is null");
  CHECK_EQ(write_int64(static_cast<int64_t*>(pointer(0x10000)), nullptr, 1, kStream), Error::null_pointer);
  CHECK_CONTAINS(last_error_message(), "values is null");
  CHECK_EQ(write_int64(static_cast<int64_t*>(pointer(0x10004)), &value, 1, kStream), Error::misaligned_pointer);
  CHECK_EQ(write_int64(nullptr, nullptr, 0, kStream), Error::success);
  CHECK(recording.fills.empty());
  recording.fail_at = recording.calls + 4;  // behind what entering the device asks: the second fill
  CHECK_EQ(write_int64(static_cast<int64_t*>(pointer(0x10000)), &value, 1, kStream), Error::driver_failed);
  CHECK_EQ(current_context(), kContext);
}
