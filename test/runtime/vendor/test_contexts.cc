// Contexts that come and go, captures and threads, over a stand-in for libcuda.so.1 that minds them.
#include <aotriton/runtime.h>

#include <barrier>
#include <thread>

#include "calls.h"
#include "vendor/contexts.h"

using namespace aotriton::v2;

namespace {

void* primary_context(int device) {
  void* context;
  CHECK_EQ(cuDevicePrimaryCtxRetain(&context, device), 0);
  return context;
}

Stream new_stream() {
  Stream stream;
  CHECK_EQ(cuStreamCreate(&stream.handle, 1), 0);
  return stream;
}

void check_call(Stream stream = {}) {
  const Error error = attn_bwd(bwd_call(), stream);
  if (error != Error::success) printf("  %s\n", last_error_message());
  CHECK_EQ(error, Error::success);
}

// Runs body() in a thread of its own, in which nothing is current.
template <class Body>
void in_thread(Body body) {
  std::thread(body).join();
}

Seen& seen() { return *fake_cuda_seen(); }

}  // namespace

TEST("after a reset of the primary context, whose address stays, its images are loaded again") {
  in_thread([] {
    cuCtxSetCurrent(primary_context(0));
    check_call();
    const int loads = seen().loads;
    CHECK_EQ(cuDevicePrimaryCtxReset_v2(0), 0);
    cuCtxSetCurrent(primary_context(0));
    for (int i = 0; i < 3; ++i) check_call();
    CHECK_EQ(seen().loads - loads, 3);
    CHECK_EQ(seen().stale, 0);
  });
}

TEST("a context at the address of one that was destroyed is another one") {
  in_thread([] {
    void *first, *second;
    cuCtxCreate_v2(&first, 0, 0);
    check_call();
    cuCtxDestroy_v2(first);
    cuCtxCreate_v2(&second, 0, 1);
    CHECK_EQ(first, second);
    for (int i = 0; i < 3; ++i) check_call();
    CHECK_EQ(seen().stale, 0);
    cuCtxDestroy_v2(second);
  });
}

TEST("a call that was prepared in a context that is gone is refused, whatever is at its address") {
  in_thread([] {
    void *first, *second;
    cuCtxCreate_v2(&first, 0, 0);
    const attn_fwd_params p = fwd_call();
    void* const pointers[] = {p.q.data, p.k.data, p.v.data, p.out.data, p.logsumexp.data, nullptr};
    PreparedCall call;
    CHECK_EQ(prepare(p, {}, &call), Error::success);
    CHECK_EQ(call.launch(pointers, 6, {}), Error::success);
    cuCtxDestroy_v2(first);
    cuCtxCreate_v2(&second, 0, 0);
    CHECK_EQ(call.launch(pointers, 6, {}), Error::invalid_argument);
    CHECK_CONTAINS(last_error_message(), "was prepared for another device or context");
    CHECK_EQ(seen().stale, 0);
    cuCtxDestroy_v2(second);
  });
}

TEST("forty contexts at once, and two hundred one after the other") {
  in_thread([] {
    void* contexts[40];
    for (void*& context : contexts) cuCtxCreate_v2(&context, 0, 0), check_call();
    for (void* context : contexts) cuCtxSetCurrent(context), check_call();
    for (void* context : contexts) cuCtxDestroy_v2(context);
    for (int i = 0; i < 200; ++i) {
      void* context;
      cuCtxCreate_v2(&context, 0, i % 7);
      check_call();
      cuCtxDestroy_v2(context);
    }
    CHECK_EQ(seen().stale, 0);
  });
}

TEST("two threads capture on two streams, in the global mode, and neither breaks the other's capture") {
  cuCtxSetCurrent(primary_context(2));
  CHECK_EQ(preload({}), Error::success);
  std::barrier gate(2);
  const auto capture = [&] {
    cuCtxSetCurrent(primary_context(2));
    const Stream stream = new_stream();
    gate.arrive_and_wait();
    CHECK_EQ(cuStreamBeginCapture_v2(stream.handle, kGlobal), 0);
    gate.arrive_and_wait();
    for (int i = 0; i < 10; ++i) check_call(stream);
    gate.arrive_and_wait();
    void* graph;
    CHECK_EQ(cuStreamEndCapture(stream.handle, &graph), 0);
  };
  std::thread other(capture);
  capture();
  other.join();
  CHECK_EQ(seen().broken, 0);
}

TEST("a first use by another thread breaks no capture, in any mode") {
  for (const int mode : {kGlobal, kThreadLocal, kRelaxed}) {
    cuCtxSetCurrent(primary_context(3));
    const Stream stream = new_stream();
    check_call(stream);
    CHECK_EQ(cuStreamBeginCapture_v2(stream.handle, mode), 0);
    check_call(stream);
    const int loads = seen().loads;
    in_thread([&] {
      cuCtxSetCurrent(primary_context(4 + mode));
      check_call(new_stream());
    });
    CHECK(seen().loads > loads);
    check_call(stream);
    void* graph;
    CHECK_EQ(cuStreamEndCapture(stream.handle, &graph), 0);
    CHECK_EQ(seen().broken, 0);
  }
}

TEST("a thread that never made a context current is told so on each default stream, and served on a stream") {
  cuCtxSetCurrent(primary_context(8));
  const Stream stream = new_stream();
  in_thread([&] {
    for (const uintptr_t of_current : {0, 1, 2}) {  // none, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
      CHECK_EQ(attn_fwd(fwd_call(), Stream{pointer(of_current)}), Error::no_context);
      CHECK_CONTAINS(last_error_message(), "attn_fwd: no device is current: select one first, or pass a stream");
    }
    check_call(stream);
    void* current;
    CHECK_EQ(cuCtxGetCurrent(&current), 0);
    CHECK(!current);
  });
}

TEST("the legacy and the per-thread default stream are those of the current context") {
  cuCtxSetCurrent(primary_context(9));
  for (const uintptr_t of_current : {1, 2}) check_call(Stream{pointer(of_current)});
  cuCtxSetCurrent(primary_context(10));
  for (const uintptr_t of_current : {1, 2}) check_call(Stream{pointer(of_current)});
  CHECK_EQ(seen().stale, 0);
}
