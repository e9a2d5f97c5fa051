#include "torch/reference.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Float8_e4m3fn.h>
#include <torch/headeronly/util/Float8_e4m3fnuz.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "torch/tensor.h"

namespace aotriton_torch {

namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Float8_e4m3fn;
using torch::headeronly::Float8_e4m3fnuz;
using torch::headeronly::Half;

float load(const void* data, aotriton_dtype dtype, int64_t offset) {
  if (dtype == AOTRITON_FLOAT16) return static_cast<const Half*>(data)[offset];
  if (dtype == AOTRITON_BFLOAT16) return static_cast<const BFloat16*>(data)[offset];
  if (dtype == AOTRITON_FLOAT8_E4M3FN) return static_cast<const Float8_e4m3fn*>(data)[offset];
  if (dtype == AOTRITON_FLOAT8_E4M3FNUZ) return static_cast<const Float8_e4m3fnuz*>(data)[offset];
  return static_cast<const float*>(data)[offset];
}

// The largest numbers of the types of 8 bits, which stand for all beyond them.
constexpr float kMost = 448, kMostFnuz = 240;

void store(void* data, aotriton_dtype dtype, int64_t offset, float value) {
  if (dtype == AOTRITON_FLOAT16)
    static_cast<Half*>(data)[offset] = value;
  else if (dtype == AOTRITON_BFLOAT16)
    static_cast<BFloat16*>(data)[offset] = value;
  else if (dtype == AOTRITON_FLOAT8_E4M3FN)
    static_cast<Float8_e4m3fn*>(data)[offset] = std::clamp(value, -kMost, kMost);
  else if (dtype == AOTRITON_FLOAT8_E4M3FNUZ)
    static_cast<Float8_e4m3fnuz*>(data)[offset] = std::clamp(value, -kMostFnuz, kMostFnuz);
  else
    static_cast<float*>(data)[offset] = value;
}

int64_t offset(const aotriton_tensor4& of, int64_t batch, int64_t head, int64_t i, int64_t j) {
  return batch * of.strides[0] + head * of.strides[1] + i * of.strides[2] + j * of.strides[3];
}

// What numbers of 8 bits of a head are multiplied by; 1 without scales.
float scale_of(const aotriton_tensor2& scales, int64_t sequence, int64_t head) {
  if (!scales.data) return 1;
  return load(scales.data, scales.dtype, sequence * scales.strides[0] + head * scales.strides[1]);
}

// Rows of a tensor that belong to one head of one sequence.
struct Head {
  int64_t rows, columns;
  std::vector<float> values;

  Head(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), values(static_cast<size_t>(std::max<int64_t>(rows, 0) * columns)) {}
  Head(const aotriton_tensor4& of, int64_t batch, int64_t head, int64_t begin, int64_t count)
      : Head(count, of.sizes[3]) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        (*this)[i][j] = load(of.data, of.dtype, offset(of, batch, head, begin + i, j));
  }

  float* operator[](int64_t row) { return values.data() + row * columns; }
  const float* operator[](int64_t row) const { return values.data() + row * columns; }

  void write(const aotriton_tensor4& to, int64_t batch, int64_t head, int64_t begin) const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        store(to.data, to.dtype, offset(to, batch, head, begin + i, j), (*this)[i][j]);
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

constexpr float kNothing = -std::numeric_limits<float>::infinity();

int64_t whole(const aotriton_tensor1& of, int64_t index) {
  return static_cast<const int32_t*>(of.data)[index * of.strides[0]];
}

int64_t page_of(const aotriton_tensor2& table, int64_t sequence, int64_t page) {
  return static_cast<const int32_t*>(table.data)[sequence * table.strides[0] + page * table.strides[1]];
}

// The rows of all keys; with pages, the keys that a sequence has room for.
template <class Params>
int64_t key_rows(const Params& p) {
  const int64_t rows = p.k.sizes[2], most = p.features.max_seqlen_k;
  if (!p.features.block_table.data) return rows;
  const int64_t room = rows * p.features.block_table.sizes[1];
  return most ? std::min(most, room) : room;
}

// Which rows of one side belong to a sequence, and how many of them count.
struct Rows {
  int64_t begin, count, used;
};

Rows rows_of(int64_t sequence, int64_t rows, const aotriton_tensor1& starts, const aotriton_tensor1& used) {
  Rows found = {0, rows, rows};
  if (starts.data) {
    found.begin = whole(starts, sequence);
    found.count = whole(starts, sequence + 1) - found.begin;
    found.used = found.count;
  }
  if (used.data) found.used = std::clamp<int64_t>(whole(used, sequence), 0, found.count);
  return found;
}

int64_t sequences_of(const aotriton_attn_features& f, int64_t batch) {
  return f.cu_seqlens_q.data ? std::max<int64_t>(f.cu_seqlens_q.sizes[0] - 1, 0) : batch;
}

// A GPU would read and write elsewhere.
void require_rising(const char* op, const char* name, const aotriton_tensor1& starts, int64_t rows) {
  int64_t before = 0;
  for (int64_t i = 0; starts.data && i < starts.sizes[0]; before = whole(starts, i++))
    if (whole(starts, i) < before || whole(starts, i) > rows)
      fail(std::string(op) + ": " + name + "[" + std::to_string(i) + "] is " + std::to_string(whole(starts, i)) +
           ", which must be from " + std::to_string(before) + " to " + std::to_string(rows));
}

template <class Params>
void require_sequences(const char* op, const Params& p) {
  require_rising(op, "cu_seqlens_q", p.features.cu_seqlens_q, p.q.sizes[2]);
  require_rising(op, "cu_seqlens_k", p.features.cu_seqlens_k, p.k.sizes[2]);
}

// A round of Philox (Salmon et al., 2011) for two of its words, with another of its words, or none, and a key.
void philox_round(uint32_t factor, uint32_t& word, uint32_t& other, uint32_t key) {
  const uint64_t product = uint64_t{factor} * word;
  word = static_cast<uint32_t>(product >> 32) ^ other ^ key;
  other = static_cast<uint32_t>(product);
}

constexpr int kPhiloxRounds = 7;
constexpr uint32_t kPhiloxWeyl[] = {0x9E3779B9, 0xBB67AE85};  // what keys grow by from round to round
constexpr uint32_t kDropoutNumbers = 32768;                   // of which those below a threshold drop a score

// Which numbers the scores of a call have.
struct Drawn {
  uint32_t key = 0, of_keys = 0, of_rows = 0;

  Drawn() = default;

  // Three words that Philox 4x32 makes of the call's seed and offset.
  Drawn(uint64_t seed, uint64_t offset) {
    uint32_t c[] = {static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32), 0, 0};
    uint32_t k[] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < kPhiloxRounds; ++round) {
      philox_round(0xD2511F53, c[0], c[3], k[1]);
      philox_round(0xCD9E8D57, c[2], c[1], k[0]);
      std::swap(c[0], c[2]);
      for (int i = 0; i < 2; ++i) k[i] += kPhiloxWeyl[i];
    }
    key = c[0], of_keys = c[1], of_rows = c[2];
  }

  // The number of a score, below kDropoutNumbers. A counter of Philox 2x32 has those of eight: of two rows, and of two
  // pairs of neighbouring keys.
  uint32_t number(uint64_t slice, int64_t query, int64_t key_row) const {
    uint32_t k = key + static_cast<uint32_t>(slice) * kPhiloxWeyl[1];
    uint32_t words[] = {of_keys + static_cast<uint32_t>(key_row / 16 * 4 + key_row % 8 / 2),
                        of_rows + static_cast<uint32_t>(query / 16 * 8 + query % 8)};
    for (int round = 0; round < kPhiloxRounds; ++round, k += kPhiloxWeyl[0])
      philox_round(0xD256D193, words[0], words[1], k);
    return std::rotr(words[query / 8 % 2], key_row / 8 % 2 * 8 + key_row % 2 * 16) & (kDropoutNumbers - 1);
  }
};

// One query head of one sequence: what scores it has, of which keys, and how much of each is kept.
class Scores {
 public:
  template <class Params>
  Scores(const Params& p, int64_t sequence, int64_t head)
      : f_(p.features),
        causal_(p.causal),
        scale_(p.sm_scale == 0 && !p.scale_given ? 1 / std::sqrt(static_cast<float>(p.q.sizes[3])) : p.sm_scale),
        q_(rows_of(sequence, p.q.sizes[2], f_.cu_seqlens_q, f_.seqused_q)),
        k_(rows_of(sequence, key_rows(p), f_.cu_seqlens_k, f_.seqused_k)),
        sequence_(sequence),
        batch_(f_.cu_seqlens_q.data ? 0 : sequence),
        head_(head),
        slice_(static_cast<uint64_t>(sequence * p.q.sizes[1] + head)) {
    if (f_.sinks.data) sink_ = load(f_.sinks.data, f_.sinks.dtype, head * f_.sinks.strides[0]);
    const auto& slopes = f_.alibi_slopes;
    if (slopes.data) slope_ = load(slopes.data, slopes.dtype, batch_ * slopes.strides[0] + head * slopes.strides[1]);
    if (f_.dropout > 0 && f_.dropout_seed && f_.dropout_offset) {
      dropped_ =
          std::min(static_cast<uint32_t>(f_.dropout * kDropoutNumbers + 0.5f), kDropoutNumbers - kDropoutNumbers / 256);
      drawn_ = Drawn(static_cast<uint64_t>(*static_cast<const int64_t*>(f_.dropout_seed)),
                     static_cast<uint64_t>(*static_cast<const int64_t*>(f_.dropout_offset)));
    }
  }

  const Rows& q() const { return q_; }
  const Rows& k() const { return k_; }
  int64_t batch() const { return batch_; }
  float scale() const { return scale_; }
  float sink() const { return sink_; }

  // The keys that a query sees, from one on to before another one.
  std::pair<int64_t, int64_t> seen(int64_t query) const {
    if (query >= q_.used) return {0, 0};
    const int64_t own = query + (f_.causal_variant == AOTRITON_CAUSAL_BOTTOM_RIGHT ? k_.used - q_.used : 0);
    int64_t begin = 0, end = causal_ ? own + 1 : k_.used;
    if (f_.windowed && f_.window_left >= 0) begin = own - std::min(f_.window_left, own + 1);
    if (f_.windowed && f_.window_right >= 0)
      end = std::min(end, own + 1 + std::min(f_.window_right, q_.used + k_.used));
    return {std::max<int64_t>(begin, 0), std::min(end, k_.used)};
  }

  // The keys that any query sees, from one on to before another one: both rise with the query.
  std::pair<int64_t, int64_t> seen_by_any() const {
    int64_t query = 0;
    while (query < q_.used && seen(query).first >= seen(query).second) ++query;
    return {seen(query).first, query < q_.used ? seen(q_.used - 1).second : 0};
  }

  // Those rows of keys or values, multiplied by their scale.
  Head keys(const aotriton_tensor4& of, const aotriton_tensor2& scales, int64_t head) const {
    return scaled(stored(of, head), scales, head);
  }

  // Rows of any, multiplied by the scale of a head of keys.
  Head scaled(Head made, const aotriton_tensor2& scales, int64_t head) const {
    const float scale = scale_of(scales, sequence_, head);
    for (float& value : made.values) value *= scale;
    return made;
  }

  // Of the product of a query and a key the score; and what the score's derivative is multiplied by.
  float of(float product, int64_t i, int64_t j, float* derivative = nullptr) const {
    float x = scale_ * product;
    if (f_.softcap > 0) {
      const float part = std::tanh(x / f_.softcap);
      x = f_.softcap * part;
      if (derivative) *derivative = 1 - part * part;
    } else if (derivative) {
      *derivative = 1;
    }
    if (slope_ != 0) x -= slope_ * static_cast<float>(std::abs(i + k_.used - q_.used - j));
    if (f_.bias.data) x += load(f_.bias.data, f_.bias.dtype, offset(f_.bias, batch_, head_, i, j));
    return x;
  }

  // 0 where dropout drops the score, else what it is multiplied by.
  float kept(int64_t i, int64_t j) const {
    if (!dropped_) return 1;
    if (drawn_.number(slice_, i, j) < dropped_) return 0;
    return static_cast<float>(kDropoutNumbers) / static_cast<float>(kDropoutNumbers - dropped_);
  }

 private:
  // The same rows as they are stored; of what no query sees, there may be no page.
  Head stored(const aotriton_tensor4& of, int64_t head) const {
    if (!f_.block_table.data) return Head(of, batch_, head, k_.begin, k_.used);
    Head made(k_.used, of.sizes[3]);
    const auto [first, after] = seen_by_any();
    for (int64_t i = first; i < after; ++i) {
      const int64_t page = page_of(f_.block_table, sequence_, i / of.sizes[2]);
      for (int64_t j = 0; j < made.columns; ++j)
        made[i][j] = load(of.data, of.dtype, offset(of, page, head, i % of.sizes[2], j));
    }
    return made;
  }

  const aotriton_attn_features& f_;
  bool causal_;
  float scale_;
  Rows q_, k_;
  int64_t sequence_, batch_, head_;
  uint64_t slice_;
  float slope_ = 0, sink_ = kNothing;
  uint32_t dropped_ = 0;
  Drawn drawn_;
};

// A GPU would read elsewhere.
void require_pages(const aotriton_attn_fwd_params& p) {
  const aotriton_tensor2& table = p.features.block_table;
  for (int64_t sequence = 0; table.data && sequence < table.sizes[0]; ++sequence) {
    const auto [first, after] = Scores(p, sequence, 0).seen_by_any();
    for (int64_t i = first / p.k.sizes[2]; i * p.k.sizes[2] < after; ++i)
      if (const int64_t page = page_of(table, sequence, i); page < 0 || page >= p.k.sizes[0])
        fail("attn_fwd: block_table[" + std::to_string(sequence) + ", " + std::to_string(i) + "] is " +
             std::to_string(page) + ", there are " + std::to_string(p.k.sizes[0]) + " pages");
  }
}

// Writes a row of a head to where it belongs. Its first `pairs` are rotated by the angles of its position, the others
// are copied as bits. Both may be the same row.
void append_row(const aotriton_kv_append_params& p, const aotriton_tensor4& from, int64_t source,
                const aotriton_tensor4& to, int64_t target, int64_t pairs, int64_t position) {
  const auto angle = [&](const aotriton_tensor2& of, int64_t pair) {
    return load(of.data, of.dtype, position * of.strides[0] + pair * of.strides[1]);
  };
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t first = p.rotary_interleaved ? 2 * pair : pair, second = first + (p.rotary_interleaved ? 1 : pairs);
    const float a = load(from.data, from.dtype, source + first), b = load(from.data, from.dtype, source + second);
    const float cos = angle(p.rotary_cos, pair), sin = angle(p.rotary_sin, pair);
    store(to.data, to.dtype, target + first, a * cos - b * sin);
    store(to.data, to.dtype, target + second, b * cos + a * sin);
  }
  const int64_t width = to.dtype == AOTRITON_FLOAT32 ? sizeof(float) : sizeof(Half), rotated = 2 * pairs;
  std::memmove(static_cast<char*>(to.data) + (target + rotated) * width,
               static_cast<const char*>(from.data) + (source + rotated) * width,
               static_cast<size_t>((to.sizes[3] - rotated) * width));
}

// The same into a cache, which may be of 8 bits: what it would get is then divided by the scale.
void append_row(const aotriton_kv_append_params& p, const aotriton_tensor4& from, int64_t source,
                const aotriton_tensor4& cache, int64_t target, int64_t pairs, int64_t position, float scale) {
  if (cache.dtype == from.dtype) return append_row(p, from, source, cache, target, pairs, position);
  std::vector<float> made(static_cast<size_t>(cache.sizes[3]));  // has room for a row of any type
  aotriton_tensor4 row = from;
  row.data = made.data();
  append_row(p, from, source, row, 0, pairs, position);
  for (int64_t i = 0; i < cache.sizes[3]; ++i)
    store(cache.data, cache.dtype, target + i, load(row.data, row.dtype, i) / scale);
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
  require_sequences("attn_fwd", p);
  require_pages(p);
  const int64_t heads = p.q.sizes[1], group = heads / std::max<int64_t>(p.k.sizes[1], 1);
  const int64_t slices = sequences_of(p.features, p.q.sizes[0]) * heads;
  torch::stable::parallel_for(0, slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slice = begin; slice < end; ++slice) {
      const int64_t head = slice % heads;
      const Scores scores(p, slice / heads, head);
      const int64_t batch = scores.batch();
      const Rows &of_q = scores.q(), &of_k = scores.k();
      const Head q = scores.scaled(Head(p.q, batch, head, of_q.begin, of_q.used), p.features.q_descale, head / group);
      const Head k = scores.keys(p.k, p.features.k_descale, head / group),
                 v = scores.keys(p.v, p.features.v_descale, head / group);
      Head out(of_q.count, p.out.sizes[3]);
      float* const logsumexp =
          static_cast<float*>(p.logsumexp.data) + (batch * heads + head) * p.q.sizes[2] + of_q.begin;
      std::vector<float> weights(static_cast<size_t>(of_k.used));
      for (int64_t i = 0; i < of_q.count; ++i) {
        const auto [first, after] = scores.seen(i);
        float highest = i < of_q.used ? scores.sink() : kNothing;
        for (int64_t j = first; j < after; ++j) {
          weights[j] = scores.of(dot(q[i], k[j], q.columns), i, j);
          highest = std::max(highest, weights[j]);
        }
        logsumexp[i] = kNothing;
        if (highest == kNothing) continue;
        float sum = std::exp(scores.sink() - highest);
        for (int64_t j = first; j < after; ++j) sum += weights[j] = std::exp(weights[j] - highest);
        for (int64_t j = first; j < after; ++j) add(out[i], scores.kept(i, j) * weights[j] / sum, v[j], v.columns);
        logsumexp[i] = highest + std::log(sum);
      }
      out.write(p.out, batch, head, of_q.begin);
    }
  });
}

void reference(const aotriton_attn_bwd_params& p) {
  require_sequences("attn_bwd", p);
  const int64_t heads_q = p.q.sizes[1], heads_k = p.k.sizes[1], group = heads_q / std::max<int64_t>(heads_k, 1);
  const int64_t sequences = sequences_of(p.features, p.q.sizes[0]);
  const auto wanted = [&](uint8_t skip, const aotriton_tensor4& of) { return of.data && !(p.skip_gradients & skip); };
  std::vector<float> dsinks(static_cast<size_t>(sequences * heads_q));
  torch::stable::parallel_for(0, sequences * heads_k, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slice = begin; slice < end; ++slice) {
      const int64_t sequence = slice / heads_k, head_k = slice % heads_k;
      const Scores any(p, sequence, head_k * group);
      const int64_t batch = any.batch();
      const Rows &of_q = any.q(), &of_k = any.k();
      const Head k(p.k, batch, head_k, of_k.begin, of_k.used), v(p.v, batch, head_k, of_k.begin, of_k.used);
      Head dk(of_k.count, k.columns), dv(of_k.count, v.columns);
      for (int64_t head = head_k * group; head < (head_k + 1) * group; ++head) {
        const Scores scores(p, sequence, head);
        const Head q(p.q, batch, head, of_q.begin, of_q.used), out(p.out, batch, head, of_q.begin, of_q.used),
            dout(p.dout, batch, head, of_q.begin, of_q.used);
        const float* const logsumexp =
            static_cast<const float*>(p.logsumexp.data) + (batch * heads_q + head) * p.q.sizes[2] + of_q.begin;
        Head dq(of_q.count, q.columns), dbias(p.dbias.data ? of_q.count : 0, of_k.count);
        for (int64_t i = 0; i < of_q.used; ++i) {
          if (logsumexp[i] == kNothing) continue;
          const float delta = dot(dout[i], out[i], out.columns);
          dsinks[sequence * heads_q + head] -= std::exp(scores.sink() - logsumexp[i]) * delta;
          const auto [first, after] = scores.seen(i);
          for (int64_t j = first; j < after; ++j) {
            float derivative;
            const float weight = std::exp(scores.of(dot(q[i], k[j], q.columns), i, j, &derivative) - logsumexp[i]);
            const float kept = scores.kept(i, j);
            const float dbiased = weight * (kept * dot(dout[i], v[j], v.columns) - delta);
            const float dproduct = scores.scale() * derivative * dbiased;
            if (dbias.rows) dbias[i][j] = dbiased;
            add(dv[j], kept * weight, dout[i], v.columns);
            add(dk[j], dproduct, q[i], q.columns);
            add(dq[i], dproduct, k[j], q.columns);
          }
        }
        if (wanted(AOTRITON_SKIP_DQ, p.dq)) dq.write(p.dq, batch, head, of_q.begin);
        if (dbias.rows) dbias.write(p.dbias, batch, head, 0);
      }
      if (wanted(AOTRITON_SKIP_DK, p.dk)) dk.write(p.dk, batch, head_k, of_k.begin);
      if (wanted(AOTRITON_SKIP_DV, p.dv)) dv.write(p.dv, batch, head_k, of_k.begin);
    }
  });
  for (int64_t head = 0; p.dsinks.data && head < heads_q; ++head) {
    float sum = 0;
    for (int64_t sequence = 0; sequence < sequences; ++sequence) sum += dsinks[sequence * heads_q + head];
    store(p.dsinks.data, p.dsinks.dtype, head * p.dsinks.strides[0], sum);
  }
}

void reference(const aotriton_kv_append_params& p) {
  require_rising("kv_append", "cu_seqlens_k", p.cu_seqlens_k, p.k.sizes[2]);
  const bool paged = p.block_table.data;
  const int64_t pages = p.k_cache.sizes[0], page_size = p.k_cache.sizes[2];
  const int64_t room = paged ? page_size * p.block_table.sizes[1] : page_size;
  const int64_t pairs = p.rotary_cos.data ? p.rotary_cos.sizes[1] : 0;
  torch::stable::parallel_for(0, p.seqused_k.sizes[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t sequence = begin; sequence < end; ++sequence) {
      const Rows rows = rows_of(sequence, p.k.sizes[2], p.cu_seqlens_k, {});
      const int64_t batch = p.cu_seqlens_k.data ? 0 : sequence, used = whole(p.seqused_k, sequence);
      for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t row = rows.begin + i, position = used - rows.count + i;
        if (position < 0 || position >= room || (pairs && position >= p.rotary_cos.sizes[0])) continue;
        const int64_t page = paged ? page_of(p.block_table, sequence, position / page_size) : sequence;
        if (page < 0 || page >= pages) continue;
        for (int64_t head = 0; p.q.data && head < p.q.sizes[1]; ++head) {
          const int64_t place = offset(p.q, batch, head, row, 0);
          append_row(p, p.q, place, p.q, place, pairs, position);
        }
        for (int64_t head = 0; head < p.k.sizes[1]; ++head) {
          append_row(p, p.k, offset(p.k, batch, head, row, 0), p.k_cache,
                     offset(p.k_cache, page, head, position % page_size, 0), pairs, position,
                     scale_of(p.k_descale, sequence, head));
          append_row(p, p.v, offset(p.v, batch, head, row, 0), p.v_cache,
                     offset(p.v_cache, page, head, position % page_size, 0), 0, position,
                     scale_of(p.v_descale, sequence, head));
        }
      }
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
