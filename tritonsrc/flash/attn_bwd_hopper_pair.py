"""Attention backward for Hopper: a loading warp, an adding warp and two consumers turn Q, K, V and DO to DK, DV, DQSum.

A program owns 128 key rows of one key head, 64 for each of two consumers, and sums DK and DV over the query heads that
share it. It takes BLOCK_M query rows at a time; each such step has one of STAGES slots. Scores are transposed, [keys,
queries], so that P and dS are register operands of the products that sum over queries. A step of a consumer:

    S = K Qᵀ                                 wait for Q
    dP = V DOᵀ                               wait for DO and S   P = exp2(scale S - lse)
    dS = P (dP - delta) → shared             wait for dP
    DV += P DO                               meet: both halves of dS are there
    dQ = dSᵀ K,  DK += dS Q                  wait for dQ         dQ → shared, for the adder
                                             wait for DK

A consumer has 64 rows of dQ and 64 columns, or all where there are fewer. dSᵀ K sums over the keys of both consumers,
and each computes half of it: rows where BLOCK_M is 128, columns where BLOCK_DMODEL is. Where neither is, there is but
one piece: each consumer computes it from its own keys, they do not meet, and the adder adds both.

A piece of dQ has the order of accumulators in shared memory and in DQSum, which dq_order describes: a thread stores 16
bytes at a time, a warp's lie together, without bank conflicts, and the adder adds a piece with one message.

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

Tuned: BLOCK_M, 64 or 128.
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

from aotriton.tritonsrc.flash.hopper_backward import (
    LOG2_E,
    STAGES,
    async_add_shared_to_global,
    barrier,
    barriers,
    hidden,
    hide,
    meet,
    place_together,
    producer,
    row_slots,
)

KEYS = gl.constexpr(64)  # of a consumer


@gluon.constexpr_function
def fragments(columns):
    """The layout of a piece of dQ, [64, columns], in shared memory: the order of accumulators."""
    of_thread, of_warp, of_warps = [[0, 1], [8, 0]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]]
    of_columns = [[0, c] for c in (8, 16, 32) if c < columns]
    return gl.SharedLinearLayout(of_thread + of_warp + of_warps + of_columns)


@gluon.jit
def add_pieces(
    Sum, dq_slots, dq_full, dq_empty, batch, head, row, column, number, ROWS_APART: gl.constexpr
):  # fmt: skip
    """Adds what both consumers leave in dq_slots for the `number`-th time to Sum, the first one's at `row` and
    `column`, the second one's so many rows behind.
    """
    for c in gl.static_range(2):
        mbarrier.wait(dq_full.index(c), number & 1)
        piece = dq_slots.index(c)._reinterpret(gl.float32, Sum.block_shape, Sum.layout)
        async_add_shared_to_global(Sum, [batch, head, row + c * ROWS_APART, column], piece)
    for c in gl.static_range(2):
        tma.store_wait(1 - c)
        mbarrier.arrive(dq_empty.index(c))


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
    DK, DV, DQSum, dq_slots, k_slot, v_slot, dq_full, dq_empty, done, key, head_k, batch, head, first, steps,
    max_seqlen_q, BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr,
):  # fmt: skip
    """Adds up dQ, and stores DK and DV in the end."""
    add_steps(DQSum, dq_slots, dq_full, dq_empty, batch, head, first, first, steps, max_seqlen_q, BLOCK_M, BLOCK_DMODEL)
    mbarrier.wait(done, 0)
    tma.async_copy_shared_to_global(DV, [batch, head_k, key, 0], v_slot)
    tma.async_copy_shared_to_global(DK, [batch, head_k, key, 0], k_slot)
    tma.store_wait(0)


@gluon.jit
def is_final(row, first_key, max_seqlen_k, CAUSAL: gl.constexpr):
    """Whether a step's query rows, from `row` on, see no key behind the tile that begins with `first_key`."""
    if CAUSAL:  # noqa: SIM108 (known when compiled)
        last = row < first_key + 2 * KEYS
    else:
        last = first_key + 2 * KEYS >= max_seqlen_k
    return last


@gluon.jit
def hide_above(s, ahead, LAYOUT: gl.constexpr):
    """As `hide`, causal, in the form for which the compiler keeps no numbers of columns in registers."""
    keys = gl.expand_dims(gl.arange(0, s.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
    queries = gl.expand_dims(gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    return gl.where(keys - ahead - queries <= 0, s, float("-inf"))


@gluon.jit
def probabilities(
    s, lse_slots, slot, scale, row, key, max_seqlen_k, CAUSAL: gl.constexpr, OWNED: gl.constexpr = False
):  # fmt: skip
    """P, of S of queries from `row` on and KEYS keys from `key` on. Where the mask stands decides whether the last
    registers suffice.
    """
    S_LAYOUT: gl.constexpr = s.type.layout
    if CAUSAL:  # noqa: SIM102 (known when compiled, as the next is not)
        if row < key + KEYS - 1:
            if OWNED:
                s = hide_above(s, row - key, S_LAYOUT)
            else:
                s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
    lse = lse_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
    s = s * scale + gl.expand_dims(lse, 0)
    if not CAUSAL:  # noqa: SIM102
        if key + KEYS > max_seqlen_k:
            s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
    return gl.exp2(s)


@gluon.jit
def leave(dq, slot, sm_scale, first, final, dtype: gl.constexpr):
    """Leaves dQ of an OWNED step in its memory: as it is, or, where that makes it `final`, DQ in rows. The sum over the
    keys before is there then, unless these are the `first` ones.
    """
    ROWS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    sums = slot._reinterpret(gl.float32, [64, 64], fragments(64))
    if final:
        if not first:
            dq += sums.load(dq.type.layout)
        slot._reinterpret(dtype, [64, 64], ROWS).store((dq * sm_scale).to(dtype))
    else:
        sums.store(dq)


@gluon.jit
def walk(
    q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
    dq_full, dq_empty, sm_scale, first_key, first, row, steps, max_seqlen_q, max_seqlen_k,
    C: gl.constexpr, CAUSAL: gl.constexpr, begun=0, walks=0, OWNED: gl.constexpr = False,
):  # fmt: skip
    """DK, before its scale, and DV of consumer C over so many steps: from query row `row` to the last one of a head,
    then from row `first` of the next.

    So many steps of so many `walks` have `begun` before, of which each has left one piece more in dq_slots. OWNED: of a
    head whose tiles of keys this program takes alone, one after the other (attn_bwd_hopper_heads).
    """
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DMODEL, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DK_LAYOUT, 2)
    COLUMNS: gl.constexpr = dq_slots.shape[3]  # of a piece of dQ
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    TOGETHER: gl.constexpr = BLOCK_M == 128 or BLOCK_DMODEL == 128  # dQ is of the keys of both

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    all_k = k_slot.reshape([2 * KEYS, BLOCK_DMODEL])
    k = all_k.slice(KEYS * C, KEYS, 0)
    v = v_slot.reshape([2 * KEYS, BLOCK_DMODEL]).slice(KEYS * C, KEYS, 0)
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    no_dq = gl.zeros([64, COLUMNS], gl.float32, DQ_LAYOUT)
    dk = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    key = first_key + KEYS * C
    mbarrier.wait(kv_full, walks & 1)
    for step in range(begun, begun + steps):
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
        p = probabilities(s, lse_slots, slot, scale, row, key, max_seqlen_k, CAUSAL, OWNED)
        p_operand = gl.convert_layout(p.to(dtype), P_LAYOUT)
        dp = warpgroup_mma_wait(0, deps=[dp])
        delta = delta_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        ds = (p * (dp - gl.expand_dims(delta, 0))).to(dtype)
        ds_slot.slice(KEYS * C, KEYS, 0).store(ds)
        dv = warpgroup_mma(p_operand, do, dv, is_async=True)
        fence_async_shared()
        if TOGETHER:
            step = meet(step)
        all_ds = ds_slot.permute((1, 0))
        if not TOGETHER:
            dq = warpgroup_mma(all_ds.slice(KEYS * C, KEYS, 1), k, no_dq, use_acc=False, is_async=True)
        elif BLOCK_M == 128:
            dq = warpgroup_mma(all_ds.slice(64 * C, 64, 0), all_k, no_dq, use_acc=False, is_async=True)
        else:
            dq = warpgroup_mma(all_ds, all_k.slice(64 * C, 64, 1), no_dq, use_acc=False, is_async=True)
        dk = warpgroup_mma(gl.convert_layout(ds, P_LAYOUT), q, dk, is_async=True)

        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        mbarrier.wait(dq_empty.index(C), ((step + walks) & 1) ^ 1)
        if OWNED:
            final = is_final(row, first_key, max_seqlen_k, CAUSAL)
            leave(dq, dq_slots.index(C), sm_scale, first_key == 0, final, dtype)
        else:
            dq_slots.index(C)._reinterpret(gl.float32, [64, COLUMNS], fragments(COLUMNS)).store(dq)
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
def slots(Q, K, V, DO, Sum):
    """Shared memory for K, V, Q, DO, lse, delta, dS, and what the consumers leave for Sum."""
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    BLOCK_DMODEL: gl.constexpr = Q.block_shape[3]
    k_slot = gl.allocate_shared_memory(K.dtype, [1, 1, 2 * KEYS, BLOCK_DMODEL], K.layout)
    v_slot = gl.allocate_shared_memory(V.dtype, [1, 1, 2 * KEYS, BLOCK_DMODEL], V.layout)
    q_slots = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], Q.layout)
    do_slots = gl.allocate_shared_memory(DO.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], DO.layout)
    lse_slots = row_slots(STAGES, BLOCK_M)
    delta_slots = row_slots(STAGES, BLOCK_M)
    ds_slots = slots_of_ds(Q.dtype, BLOCK_M)
    dq_slots = gl.allocate_shared_memory(gl.float32, [2, 1, 1, Sum.block_shape[2], 64], Sum.layout)
    return k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots


@gluon.jit
def slots_of_ds(dtype: gl.constexpr, BLOCK_M: gl.constexpr):
    """Shared memory for two dS, [keys of both consumers, queries]."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return gl.allocate_shared_memory(dtype, [2, 2 * KEYS, BLOCK_M], LAYOUT)


@gluon.jit
def all_barriers():
    """Shared memory for kv_full, q_full, do_full, empty, dq_full and dq_empty."""
    return barrier(), barriers(STAGES), barriers(STAGES), barriers(STAGES), barriers(2), barriers(2)


@gluon.jit
def count_arrivals(q_full, do_full, empty, dq_full, dq_empty):
    """Counts that complete a phase of these."""
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(empty.index(slot), count=2)
    for c in gl.static_range(2):
        mbarrier.init(dq_full.index(c), count=1)
        mbarrier.init(dq_empty.index(c), count=1)


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

    Q, K, V, DO, DK, DV: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M, BLOCK_DMODEL]
    (Q, DO) and [1, 1, 128, BLOCK_DMODEL] (K, V, DK, DV). BLOCK_M is 64 where BLOCK_DMODEL is 128. DQSum: of fp32
    [batch, heads, cdiv(max_seqlen_q, 64) * BLOCK_DMODEL, 64], with boxes [1, 1, min(BLOCK_DMODEL, 64), 64] that are not
    swizzled. It begins at zero; DQ is sm_scale * DQSum in the order of rows. CAUSAL needs max_seqlen_q == max_seqlen_k.
    L and Delta are contiguous fp32 [batch, num_heads_q, max_seqlen_q]. So many heads of keys `together` have their
    first tiles computed first.
    """
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots = slots(Q, K, V, DO, DQSum)
    kv_full, q_full, do_full, empty, dq_full, dq_empty = all_barriers()
    done = barrier()
    mbarrier.init(kv_full, count=1)
    mbarrier.init(done, count=2)
    count_arrivals(q_full, do_full, empty, dq_full, dq_empty)

    tile, head, _ = place_together(gl.cdiv(max_seqlen_k, 2 * KEYS), 1, together)
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
                 steps, max_seqlen_q, BLOCK_M, BLOCK_DMODEL)),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip
