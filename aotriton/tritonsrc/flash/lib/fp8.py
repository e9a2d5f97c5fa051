"""fp8: products with keys and values of 8 bits, in fp16, which holds each of their numbers."""

import triton
import triton.language as tl


@triton.jit
def power_below(largest):
    """Of fp32 numbers, none negative, one over the power of two that is at most as large, and that power."""
    exponent = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 1), 253)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return inverse, (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def rows_in_fp16(q):
    """[ROWS, COLUMNS] queries, each row divided by a power of two, so that fp16 holds it, and [ROWS] fp32, these.

    The largest number of a row is from 1 to 2; what is more than 2²⁴ times smaller is lost, and is nothing beside it.
    """
    inverse, power = power_below(tl.max(tl.abs(q.to(tl.float32)), 1))
    return (q.to(tl.float32) * inverse[:, None]).to(tl.float16), power


@triton.jit
def descale_of(Descale, stride_b, stride_h, sequence, head, descales, GIVEN: tl.constexpr, there=True):
    """What the keys or values of a head are multiplied by. ``GIVEN`` is the bit of ``descales`` that there is one.
    ``sequence`` may be a tensor, of which those that are not ``there`` have 1.
    """
    found = sequence.to(tl.float32) * 0.0 + 1.0
    if (descales & GIVEN) != 0:
        found = tl.load(Descale + sequence * stride_b + head * stride_h, mask=there, other=1.0)
    return found


@triton.constexpr_function
def most_of(dtype):
    """The largest number of a type of 8 bits."""
    return {"fp8e4nv": 448.0, "fp8e4b8": 240.0}[dtype.name]


@triton.jit
def in_fp8(x, descale, dtype: tl.constexpr):
    """``x`` divided by ``descale``, in a type of 8 bits. What is beyond its largest number becomes that; what is no
    number stays none.
    """
    MOST: tl.constexpr = most_of(dtype)
    quotient = tl.div_rn(x.to(tl.float32), tl.broadcast_to(descale, x.shape))
    return tl.clamp(quotient, -MOST, MOST, tl.PropagateNan.ALL).to(dtype)
