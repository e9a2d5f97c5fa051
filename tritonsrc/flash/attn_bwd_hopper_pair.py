"""Attention backward for Hopper: as attn_bwd_hopper, with consumers that go on by themselves and meet once a step.

A program owns 128 key rows of one key head, 64 for each of two consumers, and sums DK and DV over the query heads that
share it. It takes BLOCK_M query rows at a time; each such step has one of STAGES slots. Scores are transposed, [keys,
queries], so that P and dS are register operands of the products that sum over queries. A step of a consumer:

    S = K Qᵀ                                 wait for Q
    dP = V DOᵀ                               wait for DO and S   P = exp2(scale S - lse)
    dS = P (dP - delta) → shared             wait for dP
    DV += P DO                               meet: both halves of dS are there
    dQ = dSᵀ K,  DK += dS Q                  wait for dQ         dQ → shared, for the adder
                                             wait for DK

dSᵀ K sums over the keys of both consumers; each computes half of it, rows where BLOCK_M is 128, columns where it is 64.
dS has two slots, so that one meeting is enough: who comes to the next has read the last. Products begin from zero: what
begins from registers makes ptxas wait for the products that were issued before.

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp                                       a consumer
    ─────────────                                       ──────────
    loads K and V             ── kv_full, bytes ──▶     before the first step
    loads Q, lse              ── q_full[slot], bytes    step i
                                 and 1 for the rows ─▶
    loads DO, delta           ── do_full[slot], alike ▶ step i
    loads step i + STAGES     ◀─ empty[slot], 2 ──      after DK of step i

    adder warp
    ──────────
    adds dQ to DQSum          ◀─ dq_full[consumer], 1   dQ of step i is in shared memory
                              ── dq_empty[consumer] ─▶  stores dQ of step i + 1
    stores DK and DV          ◀─ done, 2 ──             they are in shared memory

Tensor memory accesses (TMA) read zeros beyond the end of a tensor and write nothing there.
The order in which programs add to DQSum is not fixed, so DQ varies in its last bits from run to run; DK and DV do not.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from aotriton.tritonsrc.flash.attn_bwd_hopper import LOG2_E, STAGES, async_add_shared_to_global

KEYS = gl.constexpr(64)  # of a consumer


@gluon.jit
def place(tiles, parts, together):
    """Tile, head, counted through all batches, and part of this program, of a grid along x that has `tiles` * `parts`
    for each head. So many heads `together` begin with their first tiles, which are the longest where causal.
    """
    program = gl.program_id(0)
    each = tiles * parts
    begun = program // (each * together) * together  # heads before these
    width = gl.minimum(together, gl.num_programs(0) // each - begun)
    program -= begun * each
    tile = program // (width * parts)
    program -= tile * width * parts
    head = program // parts
    return tile, begun + head, program - head * parts


@gluon.jit
def hidden(x):
    """x, of which the compiler knows nothing more."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def meet(x):
    """Both consumers wait for each other at named barrier 9; Triton counts its own from 0. Returns x."""
    barrier: gl.constexpr = "bar.sync 9, 256; mov.b32 $0, $1;"
    return gl.inline_asm_elementwise(barrier, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_step(
    Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, head_row, row,
    step, max_seqlen_q,
):  # fmt: skip
    """Loads BLOCK_M query rows from `row` on to the slot of `step`; `head_row` is the number of the head's first."""
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    ROWS: gl.constexpr = gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0])
    slot = step % STAGES
    mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
    mbarrier.expect(q_full.index(slot), Q.block_type.nbytes)
    tma.async_copy_global_to_shared(Q, [batch, head, row, 0], q_full.index(slot), q_slots.index(slot))
    mbarrier.expect(do_full.index(slot), Q.block_type.nbytes)
    tma.async_copy_global_to_shared(DO, [batch, head, row, 0], do_full.index(slot), do_slots.index(slot))
    rows = row + gl.arange(0, BLOCK_M, ROWS)
    inside = rows < max_seqlen_q
    # A row beyond the end has a P of zero.
    lse = gl.load(L + head_row + rows, mask=inside, other=float("inf"))
    delta = gl.load(Delta + head_row + rows, mask=inside, other=0.0)
    lse_slots.index(slot).store(-lse * LOG2_E)
    delta_slots.index(slot).store(delta)
    mbarrier.arrive(q_full.index(slot))
    mbarrier.arrive(do_full.index(slot))


@gluon.jit
def producer(
    Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, q_full, do_full, empty,
    key, head_k, batch, head, first, row, steps, num_heads_q, max_seqlen_q,
):  # fmt: skip
    mbarrier.expect(kv_full, 2 * K.block_type.nbytes)
    tma.async_copy_global_to_shared(K, [batch, head_k, key, 0], kv_full, k_slot)
    tma.async_copy_global_to_shared(V, [batch, head_k, key, 0], kv_full, v_slot)
    for step in range(0, steps):
        head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q
        load_step(
            Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, head_row,
            row, step, max_seqlen_q,
        )  # fmt: skip
        row += Q.block_shape[2]
        last = row >= max_seqlen_q
        head += last.to(gl.int32)
        row = gl.where(last, first, row)


@gluon.jit
def add_pieces(
    Sum, dq_slots, dq_full, dq_empty, batch, head, row, column, number,
    ROWS_APART: gl.constexpr, COLUMNS_APART: gl.constexpr,
):  # fmt: skip
    """Adds what both consumers leave in dq_slots for the `number`-th time to Sum, the first one's at `row` and
    `column`.
    """
    for c in gl.static_range(2):
        mbarrier.wait(dq_full.index(c), number & 1)
        at = [batch, head, row + c * ROWS_APART, column + c * COLUMNS_APART]
        async_add_shared_to_global(Sum, at, dq_slots.index(c))
    for c in gl.static_range(2):
        tma.store_wait(1 - c)
        mbarrier.arrive(dq_empty.index(c))


@gluon.jit
def add_steps(
    DQSum, dq_slots, dq_full, dq_empty, batch, head, first, row, steps, max_seqlen_q, BLOCK_M: gl.constexpr
):  # fmt: skip
    """Adds the halves of dQ that the consumers leave in dq_slots to memory."""
    ROWS_APART: gl.constexpr = 64 if BLOCK_M == 128 else 0
    for step in range(0, steps):
        add_pieces(DQSum, dq_slots, dq_full, dq_empty, batch, head, row, 0, step, ROWS_APART, 64 - ROWS_APART)
        row += BLOCK_M
        last = row >= max_seqlen_q
        head += last.to(gl.int32)
        row = gl.where(last, first, row)


@gluon.jit
def adder(
    DK, DV, DQSum, dq_slots, k_slot, v_slot, dq_full, dq_empty, done, key, head_k, batch, head, first, steps,
    max_seqlen_q, BLOCK_M: gl.constexpr,
):  # fmt: skip
    """Adds up dQ, and stores DK and DV in the end."""
    add_steps(DQSum, dq_slots, dq_full, dq_empty, batch, head, first, first, steps, max_seqlen_q, BLOCK_M)
    mbarrier.wait(done, 0)
    tma.async_copy_shared_to_global(DV, [batch, head_k, key, 0], v_slot)
    tma.async_copy_shared_to_global(DK, [batch, head_k, key, 0], k_slot)
    tma.store_wait(0)


@gluon.jit
def hide(s, ahead, left, CAUSAL: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores [KEYS, queries] with minus infinity where a query does not see the key. The first query is `ahead` rows
    behind the first key; `left` keys are before the end.
    """
    keys = gl.expand_dims(gl.arange(0, s.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
    if CAUSAL:  # keys beyond the end are hidden from all rows before it
        queries = gl.expand_dims(gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
        visible = keys - ahead <= queries
    else:
        visible = keys < left
    return gl.where(visible, s, float("-inf"))


@gluon.jit
def walk(
    q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
    dq_full, dq_empty, sm_scale, first_key, first, row, steps, max_seqlen_q, max_seqlen_k,
    C: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """DK, before its scale, and DV of consumer C over so many steps: from query row `row` to the last one of a head,
    then from row `first` of the next.
    """
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DMODEL, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DK_LAYOUT, 2)
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    all_k = k_slot.reshape([2 * KEYS, BLOCK_DMODEL])
    k = all_k.slice(KEYS * C, KEYS, 0)
    v = v_slot.reshape([2 * KEYS, BLOCK_DMODEL]).slice(KEYS * C, KEYS, 0)
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    no_dq = gl.zeros([64, 64], gl.float32, DQ_LAYOUT)
    dk = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    key = first_key + KEYS * C
    mbarrier.wait(kv_full, 0)
    for step in range(0, steps):
        slot = step % STAGES
        phase = (step // STAGES) & 1
        q = q_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        do = do_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        ds_slot = ds_slots.index(slot)
        mbarrier.wait(q_full.index(slot), phase)
        s = warpgroup_mma(k, q.permute((1, 0)), no_s, use_acc=False, is_async=True)
        mbarrier.wait(do_full.index(slot), phase)
        dp = warpgroup_mma(v, do.permute((1, 0)), no_s, use_acc=False, is_async=True)

        s = warpgroup_mma_wait(1, deps=[s])
        # Where the mask stands decides whether the last registers suffice.
        if CAUSAL:  # noqa: SIM102 (known when compiled, as the next is not)
            if row < key + KEYS - 1:
                s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
        lse = lse_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        s = s * scale + gl.expand_dims(lse, 0)
        if not CAUSAL:  # noqa: SIM102
            if key + KEYS > max_seqlen_k:
                s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
        p = gl.exp2(s)
        p_operand = gl.convert_layout(p.to(dtype), P_LAYOUT)
        dp = warpgroup_mma_wait(0, deps=[dp])
        delta = delta_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        ds = (p * (dp - gl.expand_dims(delta, 0))).to(dtype)
        ds_slot.slice(KEYS * C, KEYS, 0).store(ds)
        dv = warpgroup_mma(p_operand, do, dv, is_async=True)
        fence_async_shared()
        step = meet(step)
        all_ds = ds_slot.permute((1, 0))
        if BLOCK_M == 128:
            dq = warpgroup_mma(all_ds.slice(64 * C, 64, 0), all_k, no_dq, use_acc=False, is_async=True)
        else:
            dq = warpgroup_mma(all_ds, all_k.slice(64 * C, 64, 1), no_dq, use_acc=False, is_async=True)
        dk = warpgroup_mma(gl.convert_layout(ds, P_LAYOUT), q, dk, is_async=True)

        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        mbarrier.wait(dq_empty.index(C), (step & 1) ^ 1)
        dq_slots.index(C).reshape([64, 64]).store(dq)
        fence_async_shared()
        mbarrier.arrive(dq_full.index(C))
        dk = warpgroup_mma_wait(0, deps=[dk])
        mbarrier.arrive(empty.index(slot))
        row += BLOCK_M
        row = gl.where(row >= max_seqlen_q, first, row)
    return dk, dv


@gluon.jit
def consumer(
    q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
    dq_full, dq_empty, done, sm_scale, first_key, first, steps, max_seqlen_q, max_seqlen_k,
    C: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    dk, dv = walk(
        q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
        dq_full, dq_empty, sm_scale, first_key, first, first, steps, max_seqlen_q, max_seqlen_k, C, CAUSAL,
    )  # fmt: skip
    meet(max_seqlen_q)  # the other consumer has read all keys: DV and DK go where V and K were
    v_slot.reshape([2 * KEYS, BLOCK_DMODEL]).slice(KEYS * C, KEYS, 0).store(dv.to(dtype))
    k_slot.reshape([2 * KEYS, BLOCK_DMODEL]).slice(KEYS * C, KEYS, 0).store((dk * sm_scale).to(dtype))
    fence_async_shared()
    mbarrier.arrive(done)


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
    together,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid (cdiv(max_seqlen_k, 128) * num_heads_k * batch). `sm_scale` must not be negative.

    Q, K, V, DO, DK, DV, DQSum: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M,
    BLOCK_DMODEL] (Q, DO), [1, 1, 128, BLOCK_DMODEL] (K, V, DK, DV) and [1, 1, 64, 64] (DQSum). BLOCK_M is 128 where
    BLOCK_DMODEL is 64, and 64 where it is 128. DQSum is fp32 and begins at zero; DQ is sm_scale * DQSum. CAUSAL needs
    max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32 [batch, num_heads_q, max_seqlen_q]. So many heads of
    keys `together` have their first tiles computed first.
    """
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    ROW_LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    k_slot = gl.allocate_shared_memory(K.dtype, [1, 1, 2 * KEYS, BLOCK_DMODEL], K.layout)
    v_slot = gl.allocate_shared_memory(V.dtype, [1, 1, 2 * KEYS, BLOCK_DMODEL], V.layout)
    q_slots = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], Q.layout)
    do_slots = gl.allocate_shared_memory(DO.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], DO.layout)
    lse_slots = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT)
    delta_slots = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT)
    ds_slots = gl.allocate_shared_memory(Q.dtype, [2, 2 * KEYS, BLOCK_M], DS_LAYOUT)
    dq_slots = gl.allocate_shared_memory(gl.float32, [2, 1, 1, 64, 64], DQSum.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    dq_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    dq_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    mbarrier.init(done, count=2)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(empty.index(slot), count=2)
    for c in gl.static_range(2):
        mbarrier.init(dq_full.index(c), count=1)
        mbarrier.init(dq_empty.index(c), count=1)

    tile, head, _ = place(gl.cdiv(max_seqlen_k, 2 * KEYS), 1, together)
    batch = head // num_heads_k
    head_k = head - batch * num_heads_k
    key = tile * 2 * KEYS
    first = hidden(0)  # the producer, which knows it, keeps more than it has registers for
    if CAUSAL:
        first = key // BLOCK_M * BLOCK_M  # query rows before it see none of the keys
    group = num_heads_q // num_heads_k
    head = head_k * group
    steps = group * gl.cdiv(max_seqlen_q - first, BLOCK_M)
    gl.warp_specialize([
        (consumer, (q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full,
                    do_full, empty, dq_full, dq_empty, done, sm_scale, key, first, steps, max_seqlen_q, max_seqlen_k,
                    0, CAUSAL)),
        (consumer, (q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full,
                    do_full, empty, dq_full, dq_empty, done, sm_scale, key, first, steps, max_seqlen_q, max_seqlen_k,
                    1, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, q_full,
                    do_full, empty, key, head_k, batch, head, first, first, steps, num_heads_q, max_seqlen_q)),
        (adder, (DK, DV, DQSum, dq_slots, k_slot, v_slot, dq_full, dq_empty, done, key, head_k, batch, head, first,
                 steps, max_seqlen_q, BLOCK_M)),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip
