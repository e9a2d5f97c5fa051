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

from aotriton.tritonsrc.flash.attn_bwd_hopper_dk_dv import all_barriers, slots, walk
from aotriton.tritonsrc.flash.hopper_backward import async_add_shared_to_global, producer, task


@gluon.jit
def put(x, slots, Sum):
    """Stores [KEYS, columns] `x` where `slots` were; returns the place, a box of `Sum`."""
    box = slots._reinterpret(gl.float32, Sum.block_shape, Sum.layout)
    box.reshape(x.shape).store(x)
    return box


@gluon.jit
def consumers(
    DKSum, DVSum, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full, q_full, do_full,
    empty, sm_scale, batch, head_k, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    dk, dv = walk(
        q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full, q_full, do_full, empty,
        sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL,
    )  # fmt: skip
    dv_box = put(dv, do_slots, DVSum)
    dk_box = put(dk, q_slots, DKSum)
    fence_async_shared()
    async_add_shared_to_global(DVSum, [batch, head_k, key, 0], dv_box)
    async_add_shared_to_global(DKSum, [batch, head_k, key, 0], dk_box)
    tma.store_wait(0)


@gluon.jit
def attn_bwd_hopper_dk_dv_parts(
    Q,
    K,
    V,
    DO,
    DKSum,
    DVSum,
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
    """Grid (cdiv(max_seqlen_k, 64) * num_heads_k * batch * parts). `sm_scale` must not be negative.

    Q, K, V, DO, DKSum, DVSum: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M,
    BLOCK_DMODEL] (Q, DO) and [1, 1, 64, BLOCK_DMODEL] (the others). DKSum and DVSum are fp32 and begin at zero; DK is
    sm_scale * DKSum, DV is DVSum. CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32 [batch,
    num_heads_q, max_seqlen_q]. So many heads of keys `together` have their first tiles computed first.
    """
    KEYS: gl.constexpr = K.block_shape[2]
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot = slots(Q, K, V, DO)
    kv_full, q_full, do_full, empty = all_barriers()

    batch, head_k, key, first, head, row, steps = task(
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, parts, together, KEYS, BLOCK_M, CAUSAL
    )
    gl.warp_specialize([
        (consumers, (DKSum, DVSum, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full,
                     q_full, do_full, empty, sm_scale, batch, head_k, key, first, row, steps, max_seqlen_q,
                     max_seqlen_k, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, q_full,
                    do_full, empty, key, head_k, batch, head, first, row, steps, num_heads_q, max_seqlen_q)),
    ], [1], [40])  # fmt: skip
