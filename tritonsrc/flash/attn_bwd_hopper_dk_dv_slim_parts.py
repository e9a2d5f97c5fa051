"""Backward for Hopper at head dim 192, DK and DV where tiles of keys are few: several programs for each of them.

As attn_bwd_hopper_dk_dv_parts, with the steps of attn_bwd_hopper_dk_dv_slim, columns in two parts, 128 + 64, and who
waits for whom as there. `parts` are of a walk.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from aotriton.tritonsrc.flash.attn_bwd_hopper import LOG2_E, STAGES, async_add_shared_to_global
from aotriton.tritonsrc.flash.attn_bwd_hopper_dk_dv_parts import put, task
from aotriton.tritonsrc.flash.attn_bwd_hopper_dk_dv_slim import await_keys, load_keys, load_step, walk
from aotriton.tritonsrc.flash.attn_fwd_hopper_slim import slots


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
    DO_STAGES: gl.constexpr = STAGES if BLOCK_M == 64 else 1
    P_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    ROW_LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    k_slots = slots((K, KRest), 1)
    v_slots = slots((V, VRest), 1)
    q_slots = slots((Q, QRest), STAGES)
    do_slots = slots((DO, DORest), DO_STAGES)
    lse_slots = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT)
    delta_slots = gl.allocate_shared_memory(gl.float32, [DO_STAGES, BLOCK_M], ROW_LAYOUT)
    p_slot = gl.allocate_shared_memory(Q.dtype, [KEYS, BLOCK_M], P_LAYOUT)
    ds_slot = gl.allocate_shared_memory(Q.dtype, [KEYS, BLOCK_M], P_LAYOUT)
    k_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    do_full = gl.allocate_shared_memory(gl.int64, [DO_STAGES, 1], mbarrier.MBarrierLayout())
    do_empty = gl.allocate_shared_memory(gl.int64, [DO_STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(k_full, count=1)
    mbarrier.init(v_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(q_empty.index(slot), count=1)
    for slot in gl.static_range(DO_STAGES):
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(do_empty.index(slot), count=1)

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
