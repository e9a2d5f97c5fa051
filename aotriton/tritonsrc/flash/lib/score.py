"""What a score becomes before the softmax: softcap, or ALiBi and bias.

Scores may lie as [queries, keys] or transposed: positions are tensors that broadcast to them.

Branches on whole tiles of scores are few. Where one follows another, the compiler keeps scores in every layout that is
asked for later, and registers spill.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import ALIBI, BIAS, SOFTCAP, has
from aotriton.tritonsrc.flash.lib.zero import zero

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
def bias_of(scores, query, key, queries, keys, step):
    """The bias, of its own type, of ``queries`` from ``query`` on and ``keys`` from ``key`` on, two vectors that
    broadcast to a tile; zeros where there is none. ``step`` is that of the loop.

    To be loaded ahead of the product that it is added to: of two tiles in layouts of their own, the compiler has the
    sum, and all that follows, in the layout of the later one.
    """
    bias = (0 * queries + 0 * keys).to(scores.bias.dtype.element_ty)
    if has(scores.features, BIAS, step):
        rows, columns = query + zero(scores.features, step) + queries, key + zero(scores.features, step) + keys
        place = scores.bias + rows.to(tl.int64) * scores.bias_stride + columns
        bias = tl.load(place, mask=(rows < scores.queries) & (columns < scores.keys), other=0.0)
    return bias


@triton.jit
def biased(s, bias, scores, query, key, queries, keys):
    """Products of queries and keys, so that times the scale they are scores with ALiBi and ``bias``. Positions are
    those of `bias_of`.

    Products do not begin with the bias: each of their additions would round as if the sum were that large.
    """
    distance = tl.abs(query + scores.own - key + queries - keys).to(tl.float32)
    return s + (bias.to(tl.float32) - distance * scores.slope) * (1 / tl.maximum(scores.sm_scale, 1e-30))


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
