"""What the Hopper backward with features has of its own: loads, masks, and the walk of a consumer.

As `backward.py`, where a step has the same products. But a tile of keys visits only the steps that any of its keys is
seen by, and masks those that not all of them are seen by completely. Behind the rows in use a tensor may have rows of
another sequence, or anything that is no number, and zero times that is none: where a tile or a step reaches behind
them, those rows are cleared in shared memory.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from aotriton.tritonsrc.flash.lib.backward import LOG2_E
from aotriton.tritonsrc.flash.lib.backward_dropout import marked
from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS
from aotriton.tritonsrc.flash.lib.band import inside, interval
from aotriton.tritonsrc.flash.lib.noted_dropout import NOTES, factor_of, where_kept
from aotriton.tritonsrc.flash.lib.notes import noted
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.pipeline import join_consumers
from aotriton.tritonsrc.flash.lib.stores import fragments

# What is noted of a tile of keys: its first row in DK and DV, and how many of its rows are there to write; and behind
# dropout's notes the query rows in use, behind which a step is cleared.
BATCH, HEAD, FIRST, COUNT = (gl.constexpr(place) for place in range(4))
USED = NOTES


@gluon.jit
def begin_rows(Q, DO, q_slots, do_slots, q_full, do_full, batch, head, row, slot, pred=True):
    """Begins to load BLOCK_M rows of Q and DO, from `row` on, to a slot."""
    mbarrier.expect(q_full.index(slot), Q.block_type.nbytes, pred=pred)
    mbarrier.expect(do_full.index(slot), Q.block_type.nbytes, pred=pred)
    place = [batch, head, row, 0]
    tma.async_copy_global_to_shared(Q, place, q_full.index(slot), q_slots.index(slot), pred=pred)
    tma.async_copy_global_to_shared(DO, place, do_full.index(slot), do_slots.index(slot), pred=pred)


@gluon.jit
def numbers_of_rows(L, Delta, rows, there):
    """Minus lse to base 2, and delta; zeros where rows are not `there`."""
    lse = gl.load(L + rows, mask=there, other=0.0)
    delta = gl.load(Delta + rows, mask=there, other=0.0)
    # A row that sees no key has nothing but masked scores: anything finite will do.
    return gl.where(lse == float("-inf"), 0.0, -lse * LOG2_E), delta


@gluon.jit
def load_rows_in_use(
    Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, begin, row, step,
    used,
):  # fmt: skip
    """Loads BLOCK_M query rows of a sequence, from `row` on, to the slot of `step`. The sequence begins at row `begin`
    of Q and DO, and at L and Delta. Behind the rows in use lse and delta are zeros.
    """
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    slot = step & 1  # of two STAGES
    mbarrier.wait(empty.index(slot), ((step >> 1) & 1) ^ 1)
    begin_rows(Q, DO, q_slots, do_slots, q_full, do_full, batch, head, begin + row, slot)
    for part in gl.static_range(BLOCK_M // 32):  # at once, more registers were taken
        rows = row + 32 * part + gl.arange(0, 32, LAYOUT)
        lse, delta = numbers_of_rows(L, Delta, rows, rows < used)
        lse_slots.index(slot).slice(32 * part, 32, 0).store(lse)
        delta_slots.index(slot).slice(32 * part, 32, 0).store(delta)
    mbarrier.arrive(q_full.index(slot))
    mbarrier.arrive(do_full.index(slot))


@gluon.jit
def clear_behind(slot, used):
    """Clears the rows of a slot, [1, 1, rows, columns], from row `used` on, with four warps.

    As matrix products and TMA have it, 64 columns of a row lie together, in whatever order, and rows follow each other.
    """
    ROWS: gl.constexpr = slot.shape[2]
    PARTS: gl.constexpr = slot.shape[3] // 64
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 2], [2, 16], [4, 1], [1, 0])
    IN_ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    words = slot._reinterpret(gl.int32, [PARTS * ROWS // 8, 8, 32], IN_ROWS)
    rows = gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(1, LAYOUT)), 1)
    left = opaque(used)
    for place in range(0, PARTS * ROWS // 8):
        some = words.index(place)
        behind = left - place % (ROWS // 8) * 8
        if behind < 8:
            some.store(gl.where(rows < behind, some.load(LAYOUT), 0))


@gluon.jit
def numbers_of_keys(dtype: gl.constexpr):
    """Shared memory for a number of each key of a tile."""
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return gl.allocate_shared_memory(dtype, [2 * KEYS], LAYOUT)


@gluon.jit
def note_keys(last_rows, counts, key, used_q, used_k, lo, hi):
    """Of each key of a tile from `key` on: the first query row that sees it, and how many rows do. Consumers have no
    registers to keep what this takes.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    keys = key + gl.arange(0, 2 * KEYS, LAYOUT)
    first, count = interval(keys, used_q, -hi, -lo)
    last_rows.store(first + count - 1)
    counts.store(gl.where(keys < used_k, count, 0))


@gluon.jit
def hide_outside(s, row, last_rows, counts, C: gl.constexpr):
    """Scores [KEYS, queries] of consumer C, with minus infinity where the row, the first one is `row`, does not see the
    key, or where one of both is not in use.
    """
    S_LAYOUT: gl.constexpr = s.type.layout
    last = last_rows.slice(KEYS * C, KEYS, 0).load(gl.SliceLayout(1, S_LAYOUT))
    count = counts.slice(KEYS * C, KEYS, 0).load(gl.SliceLayout(1, S_LAYOUT))
    queries = gl.expand_dims(gl.arange(0, s.shape[1], gl.SliceLayout(0, S_LAYOUT)), 0)
    seen = inside(gl.expand_dims(last - row, 1), queries, gl.expand_dims(count, 1))
    return gl.where(seen, s, float("-inf"))


@gluon.jit
def walk_band(
    q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, q_full, do_full, empty,
    dq_full, dq_empty, last_rows, counts, sm_scale, first, row, after, clear, full, steps, C: gl.constexpr,
    written, DROPOUT: gl.constexpr,
):  # fmt: skip
    """DK, before its scale, and DV of consumer C over so many steps: from query row `row` to before `after`, then from
    row `first` on. Steps from `clear` to before `full` need no mask. Rows behind USED, of the notes `written`, are
    cleared: by consumer 0 those of Q, by consumer 1 those of DO.

    With DROPOUT, which is noted there, too, DV is before the factor of weights that are kept.
    """
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DMODEL, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DK_LAYOUT, 2)
    COLUMNS: gl.constexpr = dq_slots.shape[3]  # of a piece of dQ
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    TOGETHER: gl.constexpr = BLOCK_M == 128 or BLOCK_DMODEL == 128  # dQ is of the keys of both

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    all_k = k_slot.reshape([2 * KEYS, BLOCK_DMODEL])
    k = all_k.slice(KEYS * C, KEYS, 0)
    v = v_slot.reshape([2 * KEYS, BLOCK_DMODEL]).slice(KEYS * C, KEYS, 0)
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    no_dq = gl.zeros([64, COLUMNS], gl.float32, DQ_LAYOUT)
    dk = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    if DROPOUT:
        start = row
        heads = 0
    # Ahead of the loop, what is the same in all steps takes registers that random numbers need, or 128 rows, or who
    # clears rows.
    for step in tl.range(0, steps, disable_licm=True):
        slot = step & 1  # of two STAGES
        phase = (step >> 1) & 1
        q = q_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        do = do_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        ds_slot = ds_slots.index(slot)
        mbarrier.wait(q_full.index(slot), phase)
        if row >= full:
            used = noted(written, USED) - row
            if used < BLOCK_M:
                mbarrier.wait(do_full.index(slot), phase)
                if C == 0:
                    clear_behind(q_slots.index(slot), used)
                else:
                    clear_behind(do_slots.index(slot), used)
                fence_async_shared()
                step = join_consumers(step)
        s = warpgroup_mma(k, q.permute((1, 0)), no_s, use_acc=False, is_async=True)
        mbarrier.wait(do_full.index(slot), phase)
        dp = warpgroup_mma(v, do.permute((1, 0)), no_s, use_acc=False, is_async=True)

        s = warpgroup_mma_wait(1, deps=[s])
        if (row < clear) | (row >= full):
            s = hide_outside(s, row, last_rows, counts, C)
        lse = lse_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        s = s * scale + gl.expand_dims(lse, 0)
        p = gl.exp2(s)
        p_operand = p.to(dtype)
        if DROPOUT:
            p_operand = marked(p_operand, written, heads, row, KEYS * C, 64 if BLOCK_DMODEL <= 64 else 32)
        dp = warpgroup_mma_wait(0, deps=[dp])
        delta = delta_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        if DROPOUT:
            dp = where_kept(dp, p_operand) * factor_of(written)
        ds = (p * (dp - gl.expand_dims(delta, 0))).to(dtype)
        ds_slot.slice(KEYS * C, KEYS, 0).store(ds)
        dv = warpgroup_mma(gl.convert_layout(p_operand, P_LAYOUT), do, dv, is_async=True)
        fence_async_shared()
        if TOGETHER:
            step = join_consumers(step)
        all_ds = ds_slot.permute((1, 0))
        if not TOGETHER:
            dq = warpgroup_mma(all_ds.slice(KEYS * C, KEYS, 1), k, no_dq, use_acc=False, is_async=True)
        elif BLOCK_M == 128:
            dq = warpgroup_mma(all_ds.slice(64 * C, 64, 0), all_k, no_dq, use_acc=False, is_async=True)
        else:
            dq = warpgroup_mma(all_ds, all_k.slice(64 * C, 64, 1), no_dq, use_acc=False, is_async=True)
        dk = warpgroup_mma(gl.convert_layout(ds, P_LAYOUT), q, dk, is_async=True)

        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        mbarrier.wait(dq_empty.index(C), (step & 1) ^ 1)
        dq_slots.index(C)._reinterpret(gl.float32, [64, COLUMNS], fragments(COLUMNS)).store(dq)
        fence_async_shared()
        mbarrier.arrive(dq_full.index(C))
        dk = warpgroup_mma_wait(0, deps=[dk])
        mbarrier.arrive(empty.index(slot))
        row += BLOCK_M
        row = gl.where(row >= after, first, row)
        if DROPOUT:
            heads += (row == start).to(gl.int32)
    return dk, dv
