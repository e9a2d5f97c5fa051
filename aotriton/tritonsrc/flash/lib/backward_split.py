"""What the kernels share that compute DK and DV at head dims 192 and 256: slots, loads, and the walks of two consumers.

attn_bwd_hopper_dk_dv says what a step is, and who waits for whom.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from aotriton.tritonsrc.flash.lib.backward import LOG2_E, hide, row_slots
from aotriton.tritonsrc.flash.lib.hopper_column_parts import (
    bytes_of,
    finished,
    load,
    matrix,
    places,
    scores,
    slots,
    weighted,
    zeros,
)
from aotriton.tritonsrc.flash.lib.pipeline import barrier, barriers


@gluon.jit
def load_keys(k_tensors, k_slots, k_full, batch, head_k, key):
    mbarrier.expect(k_full, bytes_of(k_tensors))
    load(k_tensors, batch, head_k, key, k_full, places(k_slots, 0))


@gluon.jit
def load_step(
    q_tensors, Rows, q_slots, row_slots, full, empty, batch, head, head_row, row, step, max_seqlen_q,
    FACTOR: gl.constexpr, BEYOND: gl.constexpr,
):  # fmt: skip
    """Loads Q from `row` on to the slot of `step`, with a number for each of its rows, times FACTOR; BEYOND, times
    FACTOR, beyond the end. `head_row` is the number of the head's first row.
    """
    BLOCK_M: gl.constexpr = q_tensors[0].block_shape[2]
    SLOTS: gl.constexpr = q_slots[0].shape[0]
    LAYOUT: gl.constexpr = gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0])
    index = row + gl.arange(0, BLOCK_M, LAYOUT)
    rows = gl.load(Rows + head_row + index, mask=index < max_seqlen_q, other=BEYOND)
    slot = step % SLOTS
    ready = full.index(slot)
    mbarrier.wait(empty.index(slot), ((step // SLOTS) & 1) ^ 1)
    mbarrier.expect(ready, bytes_of(q_tensors))
    load(q_tensors, batch, head, row, ready, places(q_slots, slot))
    row_slots.index(slot).store(rows * FACTOR)
    mbarrier.arrive(ready)


@gluon.jit
def operand(k_slots, k_full, BLOCK_M: gl.constexpr):
    """Both parts of K, once they are there, in registers if these have room for them."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    K_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    mbarrier.wait(k_full, 0)
    k = [matrix(of_part, 0) for of_part in k_slots]
    if k_slots[0].shape[4] + k_slots[1].shape[4] <= 192:
        k = [k_part.load(K_LAYOUT) for k_part in k]
    return k


@gluon.jit
def fresh(x):
    """x, of 16 bits, in other registers. ptxas serialises products whose operands come into being while others, issued
    before, are under way: this copies them when those have ended.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)


@gluon.jit
def probabilities(
    s, lse_slots, slot, p_slots, p_full, p_empty, step, scale, row, key, max_seqlen_k,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """P of a step, [keys, queries] in 16 bits, of which the other consumer is told."""
    KEYS: gl.constexpr = s.shape[0]
    S_LAYOUT: gl.constexpr = s.type.layout
    lse = lse_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
    s = s * scale + gl.expand_dims(lse, 0)
    masked = key + KEYS > max_seqlen_k
    if CAUSAL:
        masked = row < key + KEYS - 1
    if masked:
        s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
    p = gl.exp2(s).to(p_slots.dtype)
    mbarrier.wait(p_empty.index(step % 2), ((step // 2) & 1) ^ 1)
    p_slots.index(step % 2).store(p)
    fence_async_shared()
    mbarrier.arrive(p_full.index(step % 2))
    return p


@gluon.jit
def walk_of_values(
    k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty, do_full, do_empty, p_full, p_empty,
    sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    """DV in two parts over so many steps, one at least: from query row `row` to the last one of a head, then from row
    `first` of the next.
    """
    KEYS: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    BLOCK_M: gl.constexpr = q_slots[0].shape[3]
    STAGES: gl.constexpr = q_slots[0].shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DV_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DV_LAYOUT, 2)

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    k = operand(k_slots, k_full, BLOCK_M)
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    dv = zeros(k_slots, KEYS)
    mbarrier.wait(q_full.index(0), 0)
    s = warpgroup_mma_wait(0, deps=[scores(k, q_slots, 0, no_s)])
    p = probabilities(s, lse_slots, 0, p_slots, p_full, p_empty, 0, scale, row, key, max_seqlen_k, CAUSAL)
    mbarrier.arrive(q_empty.index(0))
    p = gl.convert_layout(p, P_LAYOUT)
    for step in range(1, steps):
        row += BLOCK_M
        row = gl.where(row >= max_seqlen_q, first, row)
        slot = step % STAGES
        before = (step - 1) % STAGES
        mbarrier.wait(q_full.index(slot), (step // STAGES) & 1)
        s = scores(k, q_slots, slot, no_s)
        mbarrier.wait(do_full.index(before), ((step - 1) // STAGES) & 1)
        dv = weighted(p, do_slots, before, dv)
        s = warpgroup_mma_wait(2, deps=[s])
        p_next = probabilities(
            s, lse_slots, slot, p_slots, p_full, p_empty, step, scale, row, key, max_seqlen_k, CAUSAL
        )
        mbarrier.arrive(q_empty.index(slot))
        p_next = gl.convert_layout(p_next, P_LAYOUT)
        dv = finished(dv)
        mbarrier.arrive(do_empty.index(before))
        p = fresh(p_next)
    last = (steps - 1) % STAGES
    mbarrier.wait(do_full.index(last), ((steps - 1) // STAGES) & 1)
    return finished(weighted(p, do_slots, last, dv))


@gluon.jit
def gradients(dp, delta_slots, slot, p_slots, p_full, p_empty, step):
    """dS of a step, [keys, queries] in 16 bits, from the P of the other consumer."""
    LAYOUT: gl.constexpr = dp.type.layout
    delta = delta_slots.index(slot).load(gl.SliceLayout(0, LAYOUT))
    mbarrier.wait(p_full.index(step % 2), (step // 2) & 1)
    p = p_slots.index(step % 2).load(LAYOUT)
    mbarrier.arrive(p_empty.index(step % 2))
    return (p.to(gl.float32) * (dp - gl.expand_dims(delta, 0))).to(p_slots.dtype)


@gluon.jit
def walk_of_keys(
    v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty, steps
):
    """DK, before its scale, in two parts over so many steps, one at least."""
    KEYS: gl.constexpr = v_slots[0].shape[3]
    FIRST: gl.constexpr = v_slots[0].shape[4]
    BLOCK_M: gl.constexpr = q_slots[0].shape[3]
    STAGES: gl.constexpr = q_slots[0].shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    DS_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DK_LAYOUT, 2)

    v = operand(v_slots, v_full, BLOCK_M)
    no_dp = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    dk = zeros(v_slots, KEYS)
    mbarrier.wait(do_full.index(0), 0)
    dp = warpgroup_mma_wait(0, deps=[scores(v, do_slots, 0, no_dp)])
    ds = gradients(dp, delta_slots, 0, p_slots, p_full, p_empty, 0)
    mbarrier.arrive(do_empty.index(0))
    ds = gl.convert_layout(ds, DS_LAYOUT)
    for step in range(1, steps):
        slot = step % STAGES
        before = (step - 1) % STAGES
        mbarrier.wait(q_full.index(before), ((step - 1) // STAGES) & 1)
        dk = weighted(ds, q_slots, before, dk)
        mbarrier.wait(do_full.index(slot), (step // STAGES) & 1)
        dp = scores(v, do_slots, slot, no_dp)
        dk = finished(dk, 2)
        mbarrier.arrive(q_empty.index(before))
        dp = warpgroup_mma_wait(0, deps=[dp])
        ds = gradients(dp, delta_slots, slot, p_slots, p_full, p_empty, step)
        mbarrier.arrive(do_empty.index(slot))
        ds = gl.convert_layout(ds, DS_LAYOUT)
    last = (steps - 1) % STAGES
    mbarrier.wait(q_full.index(last), ((steps - 1) // STAGES) & 1)
    return finished(weighted(ds, q_slots, last, dk))


@gluon.jit
def all_slots(q_tensors, k_tensors, v_tensors, do_tensors, STAGES: gl.constexpr):
    """Shared memory for K, V, Q, DO, lse, delta and P."""
    KEYS: gl.constexpr = k_tensors[0].block_shape[2]
    BLOCK_M: gl.constexpr = q_tensors[0].block_shape[2]
    dtype: gl.constexpr = q_tensors[0].dtype
    P_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    k_slots = slots(k_tensors, 1)
    v_slots = slots(v_tensors, 1)
    q_slots = slots(q_tensors, STAGES)
    do_slots = slots(do_tensors, STAGES)
    lse_slots = row_slots(STAGES, BLOCK_M)
    delta_slots = row_slots(STAGES, BLOCK_M)
    p_slots = gl.allocate_shared_memory(dtype, [2, KEYS, BLOCK_M], P_LAYOUT)
    return k_slots, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slots


@gluon.jit
def all_barriers(STAGES: gl.constexpr):
    """k_full, v_full, q_full, q_empty, do_full, do_empty, p_full and p_empty."""
    k_full = barrier()
    v_full = barrier()
    q_full = barriers(STAGES)
    q_empty = barriers(STAGES)
    do_full = barriers(STAGES)
    do_empty = barriers(STAGES)
    p_full = barriers(2)
    p_empty = barriers(2)
    mbarrier.init(k_full, count=1)
    mbarrier.init(v_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(q_empty.index(slot), count=2)
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(do_empty.index(slot), count=2)
    for slot in gl.static_range(2):
        mbarrier.init(p_full.index(slot), count=1)
        mbarrier.init(p_empty.index(slot), count=1)
    return k_full, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty
