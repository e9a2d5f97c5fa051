"""What the Hopper forward does otherwise with queries, keys and values of 8 bits: these have scales, and values are
read from a turned copy, [batch, heads, head_dim, keys], as products of 8 bits take both operands along what they sum
up, which of P V is the keys.

Of each eight numbers of P a thread has two next to each other where it gets them from a product, and four of sixteen
where they are the operand of the next one. Instead of an exchange between threads the copy has the keys in the order
that they have as the operand: within each GROUP of them, key 8 * j + 2 * i + e lies at 4 * i + 2 * j + e.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma

from aotriton.tritonsrc.flash.lib.hopper_column_parts import load, matrix, weighted, zeros
from aotriton.tritonsrc.flash.lib.softmax import raised

GROUP = gl.constexpr(16)  # keys
LOG2_E = gl.constexpr(1.4426950408889634)
# The base of a row's exponentials lies so far below its largest score that these are large numbers of 8 bits, of which
# the largest one is 448. (FlashAttention-3: Shah et al., 2024.)
BELOW = gl.constexpr(8.0)


@gluon.constexpr_function
def depth_of(dtype):
    """Of how many numbers of a type a product's instruction takes the sums: 32 bytes."""
    return 256 // dtype.primitive_bitwidth


@gluon.jit
def load_values(tensors, batch, head, row, ready, places, pred=True):
    """Begin to copy values of keys from `row` on to their `places`, of 8 bits from the turned copy."""
    if tensors[0].dtype.primitive_bitwidth == 8:
        tma.async_copy_global_to_shared(tensors[0], [batch, head, 0, row], ready, places[0], pred=pred)
    else:
        load(tensors, batch, head, row, ready, places, pred)


@gluon.jit
def zero_sums(slots):
    """As `zeros` for 64 rows, for products with what lies in the slots of keys."""
    DEPTH: gl.constexpr = depth_of(slots[0].dtype)
    if DEPTH == 32:
        COLUMNS: gl.constexpr = slots[0].shape[4]
        return (gl.zeros([64, COLUMNS], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 32])),)
    else:
        return zeros(slots, 64)


@gluon.jit
def in_order(p, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """P of fp32 as a step keeps it for the next one: as the operand of a product, or, of 8 bits, as int32 of four
    numbers each, in the order of keys that values have. As numbers of 8 bits the compiler would take them apart.
    """
    if dtype.primitive_bitwidth == 8:
        ROWS: gl.constexpr = p.shape[0]
        KEYS: gl.constexpr = p.shape[1]
        groups = p.reshape([ROWS, KEYS // GROUP, 2, 4, 2]).permute((0, 1, 3, 2, 4))
        ordered = gl.convert_layout(groups.reshape(p.shape), LAYOUT, assert_trivial=True)
        even, odd = ordered.reshape([ROWS, KEYS // 4, 2, 2]).split()
        first, third = even.split()
        second, fourth = odd.split()
        line: gl.constexpr = (
            "{ .reg .b16 x, y; cvt.rn.satfinite.e4m3x2.f32 x, $2, $1; cvt.rn.satfinite.e4m3x2.f32 y, $4, $3;"
            " mov.b32 $0, {x, y}; }"
        )
        four = [first, second, third, fourth]
        return gl.inline_asm_elementwise(line, "=r,f,f,f,f", four, dtype=gl.int32, is_pure=True, pack=1)
    else:
        return gl.convert_layout(p.to(dtype), LAYOUT)


@gluon.jit
def operand_of(p, zero, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """What `in_order` gives, as the operand: before products are under way, or they wait for each other. `zero`, which
    the compiler must not know, keeps it from writing the operand while the last product with it is under way.
    """
    if dtype.primitive_bitwidth == 8:
        SHAPE: gl.constexpr = [p.shape[0], p.shape[1] * 4]
        like = gl.zeros(SHAPE, gl.int32, LAYOUT).reshape([p.shape[0], p.shape[1], 4])
        fours = gl.expand_dims(gl.convert_layout(p, gl.SliceLayout(2, like.type.layout), assert_trivial=True), 2)
        fours, _ = gl.broadcast(fours, like)
        fours = gl.convert_layout(fours.reshape(SHAPE), LAYOUT, assert_trivial=True)
        line: gl.constexpr = "add.u32 $0, $1, $5;"
        return gl.inline_asm_elementwise(
            line, "=r,r,r,r,r,r,r,r,r", [fours, zero], dtype=gl.float8e4nv, is_pure=True, pack=4
        )
    else:
        return p


@gluon.jit
def weighted_values(p, v_slots, slot, out):
    """Begin Out += P V, a product for each part."""
    if p.dtype.primitive_bitwidth == 8:
        return (warpgroup_mma(p, matrix(v_slots[0], slot).permute((1, 0)), out[0], is_async=True),)
    else:
        return weighted(p, v_slots, slot, out)


@gluon.jit
def raised_below(base, largest):
    """As `raised`, with bases BELOW the largest scores: one that is more than half an octave beyond is followed."""
    found = raised(base, largest - 0.5)
    return gl.where(found > base, found + (0.5 - BELOW), base)


@gluon.jit
def _descale(Descale, batch, head, stride_b, stride_h, given, GIVEN: gl.constexpr):
    found = 1.0
    if (given & GIVEN) != 0:
        found = gl.load(Descale + batch * stride_b + head * stride_h)
    return found


@gluon.jit
def scales_of(call, head, heads):
    """Of a packed head, of so many of a batch: what scores are multiplied by, to base 2, and what values are. A head
    beyond the last one has those of the last.
    """
    Q, K, V, q_b, q_h, k_b, k_h, v_b, v_h, given = call.descales
    head = gl.minimum(head, heads * call.batch - 1)
    batch = head // heads
    head_k = (head - batch * heads) // (heads // call.num_heads_k)
    of_q = _descale(Q, batch, head_k, q_b, q_h, given, 4)
    of_k = _descale(K, batch, head_k, k_b, k_h, given, 1)
    of_v = _descale(V, batch, head_k, v_b, v_h, given, 2)
    return gl.maximum(call.sm_scale * LOG2_E * of_q * of_k, 1e-30), of_v
