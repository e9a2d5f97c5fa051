"""Tiles of Hopper kernels as tuples of their parts: one, whose columns are a power of two, or two, of 64 + 32, 128 + 64
or 128 + 128 columns.

A tuple is of TMA descriptors of one tensor, which differ in the columns of their boxes, of slots in shared memory, or
of operands or accumulators of products.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma, warpgroup_mma_wait


@gluon.constexpr_function
def bytes_of(tensors):
    """Of a box of all parts."""
    return sum([tensor.block_type.nbytes for tensor in tensors])


@gluon.jit
def slots(tensors, COUNT: gl.constexpr):
    """Shared memory for so many boxes of all parts of a tensor."""
    return [_slots(tensor, COUNT) for tensor in tensors]


@gluon.jit
def _slots(tensor, COUNT: gl.constexpr):
    SHAPE: gl.constexpr = [COUNT] + tensor.block_shape  # noqa: RUF005 (the compiler knows no stars)
    return gl.allocate_shared_memory(tensor.dtype, SHAPE, tensor.layout)


@gluon.jit
def places(slots, slot):
    """The slot of all parts with this number."""
    return [one.index(slot) for one in slots]


@gluon.jit
def load(tensors, batch, head, row, ready, places, pred=True):
    """Begin to copy rows from `row` on of all parts of a tensor to their `places`."""
    for part in gl.static_range(len(tensors)):
        origin = [batch, head, row, part * tensors[0].block_shape[3]]
        tma.async_copy_global_to_shared(tensors[part], origin, ready, places[part], pred=pred)


@gluon.jit
def matrix(slots, slot):
    """What lies in one part's slot with this number, [rows, columns]."""
    return slots.index(slot).reshape([slots.shape[3], slots.shape[4]])


@gluon.jit
def zeros(slots, ROWS: gl.constexpr):
    """Accumulators of a warp group, of so many rows and the columns of the slots."""
    return [_zeros(ROWS, one.shape[len(one.shape) - 1]) for one in slots]


@gluon.jit
def _zeros(ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    return gl.zeros([ROWS, COLUMNS], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16]))


@gluon.jit
def scores(q, k_slots, slot, zeros):
    """Begin S = Q Kᵀ: a product for each part."""
    s = warpgroup_mma(q[0], matrix(k_slots[0], slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    if len(q) == 2:
        s = warpgroup_mma(q[1], matrix(k_slots[1], slot).permute((1, 0)), s, is_async=True)
    return s


@gluon.jit
def weighted(p, v_slots, slot, out):
    """Begin Out += P V: a product for each part. P has the layout for the first."""
    first = warpgroup_mma(p, matrix(v_slots[0], slot), out[0], is_async=True)
    if len(out) == 1:
        return (first,)
    else:
        v = matrix(v_slots[1], slot)
        LAYOUT: gl.constexpr = gl.DotOperandLayout(0, out[1].type.layout, 2)
        return first, warpgroup_mma(gl.convert_layout(p, LAYOUT), v, out[1], is_async=True)


@gluon.jit
def finished(out, OTHERS: gl.constexpr = 0):
    """The parts of a sum, when so many products that began later are still under way."""
    if len(out) == 1:
        return (warpgroup_mma_wait(OTHERS, deps=[out[0]]),)
    else:
        return warpgroup_mma_wait(OTHERS, deps=[out[0], out[1]])
