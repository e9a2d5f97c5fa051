"""The program of a Hopper backward with features: attn_bwd_hopper_features, and the same with dropout."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from aotriton.tritonsrc.flash.lib.backward import all_barriers, count_arrivals, load_keys, slots
from aotriton.tritonsrc.flash.lib.backward_features import (
    BATCH,
    COUNT,
    FIRST,
    HEAD,
    USED,
    begin_rows,
    clear_behind,
    load_rows_in_use,
    note_keys,
    numbers_of_keys,
    numbers_of_rows,
    walk_band,
)
from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS
from aotriton.tritonsrc.flash.lib.band import visited
from aotriton.tritonsrc.flash.lib.early import await_results, launch_next
from aotriton.tritonsrc.flash.lib.features import PACKED, USED_K, USED_Q
from aotriton.tritonsrc.flash.lib.noted_dropout import NOTES, factor_of, note_dropout
from aotriton.tritonsrc.flash.lib.notes import note, noted, notes
from aotriton.tritonsrc.flash.lib.opaque import opaque, special_register
from aotriton.tritonsrc.flash.lib.packed_search import sequence_of_tile
from aotriton.tritonsrc.flash.lib.packed_tiles import first_tile, place_in_grid
from aotriton.tritonsrc.flash.lib.pipeline import barriers, init_all
from aotriton.tritonsrc.flash.lib.quads import in_quads, layout_of_quads
from aotriton.tritonsrc.flash.lib.sequence import sequence_of
from aotriton.tritonsrc.flash.lib.stores import async_add_shared_to_global
from aotriton.tritonsrc.flash.lib.sweep import await_marks, set_mark, sweep, tiles_of_head

NOWHERE = gl.constexpr(1 << 30)  # a row behind every tensor: what is added there is dropped


@gluon.jit
def producer(
    Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, begin, first,
    row, after, steps, used, max_seqlen_q,
):  # fmt: skip
    """The sequence begins at row `begin` of Q and DO, and at L and Delta. All steps but the first, which is on its way
    before warps part.
    """
    start = row
    for step in range(0, steps):
        if step > 0:
            load_rows_in_use(
                Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head,
                begin, row, step, used,
            )  # fmt: skip
        row += Q.block_shape[2]
        row = gl.where(row >= after, first, row)
        if row == start:
            head += 1
            L += max_seqlen_q
            Delta += max_seqlen_q


@gluon.jit
def adder(
    DQSum, dq_slots, dq_full, dq_empty, batch, head, tile, first, row, after, steps, Marks, mark, of_tile,
    ahead, behind, BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr, SWEEPS: gl.constexpr,
):  # fmt: skip
    """Adds dQ to the sequence's tiles of DQSum, from `tile` on. Behind them are those of the next sequence: what is of
    no row that sees the tile's keys goes nowhere, as it is zero, or no number where a key or a value is none.

    `mark`: this program's of Marks (see `sweep`), the one of its head's tile `of_tile`.
    """
    # The second piece is of the next 64 rows, or of the next columns, or of what the first is of.
    ROWS_APART: gl.constexpr = BLOCK_M - 64
    APART: gl.constexpr = BLOCK_M // 64 * BLOCK_DMODEL - DQSum.block_shape[2]
    start = row
    programs = special_register("%nctaid.x")
    if SWEEPS and (ahead < programs) & (steps > 0):
        of_head = mark - of_tile
        await_marks(Marks, of_head + (tile + first // 64) // 2, of_head + (tile + (after - 1) // 64) // 2)
    for step in range(0, steps):
        at = (tile + row // 64) * BLOCK_DMODEL
        for c in gl.static_range(2):
            mbarrier.wait(dq_full.index(c), step & 1)
            piece = dq_slots.index(c)._reinterpret(gl.float32, DQSum.block_shape, DQSum.layout)
            place = at + c * APART
            if c * ROWS_APART > 0:
                place = gl.where(row + c * ROWS_APART < after, place, NOWHERE)
            async_add_shared_to_global(DQSum, [batch, head, place, 0], piece)
        for c in gl.static_range(2):
            tma.store_wait(1 - c)
            mbarrier.arrive(dq_empty.index(c))
        row += BLOCK_M
        row = gl.where(row >= after, first, row)
        head += (row == start).to(gl.int32)
    if SWEEPS and behind < programs:
        set_mark(Marks + (programs + mark))


@gluon.jit
def store_keys(x, X, stride_b, stride_h, stride_s, tile, dtype: gl.constexpr, head_dim, C: gl.constexpr):
    """[KEYS, BLOCK_DMODEL] `x` of consumer C to X, whose rows `tile` says."""
    LAYOUT: gl.constexpr = layout_of_quads(x.shape[1])
    row = KEYS * C + gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT))
    columns = gl.expand_dims(gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    origin = noted(tile, BATCH) * stride_b + noted(tile, HEAD) * stride_h
    rows = X + origin + (noted(tile, FIRST) + row).to(gl.int64) * stride_s
    there = gl.expand_dims(row < noted(tile, COUNT), 1) & (columns < head_dim)
    gl.store(gl.expand_dims(rows, 1) + columns, in_quads(x.to(dtype)), mask=there)


@gluon.jit
def consumer(
    DK, DV, stride_dk_b, stride_dk_h, stride_dk_s, stride_dv_b, stride_dv_h, stride_dv_s, q_slots,
    do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
    dq_full, dq_empty, last_rows, counts, written, sm_scale, first, row, after, clear, full, steps, head_dim_qk,
    head_dim_v, C: gl.constexpr, DROPOUT: gl.constexpr,
):  # fmt: skip
    """The 64 keys of the tile from key 64 * C. With DROPOUT, that is noted in `written`."""
    mbarrier.wait(kv_full, 0)
    dk, dv = walk_band(
        q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, q_full, do_full, empty, dq_full,
        dq_empty, last_rows, counts, sm_scale, first, row, after, clear, full, steps, C, written, DROPOUT,
    )  # fmt: skip
    if DROPOUT:
        dv *= factor_of(written)
    dtype: gl.constexpr = k_slot.dtype
    store_keys(dv, DV, stride_dv_b, stride_dv_h, stride_dv_s, written, dtype, head_dim_v, C)
    store_keys(dk * sm_scale, DK, stride_dk_b, stride_dk_h, stride_dk_s, written, dtype, head_dim_qk, C)


@gluon.jit
def backward_features(
    Q, K, V, DO, DK, DV, DQSum, L, Delta, sm_scale, stride_dk_b, stride_dk_h, stride_dk_s, stride_dv_b,
    stride_dv_h, stride_dv_s, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_qk, head_dim_v, lo, hi,
    features, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest, sequences, together, DQHalf, DQ, stride_dq_b,
    stride_dq_h, stride_dq_s, Marks, ahead, behind, BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr, dropout=None,
    DropoutSeed=None, DropoutOffset=None,
):  # fmt: skip
    """The program of attn_bwd_hopper_features, whose arguments these are, with those of dropout, if there is any."""
    DROPOUT: gl.constexpr = dropout is not None
    SWEEPS: gl.constexpr = not DROPOUT or BLOCK_DMODEL <= 64  # else consumers have no registers to spare
    together = launch_next(together)
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots = slots(Q, K, V, DO, DQSum)
    kv_full, q_full, do_full, empty, dq_full, dq_empty = all_barriers()
    mbarrier.init(kv_full, count=1)

    packed = (features & PACKED) != 0
    tile, head_k, sequence = place_in_grid(
        features, sequences, longest, max_seqlen_k, num_heads_k, together, 2 * KEYS
    )  # fmt: skip
    # Or each warp works them out again, and has them in registers while it does.
    tile, head_k, sequence = opaque(tile), opaque(head_k), opaque(sequence)
    if packed:
        sequence = sequence_of_tile(tile, CuSeqlensK, sequences, 2 * KEYS)
    of = sequence_of(
        sequence, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, True,
    )  # fmt: skip
    of_q, of_k, batch, lo, hi = of.q, of.k, of.batch, of.lo, of.hi
    of_tile = tile
    tile -= gl.where(packed, first_tile(of_k.begin, sequence, 2 * KEYS), 0)
    key = tile * 2 * KEYS  # of a causal call the first tile has the most queries
    group = num_heads_q // num_heads_k
    head = head_k * group
    load_keys(K, V, batch, head_k, of_k.begin + key, kv_full, k_slot, v_slot)
    count_arrivals(q_full, do_full, empty, dq_full, dq_empty)
    first, clear, full, after = visited(key, key + 2 * KEYS, of_k.used, of_q.used, -hi, -lo, BLOCK_M)
    after = gl.where((key >= 0) & (key < of_k.used), after, first)
    if key + 2 * KEYS > of_k.used:
        clear = after  # every step has keys to mask
    steps = group * gl.maximum(gl.cdiv(after - first, BLOCK_M), 0)
    # Tiles of a head begin with different rows, so that not all of them add to the same part of DQSum at once.
    elsewhere = first + tile % gl.maximum(gl.cdiv(after - first, BLOCK_M), 1) * BLOCK_M
    row = gl.where((key >= first) & (key < after), key, elsewhere)

    dq_tile = gl.where(packed, first_tile(of_q.begin, sequence, 64), 0)
    head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q + of_q.begin
    # The first step is on its way while what follows is worked out. Steps may be none.
    any_steps = steps > 0
    begin_rows(Q, DO, q_slots, do_slots, q_full, do_full, batch, head, of_q.begin + row, 0, any_steps)
    row = await_results(row)  # Delta, and a DQSum of zeros
    rows = row + gl.arange(0, BLOCK_M, gl.BlockedLayout([1], [32], [4], [0]))
    lse, delta = numbers_of_rows(L + head_row, Delta + head_row, rows, (rows < of_q.used) & any_steps)
    last_rows, counts = numbers_of_keys(gl.int32), numbers_of_keys(gl.int32)
    note_keys(last_rows, counts, key, of_q.used, of_k.used, lo, hi)
    written = notes(NOTES + 1)
    note(written, BATCH, batch)
    note(written, HEAD, head_k)
    note(written, FIRST, of_k.begin + key)
    note(written, COUNT, gl.where(key < 0, 0, of_k.rows - key))
    # Behind a whole tensor a descriptor loads zeros.
    note(written, USED, gl.where((features & (PACKED | USED_Q)) != 0, of_q.used, NOWHERE))

    tiles = tiles_of_head(features, max_seqlen_k, sequences, longest)
    mark = (gl.where(packed, 0, sequence) * num_heads_k + head_k) * tiles + of_tile
    arrived = barriers(2)
    init_all(arrived, 1)
    sum_slots = gl.allocate_shared_memory(
        gl.float32, [2, 1, 1, DQHalf.block_shape[2], DQHalf.block_shape[3]], DQHalf.layout
    )  # fmt: skip

    lse_slots.index(0).store(lse)
    delta_slots.index(0).store(delta)
    mbarrier.arrive(q_full.index(0), pred=any_steps)
    mbarrier.arrive(do_full.index(0), pred=any_steps)

    if (key + 2 * KEYS > of_k.used) & ((features & (PACKED | USED_K)) != 0):
        mbarrier.wait(kv_full, 0)
        clear_behind(k_slot, of_k.used - key)
        clear_behind(v_slot, of_k.used - key)
        fence_async_shared()

    if DROPOUT:
        head_of_all = sequence * num_heads_q + head
        note_dropout(written, features, dropout, DropoutSeed, DropoutOffset, head_of_all, key)
    gl.warp_specialize([
        (consumer, (DK, DV, stride_dk_b, stride_dk_h, stride_dk_s, stride_dv_b, stride_dv_h, stride_dv_s, q_slots,
                    do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full,
                    empty, dq_full, dq_empty, last_rows, counts, written, sm_scale, first, row, after, clear, full,
                    steps, head_dim_qk, head_dim_v, 0, DROPOUT)),
        (consumer, (DK, DV, stride_dk_b, stride_dk_h, stride_dk_s, stride_dv_b, stride_dv_h, stride_dv_s, q_slots,
                    do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full,
                    empty, dq_full, dq_empty, last_rows, counts, written, sm_scale, first, row, after, clear, full,
                    steps, head_dim_qk, head_dim_v, 1, DROPOUT)),
        (producer, (Q, DO, L + head_row, Delta + head_row, q_slots, do_slots, lse_slots, delta_slots, q_full,
                    do_full, empty, batch, head, of_q.begin, first, row, after, steps, of_q.used,
                    max_seqlen_q)),
        (adder, (DQSum, dq_slots, dq_full, dq_empty, batch, head, dq_tile, first, row, after, steps, Marks, mark,
                 of_tile, ahead, behind, BLOCK_M, BLOCK_DMODEL, SWEEPS)),
        (sweep, (DQSum, DQHalf, DQ, Marks, sum_slots, arrived, sm_scale, stride_dq_b, stride_dq_h, stride_dq_s,
                 num_heads_q, num_heads_k, max_seqlen_q, head_dim_qk, lo, hi, features, CuSeqlensQ, longest, sequences,
                 together, ahead, behind, BLOCK_DMODEL, SWEEPS)),
    ], [4, 1, 1, 2], [232, 40, 40, 40] if SWEEPS else [240, 24, 24, 24])  # fmt: skip
