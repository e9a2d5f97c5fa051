// What the dispatch tests share: a recording with one device, calls on made-up addresses, and a reader of arguments.
#pragma once

#include <aotriton/flash.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "check.h"
#include "recording.h"

namespace aotriton::v2 {

// What `body` writes to stderr.
template <class Body>
std::string captured(Body body) {
  FILE* const file = tmpfile();
  fflush(stderr);
  const int before = dup(2);
  dup2(fileno(file), 2);
  body();
  fflush(stderr);
  dup2(before, 2);
  close(before);
  std::string text(static_cast<size_t>(ftell(file)), '\0');
  rewind(file);
  CHECK_EQ(fread(text.data(), 1, text.size(), file), text.size());
  fclose(file);
  return text;
}

inline void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

inline void* const kContext = pointer(0xC0);

// Lives that contexts have had: none is used twice, so that nothing is loaded or remembered for a new one.
inline uint64_t lives = 0;

// A context of an sm_90 or gfx942 device, the usual product.
inline void add_context(Recording& recording, void* context, const std::string& vendor = "cuda") {
  const bool cuda = vendor == "cuda";
  RecordedDevice& device = recording.devices[context];
  device = {cuda ? "sm_90" : "gfx942", cuda ? 132 : 304, ++lives};
  device.name = cuda ? "NVIDIA H100 80GB HBM3" : "AMD Instinct MI300X";
}

// A fresh recording whose current context is kContext; no image is loaded.
inline Recording& start(const char* vendor) {
  Recording& recording = start_recording(vendor);
  add_context(recording, kContext, vendor);
  set_current_context(kContext);
  return recording;
}

inline Tensor<4> tensor(uintptr_t address, int64_t batch, int64_t heads, int64_t seqlen, int64_t head_dim,
                        DType dtype = DType::bfloat16) {
  return {pointer(address),
          dtype,
          {batch, heads, seqlen, head_dim},
          {heads * seqlen * head_dim, seqlen * head_dim, head_dim, 1}};
}

// The sum of dq, in tiles of 64 rows of dq.
inline Tensor<4> dq_sum(uintptr_t address, int64_t batch, int64_t heads, int64_t seqlen, int64_t columns) {
  return tensor(address, batch, heads, (seqlen + 63) / 64 * columns, 64, DType::float32);
}

inline Tensor<3> rows(uintptr_t address, int64_t batch, int64_t heads, int64_t seqlen) {
  return {pointer(address), DType::float32, {batch, heads, seqlen}, {heads * seqlen, seqlen, 1}};
}

struct Sizes {
  int64_t batch = 2, heads = 4, heads_k = 2, seqlen_q = 100, seqlen_k = 70, head_dim = 64;
  int64_t head_dim_v = 0;  // 0: as head_dim

  int64_t of_v() const { return head_dim_v ? head_dim_v : head_dim; }
  int64_t widest() const { return std::max(head_dim, head_dim_v); }
};

// Far from each other, whatever their sizes are.
constexpr uintptr_t address_of(int tensor) { return (uintptr_t{1} << 56) * static_cast<uintptr_t>(tensor); }

inline attn_fwd_params fwd_call(const Sizes& s = {}) {
  attn_fwd_params p;
  p.q = tensor(address_of(1), s.batch, s.heads, s.seqlen_q, s.head_dim);
  p.k = tensor(address_of(2), s.batch, s.heads_k, s.seqlen_k, s.head_dim);
  p.v = tensor(address_of(3), s.batch, s.heads_k, s.seqlen_k, s.of_v());
  p.out = tensor(address_of(4), s.batch, s.heads, s.seqlen_q, s.of_v());
  p.logsumexp = rows(address_of(5), s.batch, s.heads, s.seqlen_q);
  p.sm_scale = 0.125f;
  return p;
}

inline attn_bwd_params bwd_call(const Sizes& s = {}) {
  const attn_fwd_params f = fwd_call(s);
  attn_bwd_params p;
  p.q = f.q, p.k = f.k, p.v = f.v, p.out = f.out, p.logsumexp = f.logsumexp, p.sm_scale = f.sm_scale;
  p.dout = f.out, p.dq = f.q, p.dk = f.k, p.dv = f.v;
  p.dout.data = pointer(address_of(6));
  p.dq.data = pointer(address_of(7));
  p.dk.data = pointer(address_of(8));
  p.dv.data = pointer(address_of(9));
  p.workspace = pointer(address_of(10));
  const int64_t heads = s.batch * s.heads, tiles = (s.seqlen_q + 63) / 64;
  const int64_t delta = heads * s.seqlen_q * 4, sum = heads * tiles * 64 * s.widest() * 4;
  const int64_t marks = s.batch * s.heads_k * (s.seqlen_k + 127) / 128 * 8;
  p.workspace_size = static_cast<size_t>((delta + 255) / 256 * 256 + sum + (marks + 255) / 256 * 256);
  return p;
}

// The image that a launch was of, by its name.
inline std::string image_of(const RecordedLaunch& launch, const char* arch = "sm_90") {
  return launch.entry + "_" + arch + "_" + launch.head;
}

// Compares a launch's arguments with what they should be, from the first on.
class Reader {
 public:
  explicit Reader(const RecordedLaunch& launch) : launch_(launch) {}

  // A tensor map with this box, outermost dimension first, and what goes with it.
  template <class CTensor>
  void descriptor(const CTensor& tensor, const std::vector<uint32_t>& box, bool swizzled = true) {
    const TensorMapRequest map = launch_.tensor_map(next_++);
    const int rank = static_cast<int>(std::size(tensor.sizes));
    const uint64_t element = tensor.dtype == AOTRITON_FLOAT32 ? 4 : 2;
    CHECK_EQ(static_cast<aotriton_dtype>(map.dtype), tensor.dtype);
    CHECK_EQ(map.rank, rank);
    CHECK_EQ(map.address, tensor.data);
    // Rows are swizzled as widely as they are.
    CHECK_EQ(map.swizzle ? uint64_t{16} << map.swizzle : 0, swizzled ? box.back() * element : 0);
    for (int i = 0; i < rank; ++i) {
      const int dim = rank - 1 - i;
      CHECK_EQ(map.sizes[i], static_cast<uint64_t>(tensor.sizes[dim]));
      CHECK_EQ(map.box[i], box[static_cast<size_t>(dim)]);
      if (!i) continue;
      const uint64_t stride = static_cast<uint64_t>(tensor.strides[dim]) * element;
      CHECK_EQ(map.strides[i - 1], tensor.sizes[dim] == 1 ? 16 : stride);
    }
    for (const int64_t size : tensor.sizes) value(static_cast<int32_t>(size));
    for (const int64_t stride : tensor.strides) value(stride);
  }

  // The same of as many heads side by side, which share out the box's rows.
  void packed(const aotriton_tensor4& tensor, uint32_t box_rows, uint32_t heads) {
    struct {
      aotriton_dtype dtype;
      void* data;
      int64_t sizes[5], strides[5];
    } const made = {
        tensor.dtype,
        tensor.data,
        {tensor.sizes[0], tensor.sizes[1] / heads, tensor.sizes[2], heads, tensor.sizes[3]},
        {tensor.strides[0], tensor.strides[1] * heads, tensor.strides[2], tensor.strides[1], tensor.strides[3]}};
    descriptor(made, {1, 1, box_rows / heads, heads, 64});
  }

  // Of rows as wide as a swizzled box can be.
  void descriptor(const aotriton_tensor4& tensor, uint32_t box_rows) {
    descriptor(tensor, {1, 1, box_rows, tensor.dtype == AOTRITON_FLOAT32 ? 32u : 64u});
  }

  template <class T>
  void value(T wanted) {
    CHECK_EQ(launch_.argument<T>(next_), wanted);
    ++next_;
  }

  void numbers(std::initializer_list<int64_t> values) {
    for (const int64_t one : values) value(static_cast<int32_t>(one));
  }

  // All strides but that of the columns.
  void strides(const aotriton_tensor4& tensor) {
    for (int i = 0; i < 3; ++i) value(tensor.strides[i]);
  }

  void end() {
    value(pointer(0));
    value(pointer(0));
    CHECK_EQ(launch_.arguments.size(), next_);
  }

 private:
  const RecordedLaunch& launch_;
  size_t next_ = 0;
};

inline void check_shape(const RecordedLaunch& launch, uint32_t programs, uint32_t threads, uint32_t shared) {
  CHECK_EQ(launch.grid[0], programs);
  CHECK_EQ(launch.grid[1], 1u);
  CHECK_EQ(launch.grid[2], 1u);
  CHECK_EQ(launch.threads, threads);
  CHECK_EQ(launch.shared, shared);
}

}  // namespace aotriton::v2
