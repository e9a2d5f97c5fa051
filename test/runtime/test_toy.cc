// A family from outside of the tree, through its generated functions: what attention does not have.
#include <algorithm>

#include "calls.h"
#include "program/registry.h"
#include "scale.h"

using namespace aotriton::v2;
using toy::scale;
using toy::scale_params;

namespace {

struct Shape {
  int64_t batch = 2, heads = 3, rows = 70, width = 64, taps = 20;
};
// Longer rows on a filled GPU, where the split backend is the fastest one.
constexpr Shape kLong = {.batch = 10, .heads = 40, .rows = 100};

scale_params call(const Shape& s = {}, bool bias = true) {
  scale_params p;
  p.x = tensor(address_of(1), s.batch, s.heads, s.rows, s.width);
  p.w = {pointer(address_of(2)), DType::bfloat16, {s.taps, s.width}, {s.width, 1}};
  if (bias) p.bias = {pointer(address_of(3)), DType::float32, {s.batch, s.heads}, {s.heads, 1}};
  p.y = tensor(address_of(4), s.batch, s.heads, s.rows, s.width);
  p.workspace = pointer(address_of(5));
  p.workspace_size = 1 << 20;
  return p;
}

std::string entry_of(const scale_params& p) {
  Recording& recording = start("cuda");
  CHECK_EQ(scale(p, {}), Error::success);
  return recording.launches.at(0).entry;
}

}  // namespace

TEST("scalars that are not given have their defaults") {
  const scale_params p;
  CHECK_EQ(p.factor, 1.0f);
  CHECK_EQ(p.times, 1);
  CHECK(!p.bias.data && !p.workspace);
}

TEST("programs are along three axes, and operands of two dimensions and of any strides are passed with theirs") {
  const Shape s;
  for (const bool general : {false, true}) {
    Recording& recording = start("cuda");
    scale_params p = call(s);
    p.factor = 0.5f;
    p.times = 7;
    if (general) p.w.strides[0] = 1, p.w.strides[1] = s.taps;  // transposed
    CHECK_EQ(scale(p, {}), Error::success);
    CHECK_EQ(recording.launches.size(), 1u);
    const RecordedLaunch& launch = recording.launches.at(0);
    CHECK_EQ(launch.entry, "scale_rows");
    CHECK_EQ(launch.grid[0], 3u);  // 70 rows in tiles of 32
    CHECK_EQ(launch.grid[1], 3u);
    CHECK_EQ(launch.grid[2], 2u);
    Reader reader(launch);
    if (general)
      reader.value(p.x.data);
    else
      reader.descriptor(p.x, 32);
    for (void* data : {p.w.data, p.bias.data, p.y.data}) reader.value(data);
    reader.value(0.5f);
    reader.value(int32_t{7});
    if (general) reader.strides(p.x);
    reader.strides(p.y);
    for (const int64_t stride : p.w.strides) reader.value(stride);
    reader.numbers({s.taps, s.rows, s.width});
    reader.end();
  }
}

TEST(
    "more programs along y or z than a GPU launches go to another backend, and are refused by their axis without one") {
  Recording& recording = start("cuda");
  hints portable;
  CHECK_EQ(portable.parse("backend=portable"), Error::success);
  for (const Shape& shape :
       {Shape{.batch = 1, .heads = 65536, .rows = 1}, Shape{.batch = 65536, .heads = 1, .rows = 1}}) {
    scale_params p = call(shape);
    recording.launches.clear();
    CHECK_EQ(scale(p, {}), Error::success);
    CHECK(!recording.launches.empty() && recording.launches[0].entry != "scale_rows");
    CHECK(supported(p, {}));
    Explanation explanation;
    CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
    CHECK_EQ(explanation.kernels[0].kernel, recording.launches[0].entry);

    recording.launches.clear();
    p.hints = &portable;
    CHECK_EQ(scale(p, {}), Error::not_supported);
    CHECK_CONTAINS(last_error_message(), "portable: a launch of it would be larger than a driver takes");
    CHECK(!supported(p, {}));
    CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::not_supported);
    CHECK(recording.launches.empty());
  }
  const scale_params both = call({.batch = 1 << 20, .heads = 1 << 20, .rows = 1});
  CHECK_EQ(scale(both, {}), Error::not_supported);
  CHECK_EQ(last_error_message(), std::string("scale: more than 65535 programs of scale_rows along y"));
  CHECK(!supported(both, {}));
}

TEST("an operand that is left out is another functional, and a null pointer") {
  Recording& recording = start("cuda");
  Explanation explanation;
  for (const bool bias : {true, false}) {
    const scale_params p = call({}, bias);
    CHECK_EQ(scale(p, {}), Error::success);
    CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
    CHECK_EQ(explanation.kernels[0].functional,
             std::string("T=bf16 BLOCK_DMODEL=64 ") + (bias ? "HAS_BIAS=True " : "") + "ADDRESSING=descriptor");
    CHECK_EQ(recording.launches.back().argument<void*>(1 + 4 + 4 + 1), p.bias.data);
    CHECK_EQ(image_of(recording.launches.back()), explanation.kernels[0].image);
  }
}

TEST("a guard that fails is not_supported by its reason, and in another backend leaves the call to the first one") {
  start("cuda");
  scale_params p = call();
  p.times = 101;
  CHECK_EQ(scale(p, {}), Error::not_supported);
  CHECK_EQ(last_error_message(), std::string("scale: times is more than 100"));
  CHECK_EQ(explain(p, "gfx942", 0, nullptr), Error::null_pointer);
  CHECK(!supported(p, {}));

  p = call({.width = 32}, false);
  CHECK_EQ(entry_of(p), "scale_rows_fast");
  p.times = 2;
  CHECK_EQ(entry_of(p), "scale_rows");
}

TEST("a backend without a choice's value serves the others only") {
  CHECK_EQ(entry_of(call({.width = 24}, false)), "scale_rows_fast");  // padded to 32
  CHECK_EQ(entry_of(call({.width = 24}, true)), "scale_rows");        // it takes no bias
  CHECK_EQ(entry_of(call({.width = 40}, false)), "scale_rows");
}

TEST("a backend derives a size from the call and the GPU, and its workspace tensor has it as a dimension") {
  for (const int multiprocessors : {132, 5}) {
    for (const int64_t taps : {3, 20}) {
      Recording& recording = start("cuda");
      recording.devices[kContext].multiprocessors = multiprocessors;
      Shape s = kLong;
      s.taps = taps;
      scale_params p = call(s);
      // Not more than rows of w, multiprocessors, and the 16 places of the last config of scale_rows_apply.
      const int64_t splits = std::min<int64_t>({taps, multiprocessors, 16});
      size_t bytes = 0;
      CHECK_EQ(scale_workspace_size(p, {}, &bytes), Error::success);
      CHECK_EQ(bytes, static_cast<size_t>(splits * s.width * 4));
      p.workspace_size = bytes;
      CHECK_EQ(scale(p, {}), Error::success);
      CHECK_EQ(recording.launches.size(), 2u);

      const RecordedLaunch& weigh = recording.launches.at(0);
      CHECK_EQ(weigh.entry, "scale_rows_weigh");
      check_shape(weigh, static_cast<uint32_t>(splits), 128, 60000);
      Reader first(weigh);
      first.value(p.w.data);
      first.value(p.workspace);
      for (const int64_t stride : p.w.strides) first.value(stride);
      first.numbers({taps, (taps + splits - 1) / splits, s.width});
      first.end();

      const RecordedLaunch& apply = recording.launches.at(1);
      CHECK_EQ(apply.entry, "scale_rows_apply");
      check_shape(apply, 10 * 40 * 100 / 64, 128, 60000);  // all rows together, in tiles of 64
      Reader second(apply);
      for (void* data : {p.x.data, p.workspace, p.bias.data, p.y.data}) second.value(data);
      second.value(1.0f);
      second.value(int32_t{1});
      second.strides(p.x);
      second.strides(p.y);
      second.numbers({splits, s.heads, s.rows, s.width});
      second.value(int64_t{s.batch * s.heads * s.rows});
      second.end();

      p.workspace_size -= 1;
      CHECK_EQ(scale(p, {}), Error::workspace_too_small);
    }
  }
}

TEST("the same call needs another size of workspace on another device") {
  Recording& recording = start("cuda");
  const Stream stream = {pointer(0x5000)};
  add_context(recording, pointer(0xC8));
  recording.devices[pointer(0xC8)].multiprocessors = 7;
  recording.stream_contexts[stream.handle] = pointer(0xC8);
  size_t bytes = 0;
  CHECK_EQ(scale_workspace_size(call(kLong), {}, &bytes), Error::success);
  CHECK_EQ(bytes, 16u * 64 * 4);
  CHECK_EQ(scale_workspace_size(call(kLong), stream, &bytes), Error::success);
  CHECK_EQ(bytes, 7u * 64 * 4);
}

TEST("kernels with fewer keys than the lead are looked up in their own tables") {
  Explanation explanation;
  CHECK_EQ(explain(call(kLong), "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernel_count, 2u);
  CHECK_EQ(explanation.kernels[0].key_count, 1);
  CHECK_EQ(explanation.kernels[0].keys[0].name, std::string("waves"));
  CHECK_EQ(explanation.kernels[0].keys[0].value, 4);  // 400 tiles of 128 rows on 132 multiprocessors
  CHECK_EQ(explanation.kernels[1].key_count, 1);
  CHECK_EQ(explanation.kernels[1].keys[0].name, std::string("rows"));
  CHECK_EQ(explanation.kernels[1].tunables, std::string("BLOCK_M=64 MOST_SPLITS=16"));
  for (size_t i = 0; i < 2; ++i) CHECK_EQ(explanation.kernels[i].backend, std::string("split"));
  CHECK_EQ(explanation.kernels[0].backends[0].median_us, 10.0f);
  CHECK_EQ(explanation.kernels[0].backends[1].median_us, 0.0f);  // the fast one takes no bias
  CHECK_EQ(explanation.kernels[0].backends[2].median_us, 8.0f);
  CHECK_EQ(explain(call(kLong), "gfx942", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernel_count, 1u);
}

TEST("a size of 0 that leaves the result its elements is launched; one that does not is no launch") {
  Recording& recording = start("cuda");
  CHECK_EQ(scale(call({.taps = 0}), {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
  CHECK_EQ(recording.launches[0].argument<void*>(0), call().x.data);  // by pointer: no descriptor is of nothing
  Shape s = kLong;
  s.taps = 0;
  CHECK_EQ(scale(call(s), {}), Error::success);
  CHECK_EQ(recording.launches.at(1).grid[0], 1u);  // one split, of no rows
  CHECK_EQ(recording.launches.at(1).argument<int32_t>(5), 0);
  recording.launches.clear();
  CHECK_EQ(scale(call({.rows = 0}), {}), Error::success);
  CHECK_EQ(scale(call({.batch = 0}), {}), Error::success);
  CHECK(recording.launches.empty() && recording.fills.empty());
}

TEST("an element type that no choice has is refused") {
  start("cuda");
  scale_params p = call();
  p.x.dtype = p.w.dtype = p.y.dtype = AOTRITON_FLOAT16;
  CHECK_EQ(scale(p, {}), Error::invalid_dtype);
  CHECK_CONTAINS(last_error_message(), "scale: x has dtype float16, which must be bfloat16");
}

TEST("a prepared call takes the operands' pointers in their order, and the workspace last") {
  Recording& recording = start("cuda");
  const scale_params p = call(kLong);
  PreparedCall prepared;
  CHECK_EQ(prepare(p, {}, &prepared), Error::success);
  void* const workspace = pointer(address_of(9));
  CHECK_EQ(prepared.launch({p.x.data, pointer(address_of(8)), p.bias.data, p.y.data, workspace}, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).argument<void*>(0), pointer(address_of(8)));
  CHECK_EQ(recording.launches.at(0).argument<void*>(1), workspace);
  CHECK_EQ(recording.launches.at(1).argument<void*>(1), workspace);
}

TEST("whole numbers are part of what a thread remembers of a call") {
  Recording& recording = start("cuda");
  scale_params p = call();
  for (const int times : {1, 2, 1}) {
    p.times = times;
    CHECK_EQ(scale(p, {}), Error::success);
    CHECK_EQ(recording.launches.back().argument<int32_t>(9 + 3 + 1), times);
  }
}

TEST("the registry finds operators of every family by name, and none that is not there") {
  CHECK(find_operator("scale") && find_operator("attn_bwd"));
  CHECK_EQ(find_operator("scale")->backends.size(), 3u);
  CHECK(!find_operator("scal"));
}
