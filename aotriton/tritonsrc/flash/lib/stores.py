"""What programs add up in memory, or store, through shared memory: pieces that consumers leave and the adder takes."""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS


@builtin
def async_add_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """`tma.async_copy_shared_to_global` that adds to what is there: Gluon 3.6 has no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


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
def hand_over(x, X, dq_slots, dq_full, dq_empty, number, C: gl.constexpr):
    """Leaves [KEYS, BLOCK_DMODEL] `x` of consumer C to the adder, as its `number`-th piece."""
    mbarrier.wait(dq_empty.index(C), (number & 1) ^ 1)
    dq_slots.index(C)._reinterpret(X.dtype, X.block_shape, X.layout).reshape([KEYS, x.shape[1]]).store(x)
    fence_async_shared()
    mbarrier.arrive(dq_full.index(C))
