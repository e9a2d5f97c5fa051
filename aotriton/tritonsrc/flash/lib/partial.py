"""Partial: what attn_fwd_split and attn_fwd_combine share, which hand on results of parts of the keys."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from aotriton.tritonsrc.flash.lib.band import visited
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import SINKS
from aotriton.tritonsrc.flash.lib.score import LOG2E


@bundle
class Softcap:
    """What `capped` of score.py needs of a call."""

    features: tl.tensor
    sm_scale: tl.tensor
    softcap: tl.tensor


@triton.jit
def launch_next(EARLY: tl.constexpr):
    """Lets the next kernel of the backend begin, which waits before it reads what this one writes."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def await_results(EARLY: tl.constexpr):
    """Waits for what the kernel before this one writes."""
    if EARLY:
        gdc_wait()


@triton.jit
def visited_by_rows(of, begin, end):
    """What the rows from ``begin`` to before ``end`` see of a sequence's keys: see `visited`. Rows that are not used
    see nothing.
    """
    end = tl.minimum(end, of.q.rows)
    first, clear, full, after = visited(begin, end, of.q.used, of.k.used, of.lo, of.hi, 1)
    if end > of.q.used:
        full = first
        after = tl.where(begin < of.q.used, after, first)
    return first, clear, full, after


@triton.jit
def place_in_l(of, rows, heads, num_heads_q, max_seqlen_q):
    """Where rows of a sequence are in a contiguous [batch, num_heads_q, max_seqlen_q] tensor."""
    return (of.batch * num_heads_q + heads).to(tl.int64) * max_seqlen_q + (of.q.begin + rows)


@triton.jit
def finished(row_max, row_sum, Sinks, heads, features, used):
    """The factor of each row's sum of values, and its logsumexp, from its largest score, in units of log2, and its sum
    of weights relative to that. Rows that are not ``used`` have minus infinity.
    """
    scale = tl.full(row_max.shape, 1.0, tl.float32)
    if (features & SINKS) != 0:
        sink = tl.load(Sinks + heads) * LOG2E
        top = tl.maximum(row_max, sink)
        base = tl.where(top == float("-inf"), 0.0, top)
        scale = tl.exp2(row_max - base)
        row_sum = row_sum * scale + tl.exp2(sink - base)
        row_max = top
    lse = tl.where(used, (row_max + tl.log2(row_sum)) * 0.6931471805599453, float("-inf"))
    return scale / tl.where(row_sum == 0.0, 1.0, row_sum), lse
