// The model in float64, one token at a time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "model.h"

namespace {

using Vector = std::vector<double>;

// x [inputs] times weights [inputs, outputs].
Vector product(const Vector& x, const Vector& weights) {
  const size_t outputs = weights.size() / x.size();
  Vector y(outputs);
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < outputs; ++j) y[j] += x[i] * weights[i * outputs + j];
  return y;
}

void add(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

Vector rms_norm(const Vector& x, const Vector& weight) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + kEpsilon);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
  return y;
}

double dot(const double* a, const double* b) {
  double sums[4] = {};
  for (int i = 0; i < kHeadDim; ++i) sums[i % 4] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

class Sequence {
 public:
  Sequence(const Weights<Vector>& weights, const Rotary& rotary) : weights_(weights), rotary_(rotary) {}

  int keys() const { return keys_; }

  void begin() {
    keys_ = 0;
    for (Cache& cache : caches_) cache = {};
  }

  // The logits behind a further token.
  Vector logits(int32_t token) {
    const double* const row = &weights_.embedding[static_cast<size_t>(token) * kHidden];
    Vector x(row, row + kHidden);
    for (int i = 0; i < kLayers; ++i) {
      const Layer<Vector>& layer = weights_.layers[i];
      add(x, product(attention(product(rms_norm(x, layer.attention_norm), layer.qkv), caches_[i]), layer.output));
      const Vector gate_up = product(rms_norm(x, layer.inner_norm), layer.gate_up);
      Vector inner(kInner);
      for (int j = 0; j < kInner; ++j) inner[j] = gate_up[j] / (1 + std::exp(-gate_up[j])) * gate_up[kInner + j];
      add(x, product(inner, layer.down));
    }
    ++keys_;
    return product(rms_norm(x, weights_.last_norm), weights_.logits);
  }

 private:
  struct Cache {
    Vector k, v;  // [keys, heads_k, head_dim]
  };

  Vector attention(Vector qkv, Cache& cache) const {
    for (int head = 0; head < kHeads + kHeadsK; ++head) rotate(&qkv[static_cast<size_t>(head) * kHeadDim]);
    const auto k = qkv.begin() + kQueries, v = k + kKeys;
    cache.k.insert(cache.k.end(), k, v);
    cache.v.insert(cache.v.end(), v, qkv.end());
    Vector out(kQueries), weights(static_cast<size_t>(keys_) + 1);
    for (int head = 0; head < kHeads; ++head) {
      const size_t first = static_cast<size_t>(head / (kHeads / kHeadsK)) * kHeadDim;
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (size_t key = 0; key < weights.size(); ++key) {
        weights[key] = dot(&qkv[static_cast<size_t>(head) * kHeadDim], &cache.k[key * kKeys + first]) / 8;
        largest = std::max(largest, weights[key]);
      }
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      double* const result = &out[static_cast<size_t>(head) * kHeadDim];
      for (size_t key = 0; key < weights.size(); ++key)
        for (int i = 0; i < kHeadDim; ++i) result[i] += weights[key] / sum * cache.v[key * kKeys + first + i];
    }
    return out;
  }

  void rotate(double* x) const {
    for (int i = 0; i < kPairs; ++i) {
      const double cos = rotary_.cos[keys_ * kPairs + i], sin = rotary_.sin[keys_ * kPairs + i];
      const double a = x[i], b = x[i + kPairs];
      x[i] = a * cos - b * sin;
      x[i + kPairs] = b * cos + a * sin;
    }
  }

  const Weights<Vector>& weights_;
  const Rotary& rotary_;
  std::array<Cache, kLayers> caches_;
  int keys_ = 0;
};

static_assert(kHeadDim == 64, "scores are divided by its root, 8");

}  // namespace

Judgement judge(const Weights<std::vector<double>>& weights, const Rotary& rotary, const Request& request,
                const std::vector<Choice>& choices) {
  Sequence sequence(weights, rotary);
  Vector logits;
  for (const int32_t token : request.prompt) logits = sequence.logits(token);
  Judgement found;
  for (const Choice& choice : choices) {
    const double none = std::numeric_limits<double>::infinity();
    const bool is_token = choice.token >= 0 && choice.token < kVocabulary;
    const auto largest = std::max_element(logits.begin(), logits.end());
    const double own = is_token ? logits[choice.token] : -none;
    const double difference = std::abs(own - choice.logit);
    found.agreed += choice.token == largest - logits.begin();
    found.difference = std::max(found.difference, difference <= none ? difference : none);
    found.behind = std::max(found.behind, *largest - own);
    if (!is_token) break;
    const bool ends = sequence.keys() == request.limit;
    if (ends) sequence.begin();
    logits = sequence.logits(ends ? request.first : choice.token);
  }
  return found;
}
