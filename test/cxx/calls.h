// What the dispatch tests share: a recording with one device, calls on made-up addresses, and a reader of arguments.
#pragma once

#include <aotriton/flash.h>

#include "check.h"
#include "driver/recording.h"
#include "flash/kernels.h"

namespace aotriton::v2 {

inline void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

inline void* const kContext = pointer(0xC0);

// A fresh recording whose current context is an sm_90 or gfx942 device; no image is loaded.
inline Recording& start(const char* vendor) {
  for (const KernelInfo* kernel : flash::kKernels)
    for (const KernelTable& table : kernel->tables)
      for (Image* image : table.images)
        for (auto& function : image->functions) function = nullptr;
  Recording& recording = start_recording(vendor);
  const bool cuda = vendor[0] == 'c';
  recording.devices[kContext] = {cuda ? "sm_90" : "gfx942", cuda ? 132 : 304};
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

inline Tensor<3> rows(uintptr_t address, int64_t batch, int64_t heads, int64_t seqlen) {
  return {pointer(address), DType::float32, {batch, heads, seqlen}, {heads * seqlen, seqlen, 1}};
}

struct Sizes {
  int64_t batch = 2, heads = 4, heads_k = 2, seqlen_q = 100, seqlen_k = 70, head_dim = 64;
};

inline attn_fwd_params fwd_call(const Sizes& s = {}) {
  return {tensor(0x10000, s.batch, s.heads, s.seqlen_q, s.head_dim),
          tensor(0x20000, s.batch, s.heads_k, s.seqlen_k, s.head_dim),
          tensor(0x30000, s.batch, s.heads_k, s.seqlen_k, s.head_dim),
          tensor(0x40000, s.batch, s.heads, s.seqlen_q, s.head_dim),
          rows(0x50000, s.batch, s.heads, s.seqlen_q),
          0.125f,
          false};
}

inline attn_bwd_params bwd_call(const Sizes& s = {}) {
  const attn_fwd_params f = fwd_call(s);
  attn_bwd_params p = {f.q, f.k, f.v, f.out, f.out, f.logsumexp, f.q, f.k, f.v, f.sm_scale, f.causal, nullptr, 0};
  p.dout.data = pointer(0x60000);
  p.dq.data = pointer(0x70000);
  p.dk.data = pointer(0x80000);
  p.dv.data = pointer(0x90000);
  p.workspace = pointer(0xA0000);
  const int64_t rows = s.batch * s.heads * s.seqlen_q;
  p.workspace_size = static_cast<size_t>((rows * 4 + 255) / 256 * 256 + rows * s.head_dim * 4);
  return p;
}

// Compares a launch's arguments with what they should be, from the first on.
class Reader {
 public:
  explicit Reader(const RecordedLaunch& launch) : launch_(launch) {}

  void descriptor(const Tensor<4>& tensor, uint32_t box_rows) {
    const TensorMapRequest map = launch_.tensor_map(next_++);
    CHECK(map.dtype == tensor.dtype);
    CHECK_EQ(map.rank, 4);
    CHECK_EQ(map.address, tensor.data);
    CHECK_EQ(map.swizzle, 3);
    const uint64_t element = tensor.dtype == DType::float32 ? 4 : 2;
    const uint32_t box[4] = {static_cast<uint32_t>(128 / element), box_rows, 1, 1};
    for (int i = 0; i < 4; ++i) {
      CHECK_EQ(map.sizes[i], static_cast<uint64_t>(tensor.sizes[3 - i]));
      CHECK_EQ(map.box[i], box[i]);
      if (i == 3) continue;
      CHECK_EQ(map.strides[i], tensor.sizes[2 - i] == 1 ? 16 : static_cast<uint64_t>(tensor.strides[2 - i]) * element);
    }
    for (const int64_t size : tensor.sizes) value(static_cast<int32_t>(size));
    for (const int64_t stride : tensor.strides) value(stride);
  }

  template <class T>
  void value(T wanted) {
    CHECK_EQ(launch_.argument<T>(next_), wanted);
    ++next_;
  }

  void strides(const Tensor<4>& tensor) {
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

inline void check_shape(const RecordedLaunch& launch, uint32_t x, uint32_t y, uint32_t z, uint32_t threads,
                        uint32_t shared) {
  CHECK_EQ(launch.grid[0], x);
  CHECK_EQ(launch.grid[1], y);
  CHECK_EQ(launch.grid[2], z);
  CHECK_EQ(launch.threads, threads);
  CHECK_EQ(launch.shared, shared);
}

}  // namespace aotriton::v2
