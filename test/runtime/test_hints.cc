// Hints: as text and as a struct, what each leaves of the backends and images, and what is said of it.
#include <aotriton/gemm.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "call/hints.h"
#include "calls.h"
#include "dispatch/explain.h"
#include "scale.h"

using namespace aotriton::v2;

namespace {

// The parsed text, which is right.
hints parsed(const char* text) {
  hints made;
  CHECK_EQ(made.parse(text), Error::success);
  return made;
}

// In the bin of the hopper backend; small ones are the portable one's.
constexpr Sizes kHopper = {.head_dim = 256};

// What is launched of a call with these hints, which runs.
template <class Params>
std::vector<std::string> launched(Params p, const char* text, Error (*run)(const Params&, Stream),
                                  const char* vendor = "cuda") {
  Recording& recording = start(vendor);
  const hints own = parsed(text);
  p.hints = &own;
  CHECK_EQ(run(p, {}), Error::success);
  std::vector<std::string> entries;
  for (const RecordedLaunch& launch : recording.launches) entries.push_back(launch.entry);
  return entries;
}

std::string forward(const char* text, const Sizes& s = kHopper) {
  return launched<attn_fwd_params>(fwd_call(s), text, attn_fwd).at(0);
}

// The last kernel is the backend's own.
std::string backward(const char* text, const Sizes& s) {
  return launched<attn_bwd_params>(bwd_call(s), text, attn_bwd).back();
}

std::string refused(const char* text, attn_fwd_params p = fwd_call(kHopper)) {
  Recording& recording = start("cuda");
  const hints own = parsed(text);
  p.hints = &own;
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  CHECK(!supported(p, {}));
  CHECK(recording.launches.empty());
  return last_error_message();
}

// Few rows or many, of 32 columns, which have models where there is no bias, or of 64.
toy::scale_params scale_call(bool many = false, bool bias = false, int64_t width = 32) {
  const int64_t batch = many ? 10 : 2, heads = many ? 40 : 3, rows = 100, taps = 20;
  toy::scale_params p;
  p.x = tensor(address_of(1), batch, heads, rows, width);
  p.w = {pointer(address_of(2)), DType::bfloat16, {taps, width}, {width, 1}};
  if (bias) p.bias = {pointer(address_of(3)), DType::float32, {batch, heads}, {heads, 1}};
  p.y = tensor(address_of(4), batch, heads, rows, width);
  p.workspace = pointer(address_of(5));
  p.workspace_size = 1 << 20;
  return p;
}

Explanation explained(toy::scale_params p, const char* text, const char* device = "sm_90") {
  const hints own = parsed(text);
  p.hints = &own;
  Explanation made;
  CHECK_EQ(toy::explain(p, device, 0, &made), Error::success);
  return made;
}

struct Outcome {
  bool told, honoured;
  std::string why;
};

Outcome outcome_of(const aotriton_hint_outcome* list, size_t count, const char* name) {
  for (size_t i = 0; i < count; ++i)
    if (!strcmp(list[i].name, name)) return {true, list[i].honoured != 0, list[i].why};
  return {};
}

Outcome outcome_of(const Explanation& explanation, const char* name) {
  const KernelChoice& first = explanation.kernels[0];
  return outcome_of(first.hints, static_cast<size_t>(first.hint_count), name);
}

}  // namespace

TEST("text becomes fields, words in any order with blanks between them, and the last one counts") {
  const hints none = parsed("");
  CHECK(!memcmp(static_cast<const aotriton_hints*>(&none), std::make_unique<hints>().get(), sizeof none));
  const hints all = parsed(
      "  deterministic\tschedule=bfs throughput\nworkspace_limit=0 backend=hopper image=a,b exclude=c,d_1 "
      "schedule=dfs ");
  CHECK_EQ(all.schedule, AOTRITON_DFS);
  CHECK_EQ(all.objective, AOTRITON_THROUGHPUT);
  CHECK_EQ(all.deterministic, 1);
  CHECK_EQ(all.workspace_limited, 1);
  CHECK_EQ(all.workspace_limit, 0u);
  CHECK_EQ(all.backend, std::string("hopper"));
  CHECK_EQ(all.image, std::string("a,b"));
  CHECK_EQ(all.exclude, std::string("c,d_1"));
  CHECK_EQ(all.unknown, std::string(""));
  CHECK_EQ(parsed("workspace_limit=18446744073709551615").workspace_limit, UINT64_MAX);
  CHECK_EQ(parsed("schedule=dfs schedule=auto").schedule, AOTRITON_AUTO);
  CHECK_EQ(all.batch_invariant, 0);
  CHECK_EQ(parsed("batch_invariant").batch_invariant, 1);
  const hints off =
      parsed("deterministic deterministic=0 batch_invariant batch_invariant=0 latency latency=0 throughput=0");
  CHECK_EQ(off.deterministic, 0);
  CHECK_EQ(off.batch_invariant, 0);
  CHECK_EQ(off.objective, AOTRITON_NO_OBJECTIVE);
  CHECK_EQ(parsed("throughput=1 latency=0").objective, AOTRITON_THROUGHPUT);
}

TEST("text adds to what the struct has") {
  hints made = parsed("schedule=dfs backend=portable");
  CHECK_EQ(made.parse("backend=hopper"), Error::success);
  CHECK_EQ(made.schedule, AOTRITON_DFS);
  CHECK_EQ(made.backend, std::string("hopper"));
}

TEST("unknown names are ignored, and kept as far as there is room") {
  const hints some = parsed("prefetch=3 schedule=dfs color");
  CHECK_EQ(some.schedule, AOTRITON_DFS);
  CHECK_EQ(some.unknown, std::string("prefetch color"));
  const hints many = parsed((std::string(100, 'x') + " " + std::string(100, 'y') + " z").c_str());
  CHECK_EQ(many.unknown, std::string(100, 'x') + " " + std::string(26, 'y'));
}

TEST("a value that a known hint cannot have is named, and leaves the struct as it was") {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"schedule=up", "hints: schedule is 'up', which must be auto, bfs or dfs"},
      {"schedule", "hints: schedule is '', which must be auto, bfs or dfs"},
      {"deterministic=yes", "hints: deterministic is 'yes', which must be 0 or 1"},
      {"deterministic=", "hints: deterministic is '', which must be 0 or 1"},
      {"latency=2", "hints: latency is '2', which must be 0 or 1"},
      {"throughput=on", "hints: throughput is 'on', which must be 0 or 1"},
      {"workspace_limit=1MB", "hints: workspace_limit is '1MB', which must be a number of bytes"},
      {"workspace_limit=-1", "hints: workspace_limit is '-1', which must be a number of bytes"},
      {"workspace_limit=18446744073709551616", "which must be a number of bytes"},
      {"workspace_limit", "hints: workspace_limit is '', which must be a number of bytes"},
      {"backend", "hints: backend is '', which must be a name"},
      {"backend=12345678901234567890123456789012", "hints: backend has 32 letters, and there is room for 31"},
      {"exclude=", "hints: exclude is '', which must be a name"},
  };
  for (const auto& [text, message] : cases) {
    hints made = parsed("schedule=bfs backend=hopper");
    const hints before = made;
    CHECK_EQ(made.parse((std::string("deterministic ") + text).c_str()), Error::invalid_argument);
    CHECK_CONTAINS(last_error_message(), message);
    CHECK(!memcmp(static_cast<const aotriton_hints*>(&made), &before, sizeof made));
  }
  hints made;
  CHECK_EQ(made.parse(nullptr), Error::null_pointer);
  CHECK_EQ(aotriton_parse_hints("latency", nullptr), AOTRITON_NULL_POINTER);
}

TEST("a struct of another version is read and written as far as both know it") {
  alignas(8) unsigned char bytes[sizeof(aotriton_hints) + 8] = {};
  auto* const other = reinterpret_cast<aotriton_hints*>(bytes);
  memset(bytes, 0xaa, sizeof bytes);
  memset(bytes, 0, offsetof(aotriton_hints, backend));
  other->size = offsetof(aotriton_hints, backend);
  CHECK_EQ(aotriton_parse_hints("schedule=dfs deterministic", other), AOTRITON_SUCCESS);
  CHECK_EQ(other->schedule, AOTRITON_DFS);
  CHECK_EQ(other->deterministic, 1);
  for (size_t i = offsetof(aotriton_hints, backend); i < sizeof bytes; ++i) CHECK_EQ(bytes[i], 0xaa);

  start("cuda");
  attn_bwd_params older = bwd_call({.head_dim = 128});
  older.hints = other;
  CHECK_EQ(attn_bwd(older, {}), Error::success);  // what lies behind its end is not read

  memset(bytes, 0, sizeof bytes);
  other->size = sizeof bytes;
  bytes[sizeof bytes - 1] = 1;  // a hint that is not known here
  strcpy(other->backend, "portable");
  Recording& recording = start("cuda");
  attn_fwd_params newer = fwd_call(kHopper);
  newer.hints = other;
  CHECK_EQ(attn_fwd(newer, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).entry, "attn_fwd");
  HintOutcomes outcomes;
  CHECK_EQ(hint_outcomes(newer, {}, &outcomes), Error::success);
  CHECK_EQ(outcomes.count, 2u);
  CHECK_EQ(outcomes.list[1].name, std::string("a_newer_field"));
}

TEST("a struct that is none, or has a field that means nothing, is refused by the field's name") {
  start("cuda");
  const struct {
    std::function<void(hints&)> spoil;
    const char* message;
  } cases[] = {
      {[](hints& h) { h.size = 7; }, "attn_fwd: hints.size is 7, which must be sizeof of the struct"},
      {[](hints& h) { h.size = 65537; }, "attn_fwd: hints.size is 65537"},
      {[](hints& h) { h.schedule = 3; }, "attn_fwd: hints.schedule is 3"},
      {[](hints& h) { h.schedule = -1; }, "attn_fwd: hints.schedule is -1"},
      {[](hints& h) { h.objective = 3; }, "attn_fwd: hints.objective is 3"},
      {[](hints& h) { memset(h.backend, 'a', sizeof h.backend); }, "attn_fwd: hints.backend has no end"},
      {[](hints& h) { memset(h.image, 'a', sizeof h.image); }, "attn_fwd: hints.image has no end"},
      {[](hints& h) { memset(h.exclude, 'a', sizeof h.exclude); }, "attn_fwd: hints.exclude has no end"},
      {[](hints& h) { memset(h.unknown, 'a', sizeof h.unknown); }, "attn_fwd: hints.unknown has no end"},
  };
  for (const auto& [spoil, message] : cases) {
    hints own;
    spoil(own);
    attn_fwd_params p = fwd_call();
    p.hints = &own;
    CHECK_EQ(attn_fwd(p, {}), Error::invalid_argument);
    CHECK_CONTAINS(last_error_message(), message);
  }
}

TEST("a call without hints, or with hints that say nothing, is the same") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call(kHopper);
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  const hints nothing;
  p.hints = &nothing;
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).head, recording.launches.at(1).head);
  HintOutcomes outcomes;
  CHECK_EQ(hint_outcomes(p, {}, &outcomes), Error::success);
  CHECK_EQ(outcomes.count, 0u);
}

TEST("a backend that is asked for serves the call, slower or not") {
  CHECK_EQ(forward(""), "attn_fwd_hopper");
  CHECK_EQ(forward("backend=hopper"), "attn_fwd_hopper");
  CHECK_EQ(forward("backend=portable"), "attn_fwd");
  Sizes few = kHopper;
  few.seqlen_q = 64;  // the bin where the portable backend is faster
  CHECK_EQ(forward("", few), "attn_fwd");
  CHECK_EQ(forward("backend=hopper", few), "attn_fwd_hopper");
}

TEST("a backend that cannot serve the call, or that the operator has not, is refused with the reason") {
  attn_fwd_params p = fwd_call(kHopper);
  p.v.data = pointer(address_of(3) + 8);  // no descriptor
  CHECK_EQ(refused("backend=hopper", p),
           "attn_fwd: its hints leave nothing that serves this call; portable: another one is asked for; hopper: it "
           "cannot address the tensors as they lie (attn_fwd_hopper); hopper_slim: another one is asked for; "
           "portable_slim: another one is asked for; hopper_features: another one is asked for; decode: another one is "
           "asked for; split: another one is asked for; hopper_planned: another one is asked for; invariant: another "
           "one is asked for; hopper_latent: another one is asked for; latent: another one is asked for; hopper_fp8: "
           "another one is asked for");
  CHECK_EQ(
      refused("backend=halves"),
      "attn_fwd: hint backend=halves: its backends are portable, hopper, hopper_slim, portable_slim, hopper_features, "
      "decode, split, hopper_planned, invariant, hopper_latent, latent, hopper_fp8");
}

TEST("what is excluded does not run, be it a backend, a kernel or an image") {
  CHECK_EQ(forward("exclude=hopper"), "attn_fwd");
  CHECK_EQ(forward("exclude=attn_fwd_hopper,nothing"), "attn_fwd");
  CHECK_EQ(forward("exclude=portable"), "attn_fwd_hopper");
  CHECK_EQ(forward("exclude=hoppe,opper,attn_fwd_hoppe"), "attn_fwd_hopper");  // whole names only

  const Explanation free = explained(scale_call(false, true), "backend=portable");
  const std::string own = free.kernels[0].image;
  const Explanation without = explained(scale_call(false, true), ("backend=portable exclude=" + own).c_str());
  CHECK(own != without.kernels[0].image);
  CHECK_EQ(without.kernels[0].functional, std::string(free.kernels[0].functional));
  CHECK(outcome_of(without, "exclude").honoured);
  CHECK_EQ(without.kernels[0].provenance, AOTRITON_PREDICTED);
  CHECK_EQ(without.kernels[0].source, std::string("its hints leave no better one"));
}

TEST("of what is left the fastest backend serves the call, as measured where nothing is predicted") {
  const auto entry = [](const char* text) {
    gemm_params p;  // b by columns, where hopper lies between the portable backend and the split one
    p.a = Tensor<3>(pointer(address_of(1)), DType::bfloat16, {1, 64, 4096}, {262144, 4096, 1});
    p.b = Tensor<3>(pointer(address_of(2)), DType::bfloat16, {1, 4096, 64}, {262144, 1, 4096});
    p.d = Tensor<3>(pointer(address_of(3)), DType::bfloat16, {1, 64, 64}, {4096, 64, 1});
    p.workspace = pointer(address_of(4));
    p.workspace_size = size_t{1} << 40;
    return launched<gemm_params>(p, text, gemm).at(0);
  };
  CHECK_EQ(entry(""), "gemm_hopper_split");
  CHECK_EQ(entry("exclude=hopper_split"), "gemm_hopper");
  CHECK_EQ(entry("exclude=portable"), "gemm_hopper_split");
  CHECK_EQ(entry("exclude=hopper,gemm_reduce"), "gemm");
  CHECK_EQ(entry("workspace_limit=0"), "gemm_hopper");
}

TEST("of what is left the fastest backend serves the call, as predicted where that is known") {
  const auto backend = [](const char* text) {
    return std::string(explained(scale_call(), text, "NVIDIA H200").kernels[0].backend);
  };
  CHECK_EQ(backend(""), "fast");
  CHECK_EQ(backend("exclude=fast"), "portable");
  const Explanation left = explained(scale_call(true), "exclude=fast", "NVIDIA H200");
  CHECK_EQ(left.kernels[0].backend, std::string("split"));
  CHECK_EQ(left.kernels[0].predicted_total_us, left.kernels[0].backends_predicted_us[2]);
  CHECK(left.kernels[0].backends_predicted_us[2] < left.kernels[0].backends_predicted_us[0]);
}

TEST("a call that is left nothing is refused, with what is in the way of each backend") {
  CHECK_EQ(
      refused("exclude=hopper,attn_fwd"),
      "attn_fwd: its hints leave nothing that serves this call; portable: a kernel of it is excluded; hopper: it is "
      "excluded; hopper_slim: it has no image for this choice (attn_fwd_hopper_slim); portable_slim: this build has "
      "no images of it for the arch (attn_fwd_slim); hopper_features: it has no image for this choice "
      "(attn_fwd_hopper_features); decode: this build has no images of it for the arch (attn_fwd_decode); split: this "
      "build has no images of it for the arch (attn_fwd_split); hopper_planned: this build has no images of it for the "
      "arch (attn_fwd_plan); invariant: it is for calls with the hint batch_invariant (attn_fwd_invariant); "
      "hopper_latent: it is for head_dim 576 with head_dim_v 512 (attn_fwd_hopper_latent); latent: it is for head_dim "
      "576 with head_dim_v 512 (attn_fwd_latent); hopper_fp8: it has no image for this choice (attn_fwd_turn)");
  start("cuda");
  gemm_params p;
  p.a = Tensor<3>(pointer(address_of(1)), DType::bfloat16, {1, 64, 64}, {4096, 64, 1});
  p.b = Tensor<3>(pointer(address_of(2)), DType::bfloat16, {1, 64, 64}, {4096, 64, 1});
  p.d = Tensor<3>(pointer(address_of(3)), DType::bfloat16, {1, 64, 64}, {4096, 64, 1});
  const hints split = parsed("backend=hopper_split");
  p.hints = &split;
  CHECK_EQ(gemm(p, {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "; hopper_split: it needs a workspace, and the call brings none");
}

TEST("an image that is asked for is the one that runs, with its backend") {
  const KernelChoice usual = explained(scale_call(), "").kernels[0];
  const KernelChoice other = explained(scale_call(), "backend=portable").kernels[0];
  CHECK_EQ(usual.backend, std::string("fast"));
  const Explanation forced = explained(scale_call(), (std::string("image=") + other.image).c_str());
  CHECK_EQ(forced.kernels[0].image, std::string(other.image));
  CHECK_EQ(forced.kernels[0].backend, std::string("portable"));
  CHECK(outcome_of(forced, "image").honoured);
  // Of the same functional, one that another cell has.
  const KernelChoice few = explained(scale_call(false, true), "backend=portable").kernels[0];
  const KernelChoice many = explained(scale_call(true, true), "backend=portable").kernels[0];
  CHECK(std::string(few.image) != many.image);
  CHECK_EQ(explained(scale_call(false, true), (std::string("image=") + many.image).c_str()).kernels[0].image,
           std::string(many.image));
}

TEST("an image that the call cannot run is refused with the reason") {
  const KernelChoice wide = explained(scale_call(false, false, 64), "backend=portable").kernels[0];
  toy::scale_params p = scale_call();
  hints own = parsed((std::string("image=") + wide.image).c_str());
  p.hints = &own;
  start("cuda");
  CHECK_EQ(toy::scale(p, {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(),
                 "; portable: no image of it is left (scale_rows); fast: it does not have the image");
  own = parsed("image=scale_rows_sm_90_0");
  CHECK_EQ(toy::scale(p, {}), Error::not_supported);
  CHECK_EQ(last_error_message(),
           std::string("scale: hint image=scale_rows_sm_90_0: this build has no such image of its kernels for sm_90"));
}

TEST("calls that differ in their hints alone are told apart, also where the struct is the same one") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call(kHopper);
  const auto entry = [&] {
    recording.launches.clear();
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    return recording.launches.at(0).entry;
  };
  hints own = parsed("backend=portable");
  for (int round = 0; round < 2; ++round) {
    p.hints = nullptr;
    CHECK_EQ(entry(), "attn_fwd_hopper");
    p.hints = &own;
    own = parsed("backend=portable");
    CHECK_EQ(entry(), "attn_fwd");
    own = parsed("backend=hopper");
    CHECK_EQ(entry(), "attn_fwd_hopper");
    own = parsed("backend=portable unknown");
    CHECK_EQ(entry(), "attn_fwd");
  }
  own = parsed("backend=none");
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  const int before = recording.calls;
  own = parsed("backend=portable");
  CHECK_EQ(entry(), "attn_fwd");
  CHECK_EQ(recording.calls - before, 2);  // it is known: where the stream is, and the launch
}

TEST("a prepared call keeps its hints, and a preloaded one has what they choose") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call(kHopper);
  {
    const hints own = parsed("backend=portable");
    p.hints = &own;
    CHECK_EQ(preload(p, {}), Error::success);
    CHECK_EQ(recording.loads.size(), 1u);
    PreparedCall prepared;
    CHECK_EQ(prepare(p, {}, &prepared), Error::success);
    CHECK_EQ(prepared.launch({p.q.data, p.k.data, p.v.data, p.out.data, p.logsumexp.data, nullptr}, {}),
             Error::success);
  }
  CHECK_EQ(recording.loads.size(), 1u);
  CHECK_EQ(recording.launches.at(0).entry, "attn_fwd");
}

TEST("deterministic is the scalar of this name, and honoured where there is none to ask for") {
  const Sizes sums = {.head_dim = 128};
  CHECK_EQ(backward("", sums), "attn_bwd_hopper_finish");
  CHECK_EQ(backward("deterministic", sums), "attn_bwd_dq");
  CHECK_EQ(backward("deterministic=0", sums), "attn_bwd_hopper_finish");
  start("cuda");
  const hints own = parsed("deterministic");
  HintOutcomes outcomes;
  attn_bwd_params b = bwd_call(sums);
  b.hints = &own;
  CHECK_EQ(hint_outcomes(b, {}, &outcomes), Error::success);
  CHECK(outcome_of(outcomes.list, outcomes.count, "deterministic").honoured);
  attn_fwd_params f = fwd_call();
  f.hints = &own;
  CHECK_EQ(hint_outcomes(f, {}, &outcomes), Error::success);
  const Outcome forward = outcome_of(outcomes.list, outcomes.count, "deterministic");
  CHECK(forward.honoured);
  CHECK_EQ(forward.why, "no kernel of the operator is described as adding in an order that varies");
}

TEST("batch_invariant leaves one backend of the forward, whatever the sizes, and calls without it have the others") {
  const Sizes many = kHopper, few = {.seqlen_q = 1, .head_dim = 64};
  for (const Sizes& sizes : {many, few}) {
    const std::string before = forward("", sizes);
    CHECK(before != "attn_fwd_invariant");
    CHECK_EQ(forward("batch_invariant", sizes), "attn_fwd_invariant");
    CHECK_EQ(forward("", sizes), before);
  }
  const std::string message = refused("batch_invariant backend=portable");
  CHECK_CONTAINS(message, "the hint batch_invariant is for fp16 and bf16");
  start("cuda");
  const hints own = parsed("batch_invariant");
  HintOutcomes outcomes;
  attn_fwd_params f = fwd_call();
  f.hints = &own;
  CHECK_EQ(hint_outcomes(f, {}, &outcomes), Error::success);
  CHECK(outcome_of(outcomes.list, outcomes.count, "batch_invariant").honoured);
  attn_bwd_params b = bwd_call();
  b.hints = &own;
  CHECK_EQ(hint_outcomes(b, {}, &outcomes), Error::success);
  const Outcome backward = outcome_of(outcomes.list, outcomes.count, "batch_invariant");
  CHECK(!backward.honoured);
  CHECK_EQ(backward.why, "no kernel of the operator is described as such");
}

TEST("a limit leaves the backends whose workspace keeps it, and their size is what is asked for") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call({.batch = 1, .head_dim = 128});
  const size_t delta = 4 * 100 * 4, both = (delta + 255) / 256 * 256 + 4 * 128 * 128 * 4;
  const struct {
    size_t limit, needed;
    bool honoured;
  } cases[] = {{both, both, true}, {both - 1, delta, true}, {delta, delta, true}, {delta - 1, delta, false}};
  for (const auto& [limit, needed, honoured] : cases) {
    const hints own = parsed(("workspace_limit=" + std::to_string(limit)).c_str());
    p.hints = &own;
    size_t bytes = 0;
    CHECK_EQ(attn_bwd_workspace_size(p, {}, &bytes), Error::success);
    CHECK_EQ(bytes, needed);
    p.workspace_size = needed;
    recording.launches.clear();
    CHECK_EQ(attn_bwd(p, {}), Error::success);
    CHECK_EQ(recording.launches.back().entry, needed == both ? "attn_bwd_hopper_finish" : "attn_bwd_dq");
    HintOutcomes outcomes;
    CHECK_EQ(hint_outcomes(p, {}, &outcomes), Error::success);
    const Outcome told = outcome_of(outcomes.list, outcomes.count, "workspace_limit");
    CHECK_EQ(told.honoured, honoured);
    CHECK_EQ(told.why, honoured ? "" : "every way that serves the call needs more; this one needs the least");
  }
}

TEST("a limit chooses among images of a backend whose workspace follows from their tunables") {
  const toy::scale_params p = scale_call(true);
  const std::string predicted = explained(p, "backend=split").kernels[1].image;
  const std::string others = "backend=split exclude=" + predicted;
  CHECK_EQ(explained(p, others.c_str()).kernels[1].tunables, std::string("BLOCK_M=64 MOST_SPLITS=16"));
  const Explanation fewer = explained(p, (others + " workspace_limit=" + std::to_string(15 * 32 * 4)).c_str());
  CHECK_EQ(fewer.kernels[1].tunables, std::string("BLOCK_M=32 MOST_SPLITS=4"));
  CHECK(outcome_of(fewer, "workspace_limit").honoured);
  const Explanation none = explained(scale_call(true, true, 64), "workspace_limit=0");
  CHECK_EQ(none.kernels[0].backend, std::string("portable"));
  CHECK(outcome_of(none, "workspace_limit").honoured);
  CHECK(!outcome_of(explained(p, "backend=split workspace_limit=0"), "workspace_limit").honoured);
}

TEST("a schedule chooses an image that has it by its tunable") {
  const Explanation breadth = explained(scale_call(true, true, 64), "backend=portable schedule=bfs");
  CHECK_EQ(breadth.kernels[0].tunables, std::string("BLOCK_M=128 UNROLL=2"));
  CHECK(outcome_of(breadth, "schedule").honoured);
  const Explanation depth = explained(scale_call(true, true, 64), "backend=portable schedule=dfs");
  CHECK_EQ(depth.kernels[0].tunables, std::string("BLOCK_M=32 UNROLL=1"));
  CHECK(outcome_of(depth, "schedule").honoured);
  CHECK(!outcome_of(explained(scale_call(true, true, 64), "schedule=auto"), "schedule").told);
}

TEST("a schedule that no image has, or that nobody described, is not honoured, with the reason") {
  const Outcome missing = outcome_of(explained(scale_call(true, true, 64), "schedule=bfs", "gfx942"), "schedule");
  CHECK(missing.told && !missing.honoured);
  CHECK_EQ(missing.why, "this build has no image in this order that serves the call");
  const Outcome silent = outcome_of(explained(scale_call(true, true, 64), "backend=split schedule=dfs"), "schedule");
  CHECK(silent.told && !silent.honoured);
}

TEST("attention goes through its heads depth first, but for causal groups of the hopper forward") {
  start("cuda");
  for (const bool causal : {false, true}) {
    for (const char* text : {"schedule=dfs backend=hopper", "schedule=bfs backend=hopper"}) {
      attn_fwd_params p = fwd_call({.seqlen_q = 4096, .seqlen_k = 4096, .head_dim = 256});
      p.causal = causal;
      const hints own = parsed(text);
      p.hints = &own;
      Explanation made;
      CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
      const bool grouped = std::string(made.kernels[0].tunables).find("GROUP_ROUNDS=0") == std::string::npos;
      const bool asked_breadth = own.schedule == AOTRITON_BFS;
      CHECK_EQ(outcome_of(made, "schedule").honoured, causal || !asked_breadth);
      if (causal) CHECK_EQ(grouped, asked_breadth);
    }
  }
}

TEST("without hints nothing is told; with some, explain and a call of one device tell the same") {
  start("cuda");
  attn_bwd_params p = bwd_call({.head_dim = 128});
  Explanation made;
  CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
  CHECK_EQ(made.kernels[0].hint_count, 0);
  const hints own = parsed("tile=3 latency deterministic schedule=bfs exclude=nothing colour");
  p.hints = &own;
  HintOutcomes outcomes;
  CHECK_EQ(hint_outcomes(p, {}, &outcomes), Error::success);
  CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
  CHECK_EQ(outcomes.count, 6u);
  for (size_t kernel = 0; kernel < made.kernel_count; ++kernel) {
    CHECK_EQ(made.kernels[kernel].hint_count, 6);
    for (size_t i = 0; i < outcomes.count; ++i) {
      CHECK_EQ(std::string(made.kernels[kernel].hints[i].name), outcomes.list[i].name);
      CHECK_EQ(made.kernels[kernel].hints[i].honoured, outcomes.list[i].honoured);
      CHECK_EQ(std::string(made.kernels[kernel].hints[i].why), outcomes.list[i].why);
    }
  }
  char line[1024];
  format_line(made.kernels[0], line, sizeof line);
  CHECK_CONTAINS(line, "; hint latency honoured; hint tile not honoured; hint colour not honoured");
  CHECK(outcome_of(made, "latency").honoured);
  CHECK(!outcome_of(made, "schedule").honoured);
  for (const char* name : {"tile", "colour"}) {
    CHECK(outcome_of(made, name).told && !outcome_of(made, name).honoured);
    CHECK_EQ(outcome_of(made, name).why, "there is no hint of this name");
  }
}

TEST("outcomes need room, and names that are unknown are left out where there is none") {
  start("cuda");
  attn_fwd_params p = fwd_call();
  hints own = parsed("latency deterministic");
  p.hints = &own;
  aotriton_hint_outcome list[AOTRITON_MOST_OUTCOMES];
  size_t count = 1;
  CHECK_EQ(aotriton_attn_fwd_hint_outcomes(&p, nullptr, list, &count), AOTRITON_INVALID_ARGUMENT);
  CHECK_EQ(last_error_message(), std::string("attn_fwd_hint_outcomes: room for 1, 2 are needed"));
  CHECK_EQ(count, 0u);
  CHECK_EQ(aotriton_attn_fwd_hint_outcomes(&p, nullptr, nullptr, &count), AOTRITON_NULL_POINTER);
  CHECK_EQ(aotriton_attn_fwd_hint_outcomes(&p, nullptr, list, nullptr), AOTRITON_NULL_POINTER);
  own = parsed("a b c d e f g h i j k l m n latency a_name_of_more_than_thirty_one_letters");
  count = AOTRITON_MOST_OUTCOMES;
  CHECK_EQ(aotriton_attn_fwd_hint_outcomes(&p, nullptr, list, &count), AOTRITON_SUCCESS);
  CHECK_EQ(count, size_t{AOTRITON_MOST_OUTCOMES});
  CHECK_EQ(list[0].name, std::string("latency"));
  CHECK_EQ(list[11].name, std::string("k"));
  own = parsed("a_name_of_more_than_thirty_one_letters");
  CHECK_EQ(aotriton_attn_fwd_hint_outcomes(&p, nullptr, list, &count), AOTRITON_SUCCESS);
  CHECK_EQ(list[0].name, std::string("a_name_of_more_than_thirty_one_"));
}

TEST("what a call brings counts for its outcomes: one without a workspace cannot have a backend that needs it") {
  start("cuda");
  toy::scale_params p = scale_call(true, true, 64);
  const hints own = parsed("exclude=portable,fast");
  p.hints = &own;
  HintOutcomes outcomes;
  CHECK_EQ(toy::hint_outcomes(p, {}, &outcomes), Error::success);
  p.workspace = nullptr;
  CHECK_EQ(toy::hint_outcomes(p, {}, &outcomes), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "; split: it needs a workspace, and the call brings none");
  CHECK_EQ(toy::preload(p, {}), Error::success);  // a workspace may come yet
}

namespace {

// A backward of one key head and many batches, so that what a batch needs is a multiple of 256 bytes.
constexpr Sizes kBatches = {.batch = 8, .heads = 2, .heads_k = 1, .seqlen_q = 128, .seqlen_k = 128, .head_dim = 128};
constexpr size_t kDelta = 2 * 128 * 4, kSum = kDelta * 128;  // bytes of a batch

attn_bwd_params limited(const hints& own, const Sizes& s = kBatches) {
  attn_bwd_params p = bwd_call(s);
  p.hints = &own;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &p.workspace_size), Error::success);
  return p;
}

hints limit_of(size_t bytes, const char* more = "") {
  return parsed(("workspace_limit=" + std::to_string(bytes) + " " + more).c_str());
}

// Where the launches of the backward's last kernel, which writes dq, write to.
std::vector<uintptr_t> written_dq(const Recording& recording) {
  std::vector<uintptr_t> found;
  for (const RecordedLaunch& launch : recording.launches)
    if (launch.entry == "attn_bwd_hopper_finish")
      found.push_back(reinterpret_cast<uintptr_t>(launch.argument<void*>(1)));
  return found;
}

}  // namespace

TEST("a backend whose workspace is too large runs in chunks of the batch that keep the limit, one after the other") {
  Recording& recording = start("cuda");
  for (const auto& [limit, size] : {std::pair{8, 8}, {7, 4}, {4, 4}, {3, 2}, {1, 1}}) {
    const hints own = limit_of(static_cast<size_t>(limit) * (kDelta + kSum), "backend=hopper_pair");
    attn_bwd_params p = limited(own);
    CHECK_EQ(p.workspace_size, static_cast<size_t>(size) * (kDelta + kSum));
    for (const uintptr_t moved : {0, 1 << 20}) {  // the second call is one that is known
      recording.launches.clear();
      p.dq.data = pointer(address_of(7) + moved);
      CHECK_EQ(attn_bwd(p, {}), Error::success);
      CHECK_EQ(recording.launches.size(), size_t{3} * 8 / static_cast<size_t>(size));
      std::vector<uintptr_t> wanted;
      for (int64_t batch = 0; batch < 8; batch += size)
        wanted.push_back(address_of(7) + moved + static_cast<uintptr_t>(batch * p.dq.strides[0] * 2));
      CHECK(written_dq(recording) == wanted);
    }
    Explanation made;
    CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
    CHECK_EQ(made.kernels[0].pieces, 8 / size);
    CHECK(outcome_of(made, "workspace_limit").honoured);
    CHECK_EQ(outcome_of(made, "workspace_limit").why,
             size < 8 ? "the call is made in chunks, one after the other" : "");
  }
}

TEST("each chunk is the call that its part of the tensors would make, also a last one that is smaller") {
  Recording& recording = start("cuda");
  Sizes s = kBatches;
  s.batch = 7;
  const hints own = limit_of(2 * (kDelta + kSum), "backend=hopper_pair");
  attn_bwd_params p = limited(own, s);
  p.q.strides[0] *= 3;  // a batch that is part of something larger
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  const std::vector<RecordedLaunch> chunks = recording.launches;
  recording.launches.clear();
  const hints forced = parsed("backend=hopper_pair");
  for (int64_t begin = 0; begin < 7; begin += 2) {
    attn_bwd_params part = p;
    part.hints = &forced;
    for (aotriton_tensor4* t : {&part.q, &part.k, &part.v, &part.out, &part.dout, &part.dq, &part.dk, &part.dv}) {
      t->data = static_cast<char*>(t->data) + begin * t->strides[0] * 2;
      t->sizes[0] = std::min<int64_t>(2, 7 - begin);
    }
    part.logsumexp.data = static_cast<char*>(part.logsumexp.data) + begin * part.logsumexp.strides[0] * 4;
    part.logsumexp.sizes[0] = part.q.sizes[0];
    CHECK_EQ(attn_bwd(part, {}), Error::success);
  }
  CHECK_EQ(chunks.size(), 12u);
  CHECK_EQ(recording.launches.size(), 12u);
  for (size_t i = 0; i < chunks.size() && i < recording.launches.size(); ++i) {
    CHECK_EQ(chunks[i].head, recording.launches[i].head);
    CHECK_EQ(chunks[i].grid[0], recording.launches[i].grid[0]);
    CHECK(chunks[i].arguments == recording.launches[i].arguments);
  }
}

TEST("chunks that would lie otherwise than the first one, or that no limit asks for, are not made") {
  start("cuda");
  const hints own = limit_of(kDelta + kSum, "backend=hopper_pair");
  attn_bwd_params p = bwd_call(kBatches);
  p.hints = &own;
  p.q.strides[0] += 4;  // 8 bytes: general addressing, which hopper has not
  CHECK_EQ(attn_bwd(p, {}), Error::not_supported);
  p = bwd_call(kBatches);
  p.logsumexp.strides[0] = p.logsumexp.sizes[1] * p.logsumexp.sizes[2];
  Explanation made;
  CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
  CHECK_EQ(made.kernels[0].pieces, 1);
  const hints roomy = limit_of(8 * (kDelta + kSum));
  p.hints = &roomy;
  CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
  CHECK_EQ(made.kernels[0].pieces, 1);

  Sizes odd = kBatches;  // rows of logsumexp that end within 16 bytes
  odd.seqlen_q = 127, odd.heads = 1;
  const hints tight = limit_of(127 * 4 + 128 * 128 * 4 + 256, "backend=hopper_pair");
  p = bwd_call(odd);
  p.hints = &tight;
  CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
  CHECK_EQ(made.kernels[0].pieces, 1);
  CHECK(!outcome_of(made, "workspace_limit").honoured);
}

TEST("a call with features is not made in chunks, whatever the limit of its workspace") {
  start("cuda");
  const hints own = limit_of(4 * kDelta, "backend=portable");
  const struct {
    std::function<void(attn_bwd_params&)> ask;
    int pieces;
  } cases[] = {
      {[](attn_bwd_params&) {}, 2},
      {[](attn_bwd_params& p) { p.features.windowed = 1; }, 2},  // a band of one key is no feature
      {[](attn_bwd_params& p) { p.features.softcap = 30; }, 1},
      {[](attn_bwd_params& p) { p.features.sinks = Tensor<1>{pointer(address_of(11)), DType::float32, {2}, {1}}; }, 1}};
  for (const auto& [ask, pieces] : cases) {
    attn_bwd_params p = bwd_call(kBatches);
    ask(p);
    p.hints = &own;
    size_t bytes = 0;
    CHECK_EQ(attn_bwd_workspace_size(p, {}, &bytes), Error::success);
    CHECK_EQ(bytes, static_cast<size_t>(8 / pieces) * kDelta);
    Explanation made;
    CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
    CHECK_EQ(made.kernels[0].pieces, pieces);
    CHECK_EQ(outcome_of(made, "workspace_limit").honoured, pieces > 1);
  }
}

TEST("where another backend keeps the limit, chunks are made only if they are predicted to be faster") {
  start("cuda");
  const hints own = limit_of(4 * (kDelta + kSum));
  const attn_bwd_params p = limited(own);
  Explanation made;
  CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
  CHECK_EQ(made.kernels[0].predicted_total_us, 0.0f);
  CHECK_EQ(made.kernels[0].pieces, 1);  // nothing is predicted here
  CHECK_EQ(made.kernels[0].backend, std::string("portable"));
  CHECK(outcome_of(made, "workspace_limit").honoured);
}

TEST("a call in chunks is refused as a whole, and launches nothing then") {
  Recording& recording = start("cuda");
  const hints own = limit_of(2 * (kDelta + kSum), "backend=hopper_pair");
  const attn_bwd_params right = limited(own);
  const struct {
    std::function<void(attn_bwd_params&)> spoil;
    const char* message;
  } cases[] = {
      {[](attn_bwd_params& p) { p.dk.data = static_cast<char*>(p.dv.data) + 7 * p.dv.strides[0] * 2; },
       "attn_bwd: dk and dv are written, but overlap"},
      {[](attn_bwd_params& p) { p.workspace = static_cast<char*>(p.dq.data) + 7 * p.dq.strides[0] * 2; },
       "attn_bwd: workspace and dq overlap"},
      {[](attn_bwd_params& p) { p.workspace_size -= 1; }, "bytes, 264192 are needed"},
      {[](attn_bwd_params& p) { p.workspace = nullptr; }, "attn_bwd: workspace is null"},
  };
  for (const bool known : {false, true}) {
    for (const auto& [spoil, message] : cases) {
      add_context(recording, kContext);
      if (known) CHECK_EQ(attn_bwd(right, {}), Error::success);
      recording.launches.clear();
      attn_bwd_params p = right;
      spoil(p);
      CHECK(attn_bwd(p, {}) != Error::success);
      CHECK_CONTAINS(last_error_message(), message);
      CHECK(recording.launches.empty());
    }
  }
}

TEST("a prepared call in chunks is launched again with other pointers, and preload loads what it needs") {
  Recording& recording = start("cuda");
  Sizes s = kBatches;
  s.batch = 3;
  const hints own = limit_of(2 * (kDelta + kSum), "backend=hopper_pair");
  attn_bwd_params p = limited(own, s);
  CHECK_EQ(preload(p, {}), Error::success);
  const size_t loaded = recording.loads.size();
  PreparedCall prepared;
  CHECK_EQ(prepare(p, {}, &prepared), Error::success);
  CHECK_EQ(recording.loads.size(), loaded);
  CHECK(recording.launches.empty());
  const uintptr_t dq = address_of(12);
  CHECK_EQ(prepared.launch({p.q.data, p.k.data, p.v.data, p.out.data, p.dout.data, p.logsumexp.data, pointer(dq),
                            p.dk.data, p.dv.data, p.workspace},
                           {}),
           Error::success);
  CHECK_EQ(recording.launches.size(), 6u);
  const std::vector<uintptr_t> wanted = {dq, dq + static_cast<uintptr_t>(2 * p.dq.strides[0] * 2)};
  CHECK(written_dq(recording) == wanted);
}

TEST("operands that are not cut are those of every chunk, and chunks of a result by columns are its own") {
  Recording& recording = start("cuda");
  gemm_params p;
  p.a = Tensor<3>(pointer(address_of(1)), DType::bfloat16, {8, 16, 4096}, {65536, 4096, 1});
  p.b = Tensor<3>(pointer(address_of(2)), DType::bfloat16, {8, 4096, 16}, {131072, 1, 4096});
  p.d = Tensor<3>(pointer(address_of(3)), DType::bfloat16, {8, 16, 16}, {512, 1, 16});
  p.bias = Tensor<1>(pointer(address_of(4)), DType::bfloat16, {16}, {1});
  p.workspace = pointer(address_of(5));
  // The largest power of two that takes two chunks.
  hints own;
  Explanation made = {};
  p.hints = &own;
  for (size_t limit = size_t{1} << 30; made.kernels[0].pieces < 2 && limit; limit /= 2) {
    own = limit_of(limit, "backend=hopper_split");
    CHECK_EQ(explain(p, "sm_90", 0, &made), Error::success);
  }
  CHECK_EQ(made.kernels[0].pieces, 2);
  CHECK_EQ(gemm_workspace_size(p, {}, &p.workspace_size), Error::success);
  CHECK(p.workspace_size <= own.workspace_limit);
  CHECK_EQ(gemm(p, {}), Error::success);
  const std::vector<RecordedLaunch> chunks = recording.launches;
  recording.launches.clear();
  for (const int64_t begin : {0, 4}) {
    gemm_params part = p;
    for (aotriton_tensor3* t : {&part.a, &part.b, &part.d}) {
      t->data = static_cast<char*>(t->data) + begin * t->strides[0] * 2;
      t->sizes[0] = 4;
    }
    CHECK_EQ(gemm(part, {}), Error::success);
  }
  CHECK_EQ(chunks.size(), 4u);
  CHECK_EQ(recording.launches.size(), 4u);
  for (size_t i = 0; i < chunks.size() && i < recording.launches.size(); ++i) {
    CHECK_EQ(chunks[i].head, recording.launches[i].head);
    CHECK(chunks[i].arguments == recording.launches[i].arguments);
  }
}
