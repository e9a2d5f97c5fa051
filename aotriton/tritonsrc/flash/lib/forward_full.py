"""What the Hopper forward has at the level FULL alone: ALiBi and dropout."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.accumulators import halves, joined
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import ALIBI, DROPOUT, has
from aotriton.tritonsrc.flash.lib.noted_dropout import NOTES, kept_of_rows, note_dropout
from aotriton.tritonsrc.flash.lib.notes import notes
from aotriton.tritonsrc.flash.lib.softmax import of_lanes

AT_ONCE = gl.constexpr(64)  # keys whose random numbers have room


@bundle
class Full:
    """The numbers of a call. Slopes: fp32, [batch, num_heads_q]. `numbers`: notes of dropout. Pointers of what the call
    does not have are not followed.
    """

    AlibiSlopes: gl.tensor
    stride_alibi_b: gl.tensor
    numbers: gl.shared_memory_descriptor


@bundle
class Weights:
    """The numbers of a consumer's rows of a tile. `slope`: for each row, by which a product of q and k is less for each
    key between the row's own one and its own, and the row's `own` key. `head`: counted over all sequences.
    """

    features: gl.tensor
    slope: gl.tensor
    own: gl.tensor
    head: gl.tensor
    numbers: gl.shared_memory_descriptor


@gluon.jit
def full_of_call(AlibiSlopes, stride_alibi_b, features, dropout, DropoutSeed, DropoutOffset):
    """Notes a call's dropout, of this probability. Seed and offset: int64, of one element each."""
    numbers = notes(NOTES)
    note_dropout(numbers, features, dropout, DropoutSeed, DropoutOffset, features * 0, features * 0)
    return Full(AlibiSlopes, stride_alibi_b, numbers)


@gluon.jit
def full_of_tile(full, features, sm_scale, sequence, at, row_head, head):
    """The numbers of rows at positions `at` of heads `row_head`, a vector. `head`: counted over all sequences."""
    slope = at.to(gl.float32) * 0.0
    if (features & ALIBI) != 0:
        slope = gl.load(full.AlibiSlopes + sequence.batch * full.stride_alibi_b + row_head)
    slope = slope / gl.maximum(sm_scale, 1e-30)
    own = (at + sequence.k.used - sequence.q.used).to(gl.float32)
    return Weights(features, slope, own, head, full.numbers)


@gluon.jit
def with_alibi(s, weights, key):
    """Products of queries and keys from `key` on, so that times the scale they are scores with ALiBi.

    Columns are counted by lanes (`of_lanes`), so that nearly all of what is counted is the same for all threads.
    """
    if (weights.features & ALIBI) != 0:
        lanes = of_lanes(s)
        LAYOUT: gl.constexpr = lanes.type.layout
        ROWS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT)))
        EIGHTS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT)))
        LANES: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, LAYOUT)))
        PAIR: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
        rows = gl.convert_layout(weights.own - key.to(gl.float32), ROWS, assert_trivial=True)
        slope = gl.convert_layout(weights.slope, ROWS, assert_trivial=True)
        lane = gl.arange(0, 4, LANES).to(gl.float32) * 2.0
        eighth = gl.arange(0, lanes.shape[1], EIGHTS).to(gl.float32) * 8.0
        pair = gl.arange(0, 2, PAIR).to(gl.float32)
        of_rows = along(rows, (1, 2, 3)) - along(lane, (0, 1, 3))
        distance = of_rows - (along(eighth, (0, 2, 3)) + along(pair, (0, 1, 2)))
        lanes = lanes - gl.abs(distance) * along(slope, (1, 2, 3))
        s = gl.convert_layout(lanes.reshape(s.shape), s.type.layout, assert_trivial=True)
    return s


@gluon.jit
def along(x, others: gl.constexpr):
    """A vector as one of the four dimensions, beside these `others`, in ascending order."""
    for i in gl.static_range(3):
        x = gl.expand_dims(x, others[i])
    return x


@gluon.jit
def dropped(p, weights, row, key):
    """The weights p, of 16 bits, of rows from `row` on and of keys from `key` on, with zeros in place of those that are
    dropped.
    """
    if p.shape[1] > AT_ONCE:
        first, second = halves(p)
        first = dropped(first, weights, row, key)
        second = dropped(second, weights, row, key + second.shape[1])
        return joined(first, second)
    else:
        if has(weights.features, DROPOUT, key):
            p = kept_of_rows(p, weights.numbers, weights.head, row, key)
        return p
