// Predicted times: the terms of a call as Python works them out, and what is chosen by the sum of them.
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "calls.h"
#include "dispatch/select.h"
#include "launch/run.h"
#include "scale.h"
#include "works.h"

using namespace aotriton::v2;
using toy::scale;
using toy::scale_params;

namespace {

constexpr char kModelled[] = "NVIDIA H200", kUsual[] = "NVIDIA H100 80GB HBM3";

// 32 columns, no bias, by descriptor: the one functional that has models, in test/fake_build.py. Microseconds of a
// call:
//   portable  4 + 2 x tiles or 6 + tiles, of 64 rows by multiprocessor, with tiles of 32 or of 64 rows
//   fast      1.5 + a quarter for each 16 taps
//   split     4, and 1 + half a microsecond for each tile of 64 rows by multiprocessor
struct Shape {
  int64_t batch = 1, heads = 200, rows = 64, width = 32, taps = 640;
};
constexpr int kMultiprocessors = 132;

scale_params params_of(const Shape& s) {
  scale_params p;
  p.x = tensor(address_of(1), s.batch, s.heads, s.rows, s.width);
  p.w = {pointer(address_of(2)), DType::bfloat16, {s.taps, s.width}, {s.width, 1}};
  p.y = tensor(address_of(4), s.batch, s.heads, s.rows, s.width);
  p.workspace = pointer(address_of(5));
  p.workspace_size = 1 << 20;
  return p;
}

Explanation explained(const scale_params& p, const char* product = kModelled, By by = By::time) {
  Call call(*find_operator("scale"));
  call.views[0] = View::of(p.x), call.views[1] = View::of(p.w), call.views[2] = View::none();
  if (p.bias.data) call.views[2] = View::of(p.bias);
  call.views[3] = View::of(p.y);
  call.set_real(0, p.factor);
  call.set_whole(1, p.times);
  Explanation explanation;
  explanation.kernel_count = kMaxKernels;
  explanation.kernels[0].size = sizeof(KernelChoice);
  CHECK_EQ(explain(call, "sm_90", product, 0, explanation.kernels, &explanation.kernel_count, by), Error::success);
  return explanation;
}

KernelChoice choice_of(const Shape& s, const char* product = kModelled, By by = By::time) {
  return explained(params_of(s), product, by).kernels[0];
}

std::vector<std::string> entries_of(const scale_params& p, const char* product = kModelled) {
  Recording& recording = start("cuda");
  recording.devices[kContext].name = product;
  CHECK_EQ(scale(p, {}), Error::success);
  std::vector<std::string> entries;
  for (const RecordedLaunch& launch : recording.launches) entries.push_back(launch.entry);
  return entries;
}

bool near(float value, double wanted) { return std::abs(static_cast<double>(value) - wanted) < 1e-5 * wanted; }

// Where a backend of one or two kernels would run: those of a test, with what each is predicted to take.
float sum_of(std::span<const KernelInfo* const> kernels, std::initializer_list<float> times) {
  Selection selections[kMaxKernels] = {};
  size_t i = 0;
  for (const float time : times) selections[i++].predicted_us = time;
  return predicted(BackendInfo{"", kernels, {}, {}, 0, false, false}, selections);
}

}  // namespace

TEST("the terms are those that Python works out, whatever the form") {
  int forms[5] = {}, split = 0, packed = 0;
  for (const WorkCase& one : kWorks) {
    double terms[kTerms];
    terms_of(one.cost, one.work, terms);
    for (int i = 0; i < kTerms; ++i) {
      const bool alike = std::abs(terms[i] - one.terms[i]) <= 1e-9 * std::abs(one.terms[i]);
      if (!alike) CHECK_EQ(terms[i], one.terms[i]);
    }
    ++forms[one.work.form];
    split += one.work.form == 3 && terms[3] > 0;
    packed += one.work.form != 3 && terms[3] > 0;
  }
  for (const int count : forms) CHECK(count > 100);
  CHECK(split > 10 && packed > 100);
}

TEST("a cost is the sum of the terms by its coefficients") {
  const WorkCase& one = kWorks[2];
  Cost cost = one.cost;
  double wanted = 0;
  for (int i = 0; i < kTerms; ++i) {
    cost.coefficients[i] = static_cast<float>(i + 1) / 8;
    wanted += one.terms[i] * (i + 1) / 8;
  }
  const Cost unknown = {};
  CHECK(near(cheapest({&cost, 1}, one.work).predicted_us, wanted));
  CHECK(cost.known() && !unknown.known());
  CHECK_EQ(cheapest({&unknown, 1}, one.work).predicted_us, 0.0f);
}

TEST("the cheapest is the first of the least sum among those that are known") {
  const WorkCase& one = kWorks[2];
  const auto image = [&](float microseconds) {
    Cost cost = one.cost;
    cost.coefficients[0] = microseconds;
    return cost;
  };
  const Cost costs[] = {Cost{}, image(3), image(2), image(2), image(4)};
  const Cheapest found = cheapest(costs, one.work);
  CHECK_EQ(found.entry, 2u);
  CHECK_EQ(found.predicted_us, 2.0f);
}

TEST("a backend takes what its kernels do together; one without work counts nothing, one that is unknown hides all") {
  static constexpr WorkInfo work = {};
  static constexpr KernelInfo known = {"known", {}, {}, {}, {}, {}, {}, {}, &work, {}, {}};
  static constexpr KernelInfo idle = {"idle", {}, {}, {}, {}, {}, {}, {}, nullptr, {}, {}};
  static constexpr const KernelInfo* two[] = {&known, &known};
  static constexpr const KernelInfo* with_idle[] = {&known, &idle};
  static constexpr const KernelInfo* alone[] = {&idle};
  CHECK_EQ(sum_of(two, {1.5f, 2.0f}), 3.5f);
  CHECK_EQ(sum_of(two, {1.5f, 0.0f}), 0.0f);
  CHECK_EQ(sum_of(with_idle, {1.5f, 0.0f}), 1.5f);
  CHECK_EQ(sum_of(with_idle, {1.5f, 9.0f}), 1.5f);
  CHECK_EQ(sum_of(alone, {0.0f}), 0.0f);
}

TEST("two shapes of one cell get the entries that are predicted to be the fastest there, though neither won the cell") {
  // Without a workspace the first backend is the fastest one.
  const auto launched = [](int64_t heads) {
    scale_params p = params_of({.heads = heads});
    p.workspace = nullptr, p.workspace_size = 0;
    Recording& recording = start("cuda");
    recording.devices[kContext].name = kModelled;
    CHECK_EQ(scale(p, {}), Error::success);
    CHECK_EQ(recording.launches.size(), 1u);
    CHECK_EQ(recording.launches[0].entry, "scale_rows");
    return recording.launches[0].grid[0];
  };
  CHECK_EQ(launched(262), 2u);  // tiles of 32 of 64 rows
  CHECK_EQ(launched(266), 1u);
  const KernelChoice few = choice_of({.heads = 262}, kModelled, By::cell);
  const KernelChoice many = choice_of({.heads = 266}, kModelled, By::cell);
  CHECK_EQ(few.keys[0].representative, many.keys[0].representative);
  CHECK_EQ(few.keys[1].representative, many.keys[1].representative);
}

TEST("the backend of the least sum is chosen, by shape within one cell too") {
  const auto backend = [](const Shape& s) { return std::string(choice_of(s).backend); };
  // 4 + 2 x 1 / 132, 5 + 1 / 2 / 132 and 1.5 + taps / 64
  CHECK_EQ(backend({.heads = 1, .taps = 640}), std::string("portable"));
  CHECK_EQ(backend({.heads = 1, .taps = 176}), std::string("portable"));
  CHECK_EQ(backend({.heads = 1, .taps = 144}), std::string("fast"));
  // 4 + 2 x heads / 132, and 5 + heads / 2 / 132
  CHECK_EQ(backend({.heads = 80}), std::string("portable"));
  CHECK_EQ(backend({.heads = 96}), std::string("split"));
  CHECK(entries_of(params_of({.heads = 400})) == (std::vector<std::string>{"scale_rows_weigh", "scale_rows_apply"}));
  CHECK(entries_of(params_of({.heads = 400, .taps = 20})) == std::vector<std::string>{"scale_rows_fast"});
}

TEST("without a workspace the least sum of those that need none is chosen") {
  scale_params p = params_of({.heads = 400});
  p.workspace = nullptr, p.workspace_size = 0;
  CHECK(entries_of(p) == std::vector<std::string>{"scale_rows"});
  p.w.sizes[0] = 20;
  CHECK(entries_of(p) == std::vector<std::string>{"scale_rows_fast"});
}

TEST("the first backend stays where the others refuse the call, though they would be faster") {
  scale_params p = params_of({.heads = 1, .taps = 20});
  CHECK(entries_of(p) == std::vector<std::string>{"scale_rows_fast"});
  p.times = 2;  // the fast one takes it once only, and to split it takes longer
  CHECK(entries_of(p) == std::vector<std::string>{"scale_rows"});
  CHECK_EQ(explained(p).kernels[0].backends_predicted_us[1], 0.0f);
  CHECK_EQ(explained(p).kernels[0].backend_states[1].refusal, std::string("times is more than 1"));
}

TEST("what a kernel refuses is refused, however fast it would be") {
  scale_params p = params_of({});
  p.times = 101;
  start("cuda").devices[kContext].name = kModelled;
  CHECK_EQ(scale(p, {}), Error::not_supported);
  CHECK_EQ(last_error_message(), std::string("scale: times is more than 100"));
}

TEST("without models the cell decides, and nothing is predicted") {
  scale_params p = params_of({.heads = 1});
  p.bias = {pointer(address_of(3)), DType::float32, {1, 1}, {1, 1}};  // another functional
  const KernelChoice choice = explained(p).kernels[0];
  CHECK_EQ(choice.image, std::string(choice.bin_image));
  CHECK_EQ(choice.predicted_us, 0.0f);
  CHECK_EQ(choice.predicted_total_us, 0.0f);
  CHECK_EQ(choice.model, std::string());
  CHECK_EQ(choice.provenance, static_cast<int32_t>(Provenance::measured));
  CHECK_EQ(choice.image, std::string(explained(p, kModelled, By::cell).kernels[0].image));
}

TEST("work that does not fit in 63 bits is not known") {
  const auto is_known = [](const Shape& shape, const char* kernel) {
    scale_params p = params_of(shape);
    p.x.data = p.y.data = nullptr;  // there is no room for so much data
    Call call(*find_operator("scale"));
    call.views[0] = View::of(p.x), call.views[1] = View::of(p.w), call.views[2] = View::none();
    call.views[3] = View::of(p.y);
    call.set_real(0, p.factor);
    call.set_whole(1, p.times);
    CHECK_EQ(check_call(call, Data::optional).error(), Error::success);
    shape_workspace(call);
    Gpu gpu;
    CHECK_EQ(find_gpu("test", "sm_90", nullptr, 0, &gpu), Error::success);
    const Survey survey(call, gpu);
    for (const BackendInfo& backend : call.info->backends)
      for (const KernelInfo* one : backend.kernels) {
        WorkOfCall work;
        if (one->name == std::string(kernel)) return survey.work(*one, &work);
      }
    return false;
  };
  const Shape vast = {.batch = 1 << 30, .heads = 1 << 5, .rows = 1 << 21};
  const Shape half = {.batch = 1 << 29, .heads = 1 << 5, .rows = 1 << 21};
  CHECK(!is_known(vast, "scale_rows"));
  CHECK(is_known(half, "scale_rows"));
  CHECK(!is_known(half, "scale_rows_apply"));
}

TEST("an explanation by the cell has its image and nothing predicted, and one by time names both") {
  const Shape s = {.heads = 80};
  const KernelChoice by_cell = choice_of(s, kModelled, By::cell), by_time = choice_of(s);
  CHECK_EQ(by_cell.kernel, std::string("scale_rows"));
  CHECK_EQ(by_cell.tunables, std::string("BLOCK_M=128 UNROLL=2"));
  CHECK_EQ(by_cell.compile_options, std::string("num_warps=8"));
  CHECK_EQ(by_cell.image, std::string(by_cell.bin_image));
  CHECK_EQ(by_cell.predicted_us, 0.0f);
  CHECK_EQ(by_cell.predicted_error, 0.0f);
  CHECK_EQ(by_cell.median_us, 10.0f);
  CHECK_EQ(by_cell.provenance, static_cast<int32_t>(Provenance::measured));

  CHECK_EQ(by_time.kernel, std::string("scale_rows"));
  CHECK_EQ(by_time.tunables, std::string("BLOCK_M=32 UNROLL=1"));
  CHECK_EQ(by_time.bin_image, std::string(by_cell.image));
  CHECK_EQ(by_time.bin_tunables, std::string("BLOCK_M=128 UNROLL=2"));
  CHECK_EQ(by_time.bin_compile_options, std::string("num_warps=8"));
  CHECK_EQ(by_time.bin_median_us, 10.0f);
  CHECK_EQ(by_time.median_us, 0.0f);  // that is of the bin's image
  CHECK_EQ(by_time.provenance, static_cast<int32_t>(Provenance::predicted));
  CHECK_EQ(by_time.source, std::string("faster than its bin's image by the cost model"));
  CHECK(near(by_time.predicted_us, 4 + 160.0 / kMultiprocessors));
  CHECK_EQ(by_time.predicted_total_us, by_time.predicted_us);
  CHECK_EQ(by_time.predicted_error, 0.03125f);
  CHECK_EQ(by_time.model, std::string());
}

TEST("an explanation has the sum of the kernels that run, each one's share, and the sum of every backend") {
  const Explanation explanation = explained(params_of({.heads = 400}));
  CHECK_EQ(explanation.kernel_count, 2u);
  const double apply = 1 + 200.0 / kMultiprocessors;
  CHECK(near(explanation.kernels[0].predicted_us, 4));
  CHECK(near(explanation.kernels[1].predicted_us, apply));
  for (const KernelChoice& choice : std::span(explanation.kernels, 2)) {
    CHECK(near(choice.predicted_total_us, 4 + apply));
    CHECK(near(choice.backends_predicted_us[0], 6 + 400.0 / kMultiprocessors));
    CHECK(near(choice.backends_predicted_us[1], 1.5 + 10));
    CHECK(near(choice.backends_predicted_us[2], 4 + apply));
  }
  // A kernel whose image is its bin's too keeps what was measured of it.
  CHECK_EQ(explanation.kernels[0].bin_image, std::string(explanation.kernels[0].image));
  CHECK(explanation.kernels[0].median_us > 0);
}

TEST("a product without models has those of the one that is most like it, by its name") {
  for (const int64_t heads : {1, 80, 400}) {
    const Explanation own = explained(params_of({.heads = heads}));
    const Explanation lent = explained(params_of({.heads = heads}), kUsual);
    CHECK_EQ(own.kernel_count, lent.kernel_count);
    for (size_t i = 0; i < own.kernel_count; ++i) {
      CHECK_EQ(lent.kernels[i].image, std::string(own.kernels[i].image));
      CHECK_EQ(lent.kernels[i].predicted_us, own.kernels[i].predicted_us);
      CHECK_EQ(lent.kernels[i].model, std::string("product=NVIDIA_H200"));
      CHECK_EQ(own.kernels[i].model, std::string());
    }
  }
  CHECK(entries_of(params_of({.heads = 400}), kUsual).size() == 2);
}

TEST("flops are counted as the operator says: half of them where scores are causal, none where nobody counts") {
  const auto flops = [](bool causal) {
    attn_fwd_params p = fwd_call({.batch = 2, .heads = 4, .heads_k = 2, .seqlen_q = 100, .seqlen_k = 100});
    p.causal = causal;
    Explanation explanation;
    CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
    return explanation.kernels[0].flops;
  };
  CHECK_EQ(flops(false), 2.0 * 2 * 2 * 4 * 100 * 100 * 64);
  CHECK_EQ(flops(true), flops(false) / 2);
  CHECK_EQ(choice_of({}).flops, 0.0);
}

TEST("what a thread chose before does not change what it chooses") {
  std::mt19937_64 random(1);
  const auto one_of = [&](std::initializer_list<int64_t> values) { return values.begin()[random() % values.size()]; };
  std::map<std::string, int> chosen;
  for (int i = 0; i < 2000; ++i) {
    const Shape shape = {one_of({1, 2, 4}), one_of({1, 4, 50, 200, 1000}), one_of({1, 32, 64, 65, 500}),
                         one_of({32, 32, 32, 64}), one_of({1, 16, 64, 640, 5000})};
    scale_params p = params_of(shape);
    if (random() % 8 == 0) p.x.strides[2] += 1;  // by pointers only
    const Explanation here = explained(p);
    Explanation anew;
    std::thread([&] { anew = explained(p); }).join();
    CHECK_EQ(here.kernel_count, anew.kernel_count);
    for (size_t k = 0; k < here.kernel_count; ++k) {
      CHECK_EQ(std::string(here.kernels[k].image), anew.kernels[k].image);
      CHECK_EQ(here.kernels[k].predicted_total_us, anew.kernels[k].predicted_total_us);
    }
    if (here.kernel_count) ++chosen[here.kernels[0].backend];
  }
  CHECK(chosen.size() > 2);
}
