"""Backward, gradient of the sinks: of each head, the sum of what its rows have of it."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.features import PACKED
from aotriton.tritonsrc.flash.lib.score import LOG2E
from aotriton.tritonsrc.flash.lib.tile import head_rows


@triton.jit
def attn_bwd_dsinks(
    L,
    Delta,
    Sinks,
    DSinks,
    CuSeqlensQ,
    features,
    sequences,
    batch,
    num_heads_q,
    max_seqlen_q,
    BLOCK_M: tl.constexpr,
):
    """Grid (num_heads_q). A program adds up all rows of a head, always in the same order.

    L and Delta are contiguous [batch, num_heads_q, max_seqlen_q]. Rows of no sequence may hold anything.
    """
    head = tl.program_id(0)
    rows = max_seqlen_q
    if (features & PACKED) != 0:
        rows = tl.load(CuSeqlensQ + sequences)
    sink = tl.load(Sinks + head)
    total = tl.zeros([BLOCK_M], tl.float32)
    for index in range(batch):
        l_rows = head_rows(L, index, head, num_heads_q, max_seqlen_q)
        delta_rows = head_rows(Delta, index, head, num_heads_q, max_seqlen_q)
        for row in range(0, rows, BLOCK_M):
            own = row + tl.arange(0, BLOCK_M)
            lse = tl.load(l_rows + own, mask=own < rows, other=float("-inf"))
            delta = tl.load(delta_rows + own, mask=own < rows, other=0.0)
            total += tl.where(lse == float("-inf"), 0.0, tl.exp2((sink - lse) * LOG2E) * delta)
    tl.store(DSinks + head, -tl.sum(total, 0))
