#include "torch/reference.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>
#include <limits>
#include <vector>

namespace aotriton_torch {

namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

float load(const void* data, aotriton_dtype dtype, int64_t offset) {
  if (dtype == AOTRITON_FLOAT16) return static_cast<const Half*>(data)[offset];
  if (dtype == AOTRITON_BFLOAT16) return static_cast<const BFloat16*>(data)[offset];
  return static_cast<const float*>(data)[offset];
}

void store(void* data, aotriton_dtype dtype, int64_t offset, float value) {
  if (dtype == AOTRITON_FLOAT16)
    static_cast<Half*>(data)[offset] = value;
  else if (dtype == AOTRITON_BFLOAT16)
    static_cast<BFloat16*>(data)[offset] = value;
  else
    static_cast<float*>(data)[offset] = value;
}

// One head of one sequence: rows of head_dim.
struct Head {
  int64_t rows, columns;
  std::vector<float> values;

  explicit Head(const aotriton_tensor4& of)
      : rows(of.sizes[2]), columns(of.sizes[3]), values(static_cast<size_t>(rows * columns)) {}
  Head(const aotriton_tensor4& of, int64_t batch, int64_t head) : Head(of) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) (*this)[i][j] = load(of.data, of.dtype, offset(of, batch, head, i, j));
  }

  float* operator[](int64_t row) { return values.data() + row * columns; }
  const float* operator[](int64_t row) const { return values.data() + row * columns; }

  void write(const aotriton_tensor4& to, int64_t batch, int64_t head) const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) store(to.data, to.dtype, offset(to, batch, head, i, j), (*this)[i][j]);
  }

  static int64_t offset(const aotriton_tensor4& of, int64_t batch, int64_t head, int64_t i, int64_t j) {
    return batch * of.strides[0] + head * of.strides[1] + i * of.strides[2] + j * of.strides[3];
  }
};

float dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void add(float* to, float factor, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

template <class Params>
float scale_of(const Params& p) {
  return p.sm_scale == 0 && !p.scale_given ? 1 / std::sqrt(static_cast<float>(p.q.sizes[3])) : p.sm_scale;
}

// The keys that a query sees, from one on to before another one.
struct Seen {
  int64_t begin, end;
};
template <class Params>
Seen seen(const Params& p, int64_t query) {
  const aotriton_attn_features& f = p.features;
  const int64_t queries = p.q.sizes[2], keys = p.k.sizes[2];
  const int64_t own = query + (f.causal_variant == AOTRITON_CAUSAL_BOTTOM_RIGHT ? keys - queries : 0);
  Seen found = {0, p.causal ? own + 1 : keys};
  if (f.windowed && f.window_left >= 0) found.begin = own - std::min(f.window_left, own + 1);
  if (f.windowed && f.window_right >= 0)
    found.end = std::min(found.end, own + 1 + std::min(f.window_right, queries + keys));
  return {std::max<int64_t>(found.begin, 0), std::min(found.end, keys)};
}

float activate(int32_t activation, float x) {
  switch (activation) {
    case AOTRITON_RELU:
      return x > 0 ? x : 0;
    case AOTRITON_GELU:
      return x / 2 * (1 + std::erf(x / std::sqrt(2.0f)));
    case AOTRITON_SILU:
      return x / (1 + std::exp(-x));
  }
  return x;
}

}  // namespace

void reference(const aotriton_attn_fwd_params& p) {
  const int64_t heads = p.q.sizes[1], group = heads / std::max<int64_t>(p.k.sizes[1], 1);
  const float scale = scale_of(p);
  torch::stable::parallel_for(0, p.q.sizes[0] * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slice = begin; slice < end; ++slice) {
      const int64_t batch = slice / heads, head = slice % heads;
      const Head q(p.q, batch, head), k(p.k, batch, head / group), v(p.v, batch, head / group);
      Head out(p.out);
      std::vector<float> weights(static_cast<size_t>(k.rows));
      for (int64_t i = 0; i < q.rows; ++i) {
        const auto [first, after] = seen(p, i);
        float highest = -std::numeric_limits<float>::infinity(), sum = 0;
        for (int64_t j = first; j < after; ++j) {
          weights[j] = scale * dot(q[i], k[j], q.columns);
          highest = std::max(highest, weights[j]);
        }
        for (int64_t j = first; j < after; ++j) sum += weights[j] = std::exp(weights[j] - highest);
        for (int64_t j = first; j < after; ++j) add(out[i], weights[j] / sum, v[j], q.columns);
        static_cast<float*>(p.logsumexp.data)[slice * q.rows + i] = highest + std::log(sum);
      }
      out.write(p.out, batch, head);
    }
  });
}

void reference(const aotriton_attn_bwd_params& p) {
  const int64_t heads_q = p.q.sizes[1], heads_k = p.k.sizes[1], group = heads_q / std::max<int64_t>(heads_k, 1);
  const float scale = scale_of(p);
  torch::stable::parallel_for(0, p.k.sizes[0] * heads_k, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slice = begin; slice < end; ++slice) {
      const int64_t batch = slice / heads_k, head_k = slice % heads_k;
      const Head k(p.k, batch, head_k), v(p.v, batch, head_k);
      Head dk(p.dk), dv(p.dv);
      for (int64_t head = head_k * group; head < (head_k + 1) * group; ++head) {
        const Head q(p.q, batch, head), out(p.out, batch, head), dout(p.dout, batch, head);
        const float* logsumexp = static_cast<const float*>(p.logsumexp.data) + (batch * heads_q + head) * q.rows;
        Head dq(p.dq);
        for (int64_t i = 0; i < q.rows; ++i) {
          const float delta = dot(dout[i], out[i], q.columns);
          const auto [first, after] = seen(p, i);
          for (int64_t j = first; j < after; ++j) {
            const float weight = std::exp(scale * dot(q[i], k[j], q.columns) - logsumexp[i]);
            const float dscore = scale * weight * (dot(dout[i], v[j], q.columns) - delta);
            add(dv[j], weight, dout[i], q.columns);
            add(dk[j], dscore, q[i], q.columns);
            add(dq[i], dscore, k[j], q.columns);
          }
        }
        dq.write(p.dq, batch, head);
      }
      dk.write(p.dk, batch, head_k);
      dv.write(p.dv, batch, head_k);
    }
  });
}

void reference(const aotriton_gemm_params& p) {
  const int64_t rows = p.d.sizes[1], columns = p.d.sizes[2], depth = p.a.sizes[2];
  torch::stable::parallel_for(0, p.d.sizes[0] * rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t batch = row / rows, i = row % rows;
      for (int64_t j = 0; j < columns; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < depth; ++l)
          sum += load(p.a.data, p.a.dtype, batch * p.a.strides[0] + i * p.a.strides[1] + l * p.a.strides[2]) *
                 load(p.b.data, p.b.dtype, batch * p.b.strides[0] + l * p.b.strides[1] + j * p.b.strides[2]);
        sum *= p.alpha;
        if (p.bias.data) sum += load(p.bias.data, p.bias.dtype, j * p.bias.strides[0]);
        store(p.d.data, p.d.dtype, batch * p.d.strides[0] + i * p.d.strides[1] + j * p.d.strides[2],
              activate(p.activation, sum));
      }
    }
  });
}

}  // namespace aotriton_torch
