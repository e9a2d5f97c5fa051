"""Sweeping: what warps of a program of the Hopper backward with features do for other programs, while it walks.

Programs begin in the order of their numbers. Program p clears the sums of dq that program p + `ahead` is the first to
need, and stores dq of the tile of program p - `behind`, to whose sums nobody adds any more. So zeros and dq, which are
a sixth of a call's time by themselves, take the memory's time beside the tensor cores'. The first so many programs have
their sums cleared by attn_bwd_hopper_features_prepare, the last ones theirs stored by attn_bwd_hopper_features_finish.
Where `ahead` or `behind` are as many as there are programs, those kernels do it all.

Marks say what is done. A program waits for marks of programs before it alone, which have begun, so that none waits for
one that cannot begin. Both distances are a round of programs longer than that takes, so that it seldom waits at all.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS
from aotriton.tritonsrc.flash.lib.features import PACKED
from aotriton.tritonsrc.flash.lib.opaque import opaque, special_register
from aotriton.tritonsrc.flash.lib.packed_search import sequence_of_tile
from aotriton.tritonsrc.flash.lib.packed_tiles import first_tile
from aotriton.tritonsrc.flash.lib.quads import exchange, of_exchange
from aotriton.tritonsrc.flash.lib.walk_order import walked_by

ROWS = gl.constexpr(2 * KEYS.value)  # of a tile


@gluon.jit
def tiles_of_head(features, max_seqlen, sequences, longest):
    """Tiles of 128 keys of each head, as `place_in_grid` has them."""
    # Unlike there, so that the compiler does not keep what it worked out for that.
    return gl.where((opaque(features) & PACKED) != 0, max_seqlen // ROWS + sequences, gl.cdiv(opaque(longest), ROWS))


@gluon.jit
def least_of(Marks, first, last):
    """The least of the marks from `first` to `last`, or of the first 32 of them: each lane of a warp looks at one. In
    PTX, as a layout's lanes are worked out ahead of all partitions, for which they have no registers.
    """
    line: gl.constexpr = (
        "{ .reg .b32 l; .reg .b64 a; mov.u32 l, %laneid; add.s32 l, l, $2; min.s32 l, l, $3; mad.wide.s32 a, l, 4, $1;"
        " ld.acquire.gpu.global.b32 l, [a]; redux.sync.min.s32 $0, l, 0xffffffff; }"
    )
    return gl.inline_asm_elementwise(
        line, "=r,l,r,r,~{memory}", [Marks.to(gl.int64), first, last], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def await_marks(Marks, first, last):
    """Waits until all marks from `first` to `last` are set. What was written before they were can then be read, by bulk
    copies, too.
    """
    while first <= last:
        first += least_of(Marks, first, last) * 32
    line: gl.constexpr = "fence.proxy.async; mov.b32 $0, $1;"
    gl.inline_asm_elementwise(line, "=r,r,~{memory}", [first], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def set_mark(Mark):
    """Sets a mark once all bulk copies that these warps have begun are written."""
    wait: gl.constexpr = "cp.async.bulk.wait_group 0; bar.warp.sync 0xffffffff; mov.b64 $0, $1;"
    mark = gl.inline_asm_elementwise(
        wait, "=l,l,~{memory}", [Mark.to(gl.int64)], dtype=gl.int64, is_pure=False, pack=1
    )  # fmt: skip
    gl.thread_barrier()
    line: gl.constexpr = "mov.b32 $0, 1; st.release.gpu.global.b32 [$1], $0;"
    gl.inline_asm_elementwise(line, "=&r,l,~{memory}", [mark], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def clear_tiles(
    DQSum, slots, Marks, number, programs, group, num_heads_k, tiles, together, BLOCK_DMODEL: gl.constexpr
):  # fmt: skip
    """Zeros to the sums of two tiles of 64 rows of a group of heads, from twice the tile of program `number` on. Packed
    sequences have them in the same order, and never behind the program that has their rows.
    """
    FOURS: gl.constexpr = gl.BlockedLayout([4], [32], [2], [0])
    PIECE: gl.constexpr = DQSum.block_shape[2]
    pieces = slots._reinterpret(gl.float32, [16, 256], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    for i in range(0, 16):
        pieces.index(i).store(gl.full([256], 0.0, gl.float32, FOURS))
    fence_async_shared()
    gl.thread_barrier()
    tile, head_of_all = walked_by(number, programs, tiles, together)
    batch = head_of_all // num_heads_k
    head = (head_of_all - batch * num_heads_k) * group
    piece = slots._reinterpret(gl.float32, DQSum.block_shape, DQSum.layout)
    for h in range(0, group):
        gl.thread_barrier()  # keeps the compiler from copies of what the loop does
        for c in gl.static_range(2 * BLOCK_DMODEL // PIECE):
            tma.async_copy_shared_to_global(DQSum, [batch, head + h, 2 * tile * BLOCK_DMODEL + c * PIECE, 0], piece)
    set_mark(Marks + (head_of_all * tiles + tile))


@gluon.constexpr_function
def rows_in_quads():
    """The layout of [32, 32] in 16 bits in two warps, with eight columns of a row in each thread."""
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4], [8, 0]], lanes, [[16, 0]], [], [32, 32])


@gluon.constexpr_function
def four_of(dtype):
    return (dtype, dtype, dtype, dtype)


@gluon.jit
def strip(pieces, number, scale, dtype: gl.constexpr):
    """[32, 32] of a piece of the sums that is in shared memory, scaled, in `dtype`, from row 32 * number on. Numbers
    there are in the order of accumulators, as `in_quads` takes them.
    """
    FOURS: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [2, 1], [1, 0])
    line: gl.constexpr = exchange()
    constraints: gl.constexpr = of_exchange()
    a = (pieces.index(number).load(FOURS) * scale).to(dtype)
    b = (pieces.index(number + 2).load(FOURS) * scale).to(dtype)
    c = (pieces.index(number + 4).load(FOURS) * scale).to(dtype)
    d = (pieces.index(number + 6).load(FOURS) * scale).to(dtype)
    a, b, c, d = gl.inline_asm_elementwise(line, constraints, [a, b, c, d], dtype=four_of(dtype), is_pure=True, pack=4)
    x = gl.join(gl.join(a, c), gl.join(b, d))
    x = x.reshape([2, 8, 4, 2, 2, 2, 2]).permute((0, 3, 1, 2, 5, 6, 4)).reshape([32, 32])
    return gl.convert_layout(x, rows_in_quads())


@gluon.jit
def begin_piece(Half, number, slots, arrived, batch, head, tile, BLOCK_DMODEL: gl.constexpr):
    """Begins to load one of the pieces, each of 64 rows and 32 columns, of two tiles of a group of heads."""
    PIECE: gl.constexpr = Half.block_shape[2]
    PARTS: gl.constexpr = 2 * BLOCK_DMODEL // PIECE
    full = arrived.index(number & 1)
    mbarrier.expect(full, Half.block_type.nbytes)
    place = tile * BLOCK_DMODEL + number % PARTS * PIECE
    tma.async_copy_global_to_shared(Half, [batch, head + number // PARTS, place, 0], full, slots.index(number & 1))


@gluon.jit
def store_tile(
    Half, DQ, slots, arrived, batch, head, group, tile, stride_h, stride_s, rows, scale, head_dim,
    dtype: gl.constexpr, BLOCK_DMODEL: gl.constexpr,
):  # fmt: skip
    """The first 128 of so many rows of a group of heads to DQ, from the sums from their `tile` on, scaled."""
    LAYOUT: gl.constexpr = rows_in_quads()
    COLUMNS: gl.constexpr = Half.block_shape[2]
    PARTS: gl.constexpr = BLOCK_DMODEL // COLUMNS
    row = gl.expand_dims(gl.arange(0, 32, gl.SliceLayout(1, LAYOUT)), 1)
    column = gl.expand_dims(gl.arange(0, 32, gl.SliceLayout(0, LAYOUT)), 0)
    within = row.to(gl.int64) * stride_s + column
    pieces = group * 2 * PARTS
    begin_piece(Half, 0, slots, arrived, batch, head, tile, BLOCK_DMODEL)
    for n in tl.range(0, pieces, disable_licm=True):
        fence_async_shared()
        gl.thread_barrier()
        if n + 1 < pieces:
            begin_piece(Half, n + 1, slots, arrived, batch, head, tile, BLOCK_DMODEL)
        left = rows - n // PARTS % 2 * 64
        columns = head_dim - n % PARTS * COLUMNS
        to = DQ + n // (2 * PARTS) * stride_h + (n // PARTS % 2 * 64).to(gl.int64) * stride_s + n % PARTS * COLUMNS
        some = slots.index(n & 1)._reinterpret(gl.float32, [8, 2, 128], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
        mbarrier.wait(arrived.index(n & 1), (n >> 1) & 1)
        for i in tl.range(0, 2, disable_licm=True, loop_unroll_factor=1):
            x = strip(some, i, scale, dtype)
            there = (row + 32 * i < left) & (column < columns)
            gl.store(to + (32 * i).to(gl.int64) * stride_s + within, x, mask=there)


@gluon.jit
def sweep(
    DQSum, Half, DQ, Marks, slots, arrived, sm_scale, stride_b, stride_h, stride_s, num_heads_q, num_heads_k,
    max_seqlen, head_dim, lo, hi, features, CuSeqlens, longest, sequences, together, ahead, behind,
    BLOCK_DMODEL: gl.constexpr, SWEEPS: gl.constexpr,
):  # fmt: skip
    """What two warps do. Marks has one for each program, set where the sums of its place are cleared, and then one for
    each, set where it has added all that it adds.
    """
    dtype: gl.constexpr = DQ.dtype.element_ty
    if SWEEPS:
        program = special_register("%ctaid.x")
        programs = special_register("%nctaid.x")
        tiles = tiles_of_head(features, max_seqlen, sequences, longest)
        group = num_heads_q // opaque(num_heads_k)
        if program + ahead < programs:
            clear_tiles(
                DQSum, slots, Marks, program + ahead, programs, group, num_heads_k, tiles, together, BLOCK_DMODEL
            )  # fmt: skip
        if program >= behind:
            tile, head_of_all = walked_by(program - behind, programs, tiles, together)
            batch = head_of_all // num_heads_k
            head = (head_of_all - batch * num_heads_k) * group
            begin = 0
            rows = max_seqlen
            of_sums = 0
            first = head_of_all * tiles
            if (features & PACKED) != 0:
                sequence = sequence_of_tile(tile, CuSeqlens, sequences, ROWS, 32, 2)
                begin = gl.load(CuSeqlens + sequence)
                rows = gl.load(CuSeqlens + sequence + 1) - begin
                of_sequence = first_tile(begin, sequence, ROWS)
                tile -= of_sequence
                first += of_sequence
                of_sums = first_tile(begin, sequence, 64)
            row = tile * ROWS
            if (row >= 0) & (row < rows):
                from_tile = gl.maximum(row + lo, 0) // ROWS
                to_tile = gl.minimum(row + ROWS - 1 + hi, rows - 1) // ROWS
                await_marks(Marks + programs, first + from_tile, first + to_tile)
                to = DQ + batch * stride_b + head * stride_h + (begin + row).to(gl.int64) * stride_s
                store_tile(
                    Half, to, slots, arrived, batch, head, group, of_sums + 2 * tile, stride_h, stride_s, rows - row,
                    sm_scale, head_dim, dtype, BLOCK_DMODEL,
                )  # fmt: skip
