// Attention on the CPU: in double, and as ordinary tensor-core code computes it.
#pragma once

#include <vector>

#include "problem.h"

// Dense tensors, [batch, heads, seqlen, head_dim] in this order; logsumexp without the last dimension.
struct Attention {
  std::vector<double> out, logsumexp, dq, dk, dv;
  // For each row of a result, the sum of magnitudes that it was summed from.
  std::vector<double> out_bound, logsumexp_bound, dq_bound, dk_bound, dv_bound;
};

// With `ordinary`, P, dS and the results are rounded to the problem's type; sums are in double either way.
Attention attention(const Problem& problem, const std::vector<double>& q, const std::vector<double>& k,
                    const std::vector<double>& v, const std::vector<double>& dout, bool ordinary);
