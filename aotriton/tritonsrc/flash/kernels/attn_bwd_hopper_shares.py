"""Attention backward for Hopper: as attn_bwd_hopper_pair, but programs share the steps of all tiles evenly.

So most tiles are one program's, and some are split: each program that shares one has a portion, a walk of some of its
steps, and leaves DK and DV of these, which attn_bwd_hopper_shares_finish adds up. Beside what attn_bwd_hopper_pair has:

    adder warp                                          a consumer
    ──────────                                          ──────────
    stores DV, then DK        ◀─ dq_full[consumer], 1   behind a portion that is a whole tile, as two more in the memory
                              ── dq_empty[consumer] ─▶  for dQ
    stores four halves        ◀─ dq_full[consumer], 1   behind another portion, as four more: bits 16 to 31 of DV in
                              ── dq_empty[consumer] ─▶  fp32, bits 0 to 15, and DK in the same way

DK and DV have the same bits every time; DQ varies in its last ones, as there.

Tuned: BLOCK_M, 64 or 128.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from aotriton.tritonsrc.flash.lib.backward import all_barriers, count_arrivals, load_keys, load_step, slots, walk
from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS, next_rows
from aotriton.tritonsrc.flash.lib.opaque import opaque, special_register
from aotriton.tritonsrc.flash.lib.pipeline import barrier
from aotriton.tritonsrc.flash.lib.stores import add_pieces, hand_over, store_pieces


@gluon.jit
def begin_of(left, programs, program, each, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr):
    """How many of the steps that are `left` the programs before this one have. Shares are even, but for one step; or,
    where that would not save what a split tile costs, a couple of `each` steps as far as they reach.
    """
    COST: gl.constexpr = 1 + 128 // BLOCK_M
    least = left // programs
    if CAUSAL:  # noqa: SIM108 (known when compiled; half a couple is one of its tiles)
        whole = (least + COST > each) & (2 * least > each)
    else:
        whole = least + COST > each
    least = gl.where(whole, each, least)
    return gl.minimum(program * least + gl.minimum(program, gl.maximum(left - programs * least, 0)), left)


@gluon.jit
def portion_at(
    ticket, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr
):  # fmt: skip
    """This program's portion of a tile for a ticket: twice the steps that it has behind it, and one more behind every
    second portion, which is the phase of what happens once a portion.

    Returns the first key of the tile, negative beyond the last portion; its key head, counted through all batches; the
    first row of queries that see any of the keys; the row that a walk begins with; the query head, of those `sharing`
    the key head, and the row that this one begins with; how many steps it has; the place in Split of what it leaves,
    negative if it is the whole tile; and whether it is the first of its tile.

    Tiles are taken in couples of as many steps each: causal, a tile and its mirror image in the next head, or in the
    same one if that is the last; full, a single tile. Whole rounds of couples are dealt out to the programs. The steps
    that are left are shared, one couple behind the other. Full, tiles of a head begin with different rows, so that not
    all of them add to the same part of DQSum at once.
    """
    programs = special_register("%nctaid.x")
    program = special_register("%ctaid.x")
    tiles = gl.cdiv(opaque(max_seqlen_k), 2 * KEYS)
    heads = opaque(num_heads_k) * batches
    of_head = gl.cdiv(opaque(max_seqlen_q), BLOCK_M)  # steps of a walk with one query head
    couples = heads * tiles
    each = opaque(sharing) * of_head
    every = couples * each
    rounds = couples // programs
    if CAUSAL:
        each = opaque(sharing) * (2 * of_head - (tiles - 1) * (2 * KEYS // BLOCK_M))
        every = couples * each // 2
        rounds = couples // (2 * programs)

    left = every - rounds * programs * each
    before = begin_of(left, programs, program, each, BLOCK_M, CAUSAL)
    begun = ticket >> 1
    behind = begun - rounds * each
    share = begin_of(left, programs, program + 1, each, BLOCK_M, CAUSAL) - before
    most = gl.where(behind < 0, each, share - behind)
    at = gl.where(behind < 0, begun, before + behind)
    couple = at // each
    offset = at - couple * each
    couple = gl.where(behind < 0, couple * programs + program, rounds * programs + couple)

    head = couple // tiles
    tile = couple - head * tiles
    if CAUSAL:
        head *= 2
        of_head -= tile * (2 * KEYS // BLOCK_M)
        if offset >= opaque(sharing) * of_head:
            offset -= opaque(sharing) * of_head
            of_head += (2 * tile + 1 - tiles) * (2 * KEYS // BLOCK_M)
            tile = tiles - 1 - tile
            head = gl.minimum(head + 1, heads - 1)
    key = tile * 2 * KEYS
    of_tile = opaque(sharing) * of_head
    steps = gl.minimum(of_tile - offset, most)
    member = offset // of_head
    row = (offset - member * of_head) * BLOCK_M
    if CAUSAL:
        first = key
        begin = key
        row += key
    else:
        first = 0
        begin = gl.where(key < max_seqlen_q, key, 0)
        row += begin
        row = gl.where(row >= max_seqlen_q, row - of_head * BLOCK_M, row)
    slot = gl.where(steps == of_tile, -1, 2 * program + gl.where(behind > 0, 1, 0))
    key = gl.where(most > 0, key, -1)
    return key, head, first, begin, member, row, steps, slot, offset == 0


@gluon.jit
def producer(
    Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, kv_empty, q_full,
    do_full, empty, num_heads_q, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches, CAUSAL: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    ticket = opaque(0)
    key, unit, first, begin, member, row, steps, _, _ = portion_at(
        ticket, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches, BLOCK_M, CAUSAL
    )  # fmt: skip
    while key >= 0:
        batch = unit // num_heads_k
        mbarrier.wait(kv_empty, (ticket & 1) ^ 1)
        load_keys(K, V, batch, unit - batch * num_heads_k, key, kv_full, k_slot, v_slot)
        head = unit * sharing + member  # counted through all batches
        for after in range(ticket, ticket + 2 * steps, 2):  # tickets, as one more number would be spilled
            load_step(
                Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch,
                head - batch * num_heads_q, head.to(gl.int64) * max_seqlen_q, row, after >> 1, max_seqlen_q,
            )  # fmt: skip
            head, row = next_rows(head, row, first, begin, max_seqlen_q, BLOCK_M)
        ticket = (ticket + 2 * steps) ^ 1
        key, unit, first, begin, member, row, steps, _, _ = portion_at(
            ticket, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches, BLOCK_M, CAUSAL
        )  # fmt: skip


@gluon.jit
def adder(
    DK, DV, DQSum, Split, SplitOf, dq_slots, dq_full, dq_empty, sharing, num_heads_k, max_seqlen_q, max_seqlen_k,
    batches, BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Adds up dQ, and stores DV and DK, or their pieces, behind each portion."""
    # The second piece is of the next 64 rows, or of the next columns, or of what the first is of.
    ROWS_APART: gl.constexpr = BLOCK_M // 64 * BLOCK_DMODEL - DQSum.block_shape[2]
    tiles_of = SplitOf.to(gl.pointer_type(gl.int32), bitcast=True)
    gl.store(tiles_of + 2 * special_register("%ctaid.x"), -1)
    gl.store(tiles_of + 2 * special_register("%ctaid.x") + 1, -1)
    number = opaque(0)
    key, unit, first, begin, member, row, steps, slot, opens = portion_at(
        2 * number, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches, BLOCK_M, CAUSAL
    )  # fmt: skip
    while key >= 0:
        batch = unit // num_heads_k
        head_k = unit - batch * num_heads_k
        head = head_k * sharing + member
        if slot >= 0:
            tile = unit * gl.cdiv(max_seqlen_k, 2 * KEYS) + key // (2 * KEYS)
            gl.store(tiles_of + slot, 2 * tile + opens.to(gl.int32))
        for piece in range(number, number + steps):
            at = row // 64 * BLOCK_DMODEL
            add_pieces(DQSum, dq_slots, dq_full, dq_empty, batch, head, at, 0, piece, ROWS_APART)
            head, row = next_rows(head, row, first, begin, max_seqlen_q, BLOCK_M)
        number += steps
        if slot >= 0:
            for piece in range(0, 4):
                store_pieces(Split, dq_slots, dq_full, dq_empty, slot, piece, 0, number + piece)
        else:
            store_pieces(DV, dq_slots, dq_full, dq_empty, batch, head_k, key, number)
            store_pieces(DK, dq_slots, dq_full, dq_empty, batch, head_k, key, number + 1)
        key, unit, first, begin, member, row, steps, slot, opens = portion_at(
            2 * number, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches, BLOCK_M, CAUSAL
        )  # fmt: skip


@gluon.jit
def consumer(
    DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, kv_empty, q_full,
    do_full, empty, dq_full, dq_empty, sm_scale, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches,
    C: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """The 64 keys of each tile from key 64 * C."""
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    ticket = opaque(0)
    key, _, first, _, _, row, steps, slot, _ = portion_at(
        ticket, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches, BLOCK_M, CAUSAL
    )  # fmt: skip
    while key >= 0:
        dk, dv = walk(
            q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full,
            empty, dq_full, dq_empty, sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, C, CAUSAL,
            ticket >> 1, ticket, 0,
        )  # fmt: skip
        mbarrier.arrive(kv_empty)
        ticket = (ticket + 2 * steps) ^ 1
        begun = ticket >> 1
        # One copy of the code, in a loop: where a second one is, registers do not suffice.
        for number in range(begun, opaque(begun + gl.where(slot < 0, 2, 4))):
            bits = dv.to(gl.int32, bitcast=True)
            if slot < 0:  # noqa: SIM108 (a branch takes no time from whole tiles)
                piece = dv.to(dtype)
            else:
                piece = (bits >> 16).to(gl.int16).to(dtype, bitcast=True)
            hand_over(piece, DK, dq_slots, dq_full, dq_empty, number, C)
            if (slot < 0) | ((number - begun) % 2 == 1):
                dv = dk * sm_scale
            else:
                dv = (bits << 16).to(gl.float32, bitcast=True)
        key, _, first, _, _, row, steps, slot, _ = portion_at(
            ticket, sharing, num_heads_k, max_seqlen_q, max_seqlen_k, batches, BLOCK_M, CAUSAL
        )  # fmt: skip


@gluon.jit
def attn_bwd_hopper_shares(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    DQSum,
    Split,
    SplitOf,
    L,
    Delta,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    batch,
    sharing,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid: as many programs as are to share the steps. `sm_scale` must not be negative.

    Arguments are as attn_bwd_hopper_pair's, but for `together`; `sharing` query heads share a key head. Split: a TMA
    descriptor of [2 * programs, 4, 128, BLOCK_DMODEL] with boxes [1, 1, 64, BLOCK_DMODEL]. Each program has two places
    there, for portions that it takes up and leaves: bits 16 to 31 of DV, bits 0 to 15, and of scaled DK. SplitOf: int32
    in fp32's place, for each place twice the number of its tile, counted through all heads, and one more where that is
    the tile's first portion; negative where there is none.
    """
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots = slots(Q, K, V, DO, DQSum)
    kv_full, q_full, do_full, empty, dq_full, dq_empty = all_barriers()
    kv_empty = barrier()
    mbarrier.init(kv_full, count=1)
    mbarrier.init(kv_empty, count=2)
    count_arrivals(q_full, do_full, empty, dq_full, dq_empty)

    gl.warp_specialize([
        (consumer, (DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full,
                    kv_empty, q_full, do_full, empty, dq_full, dq_empty, sm_scale, sharing, num_heads_k,
                    max_seqlen_q, max_seqlen_k, batch, 0, CAUSAL)),
        (consumer, (DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full,
                    kv_empty, q_full, do_full, empty, dq_full, dq_empty, sm_scale, sharing, num_heads_k,
                    max_seqlen_q, max_seqlen_k, batch, 1, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full,
                    kv_empty, q_full, do_full, empty, num_heads_q, sharing, num_heads_k, max_seqlen_q, max_seqlen_k,
                    batch, CAUSAL)),
        (adder, (DK, DV, DQSum, Split, SplitOf, dq_slots, dq_full, dq_empty, sharing, num_heads_k, max_seqlen_q,
                 max_seqlen_k, batch, BLOCK_M, BLOCK_DMODEL, CAUSAL)),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip
