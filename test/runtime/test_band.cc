// Which keys a row sees: from causal, its variant and a window to the kernel and the band that a call is launched with.
#include <random>

#include "calls.h"

using namespace aotriton::v2;

namespace {

struct Asked {
  int64_t seqlen_q, seqlen_k;
  bool causal = false;
  int variant = AOTRITON_CAUSAL_TOP_LEFT;
  bool windowed = false;
  int64_t left = -1, right = -1;

  // As c.h says it.
  bool sees(int64_t row, int64_t key) const {
    const int64_t own = row + (variant == AOTRITON_CAUSAL_BOTTOM_RIGHT ? seqlen_k - seqlen_q : 0);
    if (causal && key > own) return false;
    return !windowed ||
           ((left < 0 || left > 1000 || key >= own - left) && (right < 0 || right > 1000 || key <= own + right));
  }

  template <class Params>
  Params put_into(Params p) const {
    p.causal = causal;
    p.features.causal_variant = static_cast<uint8_t>(variant);
    p.features.windowed = windowed;
    if (windowed) p.features.window_left = left, p.features.window_right = right;
    return p;
  }

  Sizes sizes() const {
    return {.batch = 1, .heads = 2, .heads_k = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim = 64};
  }
};

// What the launched kernel of a forward lets rows see.
// What kernels take behind the band: numbers, pointers and strides of features.
constexpr size_t kFwdFeatures = 17, kDkDvFeatures = 16, kDqFeatures = 20;

struct Launched {
  bool banded, causal;
  int64_t lo, hi;

  bool sees(int64_t row, int64_t key) const {
    return banded ? row + lo <= key && key <= row + hi : !causal || key <= row;
  }
};

Launched launched(const Asked& asked) {
  Recording& recording = start("hip");
  const attn_fwd_params p = asked.put_into(fwd_call(asked.sizes()));
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  Explanation explanation;
  CHECK_EQ(explain(p, "gfx942", 0, &explanation), Error::success);
  const std::string functional = explanation.kernels[0].functional;
  Launched found = {functional.find("LEVEL=4") != std::string::npos,
                    functional.find("CAUSAL=True") != std::string::npos, 0, 0};
  const RecordedLaunch& launch = recording.launches.at(0);
  CHECK_EQ(launch.entry, found.banded ? "attn_fwd_features" : "attn_fwd");
  // Pointers, store_lse, sm_scale, strides, sizes, among them one or both head dims; the band and the features; and
  // what the driver adds.
  const size_t plain = 5 + 2 + 12 + 5 + found.banded;
  CHECK_EQ(launch.arguments.size(), plain + (found.banded ? 2 + kFwdFeatures : 0) + 2);
  if (found.banded) found.lo = launch.argument<int32_t>(plain), found.hi = launch.argument<int32_t>(plain + 1);
  return found;
}

Asked any(std::mt19937_64& random) {
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  Asked asked = {1 + below(20), 1 + below(20)};
  if (below(3) == 0) asked.seqlen_k = asked.seqlen_q;
  asked.causal = below(2);
  asked.variant = static_cast<int>(below(2));
  asked.windowed = below(3) > 0;
  asked.left = below(26) - 2, asked.right = below(26) - 2;
  if (below(20) == 0) asked.left = INT64_MAX;
  if (below(20) == 0) asked.right = INT64_MAX;
  if (below(20) == 0) asked.left = INT64_MIN;
  return asked;
}

}  // namespace

TEST("a call is launched with a mask by which rows see what the caller asked for, and no other key") {
  std::mt19937_64 random(5);
  int banded = 0, causal = 0, full = 0;
  for (int i = 0; i < 2000; ++i) {
    const Asked asked = any(random);
    const Launched found = launched(asked);
    for (int64_t row = 0; row < asked.seqlen_q; ++row)
      for (int64_t key = 0; key < asked.seqlen_k; ++key)
        if (asked.sees(row, key) != found.sees(row, key)) CHECK_EQ(row, key);
    ++(found.banded ? banded : found.causal ? causal : full);
  }
  CHECK(banded > 500 && causal > 50 && full > 100);
}

TEST("calls that hide nothing, or what lies above a square's diagonal, run on plain images") {
  const Asked plain[] = {
      {.seqlen_q = 100, .seqlen_k = 70},
      {.seqlen_q = 100, .seqlen_k = 70, .variant = AOTRITON_CAUSAL_BOTTOM_RIGHT},
      {.seqlen_q = 100, .seqlen_k = 100, .causal = true},
      {.seqlen_q = 100, .seqlen_k = 100, .causal = true, .variant = AOTRITON_CAUSAL_BOTTOM_RIGHT},
      {.seqlen_q = 1, .seqlen_k = 70, .causal = true, .variant = AOTRITON_CAUSAL_BOTTOM_RIGHT},  // decoding
      {.seqlen_q = 100, .seqlen_k = 70, .windowed = true},
      {.seqlen_q = 100, .seqlen_k = 70, .windowed = true, .left = 99, .right = 69},
      {.seqlen_q = 100, .seqlen_k = 100, .windowed = true, .right = 0},
      {.seqlen_q = 100, .seqlen_k = 100, .causal = true, .windowed = true, .left = 99, .right = 5},
  };
  for (const Asked& asked : plain) CHECK(!launched(asked).banded);
  CHECK(launched({.seqlen_q = 100, .seqlen_k = 100, .causal = true, .windowed = true, .left = 98}).banded);
  CHECK(launched({.seqlen_q = 100, .seqlen_k = 101, .causal = true}).banded);
}

TEST("the backward has the forward's band in both of its kernels, on both vendors, and no other backend serves it") {
  const Asked asked = {.seqlen_q = 100, .seqlen_k = 70, .causal = true, .windowed = true, .left = 40};
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    const attn_bwd_params p = asked.put_into(bwd_call(asked.sizes()));
    CHECK_EQ(attn_bwd(p, {}), Error::success);
    CHECK_EQ(recording.launches.size(), 3u);
    CHECK_EQ(recording.launches[0].entry, "attn_bwd_preprocess");
    CHECK_EQ(recording.launches[1].entry, "attn_bwd_dk_dv_features");
    CHECK_EQ(recording.launches[2].entry, "attn_bwd_dq_features");
    for (const size_t kernel : {1, 2}) {
      const RecordedLaunch& launch = recording.launches[kernel];
      const size_t end = launch.arguments.size() - 2 - (kernel == 1 ? kDkDvFeatures : kDqFeatures);
      CHECK_EQ(launch.argument<int32_t>(end - 3), 64);
      CHECK_EQ(launch.argument<int32_t>(end - 2), -40);
      CHECK_EQ(launch.argument<int32_t>(end - 1), 0);
    }
  }
  hints hopper;
  CHECK_EQ(hopper.parse("backend=hopper"), Error::success);
  attn_fwd_params p = asked.put_into(fwd_call(asked.sizes()));
  p.hints = &hopper;
  start("cuda");
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "hopper");
}

TEST("calls that differ in their band alone are not taken for each other") {
  Recording& recording = start("cuda");
  hints portable;
  CHECK_EQ(portable.parse("backend=portable"), Error::success);
  for (int round = 0; round < 2; ++round)
    for (int64_t left = 0; left < 3; ++left) {
      const Asked asked = {.seqlen_q = 100, .seqlen_k = 70, .windowed = true, .left = left, .right = 5};
      attn_fwd_params p = asked.put_into(fwd_call(asked.sizes()));
      p.hints = &portable;
      CHECK_EQ(attn_fwd(p, {}), Error::success);
      const RecordedLaunch& launch = recording.launches.back();
      CHECK_EQ(launch.argument<int32_t>(launch.arguments.size() - 4 - kFwdFeatures), static_cast<int32_t>(-left));
    }
}

TEST("flops are those of the keys that rows see") {
  std::mt19937_64 random(6);
  for (int i = 0; i < 300; ++i) {
    const Asked asked = any(random);
    int64_t pairs = 0;
    for (int64_t row = 0; row < asked.seqlen_q; ++row)
      for (int64_t key = 0; key < asked.seqlen_k; ++key) pairs += asked.sees(row, key);
    Explanation explanation;
    CHECK_EQ(explain(asked.put_into(fwd_call(asked.sizes())), "sm_90", 0, &explanation), Error::success);
    if (std::string(explanation.kernels[0].functional).find("LEVEL=4") == std::string::npos) continue;
    CHECK_EQ(explanation.kernels[0].padding_count, 0);  // of a level nothing is computed that the call lacks
    CHECK_EQ(explanation.kernels[0].flops, 2.0 * 2 * 2 * static_cast<double>(pairs) * 64);
  }
}

TEST("head dims that plain images do not have run on images with features, by pointer where rows end anywhere") {
  const struct {
    int64_t of_qk, of_v;
    const char* addressing;
  } cases[] = {
      {64, 40, "ADDRESSING=descriptor"},   {40, 64, "ADDRESSING=descriptor"},  {64, 12, "ADDRESSING=general"},
      {12, 64, "ADDRESSING=general"},      {61, 61, "ADDRESSING=general"},     {1, 33, "ADDRESSING=general"},
      {512, 512, "ADDRESSING=descriptor"}, {64, 264, "ADDRESSING=descriptor"}, {257, 257, "ADDRESSING=general"}};
  const auto check_kernels = [](const auto& params, const char* addressing, double products) {
    Explanation explanation;
    CHECK_EQ(explain(params, "sm_90", 0, &explanation), Error::success);
    const auto& last = explanation.kernels[explanation.kernel_count - 1];
    CHECK_CONTAINS(explanation.kernels[0].functional, addressing);
    CHECK_CONTAINS(last.functional, addressing);
    CHECK_EQ(explanation.kernels[0].flops, products);
    return std::string(last.functional);
  };
  start("cuda");
  for (const auto& [of_qk, of_v, addressing] : cases)
    for (const bool causal : {false, true}) {
      const Sizes sizes = {.seqlen_q = 100, .seqlen_k = 100, .head_dim = of_qk, .head_dim_v = of_v};
      const double pairs = 2.0 * 2 * 4 * (causal ? 100 * 101 / 2 : 100 * 100);
      attn_fwd_params forward = fwd_call(sizes);
      forward.causal = causal;
      CHECK_EQ(attn_fwd(forward, {}), Error::success);
      CHECK_CONTAINS(check_kernels(forward, addressing, pairs * static_cast<double>(of_qk + of_v)), "LEVEL=4");
      attn_bwd_params backward = bwd_call(sizes);
      backward.causal = causal;
      CHECK_EQ(attn_bwd(backward, {}), Error::success);
      check_kernels(backward, addressing, pairs * static_cast<double>(3 * of_qk + 2 * of_v));
    }
}

TEST("wide heads with ALiBi, bias or dropout run by pointer on all archs, narrower ones as their tensors lie") {
  for (const char* arch : {"sm_90", "gfx942"})
    for (const int64_t head_dim : {256, 264, 512}) {
      attn_fwd_params p = fwd_call({.head_dim = head_dim});
      p.features.alibi_slopes = {pointer(address_of(9)), AOTRITON_FLOAT32, {2, 4}, {4, 1}};
      Explanation explanation;
      CHECK_EQ(explain(p, arch, 0, &explanation), Error::success);
      const std::string functional = explanation.kernels[0].functional;
      CHECK_CONTAINS(functional, "LEVEL=5");
      CHECK_EQ(functional.find("ADDRESSING=general") != std::string::npos, head_dim > 256);
    }
}

TEST("portable kernels take pointers above head dim 128 where the device has lengths, others as tensors lie") {
  const auto check = [](auto params, int64_t head_dim) {
    for (const bool lengths : {false, true}) {
      if (lengths) params.features.seqused_k = {pointer(address_of(11)), AOTRITON_INT32, {2}, {1}};
      Explanation explanation;
      CHECK_EQ(explain(params, "sm_90", 0, &explanation), Error::success);
      for (size_t i = 0; i < explanation.kernel_count; ++i) {
        const std::string name = explanation.kernels[i].kernel, functional = explanation.kernels[i].functional;
        const bool steered = name == "attn_fwd" || name == "attn_bwd_dk_dv" || name == "attn_bwd_dq";
        if (functional.find("ADDRESSING=") == std::string::npos) continue;
        CHECK_EQ(functional.find("ADDRESSING=general") != std::string::npos, lengths && steered && head_dim > 128);
      }
    }
  };
  start("cuda");
  for (const int64_t head_dim : {64, 128, 136, 256}) {
    check(fwd_call({.head_dim = head_dim}), head_dim);
    check(bwd_call({.head_dim = head_dim}), head_dim);
  }
}

TEST("sequences that a band makes kernels count beyond 32 bits are refused") {
  start("cuda");
  Asked asked = {.seqlen_q = int64_t{1} << 30, .seqlen_k = (int64_t{1} << 30) + 1, .causal = true};
  attn_fwd_params p = asked.put_into(fwd_call(asked.sizes()));
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "with a band, seqlen_q and seqlen_k together are more than 2147482624");
}
