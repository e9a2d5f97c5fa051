// Calls whose values are the first columns of the keys: which are served, and which are refused.
#include <aotriton/runtime.h>

#include <string>
#include <vector>

#include "calls.h"

using namespace aotriton::v2;

namespace {

// A decoding step of four sequences, each of a query of 16 heads.
attn_fwd_params latent_call(int64_t heads_k = 1) {
  attn_fwd_params p = fwd_call({.batch = 4,
                                .heads = 16,
                                .heads_k = heads_k,
                                .seqlen_q = 1,
                                .seqlen_k = 5000,
                                .head_dim = 576,
                                .head_dim_v = 512});
  p.v = p.k;
  p.v.sizes[3] = 512;
  p.workspace = pointer(address_of(8));
  p.workspace_size = size_t{1} << 30;
  return p;
}

// The same with keys in 400 pages of 64 rows.
attn_fwd_params in_pages(attn_fwd_params p) {
  p.k = tensor(address_of(2), 400, 1, 64, 576);
  p.v = p.k;
  p.v.sizes[3] = 512;
  p.features.block_table = {pointer(address_of(6)), AOTRITON_INT32, {4, 80}, {80, 1}};
  p.features.seqused_k = {pointer(address_of(7)), AOTRITON_INT32, {4}, {1}};
  return p;
}

std::vector<void*> pointers_of(const attn_fwd_params& p) {
  return {p.q.data, p.k.data, p.v.data, p.out.data, p.logsumexp.data, p.workspace};
}

constexpr char kElsewhere[] =
    "attn_fwd: head_dim 576 is served where v is the first 512 columns of k: at the same address, with the same "
    "strides";

}  // namespace

TEST("a step of latent attention launches its own kernel, and one that combines the splits, on both archs") {
  for (const char* vendor : {"cuda", "hip"}) {
    for (const bool paged : {false, true}) {
      Recording& recording = start(vendor);
      const attn_fwd_params p = paged ? in_pages(latent_call()) : latent_call();
      size_t bytes = 0;
      CHECK_EQ(attn_fwd_workspace_size(p, {}, &bytes), Error::success);
      CHECK(bytes > 0);
      CHECK_EQ(attn_fwd(p, {}), Error::success);
      CHECK_EQ(recording.launches.size(), 2u);
      const bool hopper = vendor == std::string("cuda");
      const std::string entry = hopper ? "attn_fwd_hopper_latent" : "attn_fwd_latent";
      CHECK_EQ(recording.launches.at(0).entry, entry + (paged ? "_paged" : ""));
      CHECK_EQ(recording.launches.at(1).entry, std::string("attn_fwd_combine"));
      CHECK_EQ(recording.launches.at(0).argument<void*>(0), p.q.data);
      if (!hopper) CHECK_EQ(recording.launches.at(0).argument<void*>(1), p.k.data);
      CHECK_EQ(recording.launches.at(1).grid[0], 4u * 16);
    }
  }
}

TEST("what the kernel for Hopper does not serve goes to the other one: softcap, and queries that are not aligned") {
  Recording& recording = start("cuda");
  attn_fwd_params p = latent_call();
  p.features.softcap = 30;
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).entry, std::string("attn_fwd_latent"));
  p = latent_call();
  p.q.data = static_cast<char*>(p.q.data) + 2;
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(2).entry, std::string("attn_fwd_latent"));
}

TEST("sequences whose lengths are in device memory run on the kernel for Hopper, too") {
  Recording& recording = start("cuda");
  attn_fwd_params p = latent_call();
  p.features.seqused_k = {pointer(address_of(7)), AOTRITON_INT32, {4}, {1}};
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).entry, std::string("attn_fwd_hopper_latent"));
}

TEST("a call whose keys are not split needs no workspace") {
  Recording& recording = start("cuda");
  attn_fwd_params p = latent_call();
  p.k.sizes[2] = p.v.sizes[2] = 200;
  p.workspace = nullptr;
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
}

TEST("values elsewhere, and other head dims, are refused by name") {
  Recording& recording = start("cuda");
  const struct {
    void (*change)(attn_fwd_params&);
    std::string message;
  } rows[] = {
      {[](auto& p) { p.v.data = pointer(address_of(3)); }, kElsewhere},
      {[](auto& p) { p.v.strides[2] += 64; }, kElsewhere},
      {[](auto& p) { p.v.sizes[3] = p.out.sizes[3] = 256; },
       "attn_fwd: v has head_dim_v 256, which must be 512 where q has head_dim 576"},
      {[](auto& p) { p.q.sizes[3] = p.k.sizes[3] = 577; }, "attn_fwd: q has head_dim 577, which must be from 1 to 512"},
      {[](auto& p) {
         p.q.sizes[3] = p.k.sizes[3] = 512, p.v.sizes[3] = p.out.sizes[3] = 576;
         for (size_t dim = 0; dim < 3; ++dim) p.out.strides[dim] *= 2;
       },
       "attn_fwd: v has head_dim_v 576, which must be from 1 to 512"},
      {[](auto& p) { p.q.dtype = p.k.dtype = p.v.dtype = p.out.dtype = AOTRITON_FLOAT32; },
       "attn_fwd: head_dim 576 is for fp16 and bf16 in rows of 16 bytes, without bias, ALiBi and dropout, and without "
       "the hint batch_invariant"},
      {[](auto& p) { p.workspace = nullptr; }, "attn_fwd: workspace is null, 2626560 bytes are needed"},
  };
  for (const auto& row : rows) {
    attn_fwd_params p = latent_call();
    row.change(p);
    CHECK(attn_fwd(p, {}) != Error::success);
    CHECK_EQ(last_error_message(), row.message);
  }
  attn_bwd_params backward = bwd_call({.head_dim = 576, .head_dim_v = 512});
  backward.v = backward.k;
  backward.v.sizes[3] = 512;
  CHECK(!supported(backward, {}));
  CHECK_EQ(last_error_message(), std::string("attn_bwd: q has head_dim 576, which must be from 1 to 512"));
  CHECK(recording.launches.empty());
}

TEST("a call without memory yet, and one of heads that have keys of their own, are supported") {
  start("cuda");
  attn_fwd_params p = latent_call(2);
  CHECK(supported(p, {}));
  p.q.data = p.k.data = p.v.data = p.out.data = nullptr;
  CHECK(supported(p, {}));
}

TEST("where values begin is checked in a call that differs from the last one in pointers alone") {
  Recording& recording = start("cuda");
  attn_fwd_params p = latent_call();
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  p.k.data = p.v.data = pointer(address_of(9));
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  p.v.data = pointer(address_of(3));
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  CHECK_EQ(last_error_message(), std::string(kElsewhere));
  CHECK_EQ(recording.launches.size(), 4u);
}

TEST("new keys go into a latent cache in one launch: columns that are rotated, and the values, which are not") {
  Recording& recording = start("cuda");
  kv_append_params p;
  p.k = tensor(address_of(1), 4, 1, 1, 64);
  p.v = tensor(address_of(2), 4, 1, 1, 512);
  p.v_cache = tensor(address_of(3), 400, 1, 64, 576);
  p.k_cache = p.v_cache;
  p.v_cache.sizes[3] = 512;
  p.k_cache.sizes[3] = 64;
  p.k_cache.data = static_cast<char*>(p.k_cache.data) + 512 * 2;
  p.seqused_k = {pointer(address_of(4)), AOTRITON_INT32, {4}, {1}};
  p.block_table = {pointer(address_of(5)), AOTRITON_INT32, {4, 80}, {80, 1}};
  p.q = tensor(address_of(6), 4, 16, 1, 64);
  p.q.strides[0] = 16 * 576, p.q.strides[1] = p.q.strides[2] = 576;
  p.rotary_cos = {pointer(address_of(7)), AOTRITON_FLOAT32, {5000, 32}, {32, 1}};
  p.rotary_sin = {pointer(address_of(8)), AOTRITON_FLOAT32, {5000, 32}, {32, 1}};
  CHECK_EQ(kv_append(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
}

TEST("a prepared call takes keys and values at one place only") {
  Recording& recording = start("cuda");
  attn_fwd_params p = latent_call();
  PreparedCall call;
  CHECK_EQ(prepare(p, {}, &call), Error::success);
  std::vector<void*> pointers = pointers_of(p);
  pointers[1] = pointers[2] = pointer(address_of(9));
  CHECK_EQ(call.launch(pointers.data(), pointers.size(), {}), Error::success);
  pointers[2] = pointer(address_of(3));
  CHECK_EQ(call.launch(pointers.data(), pointers.size(), {}), Error::invalid_argument);
  CHECK(std::string(last_error_message()).find("the call was prepared with both at one place") != std::string::npos);
  CHECK_EQ(recording.launches.size(), 2u);
}
