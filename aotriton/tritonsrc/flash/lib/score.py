"""What a score becomes before the softmax: softcap, or ALiBi and bias.

Scores may lie as [queries, keys] or transposed: positions are tensors that broadcast to them.

Branches on whole tiles of scores are few. Where one follows another, the compiler keeps scores in every layout that is
asked for later, and registers spill.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import ALIBI, BIAS, SOFTCAP

LOG2E = tl.constexpr(1.4426950408889634)


@bundle
class Scores:
    """How the scores of one head change. ``scale``: of exponentials to base 2. ``own``: how much further the own key of
    a row is than its number.
    """

    features: tl.tensor
    sm_scale: tl.tensor
    scale: tl.tensor
    softcap: tl.tensor
    slope: tl.tensor
    own: tl.tensor
    bias: tl.tensor  # pointer to the head's first score
    bias_stride: tl.tensor  # from row to row
    queries: tl.tensor  # that count
    keys: tl.tensor


@triton.jit
def scores_of(
    sequence, head, features, sm_scale, softcap,
    AlibiSlopes, stride_alibi_b, Bias, stride_bias_b, stride_bias_h, stride_bias_s,
):  # fmt: skip
    """Scores of a head of a sequence; pointers of what the call does not have are not followed."""
    slope = softcap * 0
    if (features & ALIBI) != 0:
        slope = tl.load(AlibiSlopes + sequence.batch * stride_alibi_b + head)
    bias = Bias + sequence.batch * stride_bias_b + head * stride_bias_h
    scale = tl.maximum(sm_scale, 1e-30) * LOG2E  # not zero: a masked score stays minus infinity when scaled
    own, queries, keys = sequence.k.used - sequence.q.used, sequence.q.used, sequence.k.used
    return Scores(features, sm_scale, scale, softcap, slope, own, bias, stride_bias_s, queries, keys)


@triton.jit
def biases(scores, queries, keys):
    """What products of queries and keys begin with, so that times the scale they are scores with ALiBi and bias.

    A product's sums stay as it computes them: added later, a bias, which is loaded in another layout, would move them.
    For the same reason there is no branch.
    """
    there = (queries < scores.queries) & (keys < scores.keys) & ((scores.features & BIAS) != 0)
    place = scores.bias + queries.to(tl.int64) * scores.bias_stride + keys
    bias = tl.load(place, mask=there, other=0.0).to(tl.float32)
    alibi = tl.abs(queries + scores.own - keys).to(tl.float32) * scores.slope
    # A negative slope would give rows beyond the last one infinite weights.
    alibi = tl.where(queries < scores.queries, alibi, 0.0)
    return (bias - alibi) * (1 / tl.maximum(scores.sm_scale, 1e-30))


@triton.jit
def capped(s, scores):
    """Products of queries and keys, so that times the scale they are scores with the softcap, where there is one.

    The hyperbolic tangent is exact to 1e-7, which the softcap multiplies; hardware's own is exact to 5e-4.
    """
    unit = scores.softcap / tl.maximum(scores.sm_scale, 1e-30)
    tanh = 1 - 2 / (tl.exp2(s * (2 * 1.4426950408889634 / unit)) + 1)
    return tl.where((scores.features & SOFTCAP) != 0, unit * tanh, s)


@triton.jit
def cap_gradient(p, lse, scores):
    """The derivative of the softcap, from weights ``p`` and log-sum-exps in units of log2.

    A weight says what its score was, so that nothing of the score has to stay in registers.
    """
    t = (tl.log2(p) + lse) / (LOG2E * scores.softcap)
    return tl.where(p > 0, 1 - t * t, 0.0)
