"""What the kernels share that compute DQ at head dims 192 and 256: the tile of a program, its rows' numbers, the mask.

attn_bwd_hopper_dq says what a step is, and who waits for whom.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from aotriton.tritonsrc.flash.lib.backward import LOG2_E
from aotriton.tritonsrc.flash.lib.mask import key_interval, visible
from aotriton.tritonsrc.flash.lib.pipeline import barrier, barriers
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program

CONSUMERS = gl.constexpr(2)


@gluon.jit
def row_numbers(L, Delta, row, head, batch, num_heads_q, max_seqlen_q, LAYOUT: gl.constexpr):
    """lse, to base 2, and delta of 64 query rows from `row` on."""
    rows = row + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q
    lse = gl.load(L + head_row + rows, mask=rows < max_seqlen_q, other=0.0) * LOG2_E
    delta = gl.load(Delta + head_row + rows, mask=rows < max_seqlen_q, other=0.0)
    return lse, delta


@gluon.jit
def hide(p, row, key, max_seqlen_k, CAUSAL: gl.constexpr, LAYOUT: gl.constexpr):
    """P, zero for keys that a query row must not see. `row`, `key`: what p[0, 0] belongs to. Rows of P are stored only
    in part, so that causal, too, keys beyond the end are hidden.
    """
    keys = gl.expand_dims(key + gl.arange(0, p.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    seen = visible(keys, 0, max_seqlen_k, False)
    if CAUSAL:
        rows = gl.expand_dims(row + gl.arange(0, p.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
        seen &= visible(keys, rows, max_seqlen_k, True)
    return gl.where(seen, p, 0.0)


@gluon.jit
def all_barriers(STAGES: gl.constexpr):
    """q_full, full and empty."""
    q_full = barrier()
    full = barriers(STAGES)
    empty = barriers(STAGES)
    mbarrier.init(q_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=CONSUMERS)
    return q_full, full, empty


@gluon.jit
def work_of_program(num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """What this program computes: its first query row, the head, that of its keys, the batch, and how many tiles of
    keys.
    """
    ROWS: gl.constexpr = 64 * CONSUMERS
    blocks = gl.cdiv(max_seqlen_q, ROWS)
    tile, head, batch = tile_of_program(blocks, num_heads_q)
    if CAUSAL:  # longest programs first
        tile = blocks - 1 - tile
    row = tile * ROWS
    head_k = head // (num_heads_q // num_heads_k)
    _, keys = key_interval(row, row + ROWS, max_seqlen_k, BLOCK_N, CAUSAL)
    return row, head, head_k, batch, gl.cdiv(keys, BLOCK_N)
