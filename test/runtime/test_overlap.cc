// Overlaps: never missed, and not seen where gradients of one buffer lie beside each other.
#include <algorithm>
#include <random>
#include <set>

#include "call/overlap.h"
#include "calls.h"

using namespace aotriton::v2;

namespace {

// Every byte, as often as it is in the tensor.
std::multiset<uintptr_t> bytes_of(const Footprint& f) {
  std::multiset<uintptr_t> found;
  int64_t indices[4] = {};
  for (;;) {
    uintptr_t at = f.begin;
    for (int i = 0; i < f.rank; ++i) at += static_cast<uintptr_t>(indices[i] * f.strides[i]);
    for (int64_t byte = 0; byte < f.width; ++byte) found.insert(at + static_cast<uintptr_t>(byte));
    int i = f.rank - 1;
    while (i >= 0 && ++indices[i] == f.sizes[i]) indices[i--] = 0;
    if (i < 0) return found;
  }
}

bool repeats(const std::multiset<uintptr_t>& bytes) {
  return std::set<uintptr_t>(bytes.begin(), bytes.end()).size() != bytes.size();
}

bool share(const std::multiset<uintptr_t>& a, const std::multiset<uintptr_t>& b) {
  for (const uintptr_t one : a)
    if (b.contains(one)) return true;
  return false;
}

// A small tensor: half of them as permuted and padded ones are, the others with any strides.
Footprint random_footprint(std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  Footprint made = {static_cast<uintptr_t>(1000 + 2 * pick(0, 60)), 2, static_cast<int>(pick(1, 4)), {}, {}};
  int order[4] = {0, 1, 2, 3};
  std::shuffle(order, order + made.rank, random);
  const bool any = pick(0, 1);
  int64_t step = 2;
  for (int i = 0; i < made.rank; ++i) {
    made.sizes[order[i]] = pick(1, 4);
    made.strides[order[i]] = any ? 2 * pick(0, 20) : step;
    step = made.strides[order[i]] * made.sizes[order[i]] + 2 * pick(0, 3) * pick(0, 1);
    if (made.sizes[order[i]] == 1) made.strides[order[i]] = 0;
  }
  return made;
}

}  // namespace

TEST("an overlap of a tensor with itself or with another is never missed") {
  std::mt19937_64 random(1);
  int with_itself = 0, with_other = 0, told_apart = 0;
  for (int i = 0; i < 100000; ++i) {
    const Footprint a = random_footprint(random), b = random_footprint(random);
    const auto of_a = bytes_of(a), of_b = bytes_of(b);
    CHECK_EQ(static_cast<uintptr_t>(extent(a)), *of_a.rbegin() + 1 - a.begin);
    if (repeats(of_a)) {
      ++with_itself;
      CHECK(overlaps_itself(a));
    }
    if (share(of_a, of_b)) {
      ++with_other;
      CHECK(overlap(a, b) && overlap(b, a));
    } else if (b.begin < a.begin + static_cast<uintptr_t>(extent(a)) &&
               a.begin < b.begin + static_cast<uintptr_t>(extent(b))) {
      told_apart += !overlap(a, b);
    }
  }
  CHECK(with_itself > 1000 && with_other > 1000);
  CHECK(told_apart > 1000);  // though the bytes from first to last meet
}

TEST("a tensor whose dimensions step over each other, in any order, does not overlap itself") {
  std::mt19937_64 random(2);
  for (int i = 0; i < 1000; ++i) {
    int order[4] = {0, 1, 2, 3};
    std::shuffle(order, order + 4, random);
    Footprint made = {0, 2, 4, {}, {}};
    int64_t step = 2;
    for (const int dim : order) {
      made.sizes[dim] = std::uniform_int_distribution<int64_t>(1, 1 << 12)(random);
      made.strides[dim] = step;
      step = step * made.sizes[dim] + 2 * std::uniform_int_distribution<int64_t>(0, 5)(random);
    }
    CHECK(!overlaps_itself(made));
  }
}

TEST("gradients that are packed in one buffer, as q, k and v are, are accepted") {
  const Sizes s = {.heads = 4, .heads_k = 4, .seqlen_q = 100, .seqlen_k = 100};
  const int64_t row = s.heads * s.head_dim;
  const auto base = reinterpret_cast<uintptr_t>(bwd_call().dq.data);
  const int64_t packings[][3] = {
      {3 * row, s.head_dim, row},              // [batch, seqlen, 3, heads, head_dim]
      {3 * row, 3 * s.head_dim, s.head_dim},   // [batch, seqlen, heads, 3, head_dim]
      {row, s.head_dim, s.batch * 100 * row},  // [3, batch, seqlen, heads, head_dim]
  };
  for (const auto& [of_seqlen, of_head, apart] : packings) {
    attn_bwd_params p = bwd_call(s);
    aotriton_tensor4* const gradients[] = {&p.dq, &p.dk, &p.dv};
    for (int i = 0; i < 3; ++i) {
      gradients[i]->data = pointer(base + static_cast<uintptr_t>(2 * apart * i));
      gradients[i]->strides[0] = s.seqlen_q * of_seqlen;
      gradients[i]->strides[1] = of_head;
      gradients[i]->strides[2] = of_seqlen;
    }
    Recording& recording = start("cuda");
    CHECK_EQ(attn_bwd(p, {}), Error::success);
    CHECK_EQ(recording.launches.size(), 3u);

    p.dk.data = pointer(base + static_cast<uintptr_t>(2 * apart) - 2);  // its first element is dq's last one of a row
    CHECK_EQ(attn_bwd(p, {}), Error::invalid_stride);
    CHECK_EQ(last_error_message(), std::string("attn_bwd: dq and dk are written, but overlap"));
  }
}

TEST("inputs may overlap anything but are read only: k and v of one buffer, out beside q") {
  start("cuda");
  attn_fwd_params p = fwd_call();
  p.v = p.k;
  CHECK_EQ(attn_fwd(p, {}), Error::success);
}

TEST("results at both ends of the address space do not overlap") {
  start("cuda");
  attn_fwd_params p = fwd_call({.batch = 1, .heads = 1, .heads_k = 1});
  p.out.data = pointer(UINTPTR_MAX - 100 * 64 * 2 + 1);  // its last byte is the last one
  p.logsumexp.data = pointer(0x100);
  CHECK_EQ(attn_fwd(p, {}), Error::success);
}

TEST("a result that is also read, and a workspace that is an operand, are refused; views of one tensor are not") {
  using namespace aotriton::v2;
  Recording& recording = start("cuda");
  const Sizes s = {.batch = 2, .heads = 4, .heads_k = 4, .seqlen_q = 70, .seqlen_k = 70, .head_dim = 64};
  const auto refused = [&](const attn_bwd_params& p, const char* why) {
    CHECK(attn_bwd(p, {}) != Error::success);
    CHECK_CONTAINS(last_error_message(), why);
  };
  for (int round = 0; round < 2; ++round) {  // the second one beside a call that is remembered
    attn_fwd_params f = fwd_call(s);
    f.out.data = f.k.data;
    CHECK_EQ(attn_fwd(f, {}), Error::invalid_stride);
    CHECK_EQ(last_error_message(), std::string("attn_fwd: out is written and k is read, but they overlap"));
    attn_bwd_params p = bwd_call(s);
    p.dq.data = p.dout.data;
    refused(p, "dq is written and dout is read, but they overlap");
    p = bwd_call(s);
    p.dk.data = p.q.data;
    refused(p, "dk is written and q is read, but they overlap");
    for (void* const operand : {bwd_call(s).q.data, bwd_call(s).dout.data}) {
      p = bwd_call(s);
      p.workspace = operand;
      refused(p, "workspace and ");
    }
    CHECK_EQ(attn_bwd(bwd_call(s), {}), Error::success);
    CHECK_EQ(attn_fwd(fwd_call(s), {}), Error::success);
  }
  // q, k and v of one tensor, and their gradients of another one.
  attn_bwd_params packed = bwd_call(s);
  aotriton_tensor4* const views[2][3] = {{&packed.q, &packed.k, &packed.v}, {&packed.dq, &packed.dk, &packed.dv}};
  for (int which = 0; which < 2; ++which)
    for (int i = 0; i < 3; ++i) {
      aotriton_tensor4& view = *views[which][i];
      view.data = pointer(address_of(11 + which) + static_cast<uintptr_t>(i * 4 * 64 * 2));
      const int64_t strides[] = {70 * 3 * 4 * 64, 64, 3 * 4 * 64, 1};
      std::copy_n(strides, 4, view.strides);
    }
  recording.launches.clear();
  CHECK_EQ(attn_bwd(packed, {}), Error::success);
  packed.dk.data = packed.dq.data;
  CHECK_EQ(attn_bwd(packed, {}), Error::invalid_stride);
}
