"""What the kernels of the Hopper backward share.

`producer` is the loading warp of those whose columns are in one part. It brings BLOCK_M query rows at a time to one of
STAGES slots, which has two barriers: q_full for Q and lse, do_full for DO and delta.
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

LOG2_E = gl.constexpr(1.4426950408889634)
STAGES = gl.constexpr(2)


@builtin
def async_add_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """`tma.async_copy_shared_to_global` that adds to what is there: Gluon 3.6 has no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def place(tiles, heads):
    """Tile, head and batch of this program, of a grid that has `tiles` for each of `heads` in each batch, along x."""
    program = gl.program_id(0)
    head = program // tiles
    batch = head // heads
    return program - head * tiles, head - batch * heads, batch


@gluon.jit
def place_together(tiles, parts, together):
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
def share(steps, parts, part):
    """The first step of a part, and how many it has: one more in the first parts, where they are not even."""
    least = steps // parts
    more = steps - least * parts
    return part * least + gl.minimum(part, more), least + (part < more).to(gl.int32)


@gluon.jit
def task(
    num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, parts, together,
    KEYS: gl.constexpr, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """What this program computes: the batch, head and first row of its keys; the first row of queries that see any of
    them; and the head and row of queries where its part begins, and how many steps it has.
    """
    tile, head, part = place_together(gl.cdiv(max_seqlen_k, KEYS), parts, together)
    batch = head // num_heads_k
    head_k = head - batch * num_heads_k
    key = tile * KEYS
    first = 0
    if CAUSAL:
        first = key
    group = num_heads_q // num_heads_k
    of_head = gl.cdiv(max_seqlen_q - first, BLOCK_M)
    begin, steps = share(group * of_head, parts, part)
    member = begin // of_head
    return batch, head_k, key, first, head_k * group + member, first + (begin - member * of_head) * BLOCK_M, steps


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
def barrier():
    """Shared memory for a barrier."""
    return gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())


@gluon.jit
def barriers(COUNT: gl.constexpr):
    """Shared memory for so many barriers."""
    return gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())


@gluon.jit
def row_slots(STAGES: gl.constexpr, BLOCK_M: gl.constexpr):
    """Shared memory for a number of each row of so many steps."""
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], LAYOUT)


@gluon.jit
def load_rows(
    L, Delta, lse_slots, delta_slots, q_full, do_full, head_row, row, slot, max_seqlen_q, BLOCK_M: gl.constexpr
):  # fmt: skip
    """Brings lse and delta of BLOCK_M query rows from `row` on to a slot, and tells its barriers."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0])
    rows = row + gl.arange(0, BLOCK_M, LAYOUT)
    inside = rows < max_seqlen_q
    # A row beyond the end has a P of zero.
    lse = gl.load(L + head_row + rows, mask=inside, other=float("inf"))
    delta = gl.load(Delta + head_row + rows, mask=inside, other=0.0)
    lse_slots.index(slot).store(-lse * LOG2_E)
    delta_slots.index(slot).store(delta)
    mbarrier.arrive(q_full.index(slot))
    mbarrier.arrive(do_full.index(slot))


@gluon.jit
def load_step(
    Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, head_row, row,
    step, max_seqlen_q,
):  # fmt: skip
    """Loads BLOCK_M query rows from `row` on to the slot of `step`; `head_row` is the number of the head's first."""
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    slot = step % STAGES
    mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
    mbarrier.expect(q_full.index(slot), Q.block_type.nbytes)
    tma.async_copy_global_to_shared(Q, [batch, head, row, 0], q_full.index(slot), q_slots.index(slot))
    mbarrier.expect(do_full.index(slot), Q.block_type.nbytes)
    tma.async_copy_global_to_shared(DO, [batch, head, row, 0], do_full.index(slot), do_slots.index(slot))
    load_rows(L, Delta, lse_slots, delta_slots, q_full, do_full, head_row, row, slot, max_seqlen_q, BLOCK_M)


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
