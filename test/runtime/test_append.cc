// Keys and values that are appended to a cache: what the kernel is passed, with pages and without.
#include <aotriton/flash.h>

#include <algorithm>

#include "calls.h"

using namespace aotriton::v2;

namespace {

constexpr int64_t kBatch = 3, kHeads = 2, kNew = 5, kWidth = 64, kWidthV = 40;

Tensor<1> lengths(int tensor, int64_t count) { return {pointer(address_of(tensor)), DType::int32, {count}, {1}}; }

Tensor<2> angles(int tensor) { return {pointer(address_of(tensor)), DType::float32, {100, 16}, {32, 1}}; }

kv_append_params dense() {
  kv_append_params p;
  p.k = tensor(address_of(1), kBatch, kHeads, kNew, kWidth);
  p.v = tensor(address_of(2), kBatch, kHeads, kNew, kWidthV);
  p.k_cache = tensor(address_of(3), kBatch, kHeads, 80, kWidth);
  p.v_cache = tensor(address_of(4), kBatch, kHeads, 80, kWidthV);
  p.seqused_k = lengths(5, kBatch);
  return p;
}

kv_append_params paged() {
  kv_append_params p = dense();
  p.k_cache = tensor(address_of(3), 20, kHeads, 16, kWidth);
  p.v_cache = tensor(address_of(4), 20, kHeads, 16, kWidthV);
  p.block_table = Tensor<2>{pointer(address_of(6)), DType::int32, {kBatch, 5}, {9, 1}};
  p.q = tensor(address_of(7), kBatch, 7, kNew, kWidth);
  p.rotary_cos = angles(8);
  p.rotary_sin = angles(9);
  p.rotary_interleaved = 1;
  return p;
}

void strides(Reader& reader, const aotriton_tensor4& tensor) {
  for (int i = 0; i < 3; ++i) reader.value(tensor.strides[i]);
}

// The arguments up to the numbers.
void tensors(Reader& reader, const kv_append_params& p) {
  for (void* const data : {p.k.data, p.v.data, p.k_cache.data, p.v_cache.data, p.seqused_k.data, p.q.data,
                           p.rotary_cos.data, p.rotary_sin.data, p.cu_seqlens_k.data, p.block_table.data})
    reader.value(data);
  for (const aotriton_tensor4& one : {p.k, p.v, p.k_cache, p.v_cache, p.q}) strides(reader, one);
  for (const aotriton_tensor2& one : {p.rotary_cos, p.rotary_sin, p.block_table}) reader.value(one.strides[0]);
}

// The arguments behind the numbers: scales that are not given.
void no_scales(Reader& reader) {
  for (int i = 0; i < 2; ++i) reader.value(static_cast<void*>(nullptr));
  for (int i = 0; i < 4; ++i) reader.value(int64_t{0});
  reader.numbers({0});
}

uint32_t programs(int64_t tokens, int64_t heads) { return static_cast<uint32_t>((tokens + 3) / 4 * heads); }

}  // namespace

TEST("a cache without pages is one page of each sequence, and what is not given is null and zero") {
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    const kv_append_params p = dense();
    kv_append_params with_strides = p;  // of what is not given, which may be anything
    std::fill_n(with_strides.q.strides, 4, 9);
    CHECK_EQ(kv_append(with_strides, {}), Error::success);
    CHECK_EQ(recording.launches.size(), 1u);
    const RecordedLaunch& launch = recording.launches.at(0);
    CHECK_EQ(launch.entry, "kv_append");
    check_shape(launch, programs(kBatch * kNew, 2 * kHeads), launch.threads, launch.shared);
    Reader reader(launch);
    tensors(reader, p);
    reader.numbers({0, kHeads, kNew, kBatch * kNew, kBatch, 0});
    reader.numbers({0, 80, 0, 0, 0, kWidth, kWidthV, 0});
    no_scales(reader);
    reader.end();
  }
}

TEST("pages, angles and queries are passed with their sizes") {
  Recording& recording = start("cuda");
  const kv_append_params p = paged();
  CHECK_EQ(kv_append(p, {}), Error::success);
  const RecordedLaunch& launch = recording.launches.at(0);
  check_shape(launch, programs(kBatch * kNew, 7 + 2 * kHeads), launch.threads, launch.shared);
  Reader reader(launch);
  tensors(reader, p);
  reader.numbers({7, kHeads, kNew, kBatch * kNew, kBatch, 0});
  reader.numbers({5, 16, 20, 100, 16, kWidth, kWidthV, 1});
  no_scales(reader);
  reader.end();
}

TEST("packed tokens are those of the only batch") {
  Recording& recording = start("cuda");
  kv_append_params p = dense();
  p.k = tensor(address_of(1), 1, kHeads, 11, kWidth);
  p.v = tensor(address_of(2), 1, kHeads, 11, kWidthV);
  p.cu_seqlens_k = lengths(6, kBatch + 1);
  CHECK_EQ(kv_append(p, {}), Error::success);
  Reader reader(recording.launches.at(0));
  tensors(reader, p);
  reader.numbers({0, kHeads, 11, 11, kBatch, 1});
}

TEST("nothing is launched where there are no tokens, or no room for any") {
  Recording& recording = start("cuda");
  kv_append_params p = dense();
  p.k.sizes[2] = p.v.sizes[2] = 0;
  CHECK_EQ(kv_append(p, {}), Error::success);
  p = paged();
  p.k_cache.sizes[2] = p.v_cache.sizes[2] = 0;
  CHECK_EQ(kv_append(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 0u);
}

TEST("without heads of keys, queries alone are rotated") {
  Recording& recording = start("cuda");
  kv_append_params p = paged();
  for (aotriton_tensor4* one : {&p.k, &p.v, &p.k_cache, &p.v_cache}) {
    one->data = nullptr;
    one->sizes[1] = 0;
  }
  CHECK_EQ(kv_append(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
  const RecordedLaunch& launch = recording.launches.at(0);
  check_shape(launch, programs(kBatch * kNew, 7), launch.threads, launch.shared);
  Reader reader(launch);
  tensors(reader, p);
  reader.numbers({7, 0, kNew, kBatch * kNew, kBatch, 0});
  reader.numbers({5, 16, 20, 100, 16, kWidth, kWidthV, 1});
  no_scales(reader);
  reader.end();
}

TEST("no workspace is needed, a prepared call takes other pointers, and reserved bytes are refused") {
  Recording& recording = start("cuda");
  kv_append_params p = paged();
  size_t bytes = 1;
  CHECK_EQ(kv_append_workspace_size(p, {}, &bytes), Error::success);
  CHECK_EQ(bytes, size_t{0});
  CHECK(supported(p, {}));
  PreparedCall prepared;
  CHECK_EQ(prepare(p, {}, &prepared), Error::success);
  p.k.data = pointer(address_of(11));
  p.k_cache.data = pointer(address_of(12));
  p.block_table.data = pointer(address_of(13));
  void* const pointers[] = {p.k.data,
                            p.v.data,
                            p.k_cache.data,
                            p.v_cache.data,
                            p.seqused_k.data,
                            p.q.data,
                            p.rotary_cos.data,
                            p.rotary_sin.data,
                            p.cu_seqlens_k.data,
                            p.block_table.data,
                            p.k_descale.data,
                            p.v_descale.data,
                            nullptr};
  CHECK_EQ(prepared.launch(pointers, std::size(pointers), {}), Error::success);
  Reader reader(recording.launches.at(0));
  tensors(reader, p);
  p.reserved[6] = 1;
  CHECK_EQ(kv_append(p, {}), Error::not_supported);
  CHECK_EQ(last_error_message(), std::string("kv_append: a reserved field is not zero"));
}
