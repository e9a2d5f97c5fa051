"""The softmax of a step of the Hopper forward, by rows and lanes.

Four neighbouring threads, its lanes, share a row of a product's accumulators: of each eight columns a lane has two. A
number *by lanes*, [rows, 4], is one of each row and lane, in the thread that has them: what is summed up by lanes needs
no exchange between threads until the end.

The exponentials of a row are taken relative to its *base*, 2 ** (score - base), and what they sum up to, and Out, are
multiples of 2 ** -base. Any base will do that keeps them in range, so it follows the row's largest score only where
that is RAISE_AT above it: mostly it stays, then nothing is rescaled, and no thread asks another one. (FlashAttention-4
rescales so on Blackwell: Zadouri et al., 2026.)
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

RAISE_AT = gl.constexpr(8)  # exponentials reach 2 ** 8: far from the largest number of fp16
MOST_AT_ONCE = gl.constexpr(32)  # accumulators in one piece of assembly


@gluon.jit
def of_lanes(x):
    """[rows, columns] as [rows, columns / 8, 4, 2]: of a row, a lane has all along the second and the last."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def for_lanes(number, like):
    """A number by lanes, to be combined with `like`, which is as `of_lanes` gives it."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, like.type.layout))
    return gl.expand_dims(gl.expand_dims(gl.convert_layout(number, LAYOUT, assert_trivial=True), 1), 3)


@gluon.jit
def exponentials(s, base, scale):
    """2 ** (scale * s - base), and its sums by lanes; `base` is by lanes, and `scale` may be."""
    LAYOUT: gl.constexpr = s.type.layout
    lanes = of_lanes(s)
    if len(scale.shape) > 0:
        scale = for_lanes(scale, lanes)
    p = gl.exp2(lanes * scale - for_lanes(base, lanes))
    return gl.convert_layout(p.reshape(s.shape), LAYOUT, assert_trivial=True), gl.sum(gl.sum(p, 3), 1)


@gluon.jit
def top(s, scale):
    """The largest scores by lanes, times `scale`, which is positive, and may be by lanes."""
    largest = gl.max(gl.max(of_lanes(s), 3), 1)
    if len(scale.shape) > 0:
        scale = gl.convert_layout(scale, largest.type.layout, assert_trivial=True)
    return largest * scale


@gluon.jit
def first_base(s, scale):
    """By lanes, the same in each: the largest score of each row."""
    of_lane = top(s, scale)
    return gl.expand_dims(gl.max(of_lane, 1), 1) + gl.zeros_like(of_lane)


@gluon.constexpr_function
def raising(at):
    """PTX: of two rows, $0 and $1 are the bases that follow from the largest scores $2 and $3 of a lane and the bases
    so far, $4 and $5. If no row of a warp is to be raised, its threads do not ask each other.
    """
    rows = (("$0", "$2", "$4", "t"), ("$1", "$3", "$5", "u"))
    lines = ["{", ".reg .pred p, q;", ".reg .f32 t, u, x, y;"]
    for _, _, base, limit in rows:
        lines.append(f"add.f32 {limit}, {base}, {float(at)};")
    lines += [f"mov.f32 {new}, {base};" for new, _, base, _ in rows]
    lines += ["setp.gt.f32 p, $2, t;", "setp.gt.f32 q, $3, u;", "or.pred p, p, q;"]
    lines += ["vote.sync.any.pred p, p, 0xffffffff;", "@!p bra.uni DONE;"]
    for new, largest, base, limit in rows:
        lines += [f"shfl.sync.bfly.b32 x, {largest}, 1, 31, 0xffffffff;", f"max.f32 x, x, {largest};"]
        lines += ["shfl.sync.bfly.b32 y, x, 2, 31, 0xffffffff;", "max.f32 x, x, y;"]
        lines += [f"setp.gt.f32 q, x, {limit};", f"selp.f32 {new}, x, {base}, q;"]
    return " ".join([*lines, "DONE:", "}"])


@gluon.jit
def raised(base, largest):
    """The bases, by lanes, once these are the largest scores: what is RAISE_AT below its row's largest becomes that."""
    line: gl.constexpr = raising(RAISE_AT)
    return gl.inline_asm_elementwise(
        line, "=&f,=&f,f,f,f,f", [largest, base], dtype=gl.float32, is_pure=True, pack=2
    )  # fmt: skip


@gluon.constexpr_function
def multiplying(count):
    """PTX: $0 and so on times as many factors, unless those of all rows that a warp has are 1. Of four neighbouring
    accumulators of a thread the first two are of one row, the others of another; it has no third.
    """
    first, second = f"${2 * count}", f"${2 * count + 2}"
    products = [f"mul.f32 ${one}, ${one}, ${2 * count + one};" for one in range(count)]
    lines = ["{", ".reg .pred p, q;", f"setp.neu.f32 p, {first}, 1.0;", f"setp.neu.f32 q, {second}, 1.0;"]
    lines += ["or.pred p, p, q;", "vote.sync.any.pred p, p, 0xffffffff;", "@!p bra.uni DONE;"]
    return " ".join([*lines, *products, "DONE:", "}"])


@gluon.constexpr_function
def multiplying_in_place(count):
    """The constraints of `multiplying`: its results are where its first operands were."""
    return ",".join(["=f"] * count + [str(one) for one in range(count)] + ["f"] * count)


@gluon.jit
def rescaled(x, factor):
    """The accumulators x, each row times its factor, which is by lanes. Where all are 1, nothing is done."""
    LAYOUT: gl.constexpr = x.type.layout
    COUNT: gl.constexpr = min(MOST_AT_ONCE, x.shape[1] // 2)  # a thread has half a row in two rows
    line: gl.constexpr = multiplying(COUNT)
    places: gl.constexpr = multiplying_in_place(COUNT)
    lanes = of_lanes(x)
    factors = for_lanes(factor, lanes)
    lanes = gl.inline_asm_elementwise(line, places, [lanes, factors], dtype=gl.float32, is_pure=True, pack=COUNT)
    return gl.convert_layout(lanes.reshape(x.shape), LAYOUT, assert_trivial=True)
