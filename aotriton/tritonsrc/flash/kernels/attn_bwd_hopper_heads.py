"""Attention backward for Hopper where heads are many and short: as attn_bwd_hopper_pair, but a program has whole heads.

A program takes key heads one after the other, and of each all tiles of 128 keys, in their order. So nobody else adds to
its DQSum, and nothing has to be cleared before or converted behind: of a step's dQ, what the first tile of keys leaves
is stored, what the next ones leave is added, and for the last one that its rows see the adder has brought the sum back
to the memory for dQ, where the consumer makes DQ of it. All results have the same bits every time.

Beside what attn_bwd_hopper_pair has:

    adder warp                                          a consumer
    ──────────                                          ──────────
    stores or adds dQ, or     ◀─ dq_full[consumer], 1   dQ or DQ of a step is in its memory
    stores DQ
    may load the sum for the  ── dq_empty[consumer],    takes its memory for the next step's
    next step's DQ               1, or bytes ───────▶
    stores DK and DV          ◀─ dq_full[consumer], 1   behind a tile, as one step's dQ more: DK is in the memory
                                                        for dQ, DV in a slot of dS
                              ── dv_empty, 1 ───────▶   begins the next tile

Before the sum of a step is loaded, all that was stored and added before has arrived in memory: the adder waits for it
behind each tile.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from aotriton.tritonsrc.flash.lib.backward import (
    all_barriers,
    count_arrivals,
    is_final,
    load_keys,
    load_step,
    slots,
    walk,
)
from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS
from aotriton.tritonsrc.flash.lib.mask import first_query
from aotriton.tritonsrc.flash.lib.opaque import opaque, special_register
from aotriton.tritonsrc.flash.lib.pipeline import await_stores, barrier, join_consumers
from aotriton.tritonsrc.flash.lib.stores import async_add_shared_to_global


@gluon.jit
def is_left(ticket, num_heads_k, batches):
    """Whether there is a key head for this ticket."""
    return ticket >> 1 < opaque(num_heads_k) * batches


@gluon.jit
def steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr):
    """How many query heads share a key head, the first row of queries that see a tile of its keys, and how many steps
    there are in all.
    """
    first = first_query(key, CAUSAL)
    group = num_heads_q // opaque(num_heads_k)
    return group, first, group * gl.cdiv(opaque(max_seqlen_q) - first, BLOCK_M)


@gluon.jit
def next_tile(ticket, key, max_seqlen_k):
    """Ticket and first key of the next tile: of the same head, or the first one of the next.

    A ticket is twice the number of a key head, counted through all batches, and one more for every second tile: the
    phase of what happens once a tile.
    """
    ticket ^= 1
    key += 2 * KEYS
    if key >= max_seqlen_k:
        key = 0
        ticket += 2 * special_register("%nctaid.x")
    return ticket, key


@gluon.jit
def producer(
    Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, kv_empty, q_full,
    do_full, empty, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batches, CAUSAL: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    begun = 0
    key = 0
    ticket = 2 * special_register("%ctaid.x")
    while is_left(ticket, num_heads_k, batches):
        unit = ticket >> 1
        batch = unit // num_heads_k
        mbarrier.wait(kv_empty, (ticket & 1) ^ 1)
        load_keys(K, V, batch, unit - batch * num_heads_k, key, kv_full, k_slot, v_slot)
        group, first, steps = steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M, CAUSAL)
        head = unit * group  # counted through all batches
        row = first
        for step in range(begun, begun + steps):
            load_step(
                Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch,
                head - batch * num_heads_q, head.to(gl.int64) * max_seqlen_q, row, step, max_seqlen_q,
            )  # fmt: skip
            row += BLOCK_M
            last = row >= max_seqlen_q
            head += last.to(gl.int32)
            row = gl.where(last, first, row)
        begun += steps
        ticket, key = next_tile(ticket, key, max_seqlen_k)


@gluon.jit
def place_in_sum(row, c, BLOCK_DMODEL: gl.constexpr):
    """The row of DQSum where the piece of consumer c begins, of a step from query row `row` on."""
    return row // 64 * BLOCK_DMODEL + c * 64


@gluon.jit
def store_piece(
    DQ, DQSum, dq_slot, batch, head, row, first, final, C: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr,
):  # fmt: skip
    """Begins to store what consumer C left of a step: DQ, or what is to be summed."""
    if final:
        # The second consumer's piece is of the next 64 rows, or of the next columns.
        origin = [batch, head, row + C * (BLOCK_M - 64), C * (BLOCK_DMODEL - 64)]
        tma.async_copy_shared_to_global(DQ, origin, dq_slot._reinterpret(DQ.dtype, DQ.block_shape, DQ.layout))
    else:
        origin = [batch, head, place_in_sum(row, C, BLOCK_DMODEL), 0]
        piece = dq_slot._reinterpret(gl.float32, DQSum.block_shape, DQSum.layout)
        if first:
            tma.async_copy_shared_to_global(DQSum, origin, piece)
        else:
            async_add_shared_to_global(DQSum, origin, piece)


@gluon.jit
def make_room(DQSum, dq_slots, dq_empty, batch, head, row, with_sum, BLOCK_DMODEL: gl.constexpr):
    """Gives the consumers their memory for dQ, with the sum so far of a step in it or without."""
    for c in gl.static_range(2):
        tma.store_wait(1 - c)
        if with_sum:
            mbarrier.expect(dq_empty.index(c), DQSum.block_type.nbytes)
            origin = [batch, head, place_in_sum(row, c, BLOCK_DMODEL), 0]
            place = dq_slots.index(c)._reinterpret(gl.float32, DQSum.block_shape, DQSum.layout)
            tma.async_copy_global_to_shared(DQSum, origin, dq_empty.index(c), place)
        else:
            mbarrier.arrive(dq_empty.index(c))


@gluon.jit
def adder(
    DK, DV, DQ, DQSum, ds_slots, dq_slots, dq_full, dq_empty, dv_empty, num_heads_q, num_heads_k, max_seqlen_q,
    max_seqlen_k, batches, BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Stores DQ, DK and DV, and before it is final the sum of dQ."""
    number = 0
    key = 0
    ticket = 2 * special_register("%ctaid.x")
    while is_left(ticket, num_heads_k, batches):
        unit = ticket >> 1
        batch = unit // num_heads_k
        head_k = unit - batch * num_heads_k
        group, first, steps = steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M, CAUSAL)
        head = head_k * group
        row = first
        for left in range(steps, 0, -1):
            final = is_final(row, key, max_seqlen_k, CAUSAL)
            for c in gl.static_range(2):
                mbarrier.wait(dq_full.index(c), number & 1)
                store_piece(DQ, DQSum, dq_slots.index(c), batch, head, row, key == 0, final, c, BLOCK_M, BLOCK_DMODEL)
            number += 1
            row += BLOCK_M
            last = row >= max_seqlen_q
            head += last.to(gl.int32)
            row = gl.where(last, first, row)
            with_sum = (left > 1) & (key > 0) & is_final(row, key, max_seqlen_k, CAUSAL)
            make_room(DQSum, dq_slots, dq_empty, batch, head, row, with_sum, BLOCK_DMODEL)
        for c in gl.static_range(2):
            mbarrier.wait(dq_full.index(c), number & 1)
            dv = ds_slots.index(c)._reinterpret(DV.dtype, DV.block_shape, DV.layout)
            tma.async_copy_shared_to_global(DV, [batch, head_k, key + c * KEYS, 0], dv)
            dk = dq_slots.index(c)._reinterpret(DK.dtype, DK.block_shape, DK.layout)
            tma.async_copy_shared_to_global(DK, [batch, head_k, key + c * KEYS, 0], dk)
        number += 1
        tma.store_wait(0)
        mbarrier.arrive(dv_empty)
        ticket, key = next_tile(ticket, await_stores(key), max_seqlen_k)
        row = 0
        if CAUSAL:
            row = key
        with_sum = (key > 0) & is_final(row, key, max_seqlen_k, CAUSAL)
        make_room(DQSum, dq_slots, dq_empty, batch, head_k * group, row, with_sum, BLOCK_DMODEL)
    tma.store_wait(0)


@gluon.jit
def consumer(
    DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, kv_empty, q_full,
    do_full, empty, dq_full, dq_empty, dv_empty, sm_scale, num_heads_q, num_heads_k, max_seqlen_q,
    max_seqlen_k, batches, C: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    begun = 0
    key = 0
    ticket = 2 * special_register("%ctaid.x")
    while is_left(ticket, num_heads_k, batches):
        _, first, steps = steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M, CAUSAL)
        mbarrier.wait(dv_empty, (ticket & 1) ^ 1)
        dk, dv = walk(
            q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full,
            empty, dq_full, dq_empty, sm_scale, key, first, first, steps, max_seqlen_q, max_seqlen_k, C, CAUSAL, begun,
            ticket, ticket, True,
        )  # fmt: skip
        mbarrier.arrive(kv_empty)
        begun = join_consumers(begun + steps)  # the other consumer has read all dS
        place = ds_slots.index(C)._reinterpret(dtype, DK.block_shape, DK.layout)
        place.reshape([KEYS, BLOCK_DMODEL]).store(dv.to(dtype))
        mbarrier.wait(dq_empty.index(C), ((begun + ticket) & 1) ^ 1)
        place = dq_slots.index(C)._reinterpret(dtype, DK.block_shape, DK.layout)
        place.reshape([KEYS, BLOCK_DMODEL]).store((dk * sm_scale).to(dtype))
        fence_async_shared()
        mbarrier.arrive(dq_full.index(C))
        ticket, key = next_tile(ticket, key, max_seqlen_k)


@gluon.jit
def attn_bwd_hopper_heads(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    DQ,
    DQSum,
    L,
    Delta,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    batch,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid: one program for each multiprocessor, but no more than num_heads_k * batch. `sm_scale` must not be negative.

    Q, K, V, DO, DK, DV, DQ: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M,
    BLOCK_DMODEL] (Q, DO), [1, 1, 128, BLOCK_DMODEL] (K, V), [1, 1, 64, BLOCK_DMODEL] (DK, DV) and [1, 1, 64, 64] (DQ).
    BLOCK_M is 128 where BLOCK_DMODEL is 64, and 64 where it is 128. DQSum: as attn_bwd_hopper_pair's; it may begin with
    anything. CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32 [batch, num_heads_q,
    max_seqlen_q].
    """
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots = slots(Q, K, V, DO, DQSum)
    kv_full, q_full, do_full, empty, dq_full, dq_empty = all_barriers()
    kv_empty = barrier()
    dv_empty = barrier()
    mbarrier.init(kv_full, count=1)
    mbarrier.init(kv_empty, count=2)
    mbarrier.init(dv_empty, count=1)
    count_arrivals(q_full, do_full, empty, dq_full, dq_empty)

    gl.warp_specialize([
        (consumer, (DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full,
                    kv_empty, q_full, do_full, empty, dq_full, dq_empty, dv_empty, sm_scale, num_heads_q, num_heads_k,
                    max_seqlen_q, max_seqlen_k, batch, 0, CAUSAL)),
        (consumer, (DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full,
                    kv_empty, q_full, do_full, empty, dq_full, dq_empty, dv_empty, sm_scale, num_heads_q, num_heads_k,
                    max_seqlen_q, max_seqlen_k, batch, 1, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full,
                    kv_empty, q_full, do_full, empty, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batch,
                    CAUSAL)),
        (adder, (DK, DV, DQ, DQSum, ds_slots, dq_slots, dq_full, dq_empty, dv_empty, num_heads_q, num_heads_k,
                 max_seqlen_q, max_seqlen_k, batch, BLOCK_M, BLOCK_DMODEL, CAUSAL)),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip
