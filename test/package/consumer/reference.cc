#include "reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace {

// n is a multiple of 8, and eight sums at a time let the compiler use vector instructions.
double dot(const double* a, const double* b, int64_t n) {
  double sums[8] = {};
  for (int64_t i = 0; i < n; i += 8)
    for (int64_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

double norm(const double* a, int64_t n) { return std::sqrt(dot(a, a, n)); }

void add(double* to, const double* row, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * row[i];
}

struct Inputs {
  const double *q, *k, *v, *dout;
};

// All that one head of keys contributes to: its group of query heads, and its own dk and dv.
void one_group(const Problem& p, const Inputs& in, int64_t b, int64_t head_k, bool ordinary, Attention& made) {
  const int64_t n = p.seqlen_k, d = p.head_dim, group = p.heads_q / p.heads_k;
  auto rounded = [&](double x) { return ordinary ? decode(encode(x, p.dtype), p.dtype) : x; };
  auto round_row = [&](double* row, double factor) {
    for (int64_t i = 0; i < d; ++i) row[i] = rounded(row[i] * factor);
  };
  const int64_t first_key = (b * p.heads_k + head_k) * n;
  const double *k = in.k + first_key * d, *v = in.v + first_key * d;
  double *dk = &made.dk[first_key * d], *dv = &made.dv[first_key * d];
  std::vector<double> weights(n), k_norm(n), v_norm(n);
  for (int64_t j = 0; j < n; ++j) k_norm[j] = norm(k + j * d, d), v_norm[j] = norm(v + j * d, d);
  const double longest_k = *std::max_element(k_norm.begin(), k_norm.end());

  for (int64_t head = head_k * group; head < (head_k + 1) * group; ++head)
    for (int64_t i = 0; i < p.seqlen_q; ++i) {
      const int64_t row = (b * p.heads_q + head) * p.seqlen_q + i;
      const int64_t visible = p.causal ? i + 1 : n;
      const double *q = in.q + row * d, *dout = in.dout + row * d;
      double *out = &made.out[row * d], *dq = &made.dq[row * d];
      double peak = -INFINITY, sum = 0;
      for (int64_t j = 0; j < visible; ++j) peak = std::max(peak, weights[j] = dot(q, k + j * d, d) * p.sm_scale);
      for (int64_t j = 0; j < visible; ++j) sum += weights[j] = std::exp(weights[j] - peak);
      for (int64_t j = 0; j < visible; ++j) {
        weights[j] /= sum;
        add(out, v + j * d, rounded(weights[j]), d);
        made.out_bound[row] += weights[j] * v_norm[j];
      }
      round_row(out, 1);
      const double delta = dot(dout, out, d), q_norm = norm(q, d), dout_norm = norm(dout, d), out_norm = norm(out, d);
      made.logsumexp[row] = peak + std::log(sum);
      made.logsumexp_bound[row] = 1 + q_norm * longest_k * p.sm_scale;
      for (int64_t j = 0; j < visible; ++j) {
        const double ds = rounded(weights[j] * (dot(dout, v + j * d, d) - delta));
        const double ds_bound = weights[j] * dout_norm * (v_norm[j] + out_norm) * p.sm_scale;
        add(dq, k + j * d, ds, d);
        add(dk + j * d, q, ds, d);
        add(dv + j * d, dout, rounded(weights[j]), d);
        made.dq_bound[row] += ds_bound * k_norm[j];
        made.dk_bound[first_key + j] += ds_bound * q_norm;
        made.dv_bound[first_key + j] += weights[j] * dout_norm;
      }
      round_row(dq, p.sm_scale);
    }
  for (int64_t j = 0; j < n; ++j) round_row(dk + j * d, p.sm_scale), round_row(dv + j * d, 1);
}

}  // namespace

Attention attention(const Problem& problem, const std::vector<double>& q, const std::vector<double>& k,
                    const std::vector<double>& v, const std::vector<double>& dout, bool ordinary) {
  Attention made;
  for (auto* like_q : {&made.out, &made.dq}) like_q->resize(q.size());
  for (auto* like_k : {&made.dk, &made.dv}) like_k->resize(k.size());
  for (auto* rows : {&made.logsumexp, &made.out_bound, &made.logsumexp_bound, &made.dq_bound})
    rows->resize(q.size() / problem.head_dim);
  for (auto* rows : {&made.dk_bound, &made.dv_bound}) rows->resize(k.size() / problem.head_dim);

  const Inputs inputs{q.data(), k.data(), v.data(), dout.data()};
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back([&] {
      for (int64_t i; (i = next++) < problem.batch * problem.heads_k;)
        one_group(problem, inputs, i / problem.heads_k, i % problem.heads_k, ordinary, made);
    });
  for (auto& thread : threads) thread.join();
  return made;
}
