"""Attention with all features, forward and backward: in float64, and as ordinary low-precision code computes it.

Arrays are numpy's or torch's, of any device: the same functions work on both.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Array = Any
MOST_SCORES = 1 << 26  # worked out at once
INF = float("inf")


@dataclass
class Call:
    """A call of attn_fwd and attn_bwd; operands and scalars as in c.h, but seed and offset are plain numbers.

    q: [batch, heads_q, rows, head_dim]; k: [batch, heads_k, rows, head_dim]; v: [batch, heads_k, rows, head_dim_v];
    dout: [batch, heads_q, rows, head_dim_v]. With cu_seqlens the batch is 1
    and the rows are those of all sequences.
    """

    q: Array
    k: Array
    v: Array
    dout: Array
    sm_scale: float
    causal: bool = False
    causal_variant: str = "top_left"
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    dropout: float = 0.0
    dropout_seed: int = 0
    dropout_offset: int = 0
    bias: Array = None
    alibi_slopes: Array = None
    sinks: Array = None
    cu_seqlens_q: Array = None
    cu_seqlens_k: Array = None
    seqused_q: Array = None
    seqused_k: Array = None

    @property
    def owned(self) -> tuple[int, int]:
        """The rows of q and of k that belong to a sequence; those behind them are not touched."""
        both = ((self.cu_seqlens_q, self.q), (self.cu_seqlens_k, self.k))
        rows_q, rows_k = (x.shape[2] if starts is None else int(starts[-1]) for starts, x in both)
        return rows_q, rows_k


@dataclass
class Results:
    """What a forward and a backward write. ``bounds``: the magnitude of the terms behind each row of each result.
    ``through_out``: how far each row of a gradient moves where elements of out move by all that they are, each row and
    element of it on its own: what rounding out does to gradients, times its roundoff.
    """

    out: Array
    logsumexp: Array
    dq: Array
    dk: Array
    dv: Array
    dbias: Array  # None without a bias
    dsinks: Array
    bounds: dict[str, Array] = field(default_factory=dict)
    through_out: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Some batches, or one sequence, and some of its key heads: what is worked out at once."""

    batches: slice
    heads: slice  # of keys
    rows_q: slice  # those that count
    rows_k: slice
    sequence: int  # the number of the first


def truth(call: Call) -> Results:
    """Everything in float64."""
    return attention(call, "float64", lambda x: x)


def ordinary(call: Call, rounded: Callable[[Array], Array] | None = None) -> Results:
    """As tensor-core code computes it: sums in float32; P, dS and results ``rounded`` to the type of torch's tensors,
    or as is said.
    """
    return attention(call, "float32", rounded or (lambda x: x.to(call.q.dtype).float()))


def attention(call: Call, work: str, rounded: Callable[[Array], Array]) -> Results:
    """Textbook attention in the type ``work``; operands of products, and results but logsumexp and dsinks, are
    ``rounded``.
    """
    xp, like = _library(call.q), {"dtype": getattr(_library(call.q), work), "device": call.q.device}
    (batch, heads_q, seqlen_q, width), (_, heads_k, seqlen_k, width_v) = call.q.shape, call.v.shape
    group = heads_q // heads_k if heads_k else 0

    def grouped(x: Array) -> Array:
        """A tensor's heads as [heads_k, heads of a group]."""
        return x.reshape(x.shape[0], heads_k, x.shape[1] // heads_k, *x.shape[2:])

    def zeros(*shape: int) -> Array:
        return xp.zeros(shape, **like)

    of_q, of_k = (batch, heads_k, group, seqlen_q), (batch, heads_k, 1, seqlen_k)
    made = {"out": zeros(*of_q, width_v), "dq": zeros(*of_q, width), "logsumexp": zeros(*of_q) - INF}
    made |= {"dk": zeros(*of_k, width), "dv": zeros(*of_k, width_v)}
    bounds = {name: zeros(*of_q) for name in ("out", "dq", "logsumexp")} | {name: zeros(*of_k) for name in ("dk", "dv")}
    if call.bias is not None:
        made["dbias"], bounds["dbias"] = zeros(*of_q, seqlen_k), zeros(*of_q)
    if call.sinks is not None:
        made["dsinks"], bounds["dsinks"] = zeros(1, heads_k, group), zeros(1, heads_k, group)
    moved = {name: 0 * bound for name, bound in bounds.items() if name in THROUGH_OUT}

    for part in _parts(call):
        b, h, rows, keys = part.batches, part.heads, part.rows_q, part.rows_k
        q, dout = (xp.asarray(grouped(x)[b, h, :, rows], dtype=like["dtype"]) for x in (call.q, call.dout))
        k, v = (xp.asarray(grouped(x)[b, h, :, keys], dtype=like["dtype"]) for x in (call.k, call.v))
        count_q, count_k = q.shape[-2], k.shape[-2]
        row = xp.arange(count_q, device=call.q.device)[:, None]
        key = xp.arange(count_k, device=call.q.device)

        scores = q @ k.mT * call.sm_scale
        slope: Array = 1.0
        if call.softcap:
            capped = xp.tanh(scores / call.softcap)
            scores, slope = call.softcap * capped, 1 - capped * capped
        magnitude = _norm(q)[..., None] * _norm(k)[..., None, :] * call.sm_scale
        if call.alibi_slopes is not None:
            shared = call.alibi_slopes.shape[0] == 1
            sequences = slice(0, 1) if shared else slice(part.sequence, part.sequence + b.stop - b.start)
            slopes = xp.asarray(grouped(call.alibi_slopes)[sequences, h], dtype=like["dtype"])
            apart = xp.asarray(abs(row + (count_k - count_q) - key), dtype=like["dtype"])  # numpy widens whole numbers
            distance = slopes[..., None, None] * apart
            scores, magnitude = scores - distance, magnitude + abs(distance)
        if call.bias is not None:
            bias = xp.asarray(grouped(call.bias)[b, h, :, rows, keys], dtype=like["dtype"])
            scores, magnitude = scores + bias, magnitude + abs(xp.where(bias == -INF, 0.0, bias))
        scores = xp.where(hidden(call, row, key, count_q, count_k), -INF, scores)

        sink = zeros(q.shape[0], q.shape[1], group, count_q, 1) - INF  # one more key, which has no value
        if call.sinks is not None:
            sinks = xp.asarray(grouped(call.sinks[None])[:, h], dtype=like["dtype"])
            sink = zeros(*sink.shape) + sinks[..., None, None]
        scores = xp.concat([scores, sink], -1)
        top = xp.amax(scores, -1)[..., None]
        total = xp.exp(scores - xp.where(top == -INF, 0.0, top)).sum(-1)
        seen = total > 0
        lse = xp.where(seen, top[..., 0] + xp.log(xp.where(seen, total, 1.0)), -INF)
        p = xp.exp(scores - xp.where(seen, lse, 0.0)[..., None])
        p, p_sink = p[..., :-1], p[..., -1]

        keep: Array = 1.0
        if call.dropout:
            keep = _keep(call, part, count_q, count_k, like["dtype"])
        weights = rounded(p * keep)
        out = rounded(weights @ v)
        delta = (dout * out).sum(-1)
        dscores = p * (keep * (dout @ v.mT) - delta[..., None])
        dproducts = rounded(dscores * slope)

        made["out"][b, h, :, rows], made["logsumexp"][b, h, :, rows] = out, lse
        made["dq"][b, h, :, rows] = rounded(dproducts @ k * call.sm_scale)
        made["dk"][b, h, :, keys] = rounded((dproducts.mT @ q).sum(2)[:, :, None] * call.sm_scale)
        made["dv"][b, h, :, keys] = rounded((weights.mT @ dout).sum(2)[:, :, None])

        q_norm, k_norm, v_norm, dout_norm, out_norm = (_norm(x)[..., None] for x in (q, k, v, dout, out))
        behind = p * dout_norm * (keep * v_norm.mT + out_norm)  # |dscores| before its difference cancels
        bounds["out"][b, h, :, rows] = (p * keep @ v_norm)[..., 0]
        bounds["logsumexp"][b, h, :, rows] = 1 + xp.amax(
            xp.concat([xp.where(p > 0, magnitude, 0.0), zeros(*sink.shape)], -1), -1
        )
        if call.softcap:  # its hyperbolic tangent is exact to 2e-7, whatever the score is
            bounds["logsumexp"][b, h, :, rows] += 2e-7 / FLOAT32_NOISE * call.softcap
        bounds["dq"][b, h, :, rows] = (behind @ k_norm)[..., 0] * call.sm_scale
        bounds["dk"][b, h, :, keys] = (behind.mT @ q_norm).sum(2)[:, :, None, :, 0] * call.sm_scale
        bounds["dv"][b, h, :, keys] = ((p * keep).mT @ dout_norm).sum(2)[:, :, None, :, 0]
        if call.bias is not None:
            made["dbias"][b, h, :, rows, keys] = rounded(dscores)
            bounds["dbias"][b, h, :, rows] = _norm(behind)
        if call.sinks is not None:
            made["dsinks"][0, h] -= (p_sink * delta).sum((0, -1))
            bounds["dsinks"][0, h] += (p_sink * (dout_norm * out_norm)[..., 0]).sum((0, -1))

        least = SMALLEST_NORMAL.get(str(call.q.dtype).rpartition(".")[2], 0.0)
        of_delta = dout_norm * xp.clip(out_norm / math.sqrt(width_v), least, None)
        moved["dq"][b, h, :, rows] = (of_delta * _norm(p @ k)[..., None])[..., 0] * call.sm_scale
        squares = ((p * of_delta * q_norm) ** 2).sum((2, -2))[:, :, None]
        moved["dk"][b, h, :, keys] = xp.sqrt(squares) * call.sm_scale
        if call.bias is not None:
            moved["dbias"][b, h, :, rows] = of_delta[..., 0] * _norm(p)
        if call.sinks is not None:
            moved["dsinks"][0, h] += ((p_sink * of_delta[..., 0]) ** 2).sum((0, -1))

    if call.sinks is not None:
        moved["dsinks"] = xp.sqrt(moved["dsinks"])

    def ungrouped(results: dict[str, Array]) -> dict[str, Array]:
        flat = {name: x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]) for name, x in results.items()}
        return {name: x[0] if name == "dsinks" else x for name, x in flat.items()}

    none: dict[str, Array] = {"dbias": None, "dsinks": None}
    return Results(**{**none, **ungrouped(made)}, bounds=ungrouped(bounds), through_out=ungrouped(moved))


def hidden(call: Call, row: Array, key: Array, count_q: int, count_k: int) -> Array:
    """Which of the keys each of the rows does not see, in a sequence of so many."""
    own = row + (count_k - count_q if call.causal_variant == "bottom_right" else 0)
    nothing = (key < 0) | (row < 0)
    late = key > own if call.causal else nothing
    left = own - key > call.window_left if call.window_left >= 0 else nothing
    right = key - own > call.window_right if call.window_right >= 0 else nothing
    return late | left | right


# ---- how near to the truth a result must be --------------------------------------------------------------------------

# Of float32 sums of so many terms, relative to the sum of their magnitudes. A sum that runs along the keys is rescaled
# at each of its steps, and what that rounds adds up.
FLOAT32_NOISE, TERMS = 2.0**-20, 4096
FLUSHED = 1e-35  # hardware takes numbers below 1e-38 for zero, and so may sums of them
SMALLEST_NORMAL = {"float16": 2.0**-14}  # less is rounded as it is, so by more of itself; of other types it is far less
UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24}  # roundoff
SUMMED = ("logsumexp", "dsinks")  # results in float32, each number of which is a row
THROUGH_OUT = ("dq", "dk", "dbias", "dsinks")
THROUGH_WEIGHTS = ("dq", "dk", "dv", "dbias")  # which the backward makes anew, of scores and logsumexp


def check(name: str, result: Array, exact: Results, ordinary: Results, dtype: str, cut: bool = False) -> None:
    """Asserts that ``result`` is at most twice as far from the truth as the ordinary implementation of the call's
    ``dtype``, in total and in its worst row, and minus infinity where the truth is.

    Small terms keep the rule meaningful where the ordinary one is exact by luck: half a unit roundoff of the result,
    float32 rounding of the sums that it came from and of the scores and logsumexp from which the backward makes weights
    anew, and four times what a roundoff of out does to a gradient, which is of its own kind where few keys are seen and
    their terms cancel. ``cut``: the type is rounded towards zero, which
    takes whole units from a weight next to 1, and from the result.
    """
    xp = _library(result)
    true, usual, bound = getattr(exact, name), getattr(ordinary, name), exact.bounds[name]
    true, usual, result = (xp.asarray(x, dtype=xp.float64) for x in (true, usual, result))
    none = true == -INF
    assert bool((none == (result == -INF)).all()), f"{name}: minus infinity is not where no key is seen"
    true, usual, result = (xp.where(none, 0.0, x) for x in (true, usual, result))
    wrong = int(xp.isnan(result).sum())
    assert not wrong, f"{name}: {wrong} of {math.prod(result.shape)} are NaN or unwritten"

    def rows(x: Array) -> Array:
        return abs(x) if name in SUMMED else _norm(x)

    def total(x: Array) -> Array:
        return xp.sqrt((x * x).sum())

    unit = UNIT["fp32" if name == "logsumexp" else dtype]
    noise = FLOAT32_NOISE * max(1.0, exact.dv.shape[2] / TERMS)
    if dtype == "fp32":  # not hidden by roundings to 16 bits: that tensor cores cut off, and what exponents round
        noise *= 8
    if name in THROUGH_WEIGHTS:  # a weight is the exponential of a difference of two numbers that are rounded
        noise += 2 * UNIT["fp32"] * float(xp.amax(exact.bounds["logsumexp"]))
    moved = 4 * UNIT[dtype] * exact.through_out[name] if name in THROUGH_OUT else 0 * bound
    for what, size in (("in total", total), ("in the worst row", xp.amax)):
        error, ordinary_error, scale = (float(size(rows(x))) for x in (result - true, usual - true, true))
        allowed = (
            2 * ordinary_error + (2 if cut else 0.5) * unit * scale + noise * float(size(bound)) + float(size(moved))
        ) + FLUSHED
        assert error <= allowed, (
            f"{name}: error {error:.3g} {what}, allowed {allowed:.3g}"
            f" (ordinary {ordinary_error:.3g}, result {scale:.3g})"
        )


# ---- dropout ---------------------------------------------------------------------------------------------------------

WORD = 0xFFFFFFFF
ROUNDS = 7
NUMBERS = 32768  # of which those below a threshold drop a score


def philox4(seed: int, c0: Array, c1: Array, c2: Array, c3: Array, rounds: int = ROUNDS) -> tuple[Array, ...]:
    """The four words of Philox 4x32 for each counter (Salmon et al., 2011); all are int64 with numbers of 32 bits."""
    k0, k1 = seed & WORD, (seed >> 32) & WORD
    for _ in range(rounds):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # the bits of 64-bit products, whatever their sign
        c0, c1, c2, c3 = (b >> 32) & WORD ^ c1 ^ k0, b & WORD, (a >> 32) & WORD ^ c3 ^ k1, a & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


def philox2(key: Array, c0: Array, c1: Array, rounds: int = ROUNDS) -> tuple[Array, Array]:
    """The two words of Philox 2x32, likewise."""
    for _ in range(rounds):
        product = c0 * 0xD256D193
        c0, c1 = (product >> 32) & WORD ^ c1 ^ key, product & WORD
        key = (key + 0x9E3779B9) & WORD
    return c0, c1


def threshold(dropout: float) -> int:
    """Of NUMBERS numbers, how many drop a score: 255 of 256 at most."""
    return min(math.floor(dropout * NUMBERS + 0.5), NUMBERS - NUMBERS // 256)


def kept(seed: int, offset: int, heads: Array, count_q: int, count_k: int, dropped: int) -> Array:
    """Which scores stay: of ``heads``, which are numbered through all sequences, count_q x count_k each."""
    xp = _library(heads)
    row, key = -(-count_q // 16), -(-count_k // 16)  # of 16 each
    zero = xp.zeros(1, dtype=heads.dtype, device=heads.device)
    of_call, of_keys, of_rows, _ = philox4(seed, zero + (offset & WORD), zero + ((offset >> 32) & WORD), zero, zero)
    c0 = (xp.arange(4 * key, device=heads.device) + of_keys) & WORD
    c1 = (xp.arange(8 * row, device=heads.device)[:, None] + of_rows) & WORD
    of_head = (of_call + heads[..., None, None] * 0xBB67AE85) & WORD
    words = philox2(of_head, c0 + 0 * (c1 + of_head), c1 + 0 * (c0 + of_head))
    turned = [word >> 8 | word << 24 for word in words]
    halves = [half >> at & 0x7FFF for pair in zip(words, turned, strict=True) for half in pair for at in (0, 16)]
    numbers = xp.stack(halves).reshape(2, 2, 2, *heads.shape, row, 8, key, 4)
    # Of a row its 16, its half and its place there, of a key its 16, its half, its pair and its place in that
    numbers = xp.moveaxis(numbers, (0, 1, 2), (-6, -3, -1)).reshape(*heads.shape, 16 * row, 16 * key)
    return numbers[..., :count_q, :count_k] >= dropped


def _keep(call: Call, part: Part, count_q: int, count_k: int, dtype: Any) -> Array:
    """What scores of a part are multiplied by: 0, or 1 / (1 - p)."""
    xp, device, heads_q = _library(call.q), call.q.device, call.q.shape[1]
    group = heads_q // call.k.shape[1]
    sequences = part.sequence + xp.arange(part.batches.stop - part.batches.start, device=device)
    heads_k = xp.arange(part.heads.start, part.heads.stop, device=device)
    heads = heads_k[:, None] * group + xp.arange(group, device=device)
    dropped = threshold(call.dropout)
    numbers = sequences[:, None, None] * heads_q + heads
    stay = kept(call.dropout_seed, call.dropout_offset, numbers, count_q, count_k, dropped)
    return xp.asarray(stay, dtype=dtype) * (NUMBERS / (NUMBERS - dropped))


# ---- what is worked out at once --------------------------------------------------------------------------------------


def _parts(call: Call) -> Iterator[Part]:
    (batch, heads_q, seqlen_q, _), seqlen_k = call.q.shape, call.k.shape[2]
    if call.cu_seqlens_q is None and call.seqused_q is None and call.seqused_k is None:
        together = max(1, MOST_SCORES // max(1, heads_q * seqlen_q * seqlen_k))
        for first in range(0, batch, together):
            batches = slice(first, min(first + together, batch))
            yield from _of_heads(call, batches, slice(0, seqlen_q), slice(0, seqlen_k), first)
        return
    sequences = batch if call.cu_seqlens_q is None else len(call.cu_seqlens_q) - 1
    for z in range(sequences):
        rows_q = _rows(call.cu_seqlens_q, call.seqused_q, z, seqlen_q)
        rows_k = _rows(call.cu_seqlens_k, call.seqused_k, z, seqlen_k)
        place = z if call.cu_seqlens_q is None else 0
        yield from _of_heads(call, slice(place, place + 1), rows_q, rows_k, z)


def _rows(starts: Array | None, used: Array | None, z: int, length: int) -> slice:
    first, end = (0, length) if starts is None else (int(starts[z]), int(starts[z + 1]))
    return slice(first, end if used is None else first + int(used[z]))


def _of_heads(call: Call, batches: slice, rows_q: slice, rows_k: slice, sequence: int) -> Iterator[Part]:
    heads_k, group = call.k.shape[1], call.q.shape[1] // call.k.shape[1]
    scores = (batches.stop - batches.start) * group * (rows_q.stop - rows_q.start) * (rows_k.stop - rows_k.start)
    together = max(1, MOST_SCORES // max(1, scores))
    for first in range(0, heads_k, together):
        yield Part(batches, slice(first, min(first + together, heads_k)), rows_q, rows_k, sequence)


def _library(x: Array) -> Any:
    """numpy or torch, whose array it is; they have the same names for all that is used here."""
    return sys.modules[type(x).__module__.partition(".")[0]]


def _norm(x: Array) -> Array:
    return _library(x).sqrt((x * x).sum(-1))
