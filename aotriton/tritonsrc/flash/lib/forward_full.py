"""What the Hopper forward has at the level FULL alone: ALiBi and dropout."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.accumulators import halves, joined
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.dropout import Dropout, dropout_of, kept, scale_of
from aotriton.tritonsrc.flash.lib.features import ALIBI
from aotriton.tritonsrc.flash.lib.notes import note, noted, notes
from aotriton.tritonsrc.flash.lib.softmax import of_lanes

AT_ONCE = gl.constexpr(32)  # keys whose random numbers have room
# Notes of dropout, which is the same for all tiles but for its head.
SEED, SEED_HIGH, LOW, HIGH, THRESHOLD, FACTOR, NOTES = (gl.constexpr(i) for i in range(7))


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
    of_first = dropout_of(features, dropout, DropoutSeed, DropoutOffset, features * 0)
    note(numbers, SEED, of_first.seed.to(gl.int32))
    note(numbers, SEED_HIGH, (of_first.seed >> 32).to(gl.int32))
    note(numbers, LOW, of_first.low.to(gl.int32, bitcast=True))
    note(numbers, HIGH, of_first.head.to(gl.int32, bitcast=True))
    note(numbers, THRESHOLD, of_first.threshold)
    note(numbers, FACTOR, scale_of(dropout).to(gl.int32, bitcast=True))
    return Full(AlibiSlopes, stride_alibi_b, numbers)


@gluon.jit
def factor_of(full):
    """What weights that are kept are multiplied by."""
    return noted(full.numbers, FACTOR).to(gl.float32, bitcast=True)


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
    """The weights p of rows from `row` on and of keys from `key` on, with zeros in place of those that are dropped."""
    if p.shape[1] > AT_ONCE:
        first, second = halves(p)
        first = dropped(first, weights, row, key)
        second = dropped(second, weights, row, key + second.shape[1])
        return joined(first, second)
    else:
        LAYOUT: gl.constexpr = p.type.layout
        rows = gl.expand_dims(gl.arange(0, p.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
        keys = gl.expand_dims(gl.arange(0, p.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
        numbers = weights.numbers
        low_half = noted(numbers, SEED).to(gl.uint32, bitcast=True).to(gl.int64)
        seed = (noted(numbers, SEED_HIGH).to(gl.int64) << 32) | low_half
        low = noted(numbers, LOW).to(gl.uint32, bitcast=True)
        head = (noted(numbers, HIGH) + weights.head).to(gl.uint32, bitcast=True)
        dropout = Dropout(weights.features, seed, low, head, noted(numbers, THRESHOLD))
        return kept(p, dropout, row, key, rows, keys, key)
