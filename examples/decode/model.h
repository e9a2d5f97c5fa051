// A tiny Llama of random weights: its sizes, its weights, and what float64 says of its tokens. C++17.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

constexpr int kLayers = 2, kHidden = 256, kHeads = 8, kHeadsK = 2, kHeadDim = 64, kInner = 512, kVocabulary = 512;
constexpr int kQueries = kHeads * kHeadDim, kKeys = kHeadsK * kHeadDim;
constexpr int kRow = kQueries + 2 * kKeys;  // a token's queries, keys and values
constexpr int kPairs = kHeadDim / 2;        // that are rotated
constexpr float kEpsilon = 1e-5f;

constexpr int kPageSize = 32, kPagesOfSequence = 38, kLongest = kPageSize * kPagesOfSequence;  // keys of a sequence

using bfloat16 = uint16_t;  // its bits

inline bfloat16 to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<bfloat16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bfloat16(bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Matrices are [inputs, outputs].
template <class Array>
struct Layer {
  Array attention_norm, qkv, output, inner_norm, gate_up, down;
};

template <class Array>
struct Weights {
  Array embedding;  // [vocabulary, hidden]
  std::array<Layer<Array>, kLayers> layers;
  Array last_norm, logits;
};

// The same weights, each of them as `f` has it.
template <class F, class From>
auto each(const Weights<From>& from, const F& f) {
  using To = decltype(f(from.embedding));
  Weights<To> to{f(from.embedding), {}, f(from.last_norm), f(from.logits)};
  for (int i = 0; i < kLayers; ++i) {
    const Layer<From>& x = from.layers[i];
    to.layers[i] = {f(x.attention_norm), f(x.qkv), f(x.output), f(x.inner_norm), f(x.gate_up), f(x.down)};
  }
  return to;
}

// cos and sin of a rotary embedding, [kLongest, kPairs] each.
struct Rotary {
  std::vector<float> cos, sin;
};

// What a sequence began with, and the most keys that it has: one of more keys ends, and another one begins in its place
// with the token `first`.
struct Request {
  std::vector<int32_t> prompt;
  int32_t limit, first;
};

// A token that the GPU has chosen, and its logit.
struct Choice {
  int32_t token;
  float logit;
};

struct Judgement {
  int agreed = 0;         // tokens that have the largest logit of the reference, too
  double difference = 0;  // the largest: of a chosen token's logit from the reference's
  double behind = 0;      // the largest: of the reference's logit of a chosen token from its largest one
};

// Feeds a request and the tokens that were chosen after it to the same model in float64, which has a cache of its own.
Judgement judge(const Weights<std::vector<double>>& weights, const Rotary& rotary, const Request& request,
                const std::vector<Choice>& choices);
