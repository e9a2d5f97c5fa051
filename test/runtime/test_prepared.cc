// Prepared calls: launched with other pointers, on streams of their device only.
#include <aotriton/runtime.h>

#include <set>
#include <thread>
#include <vector>

#include "calls.h"

using namespace aotriton::v2;

namespace {

const Stream kStream = {pointer(0x5000)}, kElsewhere = {pointer(0x6000)};
void* const kOther = pointer(0xC8);

// A fresh recording with a stream on the current device and one on another device.
Recording& start_with_streams(const char* vendor = "cuda") {
  Recording& recording = start(vendor);
  add_context(recording, kOther, vendor);
  recording.stream_contexts[kStream.handle] = kContext;
  recording.stream_contexts[kElsewhere.handle] = kOther;
  return recording;
}

std::vector<void*> pointers_of(const attn_fwd_params& p) {
  return {p.q.data, p.k.data, p.v.data, p.out.data, p.logsumexp.data, p.workspace};
}

std::vector<void*> pointers_of(const attn_bwd_params& p) {
  return {p.q.data,         p.k.data,  p.v.data,  p.out.data, p.dout.data,
          p.logsumexp.data, p.dq.data, p.dk.data, p.dv.data,  p.workspace};
}

Error launch(PreparedCall& call, const std::vector<void*>& pointers, Stream stream = {}) {
  return call.launch(pointers.data(), pointers.size(), stream);
}

}  // namespace

TEST("a prepared call launches what the call launches, with the pointers that it is given") {
  for (const char* vendor : {"cuda", "hip"}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      Recording& recording = start_with_streams(vendor);
      attn_bwd_params p = bwd_call({.head_dim = head_dim});
      PreparedCall call;
      CHECK_EQ(prepare(p, {}, &call), Error::success);
      CHECK(recording.launches.empty());
      const int encoded = recording.encoded;
      uintptr_t address = address_of(20);
      for (aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv})
        t->data = pointer(address += 1 << 20);
      p.logsumexp.data = pointer(address += 1 << 20);
      p.workspace = pointer(address += 1 << 20);
      CHECK_EQ(launch(call, pointers_of(p), kStream), Error::success);
      CHECK_EQ(recording.encoded, encoded);
      CHECK_EQ(attn_bwd(p, kStream), Error::success);
      CHECK_EQ(recording.launches.size(), 6u);
      for (size_t i = 0; i < 3; ++i) {
        const RecordedLaunch &own = recording.launches.at(i), &of_call = recording.launches.at(3 + i);
        CHECK_EQ(own.head, of_call.head);
        CHECK_EQ(own.grid[0], of_call.grid[0]);
        CHECK_EQ(own.stream, kStream.handle);
        CHECK(own.arguments == of_call.arguments);
      }
    }
  }
}

TEST("a launch of a prepared call asks the driver where the stream is, and launches") {
  Recording& recording = start_with_streams();
  const attn_fwd_params p = fwd_call();
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  const int before = recording.calls;
  for (int i = 0; i < 3; ++i) CHECK_EQ(launch(call, pointers_of(p)), Error::success);
  CHECK_EQ(recording.calls - before, 6);
}

TEST("a launch is refused for pointers that can not be, each by name, and the next one works") {
  enum { q, k, v, out, dout, logsumexp, dq, dk, dv, workspace };
  struct Case {
    int which;
    uintptr_t address;
    Error error;
    const char* message;
  };
  const attn_bwd_params p = bwd_call({.head_dim = 128});
  const auto at = [](const aotriton_tensor4& tensor) { return reinterpret_cast<uintptr_t>(tensor.data); };
  const Case cases[] = {
      {q, 0, Error::null_pointer, "attn_bwd: q has no data"},
      {logsumexp, 0, Error::null_pointer, "attn_bwd: logsumexp has no data"},
      {k, at(p.k) + 8, Error::misaligned_pointer,
       "attn_bwd: k is at 0x200000000000008, which is aligned otherwise than"},
      {dv, at(p.dv) + 2, Error::misaligned_pointer, "attn_bwd: dv is at 0x900000000000002"},
      {dk, at(p.dv) + 16, Error::invalid_stride, "attn_bwd: dk and dv are written, but overlap"},
      {v, UINTPTR_MAX - 15, Error::invalid_stride, "attn_bwd: v is at 0xfffffffffffffff0 and reaches beyond"},
      {workspace, 0, Error::workspace_too_small, "attn_bwd: workspace is null, 527616 bytes are needed"},
      {workspace, 0xA0080, Error::misaligned_pointer, "attn_bwd: workspace is at 0xa0080"},
      {workspace, UINTPTR_MAX - 255, Error::invalid_argument, "reaches beyond the end of the address space"},
      {workspace, at(p.dq), Error::invalid_argument, "attn_bwd: workspace and dq overlap"},
  };
  Recording& recording = start_with_streams();
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  for (const auto& [which, address, error, message] : cases) {
    std::vector<void*> pointers = pointers_of(p);
    pointers[static_cast<size_t>(which)] = pointer(address);
    CHECK_EQ(launch(call, pointers), error);
    CHECK_CONTAINS(last_error_message(), message);
    CHECK(recording.launches.empty());
    CHECK_EQ(launch(call, pointers_of(p)), Error::success);
    Reader(recording.launches.at(0)).value(p.out.data);
    recording.launches.clear();
  }
}

TEST("the workspace of a launch must be apart from that launch's results, even where it is the same as before") {
  start_with_streams();
  const attn_bwd_params p = bwd_call();
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  std::vector<void*> pointers = pointers_of(p);
  pointers[6] = p.workspace;  // dq
  CHECK_EQ(launch(call, pointers), Error::invalid_argument);
  CHECK_CONTAINS(last_error_message(), "attn_bwd: workspace and dq overlap");
}

TEST("what was null when the call was prepared stays null") {
  Recording& recording = start_with_streams();
  attn_fwd_params p = fwd_call();
  p.logsumexp = {};
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  CHECK_EQ(launch(call, pointers_of(p)), Error::success);
  std::vector<void*> pointers = pointers_of(p);
  pointers[4] = pointer(0x100);
  CHECK_EQ(launch(call, pointers), Error::invalid_argument);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: logsumexp is given, but was not when the call was prepared");
  CHECK_EQ(recording.launches.size(), 1u);
}

TEST("a wrong number of pointers, none at all, and a call that is not prepared are refused") {
  start_with_streams();
  const attn_fwd_params p = fwd_call();
  PreparedCall call;
  CHECK_EQ(launch(call, pointers_of(p)), Error::null_pointer);
  CHECK_CONTAINS(last_error_message(), "launch: the call is not prepared");
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  CHECK_EQ(call.launch({p.q.data, p.k.data, p.v.data, p.out.data, p.logsumexp.data}, {}), Error::invalid_argument);
  CHECK_CONTAINS(last_error_message(), "launch: 5 pointers are given, attn_fwd takes 6");
  CHECK_EQ(call.launch(nullptr, 6, {}), Error::null_pointer);
  CHECK_EQ(prepare(p, {}, nullptr), Error::null_pointer);
}

TEST("a stream of another device is refused, and so is a context that was reset since") {
  Recording& recording = start_with_streams();
  const attn_fwd_params p = fwd_call();
  PreparedCall call;
  CHECK_EQ(prepare(p, kElsewhere, &call), Error::success);
  CHECK_EQ(launch(call, pointers_of(p), kStream), Error::invalid_argument);
  CHECK_CONTAINS(last_error_message(), "launch: attn_fwd was prepared for another device or context");
  CHECK_EQ(launch(call, pointers_of(p)), Error::invalid_argument);
  CHECK_EQ(launch(call, pointers_of(p), kElsewhere), Error::success);
  CHECK_EQ(recording.launches.at(0).context, kOther);
  CHECK_EQ(current_context(), kContext);
  add_context(recording, kOther);
  CHECK_EQ(launch(call, pointers_of(p), kElsewhere), Error::invalid_argument);
  CHECK_EQ(recording.launches.size(), 1u);
}

TEST("a call that can not be prepared is refused as the call is, and leaves null") {
  Recording& recording = start_with_streams();
  attn_fwd_params p = fwd_call();
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  p.q.data = nullptr;
  CHECK_EQ(prepare(p, {}, &call), Error::null_pointer);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: q has no data");
  CHECK_EQ(launch(call, pointers_of(fwd_call())), Error::null_pointer);  // the one before is gone
  recording.capturing.insert(kStream.handle);
  CHECK_EQ(prepare(fwd_call({.head_dim = 128}), kStream, &call), Error::not_loaded);
}

TEST("a prepared call is captured, as all of it is loaded") {
  Recording& recording = start_with_streams();
  const attn_bwd_params p = bwd_call();
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  recording.capturing.insert(kStream.handle);
  CHECK_EQ(launch(call, pointers_of(p), kStream), Error::success);
}

TEST("an empty call that was prepared fills the results that it is given") {
  Recording& recording = start_with_streams();
  attn_fwd_params p = fwd_call({.seqlen_k = 0});
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  CHECK(recording.fills.empty());
  p.out.data = pointer(address_of(20));
  p.k.data = nullptr;  // without elements there need be no data
  CHECK_EQ(launch(call, pointers_of(p)), Error::success);
  CHECK_EQ(recording.fills.at(0).data, p.out.data);
}

TEST("a prepared call outlives the thread that made it, moves, and gives way to the next one") {
  Recording& recording = start_with_streams();
  const attn_fwd_params p = fwd_call();
  PreparedCall call;
  std::thread([&] {
    set_current_context(kContext);
    CHECK_EQ(prepare(p, {}, &call), Error::success);
  }).join();
  PreparedCall moved(std::move(call));
  CHECK_EQ(launch(moved, pointers_of(p)), Error::success);
  call = std::move(moved);
  CHECK_EQ(launch(call, pointers_of(p)), Error::success);
  CHECK_EQ(prepare(fwd_call({.seqlen_q = 1}), {}, &call), Error::success);
  CHECK_EQ(launch(call, pointers_of(p)), Error::success);
  CHECK_EQ(recording.launches.at(2).argument<int32_t>(4 * 9 + 5), 1);
  aotriton_destroy(nullptr);
}

TEST("a driver that fails a launch gives driver_failed, and the next launch works") {
  for (int fail_at = 1; fail_at <= 4; ++fail_at) {  // contexts, enter, launch and leave
    Recording& recording = start_with_streams();
    const attn_fwd_params p = fwd_call();
    PreparedCall call;
    CHECK_EQ(prepare(p, kElsewhere, &call), Error::success);
    recording.fail_at = recording.calls + fail_at;
    CHECK_EQ(launch(call, pointers_of(p), kElsewhere), Error::driver_failed);
    CHECK_CONTAINS(last_error_message(), "RECORDED_FAILURE, 999");
    CHECK_EQ(current_context(), kContext);
    CHECK_EQ(launch(call, pointers_of(p), kElsewhere), Error::success);
  }
}

TEST("a descriptor that the driver does not change fails the launch, and the next one has its pointers") {
  for (const bool prepared : {false, true}) {
    Recording& recording = start_with_streams();
    const Driver* const recorder = driver();
    static Driver failing;
    static const Driver* real;
    static bool fails;
    real = recorder;
    fails = false;
    failing = *recorder;
    failing.replace_address = [](TensorMap* map, void* address) {
      const Status status = real->replace_address(map, address);
      return fails ? Status{999} : status;
    };
    replace_driver(&failing);
    attn_fwd_params p = fwd_call();
    PreparedCall call;
    CHECK_EQ(prepare(p, {}, &call), Error::success);
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    const std::vector<void*> before = pointers_of(p);
    const auto run = [&] { return prepared ? launch(call, pointers_of(p)) : attn_fwd(p, {}); };
    p.q.data = pointer(address_of(11));
    fails = true;
    recording.launches.clear();
    if (prepared) {
      CHECK_EQ(run(), Error::driver_failed);
      CHECK_CONTAINS(last_error_message(), "could not put an address into a tensor descriptor");
      CHECK(recording.launches.empty());
    } else {
      CHECK_EQ(run(), Error::success);  // made anew
      CHECK_EQ(recording.launches.at(0).tensor_map(0).address, p.q.data);
    }
    fails = false;
    recording.launches.clear();
    p.q.data = before[0];
    CHECK_EQ(run(), Error::success);
    CHECK_EQ(recording.launches.at(0).tensor_map(0).address, before[0]);
    replace_driver(recorder);
  }
}

// HIP says nothing of a reset: the device's number stays, and what was loaded on it is gone.
TEST("after a reset of a HIP device a call loads its images once more, and one of CUDA does not try that") {
  for (const char* vendor : {"hip", "cuda"}) {
    for (const bool prepared : {false, true}) {
      Recording& recording = start_with_streams(vendor);
      static const Driver* recorder;
      static std::set<void*> known, gone;
      recorder = driver();
      known.clear(), gone.clear();
      static Driver resetting;
      resetting = *recorder;
      resetting.launch = [](const Launch& launch) {
        known.insert(launch.function);
        return gone.contains(launch.function) ? Status{400} : recorder->launch(launch);
      };
      if (!strcmp(vendor, "hip")) resetting.is_gone = [](Status status) { return status.number == 400; };
      replace_driver(&resetting);
      const attn_bwd_params p = bwd_call();
      PreparedCall call;
      CHECK_EQ(prepare(p, {}, &call), Error::success);
      const auto run = [&] { return prepared ? launch(call, pointers_of(p)) : attn_bwd(p, {}); };
      CHECK_EQ(run(), Error::success);
      const std::vector<RecordedLaunch> before = recording.launches;
      const size_t loads = recording.loads.size();
      gone = known;
      recording.launches.clear();
      CHECK_EQ(run(), resetting.is_gone ? Error::success : Error::driver_failed);
      if (resetting.is_gone) {
        CHECK_EQ(recording.loads.size(), loads + before.size());
        CHECK_EQ(recording.launches.size(), before.size());
        for (size_t i = 0; i < before.size(); ++i) CHECK(recording.launches[i].arguments == before[i].arguments);
        CHECK_EQ(run(), Error::success);
        CHECK_EQ(recording.loads.size(), loads + before.size());
        resetting.launch = [](const Launch&) { return Status{400}; };  // as if for good: no second try
        CHECK_EQ(run(), Error::driver_failed);
        CHECK_EQ(recording.loads.size(), loads + 2 * before.size());
      }
      replace_driver(recorder);
    }
  }
}

TEST("a packed backward with one cu_seqlens for both sides is another call than one with two") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call({.batch = 1, .seqlen_q = 1000, .seqlen_k = 1000, .head_dim = 64});
  p.workspace_size = 1 << 30;
  p.features.max_seqlen_q = p.features.max_seqlen_k = 500;
  const auto starts = [](int number) {
    return aotriton_tensor1{pointer(address_of(number)), AOTRITON_INT32, {4}, {1}};
  };
  const auto pointers_with = [&](int q, int k) {
    std::vector<void*> pointers = pointers_of(p);
    std::vector<void*> features(11);
    features[3] = pointer(address_of(q)), features[4] = pointer(address_of(k));
    pointers.insert(pointers.end() - 1, features.begin(), features.end());
    return pointers;
  };
  p.features.cu_seqlens_q = p.features.cu_seqlens_k = starts(30);
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  CHECK_EQ(launch(call, pointers_with(31, 31)), Error::success);
  CHECK_EQ(launch(call, pointers_with(30, 31)), Error::invalid_argument);
  CHECK(std::string(last_error_message()).find("cu_seqlens_k at 0x") != std::string::npos);

  // Without a prepared call it is made anew.
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  const size_t launches = recording.launches.size();
  p.features.cu_seqlens_k = starts(31);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  CHECK(recording.launches.size() > launches);
  PreparedCall of_two;
  CHECK_EQ(prepare(p, {}, &of_two), Error::success);
  CHECK_EQ(launch(of_two, pointers_with(31, 31)), Error::success);
  CHECK_EQ(launch(of_two, pointers_with(30, 31)), Error::success);
}
