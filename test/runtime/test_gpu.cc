// Which product's tables a GPU gets, and a call that runs or is explained there.
#include <aotriton/runtime.h>

#include "call/gpu.h"
#include "calls.h"
#include "launch/request.h"

using namespace aotriton::v2;

namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr char kUsual[] = "NVIDIA H100 80GB HBM3", kOther[] = "NVIDIA H200";
// One tile of 128 rows, which the usual product computes with 64 rows of keys and the other one with 128.
const Sizes kSmall = {.batch = 1, .heads = 1, .heads_k = 1, .seqlen_q = 64, .seqlen_k = 64};

KernelChoice explained(const char* device, int multiprocessors = 0) {
  Explanation explanation;
  CHECK_EQ(explain(fwd_call(kSmall), device, multiprocessors, &explanation), Error::success);
  return explanation.kernels[0];
}

// The image that a device of this name and memory launches.
std::string launched(const char* name, uint64_t memory, int multiprocessors = 132) {
  Recording& recording = start("cuda");
  RecordedDevice& device = recording.devices[kContext];
  device.name = name, device.memory = memory, device.multiprocessors = multiprocessors;
  CHECK_EQ(attn_fwd(fwd_call(kSmall), {}), Error::success);
  return image_of(recording.launches.at(0));
}

}  // namespace

TEST("a product is found by its name, else by multiprocessors, then by memory, then it is the first") {
  constexpr ProductInfo products[] = {
      {"a", 132, 80 * kGiB}, {"b", 132, 141 * kGiB}, {"c", 78, 96 * kGiB}, {"d", 78, 0}};
  const auto nearest = [&](const char* name, int multiprocessors, uint64_t memory) {
    const ProductChoice found = nearest_product(products, {name, multiprocessors, memory});
    CHECK_EQ(found.exact, *name && strchr("abcd", *name));
    return products[found.product].name[0];
  };
  CHECK_EQ(nearest("b", 1, 0), 'b');
  CHECK_EQ(nearest("d", 132, 80 * kGiB), 'd');
  CHECK_EQ(nearest("B", 132, 140 * kGiB), 'b');
  CHECK_EQ(nearest("x", 132, 100 * kGiB), 'a');
  CHECK_EQ(nearest("x", 114, 96 * kGiB), 'a');
  CHECK_EQ(nearest("x", 80, 20 * kGiB), 'c');
  CHECK_EQ(nearest("x", 80, 0), 'c');
  CHECK_EQ(nearest("", 132, 0), 'a');
}

TEST("a device gets its own product's tables, or those of the one that it is most like") {
  const std::string usual = explained(kUsual).image, other = explained(kOther).image;
  CHECK(usual != other);
  CHECK_EQ(launched(kUsual, 80 * kGiB), usual);
  CHECK_EQ(launched(kOther, 141 * kGiB), other);
  CHECK_EQ(launched(kOther, 0, 66), other);  // the name decides
  CHECK_EQ(launched("NVIDIA GH200 480GB", 95 * kGiB), usual);
  CHECK_EQ(launched("NVIDIA GH200 144G HBM3e", 143 * kGiB), other);
  CHECK_EQ(launched("", 0), usual);
}

TEST("two products in one process are each served with their own images") {
  Recording& recording = start("cuda");
  void* const context = pointer(0xC8);
  add_context(recording, context);
  recording.devices[context].name = kOther;
  const Stream stream = {pointer(0x5000)};
  recording.stream_contexts[stream.handle] = context;
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(attn_fwd(fwd_call(kSmall), {}), Error::success);
    CHECK_EQ(attn_fwd(fwd_call(kSmall), stream), Error::success);
  }
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(image_of(recording.launches.at(i)), explained(i % 2 ? kOther : kUsual).image);
}

TEST("a backend is chosen by the product's own times") {
  const Sizes long_rows = {.batch = 1, .heads = 8, .heads_k = 8, .seqlen_q = 4096, .seqlen_k = 4096, .head_dim = 128};
  Explanation explanation;
  for (const auto& [device, backend, median] : {std::tuple{kUsual, "hopper", 4.0f}, {kOther, "portable", 30.0f}}) {
    CHECK_EQ(explain(fwd_call(long_rows), device, 0, &explanation), Error::success);
    CHECK_EQ(explanation.kernels[0].backend, std::string(backend));
    CHECK_EQ(explanation.kernels[0].backends[1].median_us, median);
  }
}

TEST("an explanation says whose tables it is from, and what was measured and when") {
  const KernelChoice other = explained(kOther);
  CHECK_EQ(other.arch, std::string("sm_90"));
  CHECK_EQ(other.product, std::string(kOther));
  CHECK_EQ(other.exact_product, 1);
  CHECK_EQ(other.shape, std::string("max_seqlen_q 64 max_seqlen_k 64 waves 1"));
  CHECK_EQ(other.measured, std::string("2026-11-21"));
  CHECK_EQ(other.low_us, 9.5f);
  CHECK_EQ(other.high_us, 10.5f);
  const KernelChoice predicted = explained("AMD Instinct MI300X");
  CHECK_EQ(predicted.arch, std::string("gfx942"));
  CHECK_EQ(predicted.shape, std::string());
  CHECK_EQ(predicted.measured, std::string());
  CHECK_EQ(predicted.high_us, 0.0f);
}

TEST("an arch stands for its usual product, and for that of a GPU with so many multiprocessors") {
  for (const int multiprocessors : {0, 114}) {
    const KernelChoice choice = explained("sm_90", multiprocessors);
    CHECK_EQ(choice.product, std::string(kUsual));
    CHECK_EQ(choice.exact_product, multiprocessors == 0);
  }
  Gpu gpu;
  CHECK_EQ(find_gpu("explain", "sm_90", "a GPU without tables", 114, &gpu), Error::success);
  CHECK(!gpu.exact && gpu.multiprocessors == 114 && gpu.product == 0);
  CHECK_EQ(find_gpu("explain", "sm_90", kOther, 66, &gpu), Error::success);
  CHECK(gpu.exact && gpu.multiprocessors == 66 && gpu.product == 1);
  CHECK_EQ(find_gpu("explain", kOther, nullptr, 0, &gpu), Error::success);
  CHECK(gpu.exact && gpu.multiprocessors == 132 && gpu.product == 1);
}

TEST("a product that has no tables is refused with the names of those that have") {
  Gpu gpu;
  CHECK_EQ(find_gpu("explain", "sm_90", "NVIDIA H100 PCIe", 0, &gpu), Error::invalid_argument);
  CHECK_EQ(last_error_message(), std::string("explain: unknown product NVIDIA H100 PCIe of sm_90: choose from NVIDIA "
                                             "H100 80GB HBM3, NVIDIA H200"));
  CHECK_EQ(find_gpu("explain", "gfx942", kOther, 0, &gpu), Error::invalid_argument);
  CHECK_EQ(find_gpu("explain", "NVIDIA H100 PCIe", nullptr, 114, &gpu), Error::unknown_arch);
  CHECK_CONTAINS(last_error_message(),
                 "choose from sm_90, gfx942, or from the products NVIDIA H100 80GB HBM3, NVIDIA "
                 "H200, AMD Instinct MI300X");
}

TEST("a request names a product of its arch") {
  constexpr Named values[] = {{"batch", 1}, {"heads", 1}, {"seqlen", 64}, {"head_dim", 64}};
  ExplainRequest request = {.op = "attn_fwd", .arch = "sm_90", .dtype = "bf16", .values = values};
  for (const char* product : {kUsual, kOther}) {
    Explanation explanation;
    request.product = product;
    CHECK_EQ(explain(request, &explanation), Error::success);
    CHECK_EQ(explanation.kernels[0].image, std::string(explained(product).image));
  }
}
