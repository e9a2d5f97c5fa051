"""What keeps the compiler of a warp-specialised kernel from working a number out before its partitions.

What it knows to be the same in all of them, as program_id, it works out once, ahead of them, and keeps for all, in
registers that the producer has not: it spills.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def reading(register):
    return f"mov.u32 $0, {register};"


@gluon.jit
def special_register(REGISTER: gl.constexpr):
    """A special register of PTX, read here."""
    line: gl.constexpr = reading(REGISTER)
    return gl.inline_asm_elementwise(line, "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def opaque(x):
    """x, of 32 bits, of which the compiler knows nothing more."""
    line: gl.constexpr = "mov.b32 $0, $1;"
    value = gl.to_tensor(x)
    bits = value.to(gl.int32, bitcast=True)
    bits = gl.inline_asm_elementwise(line, "=r,r", [bits], dtype=gl.int32, is_pure=False, pack=1)
    return bits.to(value.dtype, bitcast=True)
