"""Quads: results of products with 16 bytes next to each other in a thread, as memory likes them.

Of eight neighbouring columns, each of the four threads that share a row has two. They exchange words of two numbers of
16 bits: the word that thread q has of the j-th eight columns goes to thread j, as its q-th.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

WORDS = gl.constexpr(8)  # of a thread that are exchanged at once: of four times eight columns, in two rows


@gluon.constexpr_function
def exchange():
    """PTX: $0 to $7 are the words $8 to $15 after the exchange: even ones of one row, odd ones of another."""
    lines = ["{", ".reg .pred p, q;", ".reg .b32 l, t;", "mov.u32 l, %laneid;"]
    lines += ["and.b32 t, l, 1;", "setp.ne.b32 p, t, 0;", "and.b32 t, l, 2;", "setp.ne.b32 q, t, 0;"]
    lines += [f"mov.b32 ${i}, ${i + WORDS.value};" for i in range(WORDS.value)]
    for distance, pairs in ((1, ((0, 1), (2, 3))), (2, ((0, 2), (1, 3)))):
        odd = "p" if distance == 1 else "q"
        for a, b in ((2 * a + row, 2 * b + row) for a, b in pairs for row in range(2)):
            lines.append(f"selp.b32 t, ${a}, ${b}, {odd};")
            lines.append(f"shfl.sync.bfly.b32 t, t, {distance}, 31, 0xffffffff;")
            lines.append(f"selp.b32 ${a}, t, ${a}, {odd};")
            lines.append(f"selp.b32 ${b}, ${b}, t, {odd};")
    return " ".join([*lines, "}"])


@gluon.constexpr_function
def of_exchange():
    """The constraints of `exchange`: results are written before all operands are read."""
    return ",".join(["=&r"] * WORDS.value + ["r"] * WORDS.value)


@gluon.constexpr_function
def layout_of_quads(columns):
    """The layout of what `in_quads` makes, of so many columns, 32 or more."""
    registers = [[0, 1], [0, 2], [0, 4], [8, 0]]
    column = 32
    while column < columns:
        registers.append([0, column])
        column *= 2
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, columns])


@gluon.jit
def in_quads(x):
    """The accumulators x, [64, columns] in 16 bits, with eight neighbouring columns of a row in each thread."""
    LAYOUT: gl.constexpr = layout_of_quads(x.shape[1])
    line: gl.constexpr = exchange()
    constraints: gl.constexpr = of_exchange()
    x = gl.inline_asm_elementwise(line, constraints, [x], dtype=x.dtype, is_pure=True, pack=2 * WORDS)
    x = x.reshape([x.shape[0], x.shape[1] // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4)).reshape(x.shape)
    return gl.convert_layout(x, LAYOUT)  # moves nothing to another thread
