"""Attention backward for Hopper with bands, sinks, packed sequences and used lengths: Q, K, V and DO to DK, DV, DQSum.

As attn_bwd_hopper_pair, which describes the warps and who waits for whom, with these differences. Every tile of 128
keys has a program of its own. It visits the query rows that see any of its keys (`walk_band`). DK and DV are written by
pointer: a descriptor's store would go on behind the end of a sequence.

Of packed sequences, descriptors go through all rows. DQSum has tiles of 64 rows for each sequence, so that no two
sequences share one (`first_tile`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from aotriton.tritonsrc.flash.lib.backward import all_barriers, count_arrivals, load_keys, slots
from aotriton.tritonsrc.flash.lib.backward_features import (
    clear_behind,
    load_rows_in_use,
    note_keys,
    numbers_of_keys,
    walk_band,
)
from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS
from aotriton.tritonsrc.flash.lib.band import visited
from aotriton.tritonsrc.flash.lib.dq_tiles import first_tile
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.sequence import sequence_of
from aotriton.tritonsrc.flash.lib.stores import add_pieces


@gluon.jit
def producer(
    Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, begin, first, row,
    after, steps, used, max_seqlen_q,
):  # fmt: skip
    """The sequence begins at row `begin` of Q and DO, and at L and Delta."""
    start = row
    for step in range(0, steps):
        load_rows_in_use(
            Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, begin, row,
            step, used,
        )  # fmt: skip
        row += Q.block_shape[2]
        row = gl.where(row >= after, first, row)
        if row == start:
            head += 1
            L += max_seqlen_q
            Delta += max_seqlen_q


@gluon.jit
def adder(
    DQSum, dq_slots, dq_full, dq_empty, batch, head, tile, first, row, after, steps,
    BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr,
):  # fmt: skip
    """Adds dQ to the sequence's tiles of DQSum, from `tile` on."""
    # The second piece is of the next 64 rows, or of the next columns, or of what the first is of.
    ROWS_APART: gl.constexpr = BLOCK_M // 64 * BLOCK_DMODEL - DQSum.block_shape[2]
    start = row
    for step in range(0, steps):
        at = (tile + row // 64) * BLOCK_DMODEL
        add_pieces(DQSum, dq_slots, dq_full, dq_empty, batch, head, at, 0, step, ROWS_APART)
        row += BLOCK_M
        row = gl.where(row >= after, first, row)
        head += (row == start).to(gl.int32)


@gluon.jit
def note_rows(places, X, stride_s, left):
    """Where each key of a tile has its row, of so many `left` from X on; 0 behind the last one."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    rows = gl.arange(0, 2 * KEYS, LAYOUT)
    places.store(gl.where(rows < left, (X + rows * stride_s).to(gl.int64), 0))


@gluon.jit
def store_keys(x, places, dtype: gl.constexpr, head_dim, C: gl.constexpr):
    """[KEYS, BLOCK_DMODEL] `x` of consumer C to its rows."""
    LAYOUT: gl.constexpr = x.type.layout
    rows = gl.expand_dims(places.slice(KEYS * C, KEYS, 0).load(gl.SliceLayout(1, LAYOUT)), 1)
    columns = gl.expand_dims(gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    there = (rows != 0) & (columns < head_dim)
    gl.store(rows.to(gl.pointer_type(dtype)) + columns, x.to(dtype), mask=there)


@gluon.jit
def consumer(
    q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
    dq_full, dq_empty, last_rows, counts, dk_places, dv_places, sm_scale, first, row, after, clear, full, steps, used_q,
    head_dim_qk, head_dim_v, RAGGED: gl.constexpr, C: gl.constexpr,
):  # fmt: skip
    """The 64 keys of the tile from key 64 * C."""
    mbarrier.wait(kv_full, 0)
    dk, dv = walk_band(
        q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, q_full, do_full, empty, dq_full,
        dq_empty, last_rows, counts, sm_scale, first, row, after, clear, full, steps, used_q, RAGGED, C,
    )  # fmt: skip
    dtype: gl.constexpr = k_slot.dtype
    store_keys(dv, dv_places, dtype, head_dim_v, C)
    store_keys(dk * sm_scale, dk_places, dtype, head_dim_qk, C)


@gluon.jit
def attn_bwd_hopper_features(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    DQSum,
    L,
    Delta,
    sm_scale,
    stride_dk_b,
    stride_dk_h,
    stride_dk_s,
    stride_dv_b,
    stride_dv_h,
    stride_dv_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim_qk,
    head_dim_v,
    lo,
    hi,
    features,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    longest,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
):
    """Grid (cdiv(longest, 128) * num_heads_k * sequences). `sm_scale` must not be negative.

    Q, K, V, DO: TMA descriptors of [batch, heads, seqlen, head_dim_qk] (Q, K) and [.., head_dim_v] (V, DO) with boxes
    [1, 1, BLOCK_M, BLOCK_DMODEL] (Q, DO) and [1, 1, 128, BLOCK_DMODEL] (K, V). BLOCK_M is 64 where BLOCK_DMODEL is 128.
    DK and DV: [batch, num_heads_k, seqlen_k, head_dim_qk or head_dim_v] by pointer. DQSum: of fp32 [batch, num_heads_q,
    tiles * BLOCK_DMODEL, 64], with boxes [1, 1, 64, 64] that are not swizzled, and with so many tiles of 64 rows as
    attn_bwd_hopper_features_prepare has. It begins at zero; DQ is sm_scale * DQSum in the order of rows. L and Delta
    are contiguous fp32 [batch, num_heads_q, max_seqlen_q]; of a row that sees no key L is minus infinity, or its sink.

    Row i sees keys from i + lo to i + hi. `longest`: the most keys of a sequence. `features`: the bits of
    lib/features.py, of which softcap, ALiBi, bias and dropout are not served, and packed sequences and used lengths
    only where BLOCK_DMODEL is 64; pointers of what the call does not have are not followed.
    """
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots = slots(Q, K, V, DO, DQSum)
    RAGGED: gl.constexpr = BLOCK_DMODEL == 64  # registers do not suffice to clear what is behind an end where it is 128
    kv_full, q_full, do_full, empty, dq_full, dq_empty = all_barriers()
    mbarrier.init(kv_full, count=1)
    count_arrivals(q_full, do_full, empty, dq_full, dq_empty)

    tile, head_k, sequence = tile_of_program(gl.cdiv(longest, 2 * KEYS), num_heads_k)
    # Or each warp works them out again, and has them in registers while it does.
    tile, head_k, sequence = opaque(tile), opaque(head_k), opaque(sequence)
    key = tile * 2 * KEYS  # of a causal call the first tile has the most queries
    of = sequence_of(
        sequence, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, True,
    )  # fmt: skip
    of_q, of_k, batch, lo, hi = of.q, of.k, of.batch, of.lo, of.hi
    group = num_heads_q // num_heads_k
    head = head_k * group
    load_keys(K, V, batch, head_k, of_k.begin + key, kv_full, k_slot, v_slot)
    first, clear, full, after = visited(key, key + 2 * KEYS, of_k.used, of_q.used, -hi, -lo, BLOCK_M)
    after = gl.where(key < of_k.used, after, first)
    if key + 2 * KEYS > of_k.used:
        clear = after  # every step has keys to mask
    steps = group * gl.maximum(gl.cdiv(after - first, BLOCK_M), 0)
    # Tiles of a head begin with different rows, so that not all of them add to the same part of DQSum at once.
    row = gl.where((key >= first) & (key < after), key, first)

    head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q + of_q.begin
    dk_tile = DK + batch * stride_dk_b + head_k * stride_dk_h + (of_k.begin + key).to(gl.int64) * stride_dk_s
    dv_tile = DV + batch * stride_dv_b + head_k * stride_dv_h + (of_k.begin + key).to(gl.int64) * stride_dv_s
    last_rows, counts = numbers_of_keys(gl.int32), numbers_of_keys(gl.int32)
    dk_places, dv_places = numbers_of_keys(gl.int64), numbers_of_keys(gl.int64)
    note_keys(last_rows, counts, key, of_q.used, of_k.used, lo, hi)
    note_rows(dk_places, dk_tile, stride_dk_s, of_k.rows - key)
    note_rows(dv_places, dv_tile, stride_dv_s, of_k.rows - key)

    if RAGGED:  # noqa: SIM102 (known when compiled, as the next is not)
        if key + 2 * KEYS > of_k.used:
            mbarrier.wait(kv_full, 0)
            clear_behind(k_slot, of_k.used - key, 0, 2 * KEYS)
            clear_behind(v_slot, of_k.used - key, 0, 2 * KEYS)
            fence_async_shared()

    gl.warp_specialize([
        (consumer, (q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full,
                    do_full, empty, dq_full, dq_empty, last_rows, counts, dk_places, dv_places, sm_scale, first, row,
                    after, clear, full, steps, of_q.used, head_dim_qk, head_dim_v, RAGGED, 0)),
        (consumer, (q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full,
                    do_full, empty, dq_full, dq_empty, last_rows, counts, dk_places, dv_places, sm_scale, first, row,
                    after, clear, full, steps, of_q.used, head_dim_qk, head_dim_v, RAGGED, 1)),
        (producer, (Q, DO, L + head_row, Delta + head_row, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full,
                    empty, batch, head, of_q.begin, first, row, after, steps, of_q.used, max_seqlen_q)),
        (adder, (DQSum, dq_slots, dq_full, dq_empty, batch, head, first_tile(sequence, of_q.begin, features), first,
                 row, after, steps, BLOCK_M, BLOCK_DMODEL)),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip
