"""Backward for Hopper at head dim 192, DK and DV where tiles of keys are few: several programs for each of them.

As attn_bwd_hopper_dk_dv_parts, with the steps of attn_bwd_hopper_dk_dv_slim, columns in two parts, 128 + 64, and who
waits for whom as there. `parts` are of a walk.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from aotriton.tritonsrc.flash.attn_bwd_hopper_dk_dv_parts import put
from aotriton.tritonsrc.flash.attn_bwd_hopper_dk_dv_slim import (
    all_barriers,
    all_slots,
    await_keys,
    load_keys,
    load_step,
    walk,
)
from aotriton.tritonsrc.flash.hopper_backward import LOG2_E, async_add_shared_to_global, task


@gluon.jit
def producer(
    q_tensors, k_tensors, Rows, q_slots, k_slots, row_slots, k_full, full, empty, key, head_k, batch, head, first, row,
    steps, num_heads_q, max_seqlen_q, FACTOR: gl.constexpr, BEYOND: gl.constexpr,
):  # fmt: skip
    """Loads K, and so many steps."""
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
def consumers(
    dk_tensors, dv_tensors, q_slots, do_slots, lse_slots, delta_slots, k_slots, v_slots, p_slot, ds_slot, k_full,
    v_full, q_full, q_empty, do_full, do_empty, sm_scale, batch, head_k, key, first, row, steps, max_seqlen_q,
    max_seqlen_k, CAUSAL: gl.constexpr, K_IN_REGISTERS: gl.constexpr,
):  # fmt: skip
    FIRST: gl.constexpr = k_slots[0].shape[4]
    k = await_keys(k_slots, k_full, v_full, q_slots[0].shape[3], K_IN_REGISTERS)
    dk, dk_rest, dv, dv_rest = walk(
        k, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot, q_full, q_empty, do_full, do_empty,
        sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL,
    )  # fmt: skip
    dv_box = put(dv, do_slots[0], dv_tensors[0])
    dv_rest_box = put(dv_rest, do_slots[1], dv_tensors[1])
    dk_box = put(dk, q_slots[0], dk_tensors[0])
    dk_rest_box = put(dk_rest, q_slots[1], dk_tensors[1])
    fence_async_shared()
    async_add_shared_to_global(dv_tensors[0], [batch, head_k, key, 0], dv_box)
    async_add_shared_to_global(dv_tensors[1], [batch, head_k, key, FIRST], dv_rest_box)
    async_add_shared_to_global(dk_tensors[0], [batch, head_k, key, 0], dk_box)
    async_add_shared_to_global(dk_tensors[1], [batch, head_k, key, FIRST], dk_rest_box)
    tma.store_wait(0)


@gluon.jit
def attn_bwd_hopper_dk_dv_slim_parts(
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
    K_IN_REGISTERS: gl.constexpr,
):
    """Grid and arguments as attn_bwd_hopper_dk_dv_parts's, with BLOCK_DMODEL the sum of two powers of two.

    Q, K, V, DO, DKSum, DVSum: boxes of as many columns as the first, those with Rest: of as many as the second, and of
    as many rows: BLOCK_M (Q, DO) and 64 (the others). Each pair is of one tensor.
    """
    KEYS: gl.constexpr = K.block_shape[2]
    k_slots, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot = all_slots(
        (Q, QRest), (K, KRest), (V, VRest), (DO, DORest)
    )
    k_full, v_full, q_full, q_empty, do_full, do_empty = all_barriers(do_slots[0].shape[0])

    batch, head_k, key, first, head, row, steps = task(
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, parts, together, KEYS, BLOCK_M, CAUSAL
    )
    gl.warp_specialize([
        (consumers, ((DKSum, DKSumRest), (DVSum, DVSumRest), q_slots, do_slots, lse_slots, delta_slots, k_slots,
                     v_slots, p_slot, ds_slot, k_full, v_full, q_full, q_empty, do_full, do_empty, sm_scale, batch,
                     head_k, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL, K_IN_REGISTERS)),
        (producer, ((Q, QRest), (K, KRest), L, q_slots, k_slots, lse_slots, k_full, q_full, q_empty, key, head_k, batch,
                    head, first, row, steps, num_heads_q, max_seqlen_q, -LOG2_E, float("inf"))),
        (producer, ((DO, DORest), (V, VRest), Delta, do_slots, v_slots, delta_slots, v_full, do_full, do_empty, key,
                    head_k, batch, head, first, row, steps, num_heads_q, max_seqlen_q, 1.0, 0.0)),
    ], [1, 1], [40, 40])  # fmt: skip
