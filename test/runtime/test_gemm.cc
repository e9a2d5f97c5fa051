// Matrix products: whichever way the operands are stored, each kernel gets what it takes.
#include <aotriton/gemm.h>

#include <cmath>
#include <utility>

#include "calls.h"
#include "launch/request.h"

using namespace aotriton::v2;

namespace {

struct Shape {
  int64_t batch = 2, m = 16, n = 400, k = 200;
};

Tensor<3> matrix(int tensor, int64_t batch, int64_t rows, int64_t columns) {
  return {pointer(address_of(tensor)), DType::bfloat16, {batch, rows, columns}, {rows * columns, columns, 1}};
}

aotriton_tensor3 transposed(aotriton_tensor3 tensor) {
  std::swap(tensor.sizes[1], tensor.sizes[2]);
  std::swap(tensor.strides[1], tensor.strides[2]);
  return tensor;
}

// The same sizes, by columns.
aotriton_tensor3 by_columns(const aotriton_tensor3& tensor) {
  aotriton_tensor3 made = tensor;
  made.strides[1] = 1;
  made.strides[2] = tensor.sizes[1];
  return made;
}

gemm_params call(const Shape& s = {}) {
  gemm_params p;
  p.a = matrix(1, s.batch, s.m, s.k);
  p.b = matrix(2, s.batch, s.k, s.n);
  p.d = matrix(3, s.batch, s.m, s.n);
  p.bias = Tensor<1>{pointer(address_of(4)), DType::bfloat16, {s.n}, {1}};
  p.alpha = 0.5f;
  p.activation = AOTRITON_GELU;
  p.workspace = pointer(address_of(5));
  p.workspace_size = size_t{1} << 40;
  return p;
}

// A tunable of the kernel that the call runs.
uint32_t tunable(const gemm_params& p, const std::string& name, const char* arch = "sm_90") {
  Explanation explanation;
  CHECK_EQ(explain(p, arch, 0, &explanation), Error::success);
  const std::string text = std::string(" ") + explanation.kernels[0].tunables;
  const size_t at = text.find(" " + name + "=");
  CHECK(at != std::string::npos);
  return static_cast<uint32_t>(std::stoul(text.substr(at + name.size() + 2)));
}

uint32_t tiles(const Shape& s, uint32_t rows, uint32_t columns) {
  return static_cast<uint32_t>((s.m + rows - 1) / rows * ((s.n + columns - 1) / columns) * s.batch);
}

uint32_t clipped(uint32_t columns) { return std::min(columns, 64u); }

// What follows the tensors. The bias goes along n, or along m where operands are swapped.
void rest(Reader& reader, const gemm_params& p, bool swapped = false) {
  reader.value(p.bias.data);
  reader.value(0.5f);
  reader.numbers({AOTRITON_GELU, p.bias.data && swapped, p.bias.data && !swapped});
}

void sizes(Reader& reader, const Shape& s) { reader.numbers({s.m, s.n, s.k}); }

}  // namespace

TEST("the portable kernel takes rows by descriptor on CUDA, in tiles of its own blocks") {
  Recording& recording = start("cuda");
  const Shape s;
  const gemm_params p = call(s);
  CHECK_EQ(gemm(p, {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
  const RecordedLaunch& launch = recording.launches.at(0);
  CHECK_EQ(launch.entry, "gemm");
  const uint32_t rows = tunable(p, "BLOCK_M"), columns = tunable(p, "BLOCK_N"), steps = tunable(p, "BLOCK_K");
  check_shape(launch, tiles(s, rows, columns), launch.threads, launch.shared);
  Reader reader(launch);
  reader.descriptor(p.a, {1, rows, clipped(steps)});
  reader.descriptor(p.b, {1, steps, clipped(columns)});
  reader.descriptor(p.d, {1, rows, clipped(columns)});
  rest(reader, p);
  sizes(reader, s);
  reader.end();
}

TEST("an operand that is stored by columns is another functional, whose descriptor is of what is stored") {
  const Shape s;
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      Recording& recording = start("cuda");
      gemm_params p = call(s);
      if (a) p.a = by_columns(p.a);
      if (b) p.b = by_columns(p.b);
      CHECK_EQ(gemm(p, {}), Error::success);
      Explanation explanation;
      CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
      CHECK_EQ(explanation.kernels[0].functional, std::string("T=bf16 TRANS_A=") + (a ? "True" : "False") +
                                                      " TRANS_B=" + (b ? "True" : "False") + " ADDRESSING=descriptor");
      const uint32_t rows = tunable(p, "BLOCK_M"), columns = tunable(p, "BLOCK_N"), steps = tunable(p, "BLOCK_K");
      Reader reader(recording.launches.at(0));
      if (a)
        reader.descriptor(transposed(p.a), {1, steps, clipped(rows)});
      else
        reader.descriptor(p.a, {1, rows, clipped(steps)});
      if (b)
        reader.descriptor(transposed(p.b), {1, columns, clipped(steps)});
      else
        reader.descriptor(p.b, {1, steps, clipped(columns)});
      reader.descriptor(p.d, {1, rows, clipped(columns)});
      rest(reader, p);
      sizes(reader, s);
      reader.end();
    }
  }
}

TEST("a request by names says which operands lie by columns") {
  for (const char* name : {"transposed_a", "transposed_b", "transposed_d"}) {
    for (const double by_columns_is : {0.0, 1.0}) {
      gemm_params p = call({.batch = 1, .m = 400});
      p.bias = {};
      aotriton_tensor3& operand = name[11] == 'a' ? p.a : name[11] == 'b' ? p.b : p.d;
      if (by_columns_is != 0) operand = by_columns(operand);
      Explanation of_call, of_request;
      CHECK_EQ(explain(p, "sm_90", 0, &of_call), Error::success);
      const Named values[] = {{"batch", 1}, {"m", 400}, {"n", 400}, {"k", 200}, {name, by_columns_is}};
      CHECK_EQ(explain({.op = "gemm", .arch = "sm_90", .dtype = "bf16", .values = values}, &of_request),
               Error::success);
      CHECK_EQ(of_request.kernels[0].functional, std::string(of_call.kernels[0].functional));
      CHECK_EQ(of_request.kernels[0].image, std::string(of_call.kernels[0].image));
    }
  }
}

TEST("a result that is stored by columns swaps the operands: its transpose is the product of theirs") {
  Recording& recording = start("cuda");
  gemm_params p = call({.m = 400, .n = 16});
  p.d = by_columns(p.d);
  CHECK_EQ(gemm(p, {}), Error::success);
  const RecordedLaunch& launch = recording.launches.at(0);
  CHECK_EQ(launch.entry, "gemm");  // m is 16 now
  const uint32_t rows = tunable(p, "BLOCK_M"), columns = tunable(p, "BLOCK_N"), steps = tunable(p, "BLOCK_K");
  Reader reader(launch);
  reader.descriptor(p.b, {1, steps, clipped(rows)});     // bᵀ by columns
  reader.descriptor(p.a, {1, columns, clipped(steps)});  // aᵀ by columns
  reader.descriptor(transposed(p.d), {1, rows, clipped(columns)});
  rest(reader, p, true);
  reader.numbers({16, 400, 200});
  reader.end();
}

TEST("a call with swapped operands that is known, or was prepared, puts each pointer where it belongs") {
  Recording& recording = start("cuda");
  gemm_params p = call();
  p.d = by_columns(p.d);
  CHECK_EQ(gemm(p, {}), Error::success);
  PreparedCall prepared;
  CHECK_EQ(prepare(p, {}, &prepared), Error::success);
  p.a.data = pointer(address_of(11));
  p.b.data = pointer(address_of(12));
  p.d.data = pointer(address_of(13));
  p.bias.data = pointer(address_of(14));
  CHECK_EQ(gemm(p, {}), Error::success);
  CHECK_EQ(prepared.launch({p.a.data, p.b.data, p.d.data, p.bias.data, p.workspace}, {}), Error::success);
  const size_t kernels = recording.launches.size() / 3;
  CHECK(kernels > 0 && recording.launches.size() == 3 * kernels);

  p.a.data = nullptr;
  CHECK_EQ(gemm(p, {}), Error::null_pointer);
  CHECK_EQ(last_error_message(), std::string("gemm: a has no data"));
  CHECK_EQ(prepared.launch({nullptr, p.b.data, p.d.data, p.bias.data, p.workspace}, {}), Error::null_pointer);
  CHECK_EQ(last_error_message(), std::string("gemm: a has no data"));
  p.a.data = pointer(address_of(11));

  add_context(recording, kContext);  // in which nothing is known
  CHECK_EQ(gemm(p, {}), Error::success);
  for (size_t i = kernels; i < 3 * kernels; ++i)
    CHECK(recording.launches[i].arguments == recording.launches[3 * kernels + i % kernels].arguments);
}

TEST("strides that are neither rows nor columns are passed with the pointers, and so are all on HIP") {
  const Shape s;
  for (const char* vendor : {"cuda", "hip"}) {
    Recording& recording = start(vendor);
    gemm_params p = call(s);
    if (vendor[0] == 'c') p.a.strides[1] = 401, p.a.strides[2] = 2;
    CHECK_EQ(gemm(p, {}), Error::success);
    const RecordedLaunch& launch = recording.launches.at(0);
    CHECK_EQ(launch.entry, "gemm");
    Reader reader(launch);
    for (void* data : {p.a.data, p.b.data, p.d.data}) reader.value(data);
    rest(reader, p);
    for (const aotriton_tensor3* t : {&p.a, &p.b, &p.d})
      for (const int64_t stride : t->strides) reader.value(stride);
    sizes(reader, s);
    reader.end();
  }
}

TEST("without a bias its pointer is null and its strides are 0") {
  Recording& recording = start("hip");
  gemm_params p = call();
  p.bias = {};
  CHECK_EQ(gemm(p, {}), Error::success);
  Reader reader(recording.launches.at(0));
  for (void* data : {p.a.data, p.b.data, p.d.data}) reader.value(data);
  rest(reader, p);
}

TEST("no inner size still launches, as the bias is to be written; no outer one is no launch") {
  Recording& recording = start("cuda");
  CHECK_EQ(gemm(call({.k = 0}), {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
  for (const Shape& s : {Shape{.batch = 0}, Shape{.m = 0}, Shape{.n = 0}}) CHECK_EQ(gemm(call(s), {}), Error::success);
  CHECK_EQ(recording.launches.size(), 1u);
}

TEST("a kernel without programs in a call is not launched, and its workspace is not asked for") {
  for (const bool split : {false, true}) {
    Recording& recording = start("cuda");
    // With a by columns the split backend is the fastest. Tiles that fill the GPU evenly are not split.
    gemm_params p = call({.batch = 1, .m = 64 * (split ? 3 : 132), .n = 16, .k = 2000});
    p.a = by_columns(p.a);
    size_t bytes = 1;
    CHECK_EQ(gemm_workspace_size(p, {}, &bytes), Error::success);
    CHECK_EQ(bytes > 0, split);
    CHECK_EQ(gemm(p, {}), Error::success);
    CHECK_EQ(recording.launches.at(0).entry, "gemm_hopper_split");
    CHECK_EQ(recording.launches.size(), split ? 2u : 1u);
    CHECK_EQ(recording.launches.at(0).argument<void*>(22), split ? p.workspace : nullptr);
    Explanation explanation;
    CHECK_EQ(explain(p, "sm_90", 132, &explanation), Error::success);
    CHECK_EQ(explanation.kernel_count, recording.launches.size());
  }
}

TEST("a workspace that is an operand is refused") {
  Recording& recording = start("cuda");
  gemm_params p = call({.batch = 1, .m = 192, .n = 16, .k = 2000});
  p.a = by_columns(p.a);
  for (void* const operand : {p.a.data, p.b.data, p.d.data}) {
    p.workspace = operand;
    CHECK(gemm(p, {}) != Error::success);
    CHECK_CONTAINS(last_error_message(), "gemm: workspace and ");
  }
  CHECK(recording.launches.empty());
}

TEST("a result of one column is a row of the swapped product, which descriptors can write") {
  for (const bool column : {true, false}) {
    Recording& recording = start("cuda");
    gemm_params p = call({.m = 400, .n = 1});
    if (column)
      p.d.strides[1] = 1, p.d.strides[2] = 77;  // a stride that nothing follows
    else
      p.d.strides[0] = 800, p.d.strides[1] = 2, p.d.strides[2] = 1;
    CHECK_EQ(gemm(p, {}), Error::success);
    Explanation explanation;
    CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
    CHECK_CONTAINS(explanation.kernels[0].functional, column ? "ADDRESSING=descriptor" : "ADDRESSING=general");
    CHECK_EQ(explanation.kernels[0].keys[0].value, column ? 1 : 400);  // m
    CHECK_EQ(recording.launches.size(), 1u);
  }
}

TEST("without a workspace a call gets the fastest backend that needs none") {
  Recording& recording = start("cuda");
  gemm_params p = call({.batch = 1, .m = 64 * 3, .n = 16, .k = 2000});
  p.b = by_columns(p.b);
  size_t bytes = 0;
  CHECK_EQ(gemm_workspace_size(p, {}, &bytes), Error::success);
  CHECK(bytes > 0);
  void* const workspace = std::exchange(p.workspace, nullptr);
  for (int i = 0; i < 2; ++i) {  // the second call is known
    CHECK_EQ(gemm(p, {}), Error::success);
    CHECK_EQ(recording.launches.size(), 1u);
    CHECK_EQ(recording.launches.at(0).entry, "gemm_hopper");
    recording.launches.clear();
  }
  p.workspace = workspace;  // which makes it another call
  CHECK_EQ(gemm(p, {}), Error::success);
  CHECK_EQ(recording.launches.at(0).entry, "gemm_hopper_split");
  p.workspace_size = bytes - 1;
  CHECK_EQ(gemm(p, {}), Error::workspace_too_small);
}

TEST("what is loaded ahead serves the call with a workspace and without") {
  Recording& recording = start("cuda");
  gemm_params p = call({.batch = 1, .m = 64 * 3, .n = 16, .k = 2000});
  p.b = by_columns(p.b);
  CHECK_EQ(preload(p, {}), Error::success);
  const size_t loaded = recording.loads.size();
  CHECK_EQ(gemm(p, {}), Error::success);
  p.workspace = nullptr;
  CHECK_EQ(gemm(p, {}), Error::success);
  CHECK_EQ(recording.loads.size(), loaded);
}

TEST("gemm refuses every wrong argument by name") {
  struct Case {
    void (*spoil)(gemm_params&);
    Error error;
    const char* message;
  };
  const Case cases[] = {
      {[](auto& p) { p.alpha = 0; }, Error::invalid_argument, "gemm: alpha is 0, which must be finite, and not 0"},
      {[](auto& p) { p.alpha = NAN; }, Error::invalid_argument, "gemm: alpha is nan"},
      {[](auto& p) { p.alpha = INFINITY; }, Error::invalid_argument, "gemm: alpha is inf"},
      {[](auto& p) { p.activation = 4; }, Error::invalid_argument, "gemm: activation is 4"},
      {[](auto& p) { p.activation = -1; }, Error::invalid_argument, "gemm: activation is -1"},
      {[](auto& p) { p.b.sizes[1] = 199; }, Error::invalid_shape, "gemm: b has k 199, a has 200"},
      {[](auto& p) { p.bias.sizes[0] = 399; }, Error::invalid_shape, "gemm: bias has n 399, b has 400"},
      {[](auto& p) { p.bias.dtype = AOTRITON_FLOAT32; }, Error::invalid_dtype, "gemm: bias has dtype float32"},
      {[](auto& p) { p.bias.strides[0] = 2; }, Error::invalid_stride, "gemm: bias has n stride 2"},
      {[](auto& p) { p.d.strides[1] = 399; }, Error::invalid_stride, "gemm: d is written, but its elements overlap"},
      {[](auto& p) { p.d.data = nullptr; }, Error::null_pointer, "gemm: d has no data"},
      {[](auto& p) { p.d.data = p.a.data; }, Error::invalid_stride,
       "gemm: d is written and a is read, but they overlap"},
      {[](auto& p) { p.d.data = p.b.data; }, Error::invalid_stride,
       "gemm: d is written and b is read, but they overlap"},
  };
  for (const auto& [spoil, error, message] : cases) {
    Recording& recording = start("cuda");
    gemm_params p = call();
    spoil(p);
    CHECK_EQ(gemm(p, {}), error);
    CHECK_CONTAINS(last_error_message(), message);
    CHECK(recording.launches.empty());
  }
}

TEST("a size beyond what kernels count in 32 bits is refused by its name, and so say the queries") {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1024;
  Recording& recording = start("cuda");
  for (const int axis : {0, 1, 2}) {
    const char* const name = &"m\0n\0k"[2 * axis];
    for (const int64_t size : {kMost + 8, (int64_t{1} << 31) - 8, int64_t{1} << 31, (int64_t{1} << 32) + 8}) {
      Shape s = {.batch = 1, .m = 8, .n = 8, .k = 8};
      (axis == 0 ? s.m : axis == 1 ? s.n : s.k) = size;
      const gemm_params p = call(s);
      CHECK_EQ(gemm(p, {}), Error::not_supported);
      CHECK_CONTAINS(last_error_message(), std::string("gemm: ") + name + " is more than 2147482624");
      CHECK(!supported(p, {}));
      size_t bytes;
      CHECK_EQ(gemm_workspace_size(p, {}, &bytes), Error::not_supported);
      Explanation explanation;
      CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::not_supported);
    }
    Shape s = {.batch = 1, .m = 8, .n = 8, .k = 8};
    (axis == 0 ? s.m : axis == 1 ? s.n : s.k) = kMost;
    CHECK_EQ(gemm(call(s), {}), Error::success);
    CHECK(supported(call(s), {}));
  }
  for (const RecordedLaunch& launch : recording.launches) CHECK(launch.grid[0] <= 1u << 31);
}
