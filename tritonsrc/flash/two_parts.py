"""Tiles of Hopper kernels with columns in two parts, each a power of two wide: 64 + 32 columns, or 128 + 64.

A pair is of both parts: TMA descriptors of one tensor, which differ in the columns of their boxes, places in shared
memory, operands or accumulators of products.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma


@gluon.jit
def load(tensors, batch, head, row, ready, places, pred=True):
    """Begin to copy rows from `row` on of both parts of a tensor to their `places`."""
    FIRST: gl.constexpr = tensors[0].block_shape[3]
    tma.async_copy_global_to_shared(tensors[0], [batch, head, row, 0], ready, places[0], pred=pred)
    tma.async_copy_global_to_shared(tensors[1], [batch, head, row, FIRST], ready, places[1], pred=pred)


@gluon.jit
def scores(q, k_slots, slot, zeros):
    """Begin S = Q Kᵀ of both parts: two products."""
    ROWS: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    REST: gl.constexpr = k_slots[1].shape[4]
    k = k_slots[0].index(slot).reshape([ROWS, FIRST]).permute((1, 0))
    s = warpgroup_mma(q[0], k, zeros, use_acc=False, is_async=True)
    k = k_slots[1].index(slot).reshape([ROWS, REST]).permute((1, 0))
    return warpgroup_mma(q[1], k, s, is_async=True)


@gluon.jit
def weighted(p, v_slots, slot, out, out_rest, P_REST_LAYOUT: gl.constexpr):
    """Begin Out += P V of both parts: two products."""
    ROWS: gl.constexpr = v_slots[0].shape[3]
    FIRST: gl.constexpr = v_slots[0].shape[4]
    REST: gl.constexpr = v_slots[1].shape[4]
    v = v_slots[0].index(slot).reshape([ROWS, FIRST])
    out = warpgroup_mma(p, v, out, is_async=True)
    v = v_slots[1].index(slot).reshape([ROWS, REST])
    return out, warpgroup_mma(gl.convert_layout(p, P_REST_LAYOUT), v, out_rest, is_async=True)


@gluon.jit
def slots(tensors, COUNT: gl.constexpr):
    """Shared memory for so many boxes of both parts of a tensor."""
    FIRST: gl.constexpr = [COUNT] + tensors[0].block_shape  # noqa: RUF005 (the compiler knows no stars)
    REST: gl.constexpr = [COUNT] + tensors[1].block_shape  # noqa: RUF005
    first = gl.allocate_shared_memory(tensors[0].dtype, FIRST, tensors[0].layout)
    rest = gl.allocate_shared_memory(tensors[1].dtype, REST, tensors[1].layout)
    return first, rest
