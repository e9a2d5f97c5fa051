"""Attention backward for Hopper: a loading warp, an adding warp and two consumers turn Q, K, V and DO to DK, DV, DQSum.

A program takes tile after tile (`tile_at`): 128 key rows of one key head, 64 for each of two consumers, which sum DK
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
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from aotriton.tritonsrc.flash.lib.hopper_backward import (
    LOG2_E,
    STAGES,
    async_add_shared_to_global,
    barrier,
    barriers,
    hidden,
    hide,
    load_step,
    meet,
    row_slots,
)

KEYS = gl.constexpr(64)  # of a consumer


@gluon.constexpr_function
def reading(register):
    return f"mov.u32 $0, {register};"


@gluon.jit
def special(REGISTER: gl.constexpr):
    """A special register of PTX, read here. What the compiler knows to be the same in all partitions, as program_id, it
    works out once, before them, and spills; so this and `hidden` keep from it what they have in common.
    """
    line: gl.constexpr = reading(REGISTER)
    return gl.inline_asm_elementwise(line, "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1)


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
def heads_of_group(group, heads, together):
    """The first head of a group, and how many it has: `together`, but the last one has all that are left, and none is
    behind it.
    """
    first = group * together
    left = heads - first
    width = gl.where((left > 0) & (left < 2 * together), left, together)
    return first, width


@gluon.jit
def dealt(group, round):
    """Which of a group's tiles this program has in a round.

    A round has a tile for each place; every second one goes through them backwards. Behind every second group programs
    move on by three eighths of the places.
    """
    programs = special("%nctaid.x")
    place = (special("%ctaid.x") + (group + 1) // 2 * (programs * 3 // 8)) % programs
    place = gl.where((group + round) % 2 == 1, programs - 1 - place, place)
    return round * programs + place


@gluon.jit
def tile_at(ticket, num_heads_k, max_seqlen_k, batches, together, CAUSAL: gl.constexpr):
    """This program's tile for a ticket, or, where its group has none for it any more, its first one of the next group:
    the ticket, first key, and key head, counted through all batches; or a negative key beyond the last tile.

    A ticket is twice the number of a round, counted through all groups as if each had as many as the last one can have,
    and one more for every second tile: the phase of what happens once a tile.
    """
    programs = special("%nctaid.x")
    tiles = gl.cdiv(hidden(max_seqlen_k), 2 * KEYS)
    heads = hidden(num_heads_k) * batches
    if CAUSAL:
        together = hidden(together)
        rounds = gl.cdiv(2 * together * tiles, programs)
        group = (ticket >> 1) // rounds
        round = (ticket >> 1) - group * rounds
        first, width = heads_of_group(group, heads, together)
        if dealt(group, round) >= width * tiles:
            group += 1
            round = 0
            ticket = 2 * group * rounds + (ticket & 1)
        first, width = heads_of_group(group, heads, together)
        index = dealt(group, round)
        tile = index // width
        head = first + index - tile * width
        key = gl.where(first + together > heads, -1, tile * 2 * KEYS)
    else:
        index = (ticket >> 1) * programs + special("%ctaid.x")
        head = index // tiles
        key = gl.where(head < heads, (index - head * tiles) * 2 * KEYS, -1)
    return ticket, key, head


@gluon.jit
def steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr):
    """Of a tile of keys: how many query heads share them, the first row of queries that see any of them, the row to
    begin with, and how many steps there are in all.

    Full, tiles of a head begin with different rows, so that not all of them add to the same part of DQSum at once.
    """
    first = 0
    if CAUSAL:
        first = key
        begin = key
    else:
        begin = gl.where(key < hidden(max_seqlen_q), key, 0)
    group = num_heads_q // hidden(num_heads_k)
    return group, first, begin, group * gl.cdiv(hidden(max_seqlen_q) - first, BLOCK_M)


@gluon.jit
def next_rows(head, row, first, begin, max_seqlen_q, BLOCK_M: gl.constexpr):
    """Head and row of the next step."""
    row += BLOCK_M
    row = gl.where(row >= max_seqlen_q, first, row)
    return head + (row == begin).to(gl.int32), row


@gluon.jit
def load_keys(K, V, batch, head_k, key, kv_full, k_slot, v_slot):
    """Begins to load K and V of a tile."""
    mbarrier.expect(kv_full, 2 * K.block_type.nbytes)
    tma.async_copy_global_to_shared(K, [batch, head_k, key, 0], kv_full, k_slot)
    tma.async_copy_global_to_shared(V, [batch, head_k, key, 0], kv_full, v_slot)


@gluon.jit
def producer(
    Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, kv_empty, q_full,
    do_full, empty, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batches, together, CAUSAL: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    begun = 0
    ticket, key, unit = tile_at(hidden(0), num_heads_k, max_seqlen_k, batches, together, CAUSAL)
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
        ticket, key, unit = tile_at((ticket + 2) ^ 1, num_heads_k, max_seqlen_k, batches, together, CAUSAL)


@gluon.jit
def store_pieces(X, dq_slots, dq_full, dq_empty, batch, head, row, number):
    """Stores what both consumers leave in dq_slots for the `number`-th time: KEYS rows each, from `row` on."""
    for c in gl.static_range(2):
        mbarrier.wait(dq_full.index(c), number & 1)
        piece = dq_slots.index(c)._reinterpret(X.dtype, X.block_shape, X.layout)
        tma.async_copy_shared_to_global(X, [batch, head, row + c * KEYS, 0], piece)
    for c in gl.static_range(2):
        tma.store_wait(1 - c)
        mbarrier.arrive(dq_empty.index(c))


@gluon.jit
def adder(
    DK, DV, DQSum, dq_slots, dq_full, dq_empty, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batches, together,
    BLOCK_M: gl.constexpr, BLOCK_DMODEL: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Adds up dQ, and stores DV and DK behind each tile."""
    # The second piece is of the next 64 rows, or of the next columns, or of what the first is of.
    ROWS_APART: gl.constexpr = BLOCK_M // 64 * BLOCK_DMODEL - DQSum.block_shape[2]
    number = 0
    ticket, key, unit = tile_at(hidden(0), num_heads_k, max_seqlen_k, batches, together, CAUSAL)
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
        ticket, key, unit = tile_at(ticket + 2, num_heads_k, max_seqlen_k, batches, together, CAUSAL)


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
            if OWNED and s.shape[1] == 128:
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
    C: gl.constexpr, CAUSAL: gl.constexpr, begun=0, walks=0, pieces=0, OWNED: gl.constexpr = False,
):  # fmt: skip
    """DK, before its scale, and DV of consumer C over so many steps: from query row `row` to the last one of a head,
    then from row `first` on.

    So many steps of so many `walks`, or of as many modulo 2, have `begun` before, and left so many `pieces` in dq_slots
    beside those of steps. OWNED: of a head whose tiles of keys this program takes alone, one after the other
    (attn_bwd_hopper_heads).
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
        slot = step & 1  # of two STAGES; % and // take more where the compiler does not know that it is not negative
        phase = (step >> 1) & 1
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
        mbarrier.wait(dq_empty.index(C), ((step + pieces) & 1) ^ 1)
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
def hand_over(x, X, dq_slots, dq_full, dq_empty, number, C: gl.constexpr):
    """Leaves [KEYS, BLOCK_DMODEL] `x` of consumer C to the adder, as its `number`-th piece."""
    mbarrier.wait(dq_empty.index(C), (number & 1) ^ 1)
    dq_slots.index(C)._reinterpret(X.dtype, X.block_shape, X.layout).reshape([KEYS, x.shape[1]]).store(x)
    fence_async_shared()
    mbarrier.arrive(dq_full.index(C))


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
    ticket, key, _ = tile_at(hidden(0), num_heads_k, max_seqlen_k, batches, together, CAUSAL)
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
        for number in range(begun, hidden(begun + 2)):
            hand_over(dv.to(dtype), DK, dq_slots, dq_full, dq_empty, number, C)
            dv = dk * sm_scale
        ticket, key, _ = tile_at((ticket + 2) ^ 1, num_heads_k, max_seqlen_k, batches, together, CAUSAL)


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
