"""Attention backward for Hopper: a loading warp, an adding warp and two consumers turn Q, K, V and DO to DK, DV, DQSum.

A program takes tile after tile (`work_at`): 128 key rows of one key head, 64 for each of two consumers, which sum DK
and DV over the query heads that share it. A tile takes BLOCK_M query rows at a time; each such step has one of STAGES
slots, in which the steps of all tiles follow each other. Scores are transposed, [keys, queries], so that P and dS are
register operands of the products that sum over queries. A step of a consumer:

    S = K Qᵀ                                 wait for Q
    dP = V DOᵀ                               wait for DO and S   P = exp2(scale S - lse)
    dS = P (dP - delta) → shared             wait for dP
    DV += P DO                               meet: both halves of dS are there
    dQ = dSᵀ K,  DK += dS Q                  wait for dQ         dQ → shared, for the adder
                                             wait for DK

A consumer has 64 rows of dQ and 64 columns, or all where there are fewer. dSᵀ K sums over the keys of both consumers,
and each computes half of it: rows where BLOCK_M is 128, columns where BLOCK_DMODEL is. Where neither is, there is but
one piece: each consumer computes it from its own keys, they do not meet, and the adder adds both.

A piece of dQ has the order of accumulators in shared memory and in DQSum, which dq_layout describes: a thread stores 16
bytes at a time, a warp's lie together, without bank conflicts, and the adder adds a piece with one message.

dS has two slots, so that one meeting is enough: who comes to the next has read the last. Products begin from zero: what
begins from registers makes ptxas wait for the products that were issued before.

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp                                       a consumer
    ─────────────                                       ──────────
    loads K and V             ── kv_full, bytes ──▶     before the first step of a tile
    loads the next tile's     ◀─ kv_empty, 2 ──         after the last one
    loads Q, lse              ── q_full[slot], bytes    step i
                                 and 1 for the rows ─▶
    loads DO, delta           ── do_full[slot], alike ▶ step i
    loads step i + STAGES     ◀─ empty[slot], 2 ──      after DK of step i

    adder warp
    ──────────
    adds dQ to DQSum          ◀─ dq_full[consumer], 1   dQ of step i is in shared memory
                              ── dq_empty[consumer] ─▶  stores dQ of step i + 1
    stores DV, then DK        ◀─ dq_full[consumer], 1   behind a tile, as two more in the memory for dQ
                              ── dq_empty[consumer] ─▶  stores what comes next there

Tensor memory accesses (TMA) read zeros beyond the end of a tensor and write nothing there.
The order in which programs add to DQSum is not fixed, so DQ varies in its last bits from run to run; DK and DV do not.

Tuned: BLOCK_M, 64 or 128.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
)

from aotriton.tritonsrc.flash.lib.backward import all_barriers, count_arrivals, load_keys, load_step, slots, walk
from aotriton.tritonsrc.flash.lib.backward_scheduler import next_rows, steps_of, work_at
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.pipeline import barrier
from aotriton.tritonsrc.flash.lib.stores import add_pieces, hand_over, store_pieces


@gluon.jit
def producer(
    Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, kv_empty, q_full,
    do_full, empty, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batches, together, CAUSAL: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    begun = 0
    ticket, key, unit = work_at(opaque(0), num_heads_k, max_seqlen_k, batches, together, CAUSAL)
    while key >= 0:
        batch = unit // num_heads_k
        mbarrier.wait(kv_empty, (ticket & 1) ^ 1)
        load_keys(K, V, batch, unit - batch * num_heads_k, key, kv_full, k_slot, v_slot)
        sharing, first, begin, steps = steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M, CAUSAL)
        head = unit * sharing  # counted through all batches
        row = begin
        for step in range(begun, begun + steps):
            load_step(
                Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch,
                head - batch * num_heads_q, head.to(gl.int64) * max_seqlen_q, row, step, max_seqlen_q,
            )  # fmt: skip
            head, row = next_rows(head, row, first, begin, max_seqlen_q, BLOCK_M)
        begun += steps
        ticket, key, unit = work_at((ticket + 2) ^ 1, num_heads_k, max_seqlen_k, batches, together, CAUSAL)


@gluon.jit
def adder(
    DK, DV, DQSum, dq_slots, dq_full, dq_empty, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batches, together,
    BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Adds up dQ, and stores DV and DK behind each tile."""
    # The second piece is of the next 64 rows, or of the next columns, or of what the first is of.
    ROWS_APART: gl.constexpr = BLOCK_M // 64 * BLOCK_DMODEL - DQSum.block_shape[2]
    number = 0
    ticket, key, unit = work_at(opaque(0), num_heads_k, max_seqlen_k, batches, together, CAUSAL)
    while key >= 0:
        batch = unit // num_heads_k
        head_k = unit - batch * num_heads_k
        sharing, first, begin, steps = steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M, CAUSAL)
        head = head_k * sharing
        row = begin
        for piece in range(number, number + steps):
            at = row // 64 * BLOCK_DMODEL
            add_pieces(DQSum, dq_slots, dq_full, dq_empty, batch, head, at, 0, piece, ROWS_APART)
            head, row = next_rows(head, row, first, begin, max_seqlen_q, BLOCK_M)
        number += steps
        store_pieces(DV, dq_slots, dq_full, dq_empty, batch, head_k, key, number)
        store_pieces(DK, dq_slots, dq_full, dq_empty, batch, head_k, key, number + 1)
        ticket, key, unit = work_at(ticket + 2, num_heads_k, max_seqlen_k, batches, together, CAUSAL)


@gluon.jit
def consumer(
    DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, kv_empty, q_full,
    do_full, empty, dq_full, dq_empty, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batches,
    together, C: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """The 64 keys of each tile from key 64 * C."""
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    begun = 0
    ticket, key, _ = work_at(opaque(0), num_heads_k, max_seqlen_k, batches, together, CAUSAL)
    while key >= 0:
        _, first, begin, steps = steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M, CAUSAL)
        dk, dv = walk(
            q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full,
            empty, dq_full, dq_empty, sm_scale, key, first, begin, steps, max_seqlen_q, max_seqlen_k, C, CAUSAL, begun,
            ticket, 0,
        )  # fmt: skip
        mbarrier.arrive(kv_empty)
        begun += steps
        # A loop of two, so that there is one copy of the code: where a second one is, registers do not suffice.
        for number in range(begun, opaque(begun + 2)):
            hand_over(dv.to(dtype), DK, dq_slots, dq_full, dq_empty, number, C)
            dv = dk * sm_scale
        ticket, key, _ = work_at((ticket + 2) ^ 1, num_heads_k, max_seqlen_k, batches, together, CAUSAL)


@gluon.jit
def attn_bwd_hopper_pair(
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
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    batch,
    together,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid: one program for each multiprocessor, but no more than cdiv(max_seqlen_k, 128) * num_heads_k * batch.
    `sm_scale` must not be negative.

    Q, K, V, DO, DK, DV: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M, BLOCK_DMODEL]
    (Q, DO), [1, 1, 128, BLOCK_DMODEL] (K, V) and [1, 1, 64, BLOCK_DMODEL] (DK, DV). BLOCK_M is 64 where BLOCK_DMODEL is
    128. DQSum: of fp32 [batch, heads, cdiv(max_seqlen_q, 64) * BLOCK_DMODEL, 64], with boxes [1, 1, min(BLOCK_DMODEL,
    64), 64] that are not swizzled. It begins at zero; DQ is sm_scale * DQSum in the order of rows. CAUSAL needs
    max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32 [batch, num_heads_q, max_seqlen_q]. CAUSAL, so many
    heads of keys `together`, at most all, have their tiles dealt out by length: at least as many tiles as programs,
    unless there are no more heads.
    """
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots = slots(Q, K, V, DO, DQSum)
    kv_full, q_full, do_full, empty, dq_full, dq_empty = all_barriers()
    kv_empty = barrier()
    mbarrier.init(kv_full, count=1)
    mbarrier.init(kv_empty, count=2)
    count_arrivals(q_full, do_full, empty, dq_full, dq_empty)

    gl.warp_specialize([
        (consumer, (DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full,
                    kv_empty, q_full, do_full, empty, dq_full, dq_empty, sm_scale, num_heads_q, num_heads_k,
                    max_seqlen_q, max_seqlen_k, batch, together, 0, CAUSAL)),
        (consumer, (DK, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full,
                    kv_empty, q_full, do_full, empty, dq_full, dq_empty, sm_scale, num_heads_q, num_heads_k,
                    max_seqlen_q, max_seqlen_k, batch, together, 1, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full,
                    kv_empty, q_full, do_full, empty, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batch,
                    together, CAUSAL)),
        (adder, (DK, DV, DQSum, dq_slots, dq_full, dq_empty, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k,
                 batch, together, BLOCK_M, BLOCK_DMODEL, CAUSAL)),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip
