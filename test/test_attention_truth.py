"""Attention in float64 with all features, by formulas written out, by finite differences and by identities."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from attention_cases import OPTIONS, SEQUENCES, VALUES, Case, covering, inputs, possible, random_cases
from attention_truth import NUMBERS, WORD, Call, Results, check, kept, ordinary, philox2, philox4, threshold, truth

from aotriton.rules.flash.features import DBIAS, FEATURES, FP8_KEYS, FP8_Q, OWN_LAST, PAGES, WINDOW

ALL: dict[str, Any] = {"group": 2, "alibi": "batch", "sinks": True, "heads_k": 1, "head_dim": 8}
WHOLE = Case((6, 6), (9, 9), **ALL)
DROPPED = replace(WHOLE, bias="hiding", dropout=0.3, causal=True, causal_variant="bottom_right", used_k=(9, 4))
CAPPED = replace(WHOLE, softcap=2.0, window=(4, 2), used_q=(6, 0))
PACKED = Case((5, 0, 3, 1), (4, 6, 7, 0), packed=True, beyond=2, dropout=0.3, **(ALL | {"alibi": "heads"}))
RESULTS = ("out", "logsumexp", "dq", "dk", "dv", "dbias", "dsinks")


def call_of(case: Case) -> Call:
    given: dict[str, Any] = inputs(case)
    scalars = {name: value for name, value in case.scalars.items() if not name.startswith("max_seqlen")}
    call = Call(**given, **scalars, sm_scale=case.sm_scale, dropout_seed=case.seed, dropout_offset=case.offset)
    if case.bias:
        call.bias = np.broadcast_to(given["bias"], case.bias_shape)
    return call


def sequences(case: Case) -> list[tuple[int, int, int, int, int]]:
    """Of each sequence: its place in the batch, its first rows of q and k, and how many of them count."""
    found, row, key = [], 0, 0
    pairs = zip(
        case.lengths_q, case.lengths_k, case.used_q or case.lengths_q, case.used_k or case.lengths_k, strict=True
    )
    for z, (length_q, length_k, used_q, used_k) in enumerate(pairs):
        found.append((0, row, key, used_q, used_k) if case.packed else (z, 0, 0, used_q, used_k))
        row, key = row + length_q, key + length_k
    return found


# ---- Philox ----------------------------------------------------------------------------------------------------------

# Random123's kat_vectors of philox4x32 and philox2x32: rounds, key, counter, words.
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
KNOWN = (
    (7, 0, (0, 0, 0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (7, -1, (WORD,) * 4, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (7, 0x299F31D0A4093822, PI, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
    (10, 0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (10, -1, (WORD,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (10, 0x299F31D0A4093822, PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    (7, 0, (0, 0), (0x257A3673, 0xCD26BE2A)),
    (7, WORD, (WORD, WORD), (0xAB302C4D, 0x3DC9D239)),
    (7, 0x13198A2E, PI[:2], (0xBEDBBE6B, 0xE4C770B3)),
    (10, 0, (0, 0), (0xFF1DAE59, 0x6CD10DF2)),
    (10, WORD, (WORD, WORD), (0x2C3F628B, 0xAB4FD7AD)),
    (10, 0x13198A2E, PI[:2], (0xDD7CE038, 0xF62A4C12)),
)


@pytest.mark.parametrize(("rounds", "key", "counter", "words"), KNOWN)
def test_philox_has_the_words_that_its_authors_publish(
    rounds: int, key: int, counter: tuple[int, ...], words: tuple[int, ...]
) -> None:
    """For counters and keys of zeros, of ones and of pi."""
    c0, c1, *others = (np.array([one]) for one in counter)
    found: tuple[Any, ...] = philox2(np.array([key]), c0, c1, rounds)
    if others:
        found = philox4(key, c0, c1, others[0], others[1], rounds)
    assert tuple(int(one[0]) for one in found) == words


def test_philox_is_tritons() -> None:
    """tl.philox, run by the interpreter, gives the same words for random seeds and counters, of all bits."""
    pytest.importorskip("triton")
    import interpreted_philox

    rng = np.random.default_rng(1)
    counters = rng.integers(0, 1 << 32, (4, 64))
    seeds = [0, -1, -(1 << 63), *map(int, rng.integers(-(1 << 63), (1 << 63) - 1, 5))]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for seed in seeds:
            theirs = pool.submit(interpreted_philox.words, seed, counters).result()
            assert np.array_equal(theirs, np.stack(philox4(seed, *counters)))


def number_of(seed: int, offset: int, head: int, i: int, j: int) -> int:
    """Score j of row i has word i / 8 % 2 of a counter, turned by a byte where j / 8 is odd: of that the low half where
    j is even, else the high half, without its highest bit.
    """
    key, of_keys, of_rows, _ = philox4(seed, *(np.array([one]) for one in (offset & WORD, (offset >> 32) & WORD, 0, 0)))
    counter = 4 * (j // 16) + j % 8 // 2 + of_keys & WORD, 8 * (i // 16) + i % 8 + of_rows & WORD
    word = int(philox2(key + head * 0xBB67AE85 & WORD, *counter)[i // 8 % 2][0])
    if j // 8 % 2:
        word = word >> 8 | (word & 0xFF) << 24
    return word >> 16 * (j % 2) & 0x7FFF


def test_a_score_has_its_half_of_a_word() -> None:
    """Numbers below the threshold are dropped."""
    seed, offset, head, dropped = 5, (3 << 32) | 7, (1 << 31) - 1, 10_000
    found = kept(seed, offset, np.array([[head]]), 19, 37, dropped)
    for i in range(19):
        for j in range(37):
            assert found[0, 0, i, j] == (number_of(seed, offset, head, i, j) >= dropped)


def test_the_share_of_dropped_scores_is_the_probability() -> None:
    """Within what 2^18 fair draws allow; a threshold is rounded, and never drops everything."""
    for dropout in (0.1, 0.5, 0.9):
        found = kept(9, 0, np.arange(4)[None], 256, 256, threshold(dropout))
        assert abs(found.mean() - (1 - dropout)) < 4 * math.sqrt(dropout * (1 - dropout) / found.size)
    assert [threshold(one) for one in (0.0, 1e-5, 0.1, 0.999999)] == [0, 0, 3277, 32640]


@pytest.mark.parametrize("dropout", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_scores_that_share_a_counter_are_dropped_as_if_they_were_independent(dropout: float) -> None:
    """Any two of its eight, together as often as the product of their chances: within what 2^19 draws allow, and one
    part in 128, as eight bits of each number are those of others, too.
    """
    heads = 32
    dropped = ~kept(3, 8, np.arange(heads)[None], 512, 512, threshold(dropout))[0]
    dropped = dropped.reshape(heads, 32, 2, 8, 32, 2, 4, 2)  # halves of 16 rows and of 16 keys, and keys of a pair
    eight = np.moveaxis(dropped, (2, 5, 7), (0, 1, 2)).reshape(8, -1)
    chance = threshold(dropout) / NUMBERS
    for one in range(8):
        for other in range(one):
            found = (eight[one] & eight[other]).mean()
            spread = math.sqrt(chance**2 * (1 - chance**2) / eight.shape[1])
            assert abs(found - chance**2) < 5 * spread + chance**2 / 128, (one, other)


def test_heads_sequences_and_calls_are_dropped_as_if_they_were_independent() -> None:
    """Masks of two heads, and of one head of two offsets and of two seeds, agree as often as chance has it."""
    rate = threshold(0.3)
    chance = rate / NUMBERS
    first = kept(1, 0, np.arange(2)[None], 512, 512, rate)[0]
    calls = ((1, 1), (1, 1 << 32), (2, 0))
    others = [first[1], *(kept(*call, np.arange(1)[None], 512, 512, rate)[0, 0] for call in calls)]
    agree = chance**2 + (1 - chance) ** 2
    for other in others:
        assert abs((first[0] == other).mean() - agree) < 5 * math.sqrt(agree * (1 - agree) / other.size)


# ---- by formulas and differences -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [DROPPED, CAPPED, PACKED, *covering(9, {**OPTIONS, "head_dim": (8,)})], ids=str)
def test_forward_is_the_formula_pair_by_pair(case: Case) -> None:
    """Each score, weight and output is what the definition says, worked out with numbers instead of arrays."""
    call = call_of(case)
    results = truth(call)
    out, lse = np.zeros(case.out_shape), np.full(case.q_shape[:3], -np.inf)
    for z, (b, row, key, used_q, used_k) in enumerate(sequences(case)):
        for h in range(case.heads_q):
            for i in range(used_q):
                x = [score(case, call, z, (b, h, row, key), i, j, used_q, used_k) for j in range(used_k)]
                total = sum(map(math.exp, x)) + (math.exp(call.sinks[h]) if case.sinks else 0)
                if total:
                    lse[b, h, row + i] = math.log(total)
                    for j in range(used_k):
                        weight = math.exp(x[j] - lse[b, h, row + i]) * keeping(case, z, h, i, j)
                        out[b, h, row + i] += weight * call.v[b, h // case.group, key + j]
    assert np.allclose(results.logsumexp, lse, rtol=1e-12, atol=1e-12)
    assert np.allclose(results.out, out, rtol=1e-12, atol=1e-12)


def score(
    case: Case, call: Call, z: int, at: tuple[int, int, int, int], i: int, j: int, used_q: int, used_k: int
) -> float:
    b, h, row, key = at
    own = i + (used_k - used_q if case.causal_variant == "bottom_right" else 0)
    left, right = case.window
    if (case.causal and j > own) or (left >= 0 and j < own - left) or (right >= 0 and j > own + right):
        return -math.inf
    x = case.sm_scale * float(call.q[b, h, row + i] @ call.k[b, h // case.group, key + j])
    if case.softcap:
        x = case.softcap * math.tanh(x / case.softcap)
    if case.alibi:
        x -= call.alibi_slopes[z if case.alibi == "batch" else 0, h] * abs(i + used_k - used_q - j)
    return x + (float(call.bias[b, h, i, j]) if case.bias else 0.0)


def keeping(case: Case, z: int, h: int, i: int, j: int) -> float:
    if not case.dropout:
        return 1.0
    dropped = math.floor(case.dropout * NUMBERS + 0.5)
    number = number_of(case.seed, case.offset, z * case.heads_q + h, i, j)
    return NUMBERS / (NUMBERS - dropped) if number >= dropped else 0.0


@pytest.mark.parametrize("case", [DROPPED, CAPPED, PACKED], ids=str)
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_gradients_are_slopes_of_the_forward(case: Case, name: str) -> None:
    """Along random directions the forward's results, times dout, change as the gradients say."""
    call = call_of(case)
    if getattr(call, name) is None:
        return
    rng = np.random.default_rng(3)
    gradient = getattr(truth(call), f"d{name}")
    for _ in range(3):
        direction = rng.standard_normal(getattr(call, name).shape)

        def change(step: float, direction: np.ndarray = direction) -> float:
            moved = truth(replace(call, **{name: getattr(call, name) + step * direction}))
            return float((moved.out * np.nan_to_num(call.dout)).sum())

        slope = (change(1e-6) - change(-1e-6)) / 2e-6
        assert math.isclose(slope, float((gradient * direction).sum()), rel_tol=1e-6, abs_tol=1e-7)


# ---- identities ------------------------------------------------------------------------------------------------------


def assert_alike(one: Results, other: Results, *names: str) -> None:
    for name in names or RESULTS:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        assert a is None or np.allclose(a, b, rtol=1e-12, atol=1e-13), name


def test_a_packed_call_is_its_sequences_one_by_one() -> None:
    """Each has the results that it has alone, in a batch; dsinks is their sum; rows of no sequence have none."""
    case = replace(PACKED, dropout=0.0, used_k=(3, 6, 7, 0), causal=True, causal_variant="bottom_right")
    call = call_of(case)
    found, dsinks = truth(call), np.zeros(case.heads_q)
    seen_q, seen_k = np.zeros(case.rows_q, bool), np.zeros(case.rows_k, bool)
    for _, row, key, used_q, used_k in sequences(case):
        rows, keys = slice(row, row + used_q), slice(key, key + used_k)
        alone = truth(
            Call(
                call.q[:, :, rows],
                call.k[:, :, keys],
                call.v[:, :, keys],
                call.dout[:, :, rows],
                call.sm_scale,
                causal=True,
                causal_variant="bottom_right",
                sinks=call.sinks,
                alibi_slopes=call.alibi_slopes,
            )
        )
        dsinks += alone.dsinks
        for name in ("out", "logsumexp", "dq"):
            assert np.allclose(getattr(found, name)[:, :, rows], getattr(alone, name), rtol=1e-12, atol=1e-13)
        for name in ("dk", "dv"):
            assert np.allclose(getattr(found, name)[:, :, keys], getattr(alone, name), rtol=1e-12, atol=1e-13)
        seen_q[rows], seen_k[keys] = True, True
    assert np.allclose(found.dsinks, dsinks, rtol=1e-12)
    assert not found.out[:, :, ~seen_q].any()
    assert not found.dq[:, :, ~seen_q].any()
    assert (found.logsumexp[:, :, ~seen_q] == -np.inf).all()
    assert not found.dk[:, :, ~seen_k].any()
    assert not found.dv[:, :, ~seen_k].any()
    assert not seen_q.all()
    assert not seen_k.all()


def test_heads_together_are_heads_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is worked out at once, results are the same."""
    cases = [WHOLE, replace(WHOLE, heads_k=3, bias="hiding", dropout=0.3, alibi="heads"), PACKED]
    together = [truth(call_of(case)) for case in cases]
    monkeypatch.setattr("attention_truth.MOST_SCORES", 1)
    for case, wanted in zip(cases, together, strict=True):
        assert_alike(truth(call_of(case)), wanted)


def test_a_window_without_what_follows_is_causal() -> None:
    """window (-1, 0) hides what a causal mask hides, for both variants and any lengths."""
    for case in (WHOLE, replace(WHOLE, lengths_q=(9, 9), lengths_k=(6, 6)), PACKED, replace(WHOLE, used_k=(9, 3))):
        for variant in ("top_left", "bottom_right"):
            causal = truth(call_of(replace(case, causal=True, causal_variant=variant)))
            assert_alike(truth(call_of(replace(case, window=(-1, 0), causal_variant=variant))), causal)


def test_alibi_is_a_bias() -> None:
    """Minus the slope, times how far a key is from the own key at the end."""
    call = call_of(replace(WHOLE, causal=True))
    distance = abs(np.arange(6)[:, None] + 3 - np.arange(9))
    slopes = np.broadcast_to(call.alibi_slopes, (2, 2))[:, :, None, None]
    assert_alike(truth(replace(call, alibi_slopes=None, bias=-slopes * distance)), truth(call), *RESULTS[:5], "dsinks")


def test_a_mask_is_a_bias_of_minus_infinity() -> None:
    """A bias that hides a causal mask's pairs gives a causal call's results."""
    call = call_of(replace(WHOLE, causal=True, sinks=False))
    hidden = np.broadcast_to(np.where(np.arange(9) > np.arange(6)[:, None], -np.inf, 0.0), (2, 2, 6, 9))
    assert_alike(truth(replace(call, causal=False, bias=hidden)), truth(call), *RESULTS[:5])


def test_a_sink_is_a_key_without_a_value() -> None:
    """One more key, whose score is the sink and whose value is zero, gives the same, and dsinks by its bias."""
    call = call_of(replace(WHOLE, alibi="", group=2))
    more = np.zeros((2, 1, 1, 8))
    bias = np.zeros((2, 2, 6, 10))
    bias[..., 9] = call.sinks[:, None]
    with_key = truth(
        replace(call, k=np.concatenate([call.k, more], 2), v=np.concatenate([call.v, more], 2), sinks=None, bias=bias)
    )
    found = truth(call)
    assert_alike(with_key, found, "out", "logsumexp", "dq")
    assert np.allclose(with_key.dk[:, :, :9], found.dk)
    assert np.allclose(with_key.dv[:, :, :9], found.dv)
    assert np.allclose(with_key.dbias[..., 9].sum((0, 2)), found.dsinks)
    assert_alike(truth(replace(call, sinks=np.full(2, -np.inf))), truth(replace(call, sinks=None)), *RESULTS[:5])


def test_a_huge_softcap_is_none() -> None:
    """A cap far above all scores changes nothing that double precision shows."""
    call = call_of(replace(WHOLE, spread=0.3))
    capped, plain = truth(replace(call, softcap=1e6)), truth(call)
    for name in RESULTS[:5]:
        assert np.allclose(getattr(capped, name), getattr(plain, name), rtol=1e-9, atol=1e-9)


def test_rows_that_see_nothing_have_zeros() -> None:
    """Whatever hides all keys: out and gradients are 0, logsumexp is minus infinity, and nothing is NaN."""
    hidden = np.broadcast_to(np.full(9, -np.inf), (2, 2, 6, 9))
    plain = call_of(replace(WHOLE, sinks=False, alibi=""))
    for call in (
        replace(plain, bias=hidden),
        replace(plain, seqused_k=np.zeros(2, np.int32)),
        replace(plain, window_left=0, window_right=0, seqused_q=np.zeros(2, np.int32)),
        call_of(replace(WHOLE, sinks=False, alibi="", used_q=(0, 0))),
    ):
        found = truth(call)
        for name in ("out", "dq", "dk", "dv"):
            assert not getattr(found, name).any(), name
        assert (found.logsumexp == -np.inf).all()


def test_without_a_key_a_sink_is_all_there_is() -> None:
    """Out is 0 and logsumexp the sink."""
    call = call_of(replace(WHOLE, used_k=(0, 0)))
    found = truth(call)
    assert not found.out.any()
    assert not found.dsinks.any()
    assert np.allclose(found.logsumexp, call.sinks[:, None])


# ---- the cases, and what is near enough ------------------------------------------------------------------------------


def test_the_cases_have_every_feature_that_a_kernel_has() -> None:
    """Each of the table is an option, or what a mask, a bias, or a case of pages or of 8 bits asks for; the cases have
    all options.
    """
    options = {*VALUES, *(one for features in SEQUENCES.values() for one in features)}
    assert options | {WINDOW, OWN_LAST, DBIAS, PAGES, FP8_KEYS, FP8_Q} == {*FEATURES}
    assert {one for case in covering(70) for one in case.features} == options


def test_the_cases_have_every_pair_of_options() -> None:
    """Each pair of a mask, a kind of lengths, features and so on that the library takes is in some call."""
    rows = covering(70)
    names = [name for name in OPTIONS if name not in ("mask", "lengths", "sequences", "addressing")]
    for name in names:
        for other in names:
            pairs = {(getattr(case, name), getattr(case, other)) for case in rows}
            wanted = {(a, b) for a in OPTIONS[name] for b in OPTIONS[other] if possible({name: a, other: b})}
            assert name == other or wanted <= pairs
    assert len(rows) < 80
    assert any(0 in case.lengths_q for case in rows)
    assert any(0 in case.lengths_k for case in rows)
    assert {case.used_k is None for case in random_cases(50, 1, 300)} == {True, False}


@pytest.mark.parametrize("case", [DROPPED, CAPPED, PACKED, *covering(9, {**OPTIONS, "head_dim": (8,)})], ids=str)
def test_an_ordinary_implementation_has_no_more_than_float32(case: Case) -> None:
    """Whatever is rounded to the call's type was computed in float32, with each feature."""
    seen = set()

    def rounded(values: np.ndarray) -> np.ndarray:
        seen.add(values.dtype.name)
        return values.astype(np.float32)

    ordinary(call_of(case), rounded)
    assert seen == {"float32"}


def low(call: Call) -> Results:
    return ordinary(call, lambda x: x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("case", [DROPPED, CAPPED, PACKED], ids=str)
def test_an_ordinary_implementation_is_near_enough_and_a_wrong_one_is_not(case: Case) -> None:
    """Every result of low precision passes; where a call differs by a few per cent, some result does not."""
    call = call_of(case)
    exact_in_low = {name: getattr(call, name).astype(np.float16).astype(np.float64) for name in ("q", "k", "v", "dout")}
    call = replace(call, **exact_in_low)
    exact, plain = truth(call), low(call)
    names = [name for name in RESULTS if getattr(exact, name) is not None]

    def refused(results: Results) -> list[str]:
        found = []
        for name in names:
            try:
                check(name, getattr(results, name), exact, plain, "fp16")
            except AssertionError as error:
                found.append(str(error).partition(":")[0])
        return found

    assert not refused(plain)
    changes: list[dict[str, Any]] = [{"sinks": call.sinks + 0.05}, {"alibi_slopes": call.alibi_slopes * 1.05}]
    changes += [{"dropout_offset": call.dropout_offset + 1}] if case.dropout else []
    changes += [{"softcap": 1.05 * call.softcap}] if case.softcap else []
    changes += [{"bias": call.bias * 1.02}] if case.bias else []
    for change in changes:
        found = refused(low(replace(call, **change)))
        assert {"out", "dv"} <= set(found), (change.keys(), found)
    assert refused(replace(exact, dq=exact.dq * np.nan, dsinks=exact.dsinks * 1.1)) == ["dq", "dsinks"]


def test_what_fp16_loses_of_an_out_below_its_normal_numbers_is_allowed() -> None:
    """Beside large sinks, weights and out are near nothing, and dsinks is of what is left of out."""
    call = call_of(Case((40,), (40,), sinks=True, heads_k=2, head_dim=64))
    for name in ("q", "k", "v", "dout"):
        setattr(call, name, getattr(call, name).astype(np.float16))
    call.sinks = call.sinks + 20.0
    exact = truth(call)
    assert 0 < abs(exact.out).max() < 2.0**-16
    weight = np.exp(call.sinks[None, :, None] - exact.logsumexp)
    delta = (call.dout * exact.out.astype(np.float16).astype(float)).sum(-1)
    found = -(weight * delta).sum((0, 2))
    usual = ordinary(call, lambda x: x)  # which is exact by luck
    check("dsinks", found, exact, usual, "fp16")
    with pytest.raises(AssertionError, match="dsinks"):
        check("dsinks", found + 1e-5, exact, usual, "fp16")
