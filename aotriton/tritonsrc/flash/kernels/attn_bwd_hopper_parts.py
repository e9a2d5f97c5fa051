"""Attention backward for Hopper where tiles of keys are few: as attn_bwd_hopper_pair, with several programs for each.

What the programs of a tile walk, the query rows of all query heads that share its key head, is divided into parts of
equal numbers of steps. Each program adds its DK and DV to fp32 sums in memory, by the road of dQ:

    adder warp                                          a consumer
    ──────────                                          ──────────
    adds dQ to DQSum          ◀─ dq_full[consumer], 1   dQ of step i is in shared memory
                              ── dq_empty[consumer] ─▶  stores dQ of step i + 1
    adds DV to DVSum,         ◀─ dq_full[consumer], 1   after the last step: 64 rows x 64 columns of DV, then of DK,
    DK to DKSum               ── dq_empty[consumer] ─▶  are in its memory for dQ

Pieces are counted on from the steps. A program without a step adds zeros. DQSum has the order of accumulators, DKSum
and DVSum that of rows, so the memory for dQ is taken with one layout, and in the end with another.
The order in which programs add is not fixed, so all results vary in their last bits from run to run.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from aotriton.tritonsrc.flash.lib.backward import all_barriers, count_arrivals, producer, slots, walk
from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.scheduler import part_of_walk
from aotriton.tritonsrc.flash.lib.stores import add_pieces


@gluon.jit
def add_steps(
    DQSum, dq_slots, dq_full, dq_empty, batch, head, first, row, steps, max_seqlen_q,
    BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr,
):  # fmt: skip
    """Adds what the consumers leave of dQ in dq_slots to memory."""
    # The second piece is of the next 64 rows, or of the next columns, or of what the first is of.
    ROWS_APART: gl.constexpr = BLOCK_M // 64 * BLOCK_DMODEL - DQSum.block_shape[2]
    for step in range(0, steps):
        at = row // 64 * BLOCK_DMODEL
        add_pieces(DQSum, dq_slots, dq_full, dq_empty, batch, head, at, 0, step, ROWS_APART)
        row += BLOCK_M
        last = row >= max_seqlen_q
        head += last.to(gl.int32)
        row = gl.where(last, first, row)


@gluon.jit
def adder(
    DKSum, DVSum, DQSum, dq_slots, dq_full, dq_empty, key, head_k, batch, head, first, row, steps, max_seqlen_q,
    BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr,
):  # fmt: skip
    """Adds what the consumers leave in dq_slots: the halves of dQ, and in the end DV and DK."""
    PIECES: gl.constexpr = BLOCK_DMODEL // 64
    add_steps(DQSum, dq_slots, dq_full, dq_empty, batch, head, first, row, steps, max_seqlen_q, BLOCK_M, BLOCK_DMODEL)
    for piece in gl.static_range(PIECES):
        add_pieces(DVSum, dq_slots, dq_full, dq_empty, batch, head_k, key, 64 * piece, steps + piece, KEYS)
    for piece in gl.static_range(PIECES):
        add_pieces(DKSum, dq_slots, dq_full, dq_empty, batch, head_k, key, 64 * piece, steps + PIECES + piece, KEYS)


@gluon.jit
def hand_over(x, dq_slots, dq_full, dq_empty, number, C: gl.constexpr):
    """Leaves [64, 64] `x` of consumer C to the adder, as its `number`-th piece."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    mbarrier.wait(dq_empty.index(C), (number & 1) ^ 1)
    # No thread has to hand on what it holds.
    dq_slots.index(C).reshape([64, 64]).store(gl.convert_layout(x, LAYOUT, assert_trivial=True))
    fence_async_shared()
    mbarrier.arrive(dq_full.index(C))


@gluon.jit
def hand_all_over(x, dq_slots, dq_full, dq_empty, number, C: gl.constexpr):
    """The same of [64, 64 or 128] `x`, in pieces of 64 columns from the `number`-th on."""
    if x.shape[1] == 64:
        hand_over(x, dq_slots, dq_full, dq_empty, number, C)
    else:
        left, right = x.reshape([64, 2, 64]).permute((0, 2, 1)).split()
        hand_over(left, dq_slots, dq_full, dq_empty, number, C)
        hand_over(right, dq_slots, dq_full, dq_empty, number + 1, C)


@gluon.jit
def consumer(
    q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
    dq_full, dq_empty, sm_scale, first_key, first, row, steps, max_seqlen_q, max_seqlen_k,
    C: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    dk, dv = walk(
        q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
        dq_full, dq_empty, sm_scale, first_key, first, row, steps, max_seqlen_q, max_seqlen_k, C, CAUSAL,
    )  # fmt: skip
    PIECES: gl.constexpr = dv.shape[1] // 64
    # A loop of two, so that there is one copy of the code: where a second one is, registers do not suffice.
    for number in range(steps, opaque(steps + 2 * PIECES), PIECES):
        hand_all_over(dv, dq_slots, dq_full, dq_empty, number, C)
        dv = dk


@gluon.jit
def attn_bwd_hopper_parts(
    Q,
    K,
    V,
    DO,
    DKSum,
    DVSum,
    DQSum,
    L,
    Delta,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    parts,
    together,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid (cdiv(max_seqlen_k, 128) * num_heads_k * batch * parts). `sm_scale` must not be negative.

    Q, K, V, DO: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M, BLOCK_DMODEL] (Q, DO)
    and [1, 1, 128, BLOCK_DMODEL] (K, V). BLOCK_M is 128 where BLOCK_DMODEL is 64, and 64 where it is 128. DKSum and
    DVSum: of fp32, as k, with boxes [1, 1, 64, 64]; DQSum: as attn_bwd_hopper_pair's. All begin at zero. DQ is sm_scale
    * DQSum in the order of rows, DK is sm_scale * DKSum. CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are
    contiguous fp32 [batch, num_heads_q, max_seqlen_q]. So many heads of keys `together` have their first tiles computed
    first.
    """
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots = slots(Q, K, V, DO, DKSum)
    kv_full, q_full, do_full, empty, dq_full, dq_empty = all_barriers()
    mbarrier.init(kv_full, count=1)
    count_arrivals(q_full, do_full, empty, dq_full, dq_empty)

    # query rows before `first` see none of the keys
    batch, head_k, key, first, head, row, steps = part_of_walk(
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, parts, together, 2 * KEYS, BLOCK_M, CAUSAL, BLOCK_M
    )
    gl.warp_specialize([
        (consumer, (q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full,
                    do_full, empty, dq_full, dq_empty, sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k,
                    0, CAUSAL)),
        (consumer, (q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full,
                    do_full, empty, dq_full, dq_empty, sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k,
                    1, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, q_full,
                    do_full, empty, key, head_k, batch, head, first, row, steps, num_heads_q, max_seqlen_q)),
        (adder, (DKSum, DVSum, DQSum, dq_slots, dq_full, dq_empty, key, head_k, batch, head, first, row, steps,
                 max_seqlen_q, BLOCK_M, BLOCK_DMODEL)),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip
