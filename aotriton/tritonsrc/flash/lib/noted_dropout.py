"""Dropout in the walks of Hopper kernels, forward and backward: which weights of a step are kept.

Registers are full there. What stays the same is noted in shared memory, and random numbers are drawn for few weights at
once. Two of them are in a word, as weights of 16 bits are, and are compared at once, as numbers of bfloat16: these are
in the order of their bits, but for those without a finite value, which ``geu`` takes for larger ones.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.dropout import Dropout, drawn, dropout_of, scale_of, seed_of
from aotriton.tritonsrc.flash.lib.notes import note, noted

# Places of notes, behind four of others.
FEATURES, SEED, OF_KEYS, OF_ROWS, THRESHOLD, FACTOR, KEY, NOTES = (gl.constexpr(4 + i) for i in range(8))


@gluon.jit
def note_dropout(numbers, features, probability, DropoutSeed, DropoutOffset, head, key):
    """Notes a call's dropout for a tile of heads from `head` on, counted over all sequences, and keys from `key` on."""
    dropout = dropout_of(features, probability, DropoutSeed, DropoutOffset)
    note(numbers, FEATURES, features)
    note(numbers, SEED, seed_of(dropout.seed, head).to(gl.int32, bitcast=True))
    note(numbers, OF_KEYS, dropout.of_keys.to(gl.int32, bitcast=True))
    note(numbers, OF_ROWS, dropout.of_rows.to(gl.int32, bitcast=True))
    note(numbers, THRESHOLD, dropout.threshold * 0x10001)
    note(numbers, FACTOR, scale_of(probability).to(gl.int32, bitcast=True))
    note(numbers, KEY, key)


@gluon.jit
def factor_of(numbers):
    """What weights that are kept are multiplied by."""
    return noted(numbers, FACTOR).to(gl.float32, bitcast=True)


@gluon.jit
def noted_words(numbers, heads, row, key, rows, keys, step):
    """The words of `drawn`, and a threshold of two halves. `heads`: how many behind the head that is noted."""
    seed = seed_of(noted(numbers, SEED).to(gl.uint32, bitcast=True), heads)
    of_keys = noted(numbers, OF_KEYS).to(gl.uint32, bitcast=True)
    of_rows = noted(numbers, OF_ROWS).to(gl.uint32, bitcast=True)
    threshold = noted(numbers, THRESHOLD)
    dropout = Dropout(noted(numbers, FEATURES), seed, of_keys, of_rows, threshold)
    w0, w1 = drawn(dropout, row, key, rows, keys, step)
    return w0, w1, threshold


@gluon.constexpr_function
def comparing(word):
    """PTX: m has ones in the halves of `word` whose number is at least that of t's half."""
    return [f"and.b32 m, {word}, 0x7fff7fff;", "set.geu.u32.bf16x2 m, m, t;"]


@gluon.constexpr_function
def keeping():
    """PTX: $0 to $3 are the pairs of weights $4 to $7 with zeros in place of those that are dropped. $8 and $16 are the
    words of rows i and i + 8, of which weights are in turns; the second half of the eight is of keys from j + 8 on.
    """
    lines = ["{", ".reg .b32 m, n, t;", "mov.b32 t, $24;"]
    for pair in range(4):
        word = "$8" if pair % 2 == 0 else "$16"
        if pair >= 2:
            lines.append(f"prmt.b32 n, {word}, {word}, 0x0321;")
            word = "n"
        lines += [*comparing(word), f"and.b32 ${pair}, ${4 + pair}, m;"]
    return " ".join([*lines, "}"])


@gluon.jit
def kept_of_rows(p, numbers, heads, row, key):
    """The weights p, of 16 bits, [rows, keys], that are kept, and zeros in place of the others. For what follows p, see
    `noted_words`.
    """
    LAYOUT: gl.constexpr = p.type.layout
    rows = gl.expand_dims(gl.arange(0, p.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
    keys = gl.expand_dims(gl.arange(0, p.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    w0, w1, threshold = noted_words(numbers, heads, row, key, rows, keys, key)
    line: gl.constexpr = keeping()
    places: gl.constexpr = "=&r,=&r,=&r,=&r" + ",r" * 28
    return gl.inline_asm_elementwise(line, places, [p, w0, w1, threshold], dtype=p.dtype, is_pure=True, pack=8)


@gluon.constexpr_function
def marking():
    """PTX: $0 to $3 are the pairs of weights $4 to $7 with minus zero in place of those that are dropped. $8 and $9 are
    the words of rows i of two neighbours, $16 and $17 those of rows i + 8. $24 selects those halves of two words that
    are of the thread's key, and, with each place moved by a byte, of that key + 8: weights are in turns of these.
    """
    lines = ["{", ".reg .b32 m, n, s, t;", "mov.b32 t, $32;", "xor.b32 s, $24, 0x3131;"]
    for pair in range(4):
        one, other = ("$8", "$9") if pair < 2 else ("$16", "$17")
        lines.append(f"prmt.b32 n, {one}, {other}, {'$24' if pair % 2 == 0 else 's'};")
        lines += [*comparing("n"), f"lop3.b32 ${pair}, ${4 + pair}, m, 0x80008000, {(0xF0 & 0xCC) | (~0xCC & 0xAA)};"]
    return " ".join([*lines, "}"])


@gluon.jit
def marked_of_keys(p, numbers, heads, row, first_key: gl.constexpr):
    """The weights p, of 16 bits, [keys, queries], with minus zero in place of those that are dropped: of queries from
    `row` on, of the head that is so many `heads` behind the one that is noted, and of keys from the tile's key number
    `first_key` on.
    """
    LAYOUT: gl.constexpr = p.type.layout
    keys = gl.expand_dims(gl.arange(0, p.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
    queries = gl.expand_dims(gl.arange(0, p.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    w0, w1, threshold = noted_words(numbers, heads, row, noted(numbers, KEY) + first_key, queries, keys, row)
    halves = gl.where((keys & 1) != 0, 0x7632, 0x5410)
    line: gl.constexpr = marking()
    places: gl.constexpr = "=&r,=&r,=&r,=&r" + ",r" * 36
    return gl.inline_asm_elementwise(line, places, [p, w0, w1, halves, threshold], dtype=p.dtype, is_pure=True, pack=8)


@gluon.jit
def where_kept(x, p):
    """x, fp32, with zeros where the weights p, of 16 bits, have the mark of those that are dropped."""
    line: gl.constexpr = (
        "{ .reg .pred q; .reg .b32 m; and.b32 m, $4, 0x8000; setp.eq.u32 q, m, 0; selp.f32 $0, $2, 0f00000000, q; "
        "setp.ge.s32 q, $4, 0; selp.f32 $1, $3, 0f00000000, q; }"
    )
    return gl.inline_asm_elementwise(line, "=&f,=&f,f,f,r", [x, p], dtype=gl.float32, is_pure=True, pack=2)
