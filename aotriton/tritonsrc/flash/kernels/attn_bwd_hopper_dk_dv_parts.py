"""Backward for Hopper at head dim 256, DK and DV where tiles of keys are few: several programs for each of them.

What a tile's programs walk, the query rows of all query heads that share its key head, is divided into parts of equal
numbers of steps. Each program adds its DK and DV to fp32 sums in memory, by TMA, from where Q and DO were. Steps are as
in attn_bwd_hopper_dk_dv, and so is who waits for whom.

A program without a step adds zeros. The order in which programs add is not fixed, so DK and DV vary in their last bits
from run to run.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from aotriton.tritonsrc.flash.lib.backward import LOG2_E
from aotriton.tritonsrc.flash.lib.backward_split import (
    all_barriers,
    all_slots,
    load_keys,
    load_step,
    walk_of_keys,
    walk_of_values,
)
from aotriton.tritonsrc.flash.lib.pipeline import join_consumers
from aotriton.tritonsrc.flash.lib.scheduler import part_of_walk
from aotriton.tritonsrc.flash.lib.stores import async_add_shared_to_global


@gluon.jit
def producer(
    q_tensors, k_tensors, Rows, q_slots, k_slots, row_slots, k_full, full, empty, key, head_k, batch, head, first, row,
    steps, num_heads_q, max_seqlen_q, FACTOR: gl.constexpr, BEYOND: gl.constexpr,
):  # fmt: skip
    """Loads K, and so many steps."""
    if steps > 0:
        load_keys(k_tensors, k_slots, k_full, batch, head_k, key)
    for step in range(0, steps):
        head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q
        load_step(
            q_tensors, Rows, q_slots, row_slots, full, empty, batch, head, head_row, row, step, max_seqlen_q,
            FACTOR, BEYOND,
        )  # fmt: skip
        row += q_tensors[0].block_shape[2]
        last = row >= max_seqlen_q
        head += last.to(gl.int32)
        row = gl.where(last, first, row)


@gluon.jit
def put(x, slots, Sum):
    """Stores [KEYS, columns] `x` where `slots` were; returns the place, a box of `Sum`."""
    box = slots._reinterpret(gl.float32, Sum.block_shape, Sum.layout)
    box.reshape(x.shape).store(x)
    return box


@gluon.jit
def add(tensors, places, x, x_rest, batch, head, key):
    """Both parts to what is in memory, from where Q or DO was, which neither consumer reads any more."""
    FIRST: gl.constexpr = x.shape[1]
    box = put(x, places[0], tensors[0])
    rest_box = put(x_rest, places[1], tensors[1])
    fence_async_shared()
    async_add_shared_to_global(tensors[0], [batch, head, key, 0], box)
    async_add_shared_to_global(tensors[1], [batch, head, key, FIRST], rest_box)
    tma.store_wait(0)


@gluon.jit
def value_consumer(
    dv_tensors, k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty, do_full, do_empty, p_full,
    p_empty, sm_scale, key, head_k, batch, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    if steps > 0:
        dv, dv_rest = walk_of_values(
            k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty, do_full, do_empty, p_full, p_empty,
            sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL,
        )  # fmt: skip
        join_consumers(steps)
        add(dv_tensors, do_slots, dv, dv_rest, batch, head_k, key)


@gluon.jit
def key_consumer(
    dk_tensors, v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty, do_full, do_empty, p_full,
    p_empty, key, head_k, batch, steps,
):  # fmt: skip
    if steps > 0:
        dk, dk_rest = walk_of_keys(
            v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty, do_full, do_empty, p_full,
            p_empty, steps,
        )  # fmt: skip
        join_consumers(steps)
        add(dk_tensors, q_slots, dk, dk_rest, batch, head_k, key)


@gluon.jit
def attn_bwd_hopper_dk_dv_parts(
    Q,
    K,
    V,
    DO,
    DKSum,
    DVSum,
    QRest,
    KRest,
    VRest,
    DORest,
    DKSumRest,
    DVSumRest,
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
    """Grid (cdiv(max_seqlen_k, 64) * num_heads_k * batch * parts). Arguments as attn_bwd_hopper_dk_dv's, but DKSum and
    DVSum are fp32 and begin at zero; DK is sm_scale * DKSum, DV is DVSum. So many heads of keys `together` have their
    first tiles computed first.
    """
    KEYS: gl.constexpr = K.block_shape[2]
    STAGES: gl.constexpr = 3 if BLOCK_DMODEL == 192 else 2
    k_slots, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slots = all_slots(
        (Q, QRest), (K, KRest), (V, VRest), (DO, DORest), STAGES
    )
    k_full, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty = all_barriers(STAGES)

    batch, head_k, key, first, head, row, steps = part_of_walk(
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, parts, together, KEYS, BLOCK_M, CAUSAL
    )
    gl.warp_specialize([
        (value_consumer, ((DVSum, DVSumRest), k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty,
                          do_full, do_empty, p_full, p_empty, sm_scale, key, head_k, batch, first, row, steps,
                          max_seqlen_q, max_seqlen_k, CAUSAL)),
        (key_consumer, ((DKSum, DKSumRest), v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty,
                        do_full, do_empty, p_full, p_empty, key, head_k, batch, steps)),
        (producer, ((Q, QRest), (K, KRest), L, q_slots, k_slots, lse_slots, k_full, q_full, q_empty, key, head_k, batch,
                    head, first, row, steps, num_heads_q, max_seqlen_q, -LOG2_E, float("inf"))),
        (producer, ((DO, DORest), (V, VRest), Delta, do_slots, v_slots, delta_slots, v_full, do_full, do_empty, key,
                    head_k, batch, head, first, row, steps, num_heads_q, max_seqlen_q, 1.0, 0.0)),
    ], [4, 1, 1], [232, 32, 32])  # fmt: skip
