// Tables, tuning keys, explanations and the log line.
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "calls.h"
#include "dispatch/explain.h"
#include "dispatch/log.h"
#include "launch/request.h"

using namespace aotriton::v2;

namespace {

Explanation explained(const Sizes& sizes, const char* arch = "sm_90", int multiprocessors = 0) {
  Explanation explanation;
  attn_fwd_params p = fwd_call(sizes);
  p.out.data = nullptr;  // nothing has room for the largest
  CHECK_EQ(explain(p, arch, multiprocessors, &explanation), Error::success);
  CHECK_EQ(explanation.kernel_count, 1u);
  return explanation;
}

int count(const std::string& text, const char* part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST("a value falls in the first bin whose representative is not smaller; the last bin is open") {
  constexpr int32_t bins[] = {64, 512, 2048};
  CHECK_EQ(Lut::bin_of(bins, 1), 0u);
  CHECK_EQ(Lut::bin_of(bins, 64), 0u);
  CHECK_EQ(Lut::bin_of(bins, 65), 1u);
  CHECK_EQ(Lut::bin_of(bins, 512), 1u);
  CHECK_EQ(Lut::bin_of(bins, 513), 2u);
  CHECK_EQ(Lut::bin_of(bins, int64_t{1} << 40), 2u);
}

TEST("a table with an index, a bin, an entry or an origin out of order is not valid") {
  static constexpr int32_t bins[] = {1, 2}, falling[] = {2, 1};
  static constexpr std::span<const int32_t> axes[] = {bins}, falling_axes[] = {falling};
  static constexpr uint8_t index[] = {0, 0}, beyond[] = {0, 1}, longer[] = {0, 0, 0};
  static constexpr Entry entries[] = {{nullptr, {}, "", ""}};
  static constexpr Origin origins[1] = {};
  static constexpr uint16_t origin_of[] = {0, 0}, no_origin[] = {0, 1};
  const auto valid = [](std::span<const std::span<const int32_t>> bins, std::span<const uint8_t> entries_of_cells,
                        std::span<const uint16_t> origins_of_cells) {
    const ProductTable products[] = {{index, origin_of, origins, {}},
                                     {entries_of_cells, origins_of_cells, origins, {}}};
    return Lut{"", bins, entries, products}.valid();
  };
  CHECK(valid(axes, index, origin_of));
  CHECK(!valid(falling_axes, index, origin_of));
  CHECK(!valid(axes, beyond, origin_of));
  CHECK(!valid(axes, longer, origin_of));
  CHECK(!valid(axes, index, std::span(origin_of).first(1)));
  CHECK(!valid(axes, index, no_origin));
  CHECK(!(Lut{"", axes, entries, {}}.valid()));
}

TEST("waves counts tiles of 128 rows against multiprocessors, rounded up") {
  const auto waves = [](int64_t batch, int64_t heads, int64_t seqlen, int multiprocessors) {
    const Sizes sizes = {.batch = batch, .heads = heads, .heads_k = heads, .seqlen_q = seqlen, .seqlen_k = seqlen};
    return explained(sizes, "sm_90", multiprocessors).kernels[0].keys[2].value;
  };
  CHECK_EQ(waves(1, 1, 1, 132), 1);
  CHECK_EQ(waves(1, 132, 128, 132), 1);
  CHECK_EQ(waves(1, 132, 129, 132), 2);
  CHECK_EQ(waves(2, 67, 100, 132), 2);
  CHECK_EQ(waves(1 << 5, 1 << 5, 1 << 24, 1), int64_t{1} << 27);
}

TEST("every head dim from 8 to 512 is padded to the next of 32, 64, 128, 256, 512") {
  for (int64_t d = 8; d <= 512; d += 8) {
    Explanation explanation;
    const Error error = explain(fwd_call({.head_dim = d}), "gfx942", 0, &explanation);
    CHECK_EQ(error, d <= 32 ? Error::no_winner : Error::success);  // 32 is not in this build
    const std::string padded = d <= 32 ? "32" : d <= 64 ? "64" : d <= 128 ? "128" : d <= 256 ? "256" : "512";
    CHECK_CONTAINS(d <= 32 ? last_error_message() : explanation.kernels[0].functional, " BLOCK_DMODEL=" + padded + " ");
  }
}

TEST("explain says which bin, image and origin a call has, on both sides of every edge") {
  const Sizes below = {.batch = 1, .heads = 67, .heads_k = 67, .seqlen_q = 65, .seqlen_k = 65};
  const KernelChoice one_wave = explained(below).kernels[0];
  CHECK_EQ(one_wave.kernel, std::string("attn_fwd"));
  CHECK_EQ(one_wave.arch, std::string("sm_90"));
  CHECK_EQ(one_wave.functional, std::string("T=bf16 BLOCK_DMODEL=64 CAUSAL=False ADDRESSING=descriptor"));
  CHECK_EQ(one_wave.godel_number, 38);
  CHECK_EQ(one_wave.key_count, 3);
  CHECK_EQ(one_wave.keys[0].name, std::string("max_seqlen_q"));
  CHECK_EQ(one_wave.keys[0].value, 65);
  CHECK_EQ(one_wave.keys[0].representative, 512);
  CHECK_EQ(one_wave.keys[2].value, 1);
  CHECK_EQ(one_wave.tunables, std::string("BLOCK_M=64 BLOCK_N=32 BF16_PRODUCTS=0"));
  CHECK_EQ(one_wave.compile_options, std::string("num_warps=4 num_stages=2"));
  CHECK_EQ(one_wave.provenance, static_cast<int32_t>(Provenance::measured));
  CHECK_EQ(one_wave.source, std::string());
  CHECK_EQ(one_wave.median_us, 10.0f);
  CHECK_EQ(one_wave.runner_up_count, 1);
  CHECK_EQ(one_wave.runners_up[0].config, std::string("BLOCK_M=128 BLOCK_N=128 num_warps=8 num_stages=4"));
  CHECK_EQ(one_wave.runners_up[0].median_us, 11.5f);

  const KernelChoice two_waves = explained(below, "sm_90", 66).kernels[0];
  CHECK_EQ(two_waves.keys[2].value, 2);
  CHECK_EQ(two_waves.keys[2].representative, 8);
  CHECK_EQ(two_waves.tunables, std::string("BLOCK_M=128 BLOCK_N=128 BF16_PRODUCTS=0"));
  CHECK(strcmp(two_waves.image, one_wave.image));

  Sizes edge = below;
  edge.seqlen_q = 64;
  CHECK_EQ(explained(edge, "sm_90", 66).kernels[0].image, std::string(one_wave.image));
}

TEST("explain says where a winner that was not measured comes from") {
  attn_fwd_params p = fwd_call();
  for (aotriton_tensor4* t : {&p.q, &p.k, &p.v, &p.out}) t->dtype = AOTRITON_FLOAT16;
  Explanation explanation;
  CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernels[0].provenance, static_cast<int32_t>(Provenance::borrowed));
  CHECK_EQ(explanation.kernels[0].source, std::string("T=bf16 in the same bin"));
  CHECK_EQ(explanation.kernels[0].median_us, 0.0f);
  const KernelChoice predicted = explained({}, "gfx942").kernels[0];
  CHECK_EQ(provenance_name(static_cast<Provenance>(predicted.provenance)), std::string("predicted"));
  CHECK_EQ(predicted.source, std::string("static model"));
}

TEST("explain of attn_bwd lists the kernels in launch order, and k's heads fill the GPU of dk_dv") {
  Explanation explanation;
  const attn_bwd_params p = bwd_call({.batch = 1, .heads = 200, .heads_k = 100, .seqlen_q = 128, .seqlen_k = 128});
  CHECK_EQ(explain(p, "gfx942", 150, &explanation), Error::success);
  CHECK_EQ(explanation.kernel_count, 3u);
  CHECK_EQ(explanation.kernels[0].kernel, std::string("attn_bwd_preprocess"));
  CHECK_EQ(explanation.kernels[1].kernel, std::string("attn_bwd_dk_dv"));
  CHECK_EQ(explanation.kernels[1].keys[2].value, 1);
  CHECK_EQ(explanation.kernels[2].kernel, std::string("attn_bwd_dq"));
  CHECK_EQ(explanation.kernels[2].keys[2].value, 2);
}

TEST("explain runs what the call of the same sizes launches") {
  for (const char* vendor : {"cuda", "hip"}) {
    for (const int64_t heads : {1, 64, 512}) {
      const Sizes sizes = {.batch = 1, .heads = heads, .heads_k = 1, .seqlen_q = 300, .seqlen_k = 300};
      Recording& recording = start(vendor);
      CHECK_EQ(attn_fwd(fwd_call(sizes), {}), Error::success);
      const char* const arch = vendor[0] == 'c' ? "sm_90" : "gfx942";
      CHECK_EQ(explained(sizes, arch).kernels[0].image, image_of(recording.launches.at(0), arch));
    }
  }
}

TEST("explain needs neither a driver nor data, and says what is wrong") {
  Explanation explanation;
  attn_fwd_params p = fwd_call();
  p.q.data = p.k.data = p.v.data = p.out.data = p.logsumexp.data = nullptr;
  CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explain(p, "sm_80", 0, &explanation), Error::unknown_arch);
  CHECK_CONTAINS(last_error_message(), "explain: unknown arch sm_80: choose from sm_90, gfx942");
  CHECK_EQ(explain(p, nullptr, 0, &explanation), Error::null_pointer);
  CHECK_EQ(explain(p, "sm_90", -1, &explanation), Error::invalid_argument);
  CHECK_EQ(explain(p, "sm_90", 0, nullptr), Error::null_pointer);
}

TEST("a request by names is the call on contiguous tensors of these sizes") {
  constexpr Named values[] = {{"batch", 2},      {"heads", 4},     {"heads_k", 2}, {"seqlen", 70},
                              {"seqlen_q", 100}, {"head_dim", 64}, {"causal", 0}};
  Explanation explanation;
  CHECK_EQ(explain({.op = "attn_fwd", .arch = "sm_90", .dtype = "bf16", .values = values}, &explanation),
           Error::success);
  CHECK_EQ(explanation.kernel_count, 1u);
  CHECK_EQ(explanation.kernels[0].image, std::string(explained({}).kernels[0].image));
  CHECK_EQ(explanation.kernels[0].keys[0].value, 100);
  CHECK_EQ(explanation.kernels[0].keys[1].value, 70);
}

TEST("a request leaves out sizes that only optional operands have, and with them these operands") {
  constexpr Named values[] = {{"batch", 2}, {"heads", 4}, {"seqlen", 70}, {"head_dim", 64}, {"causal", 0}};
  for (const char* op : {"attn_fwd", "attn_bwd"}) {
    Explanation plain, named;
    CHECK_EQ(explain({.op = op, .arch = "sm_90", .dtype = "bf16", .values = values}, &plain), Error::success);
    std::vector<Named> more(std::begin(values), std::end(values));
    for (const char* size : {"starts", "sequences", "one"}) {
      more.push_back({size, 1});
      CHECK_EQ(explain({.op = op, .arch = "sm_90", .dtype = "bf16", .values = more}, &named), Error::success);
      CHECK_EQ(named.kernel_count, plain.kernel_count);
      CHECK_EQ(named.kernels[0].functional, std::string(plain.kernels[0].functional));
    }
    more.back().value = 0.5;
    CHECK_EQ(explain({.op = op, .arch = "sm_90", .dtype = "bf16", .values = more}, &named), Error::invalid_argument);
    CHECK_CONTAINS(last_error_message(), "explain: one is 0.5");
  }
}

TEST("a request that names what is not there, or lacks a size, is invalid_argument and says which") {
  const auto refusal = [](const char* op, const char* dtype, std::initializer_list<Named> values) -> std::string {
    Explanation explanation;
    const std::span<const Named> given(values.begin(), values.size());
    CHECK_EQ(explain({.op = op, .arch = "sm_90", .dtype = dtype, .values = given}, &explanation),
             Error::invalid_argument);
    return last_error_message();
  };
  const Named batch = {"batch", 1}, heads = {"heads", 1}, seqlen = {"seqlen", 64}, head_dim = {"head_dim", 64};
  CHECK_CONTAINS(refusal("attn", "bf16", {}), "explain: unknown op attn: choose from attn_fwd, attn_bwd");
  CHECK_CONTAINS(refusal("attn_fwd", "fp8", {}), "explain: unknown dtype fp8: choose from fp16, bf16, fp32");
  CHECK_CONTAINS(refusal("attn_fwd", "bf16", {batch, {"rows", 3}}), "explain: attn_fwd has no rows");
  CHECK_CONTAINS(refusal("attn_fwd", "bf16", {batch, heads, seqlen}), "explain: head_dim of attn_fwd is missing");
  CHECK_CONTAINS(refusal("attn_fwd", "bf16", {{"batch", 0.5}, heads, seqlen, head_dim}), "explain: batch is 0.5");
  CHECK_CONTAINS(refusal("attn_fwd", "bf16", {{"batch", -1}, heads, seqlen, head_dim}), "explain: batch is -1");
  CHECK_CONTAINS(refusal("attn_fwd", "bf16", {{"batch", 1e30}, heads, seqlen, head_dim}), "explain: batch is 1e+30");
  CHECK_CONTAINS(refusal("attn_fwd", "bf16", {batch, heads, seqlen, head_dim, {"transposed_q", 1}}),
                 "explain: attn_fwd has no transposed_q");  // its columns are contiguous
  CHECK_CONTAINS(refusal("gemm", "bf16", {batch, {"transposed_bias", 1}}), "explain: gemm has no transposed_bias");
  CHECK_CONTAINS(refusal("scale", "bf16", {batch, heads, {"rows", 9}, {"width", 64}, {"taps", 2}, {"times", 1e30}}),
                 "explain: times is 1e+30, which must be a whole number of 32 bits");
}

TEST("explain names what is padded, and says how the problem that was measured compares with the call") {
  const Sizes alike = {.batch = 1, .heads = 1, .heads_k = 1, .seqlen_q = 64, .seqlen_k = 512};
  CHECK_EQ(explained(alike).kernels[0].padding_count, 0);
  CHECK_EQ(measured_name(measured_at(explained(alike).kernels[0])), std::string("alike"));
  Sizes padded = alike;
  padded.head_dim = 40;
  const KernelChoice choice = explained(padded).kernels[0];
  CHECK_EQ(choice.padding_count, 1);
  CHECK_EQ(choice.paddings[0].choice, std::string("BLOCK_DMODEL"));
  CHECK_EQ(choice.paddings[0].value, 40);
  CHECK_EQ(choice.paddings[0].padded, 64);
  CHECK_EQ(choice.image, std::string(explained(alike).kernels[0].image));
  CHECK(measured_at(choice) == Measured::larger);
  Sizes other = alike;
  other.seqlen_k = 511;
  CHECK(measured_at(explained(other).kernels[0]) == Measured::larger);
  other.seqlen_k = 100000;
  CHECK(measured_at(explained(other).kernels[0]) == Measured::smaller);
  other.seqlen_q = 63;
  CHECK(measured_at(explained(other).kernels[0]) == Measured::otherwise);
}

TEST("explain adds up what the kernels of each backend take, where all of them were measured") {
  Explanation explanation;
  CHECK_EQ(explain(bwd_call(), "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernel_count, 3u);
  for (const KernelChoice& choice : std::span(explanation.kernels, 3)) {
    CHECK_EQ(choice.median_us, 10.0f);
    CHECK_EQ(chosen_state(choice).total_us, 30.0f);
    CHECK_EQ(chosen_state(choice).refusal, std::string());
    CHECK_EQ(chosen_state(choice).needs_workspace, 1);
  }
  attn_bwd_params half = bwd_call();
  for (aotriton_tensor4* t : {&half.q, &half.k, &half.v, &half.out, &half.dout, &half.dq, &half.dk, &half.dv})
    t->dtype = AOTRITON_FLOAT16;  // borrows its winners
  CHECK_EQ(explain(half, "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(chosen_state(explanation.kernels[0]).total_us, 0.0f);
  CHECK_EQ(chosen_state(explained({}).kernels[0]).needs_workspace, 0);
}

TEST("explain says why a backend cannot serve the very call: guard, arch, addressing, a choice or what was built") {
  const auto state = [](const auto& params, const char* arch, int backend) {
    Explanation explanation;
    CHECK_EQ(explain(params, arch, 0, &explanation), Error::success);
    return explanation.kernels[0].backend_states[backend];
  };
  const BackendState served = state(fwd_call({.head_dim = 256}), "sm_90", 1);
  for (const char* text : {served.refusal, served.kernel, served.choice, served.choice_value})
    CHECK_EQ(text, std::string());
  CHECK_EQ(served.total_us, 4.0f);

  const BackendState elsewhere = state(fwd_call({.head_dim = 256}), "gfx942", 1);
  CHECK_EQ(elsewhere.refusal, std::string("this build has no images of it for the arch"));
  CHECK_EQ(elsewhere.kernel, std::string("attn_fwd_hopper"));
  CHECK_EQ(elsewhere.choice, std::string());
  CHECK_EQ(elsewhere.total_us, 0.0f);

  // The hopper backend was not measured for this one, so nothing of it was built.
  CHECK_EQ(state(fwd_call(), "sm_90", 1).refusal, std::string("this build has no image of it for this functional"));

  attn_fwd_params apart = fwd_call({.head_dim = 256});
  apart.v.data = pointer(0x30008);
  CHECK_EQ(state(apart, "sm_90", 1).refusal, std::string("it cannot address the tensors as they lie"));
  CHECK_EQ(state(apart, "sm_90", 1).choice, std::string("ADDRESSING"));
  CHECK_EQ(state(apart, "sm_90", 1).choice_value, std::string("general"));
  CHECK_EQ(state(apart, "sm_90", 0).refusal, std::string());

  attn_bwd_params steady = bwd_call({.head_dim = 128});
  CHECK_EQ(state(steady, "sm_90", 1).refusal, std::string());
  steady.deterministic = 1;
  CHECK_CONTAINS(state(steady, "sm_90", 1).refusal, "deterministic");
  CHECK_EQ(state(steady, "sm_90", 1).kernel, std::string("attn_bwd_hopper_pair"));
  const BackendState wide = state(bwd_call({.head_dim = 256}), "sm_90", 1);
  CHECK_EQ(wide.refusal, std::string("it has no image for this choice"));
  CHECK_EQ(wide.choice, std::string("BLOCK_DMODEL"));
  CHECK_EQ(wide.choice_value, std::string("256"));
  // It would compute 128 as 256, but no cell has it do so.
  const BackendState narrow = state(bwd_call({.head_dim = 128}), "sm_90", 6);  // hopper_split
  CHECK_EQ(narrow.refusal, std::string("it has no image for this choice"));
  CHECK_EQ(narrow.choice_value, std::string("128"));
}

TEST("a backend that rounds up less far than the first one serves what fits in no fewer columns of that one") {
  const auto state = [](int64_t head_dim) {
    Explanation explanation;
    CHECK_EQ(explain(fwd_call({.head_dim = head_dim}), "sm_90", 0, &explanation), Error::success);
    return explanation.kernels[0].backend_states[2];
  };
  for (const int64_t head_dim : {136, 160, 192}) CHECK_EQ(state(head_dim).refusal, std::string());
  for (const auto& [head_dim, padded] : {std::pair{64, "64"}, {128, "128"}, {200, "256"}, {256, "256"}}) {
    CHECK_EQ(state(head_dim).refusal, std::string("it has no image for this choice"));
    CHECK_EQ(state(head_dim).choice_value, std::string(padded));
  }
  // There is no image of 96 columns in this build.
  for (const int64_t head_dim : {72, 96})
    CHECK_EQ(state(head_dim).refusal, std::string("this build has no image of it for this functional"));
}

// What of each backend explain says of a call by names, or the error.
std::string told_of(const char* op, const char* dtype, double head_dim, double causal, double heads) {
  const Named attention[] = {
      {"batch", 2}, {"heads", heads}, {"seqlen", 300}, {"head_dim", head_dim}, {"causal", causal}};
  const Named product[] = {{"batch", 2}, {"m", heads}, {"n", 8 * head_dim}, {"k", 64}, {"transposed_a", causal}};
  const bool is_product = !strcmp(op, "gemm");
  Explanation made;
  const Error error =
      explain({.op = op, .arch = "sm_90", .dtype = dtype, .values = is_product ? product : attention}, &made);
  if (error != Error::success) return last_error_message();
  std::string told;
  for (size_t i = 0; i < made.kernel_count; ++i) told += made.kernels[i].image + std::string("\n");
  for (int32_t i = 0; i < made.kernels[0].backend_count; ++i)
    told += made.kernels[0].backend_states[i].refusal + std::string("\n");
  return told;
}

TEST("calls of many kinds in turns get what each of them gets in a thread that had none before") {
  std::set<std::string> all;
  for (int turn = 0; turn < 2; ++turn)
    for (const double heads : {4.0, 3e9})
      for (const double causal : {0, 1})
        for (const double head_dim : {40, 64, 96, 192, 200, 300})
          for (const char* dtype : {"bf16", "fp32"})
            for (const char* op : {"attn_fwd", "attn_bwd", "gemm"}) {
              std::string alone;
              std::thread([&] { alone = told_of(op, dtype, head_dim, causal, heads); }).join();
              CHECK_EQ(told_of(op, dtype, head_dim, causal, heads), alone);
              all.insert(alone);
            }
  CHECK(all.size() > 10);
}

TEST("a dtype has two names, and the archs are those of the build") {
  constexpr Named values[] = {{"batch", 2}, {"heads", 4}, {"seqlen", 70}, {"head_dim", 64}};
  for (const auto& [name, synonym] :
       {std::pair{"bf16", "bfloat16"}, std::pair{"fp16", "float16"}, std::pair{"fp32", "float32"}}) {
    Explanation one, other;
    CHECK_EQ(explain({.op = "attn_fwd", .arch = "sm_90", .dtype = name, .values = values}, &one), Error::success);
    CHECK_EQ(explain({.op = "attn_fwd", .arch = "sm_90", .dtype = synonym, .values = values}, &other), Error::success);
    CHECK_EQ(one.kernels[0].functional, std::string(other.kernels[0].functional));
  }
  Explanation none;
  const auto refused = [&](const char* name) {
    return explain({.op = "attn_fwd", .arch = "sm_90", .dtype = name, .values = values}, &none);
  };
  for (const char* name : {"i32", "int32"}) CHECK_EQ(refused(name), Error::invalid_dtype);
  CHECK_EQ(refused("i16"), Error::invalid_argument);
  CHECK_EQ(arch_names().size(), 2u);
  CHECK_EQ(arch_names()[0], std::string("sm_90"));
  CHECK_EQ(arch_names()[1], std::string("gfx942"));
}

TEST("AOTRITON_LOG=info prints explain's line once for each functional and bin; otherwise nothing is printed") {
  setenv("AOTRITON_LOG", "info", 1);
  log_state = LogState::unread;
  start("cuda");
  const std::string log = captured([] {
    for (int i = 0; i < 3; ++i) CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
    CHECK_EQ(attn_fwd(fwd_call({.seqlen_q = 20}), {}), Error::success);
  });
  char line[1024];
  format_line(explained({}).kernels[0], line, sizeof line);
  CHECK_EQ(count(log, "\n"), 2);
  CHECK_CONTAINS(log, std::string("aotriton: ") + line + "\n");
  CHECK_CONTAINS(log, "aotriton: " + std::string(explained({}).kernels[0].image) +
                          " for max_seqlen_q=20 max_seqlen_k=70 waves=1, portable, 10 us in its bin\n");
  for (size_t from = 0; from < log.size(); from = log.find('\n', from) + 1) CHECK(log.find('\n', from) - from <= 120);

  setenv("AOTRITON_LOG", "loud", 1);
  log_state = LogState::unread;
  start("cuda");  // calls that were made before say nothing
  const std::string warning = captured([] {
    for (int i = 0; i < 3; ++i) CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success);
  });
  CHECK_EQ(warning, std::string("aotriton: AOTRITON_LOG=loud is not known: use info or off\n"));

  unsetenv("AOTRITON_LOG");
  log_state = LogState::unread;
  start("cuda");
  CHECK_EQ(captured([] { CHECK_EQ(attn_fwd(fwd_call(), {}), Error::success); }), std::string());
}

TEST("times have the unit that suits, and no exponent") {
  for (const auto& [us, text] : std::initializer_list<std::pair<double, const char*>>{{2.1314, "2.131 us"},
                                                                                      {83.84, "83.84 us"},
                                                                                      {999.6, "999.6 us"},
                                                                                      {1019, "1.019 ms"},
                                                                                      {1.019e5, "101.9 ms"},
                                                                                      {1.2934e6, "1.293 s"},
                                                                                      {2.5e10, "25000 s"}}) {
    char time[32];
    format_time(us, time, sizeof time);
    CHECK_EQ(std::string(time), std::string(text));
  }
}

TEST("a line that does not fit is cut, not overrun") {
  char line[20];
  format_line(explained({}).kernels[0], line, sizeof line);
  CHECK_EQ(std::string(line), std::string("attn_fwd_sm_90_a365"));
}
