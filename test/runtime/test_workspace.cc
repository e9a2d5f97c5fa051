// How much workspace a call asks for: what its launches use, no less and no more.
#include <set>
#include <utility>

#include "call/checks.h"
#include "calls.h"
#include "dispatch/workspace.h"

using namespace aotriton::v2;

namespace {

const Stream kStream = {pointer(0x5000)};

size_t asked(const attn_bwd_params& p, Stream stream = {}) {
  size_t bytes = 0;
  CHECK_EQ(attn_bwd_workspace_size(p, stream, &bytes), Error::success);
  return bytes;
}

// How far into the workspace the launches' pointers reach: delta has a number for each row, the sum of dq behind it one
// for each element of whole tiles of 64 rows, and those of dk and dv one for each element.
size_t used(Recording& recording, const attn_bwd_params& p) {
  recording.launches.clear();
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  const auto begin = reinterpret_cast<uintptr_t>(p.workspace);
  std::set<uintptr_t> sums;
  for (const RecordedLaunch& launch : recording.launches)
    for (size_t i = 0; i < launch.arguments.size(); ++i) {
      if (launch.arguments[i].size() != sizeof(void*)) continue;
      const auto at = reinterpret_cast<uintptr_t>(launch.argument<void*>(i));
      if (at > begin && at < begin + p.workspace_size) sums.insert(at);
    }
  const auto bytes = [](const aotriton_tensor4& t, int64_t rows, int64_t columns) {
    return static_cast<uintptr_t>(4 * t.sizes[0] * t.sizes[1] * rows * columns);
  };
  if (sums.empty()) return bytes(p.q, p.q.sizes[2], 1);
  const uintptr_t last = *sums.rbegin() - begin;
  if (sums.size() == 1) return last + bytes(p.q, (p.q.sizes[2] + 63) / 64 * 64, p.q.sizes[3]);
  return last + bytes(p.k, p.k.sizes[2], p.k.sizes[3]);
}

}  // namespace

TEST("the workspace is as large as what the launches of the chosen backend use") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    const bool cuda = vendor[0] == 'c';
    for (const int64_t head_dim : {64, 128, 200, 256}) {
      for (const int64_t seqlen : {64, 100, 1000}) {
        for (const int which : {0, 1, 2, 3}) {
          const bool deterministic = which & 1, causal = which & 2;
          attn_bwd_params p = bwd_call({.seqlen_q = seqlen, .seqlen_k = causal ? seqlen : 70, .head_dim = head_dim});
          p.deterministic = deterministic;
          p.causal = causal;
          const size_t delta = 2 * 4 * static_cast<size_t>(seqlen) * 4;
          const size_t of_k = delta * static_cast<size_t>(head_dim);  // two sums: k has half of the heads
          const size_t of_q = 2 * 4 * static_cast<size_t>((seqlen + 63) / 64 * 64 * head_dim) * 4;
          // Where hopper backends are faster, they add up dq to head dim 128, dk and dv from there on, if causal.
          const bool faster = cuda && seqlen > 64 && !deterministic;
          const bool sums = faster && (head_dim == 128 || causal);
          const bool of_dq = head_dim <= 128, of_dk = head_dim > 128 || (causal && head_dim == 128);
          const size_t aligned = (delta + 255) / 256 * 256;
          CHECK_EQ(asked(p), sums ? aligned + (of_dq ? of_q : 0) + (of_dk ? of_k : 0) : delta);
          p.workspace_size = asked(p);
          CHECK_EQ(used(recording, p), asked(p));
          p.workspace_size -= 1;
          CHECK_EQ(attn_bwd(p, {}), Error::workspace_too_small);
        }
      }
    }
  }
}

TEST("the forward asks for none") {
  start("cuda");
  size_t bytes = 1;
  CHECK_EQ(attn_fwd_workspace_size(fwd_call({.head_dim = 256}), {}, &bytes), Error::success);
  CHECK_EQ(bytes, 0u);
}

TEST("without data the size is enough wherever the data will be") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call({.head_dim = 128});
  attn_bwd_params early = p;
  for (aotriton_tensor4* t : {&early.q, &early.k, &early.v, &early.out, &early.dout, &early.dq, &early.dk, &early.dv})
    t->data = nullptr;
  early.logsumexp.data = early.workspace = nullptr;
  p.workspace_size = asked(early);
  CHECK_EQ(p.workspace_size, asked(p));
  for (const uintptr_t misaligned : {0, 2}) {
    p.q.data = pointer(address_of(1) + misaligned);
    CHECK_EQ(attn_bwd(p, {}), Error::success);
    CHECK_EQ(recording.launches.back().entry, misaligned ? "attn_bwd_dq" : "attn_bwd_hopper_finish");
  }
  CHECK(asked(p) < p.workspace_size);  // what is misaligned needs delta only
}

TEST("a query loads and launches nothing, and is checked as a call is") {
  Recording& recording = start("cuda");
  static_cast<void>(asked(bwd_call()));
  CHECK(recording.loads.empty() && recording.launches.empty());
  attn_bwd_params p = bwd_call();
  p.dk.sizes[2] = 3;
  size_t bytes = 7;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &bytes), Error::invalid_shape);
  CHECK_EQ(bytes, 0u);
  CHECK_EQ(attn_bwd_workspace_size(bwd_call({.head_dim = 16}), {}, &bytes), Error::no_winner);
  CHECK_EQ(attn_bwd_workspace_size(bwd_call(), {}, nullptr), Error::null_pointer);
}

TEST("the size is that of the stream's device") {
  Recording& recording = start("cuda");
  recording.devices[pointer(0xC8)] = {"sm_80", 108, ++lives};
  recording.stream_contexts[kStream.handle] = pointer(0xC8);
  size_t bytes = 7;
  CHECK_EQ(attn_bwd_workspace_size(bwd_call(), kStream, &bytes), Error::unknown_arch);
  CHECK_EQ(asked(bwd_call()), 3200u);
}

TEST("a workspace of more bytes than 63 bits count is refused") {
  start("cuda");
  // The sum of dq has twice the bytes of dq itself, which just fit.
  attn_bwd_params p =
      bwd_call({.batch = 1, .heads = 1 << 10, .heads_k = 1, .seqlen_q = 1 << 20, .seqlen_k = 1, .head_dim = 128});
  for (aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv})
    t->sizes[0] = 1 << 24, t->data = nullptr;  // there is no room for so much data
  p.logsumexp.sizes[0] = 1 << 24;
  size_t bytes = 7;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &bytes), Error::not_supported);
  CHECK_EQ(bytes, 0u);

  Call call(*find_operator("attn_bwd"));
  const aotriton_tensor4* const tensors[] = {&p.q, &p.k, &p.v, &p.out, &p.dout, nullptr, &p.dq, &p.dk, &p.dv};
  for (size_t slot = 0; slot < call.info->slots(); ++slot) call.views[slot] = View::none();
  for (size_t slot = 0; slot < std::size(tensors); ++slot)
    call.views[slot] = tensors[slot] ? View::of(*tensors[slot]) : View::of(p.logsumexp);
  for (size_t i = 0; i < call.info->scalars.size(); ++i) call.set_whole(i, 0);
  CHECK_EQ(check_call(call, Data::optional).error(), Error::success);
  CHECK(shape_workspace(call));
  const int32_t tunables[kMaxTunables] = {64, 64, 64, 64};
  const BackendInfo* summing = nullptr;
  for (const BackendInfo& backend : call.info->backends)
    if (!summing && backend.workspace.size() > 1) summing = &backend;
  Workspace workspace;
  const Misfit misfit = lay_out(call, *summing, tunables, 132, &workspace);
  CHECK(misfit.what == Misfit::workspace);
  CHECK_EQ(refuse(call, misfit), Error::not_supported);
  CHECK_EQ(last_error_message(), std::string("attn_bwd: the workspace overflows 63 bits"));
}

TEST("a query without data is enough wherever the data will be, whichever of it is misaligned") {
  start("cuda");
  for (const bool deterministic : {false, true})
    for (const int64_t seqlen : {12, 70, 200}) {
      attn_bwd_params p = bwd_call({.batch = 2, .heads = 64, .heads_k = 8, .seqlen_q = seqlen, .seqlen_k = seqlen});
      p.deterministic = deterministic;
      aotriton_tensor4* const tensors[] = {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv};
      void* data[8];
      for (int i = 0; i < 8; ++i) data[i] = std::exchange(tensors[i]->data, nullptr);
      size_t early = 0;
      CHECK_EQ(attn_bwd_workspace_size(p, {}, &early), Error::success);
      for (unsigned misaligned = 0; misaligned < 256; ++misaligned) {
        for (int i = 0; i < 8; ++i) tensors[i]->data = static_cast<char*>(data[i]) + (misaligned >> i & 1 ? 8 : 0);
        size_t needed = 0;
        CHECK_EQ(attn_bwd_workspace_size(p, {}, &needed), Error::success);
        CHECK(needed <= early);
      }
    }
}

namespace {

std::set<std::string> entries(const Recording& recording) {
  std::set<std::string> found;
  for (const RecordedLaunch& launch : recording.launches) found.insert(launch.entry);
  return found;
}

}  // namespace

TEST("kernels of gradients that are skipped are not launched") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    const std::set<std::string> dq = {"attn_bwd_dq"}, dk_dv = {"attn_bwd_dk_dv"};
    for (int skipped = 0; skipped < 8; ++skipped) {
      attn_bwd_params p = bwd_call({.seqlen_q = 64, .seqlen_k = 64});
      p.deterministic = 1;  // by kernels of single gradients
      p.skip_gradients = static_cast<uint8_t>(skipped);
      recording.launches.clear();
      CHECK_EQ(attn_bwd(p, {}), Error::success);
      std::set<std::string> wanted = {"attn_bwd_preprocess"};
      if (!(skipped & AOTRITON_SKIP_DQ)) wanted.insert("attn_bwd_dq");
      if ((skipped & 6) != 6) wanted.insert("attn_bwd_dk_dv");  // one kernel computes both
      CHECK(entries(recording) == wanted);
    }
  }
}

TEST("skipped gradients without memory begin the workspace, whose size has them") {
  Recording& recording = start("cuda");
  for (const int64_t seqlen : {100, 1000}) {
    const attn_bwd_params whole = bwd_call({.seqlen_q = seqlen, .seqlen_k = seqlen, .head_dim = 128});
    attn_bwd_params p = whole;
    p.skip_gradients = AOTRITON_SKIP_DQ | AOTRITON_SKIP_DV;
    const size_t with_memory = asked(p);
    p.dq = p.dv = {};
    const auto bytes = [&](const aotriton_tensor4& t) {
      return (static_cast<size_t>(2 * t.sizes[0] * t.sizes[1] * t.sizes[2] * t.sizes[3]) + 255) / 256 * 256;
    };
    const size_t skipped = bytes(p.q) + bytes(p.v);
    p.workspace_size = asked(p);
    CHECK(p.workspace_size >= with_memory + skipped);
    for (const bool again : {false, true}) {  // the second one is known
      recording.launches.clear();
      CHECK_EQ(attn_bwd(p, {}), Error::success);
      CHECK(!recording.launches.empty());
      // Nothing is written but dk and the workspace.
      for (const RecordedLaunch& launch : recording.launches)
        for (size_t i = 0; i < launch.arguments.size(); ++i)
          if (launch.arguments[i].size() == sizeof(void*))
            CHECK(launch.argument<void*>(i) != whole.dq.data && launch.argument<void*>(i) != whole.dv.data);
      if (again) p.workspace = static_cast<char*>(p.workspace) + (1 << 20);
    }
    p.workspace_size = skipped - 1;
    CHECK_EQ(attn_bwd(p, {}), Error::workspace_too_small);
    CHECK(std::string(last_error_message()).find("are needed for skipped gradients without memory") !=
          std::string::npos);
    p.workspace = nullptr;
    CHECK_EQ(attn_bwd(p, {}), Error::null_pointer);
    CHECK(supported(p, {}));
    p.workspace = whole.workspace;
    aotriton_prepared* prepared = nullptr;
    CHECK_EQ(static_cast<Error>(aotriton_attn_bwd_prepare(&p, nullptr, &prepared)), Error::null_pointer);
    CHECK(!prepared);
  }
}

TEST("skipped gradients of more bytes than 63 bits count are refused") {
  start("cuda");
  attn_bwd_params p = bwd_call();
  p.skip_gradients = AOTRITON_SKIP_DK;
  p.dk = {};
  for (int64_t& size : p.k.sizes) size = int64_t{1} << 40;
  size_t bytes = 7;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &bytes), Error::not_supported);
  CHECK_EQ(last_error_message(), std::string("attn_bwd: dk is skipped, and of more bytes than 63 bits count"));
}
