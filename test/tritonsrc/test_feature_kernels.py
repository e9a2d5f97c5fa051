"""The kernels with attention's features, run by Triton's interpreter, against attention in float64."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from attention_cases import Case, covering, inputs, random_cases
from attention_truth import Call, Results, check, kept, ordinary, threshold, truth
from test_kernels import round_to

from aotriton.rules.family import kernel as description_of
from aotriton.rules.flash.features import DBIAS, FULL, GENERAL, OF_FULL, OF_LENGTHS, OWN_LAST, bits
from aotriton.rules.flash.split import Keys
from aotriton.rules.kernel import Tensor

Arrays = dict[str, np.ndarray]
FORWARD = ("attn_fwd",)
BACKWARD = ("attn_bwd_preprocess", "attn_bwd_dk_dv", "attn_bwd_dq")


Tiles = tuple[int, int]  # of queries and of keys
TILES: tuple[Tiles, ...] = ((16, 32), (32, 16), (32, 32), (64, 32), (16, 64), (64, 64))


def tiles_of(case: Case) -> Tiles:
    """The largest of which the longest sequence has more than one, each way: the interpreter takes as long for a small
    tile as for a large one.
    """
    longest = (max(case.used_q or case.lengths_q), max(case.used_k or case.lengths_k))
    of_q, of_k = (max((size for size in (16, 32, 64) if size < one), default=16) for one in longest)
    return of_q, of_k


def call_of(case: Case) -> tuple[Call, Arrays]:
    """The call with operands that are exact in its type, and what kernels are given, by operand."""
    given: dict[str, Any] = inputs(case)
    given |= {name: round_to(case.dtype, given[name]) for name in ("q", "k", "v", "dout", "bias") if name in given}
    given |= {name: round_to("fp32", given[name]) for name in ("alibi_slopes", "sinks") if name in given}
    scalars: dict[str, Any] = {name: value for name, value in case.scalars.items() if not name.startswith("max_seqlen")}
    seeds: dict[str, Any] = {"dropout_seed": case.seed, "dropout_offset": case.offset} if case.dropout else {}
    call = Call(**given, **scalars, **seeds, sm_scale=case.sm_scale)
    if "bias" in given:
        call.bias = np.broadcast_to(given["bias"], case.bias_shape)
    return call, given | {name: np.array([value]) for name, value in seeds.items()}


def plain_of(case: Case, call: Call) -> Results:
    """An ordinary implementation that rounds as the interpreter does."""
    return ordinary(call, lambda x: round_to(case.dtype, x).astype(np.float32))


def checked(case: Case, dbias: bool = False) -> dict[str, Any]:
    """The scalars that the operators' own checks set, for kernels of the lowest level with features."""
    left, right = case.window
    longest_q, longest_k = (max(one) + case.beyond for one in (case.lengths_q, case.lengths_k))
    most = max(longest_q, longest_k)
    last = case.causal_variant == "bottom_right"
    moves = bool(bits(case.features) & OF_LENGTHS)
    own = case.rows_k - case.rows_q if last and not moves else 0
    features = bits((*case.features, *[OWN_LAST] * (last and moves), *[DBIAS] * dbias))
    level = FULL if features & OF_FULL else GENERAL
    return {
        "LEVEL": level,
        "level": level,
        "lo": own - (most if left < 0 else left),
        "hi": own + (0 if case.causal else most if right < 0 else right),
        "features": features,
        "longest_q": longest_q,
        "longest_k": longest_k,
        "packed_sequences": len(case.lengths_q) if case.packed else 1,
    }


def run(
    launch: Any,
    case: Case,
    kernel: str,
    given: Arrays,
    absent: frozenset[str] = frozenset(),
    derived: Mapping[str, int] = MappingProxyType({}),
    multiprocessors: int = 0,
    pages: int = 0,
    keys: Keys = Keys.rows,
    tiles: Tiles | None = None,
) -> Arrays:
    """What the kernel writes, by operand. ``given``: all that there is, of which it takes its own. ``derived``: the
    sizes that its backend derives, on a GPU of so many ``multiprocessors``. ``pages``: the keys that a block table has
    room for; 0 where there is none. ``keys``: their type, where it is of 8 bits. ``tiles``: some that go by the case's
    number where none are said.
    """
    block_m, block_n = tiles or TILES[case.number % len(TILES)]
    dims = {"batch": case.batch, "heads_q": case.heads_q, "heads_k": case.heads_k, "head_dim": case.head_dim}
    dims["head_dim_v"] = case.head_dim_v or case.head_dim
    dims |= {"seqlen_q": case.rows_q, "seqlen_k": pages or case.rows_k, **derived}
    read: Arrays = {}
    written: dict[str, tuple[int, ...]] = {}
    tensors = [one for one in description_of(kernel).arguments if isinstance(one, Tensor)]
    operands = {one.name: one.operand.name for one in tensors}
    for argument in tensors:
        if argument.operand.name in absent:
            continue
        if argument.access == "write":
            written[argument.name] = tuple(dims[dim] for dim in argument.operand.dims)
        elif argument.operand.name in given:
            read[argument.name] = given[argument.operand.name]
    lying = [name for name, like in (read | written).items() if operands[name] in MATRICES]
    odd = {name: 3 for name in lying} if case.layout == "odd" else {}
    odd |= {name: 5 for name, operand in operands.items() if operand in ("bias", "dbias") and case.layout != "heads"}
    values = {
        "T": case.dtype,
        "sm_scale": case.sm_scale,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BF16_PRODUCTS": 0,  # the interpreter has no other
        "AT_ONCE": 8,
        "EARLY": 0,  # there is one kernel at a time
        "multiprocessors": multiprocessors,
        "BLOCK_DMODEL": next(
            (width for width in (32, 64, 128, 256) if max(case.head_dim, case.head_dim_v) <= width), 512
        ),
        "ADDRESSING": case.addressing,
        "softcap": case.softcap,
        "dropout": case.dropout,
        "KEYS": keys + Keys.pages * bool(pages),
        **checked(case, "dbias" in operands.values() and "dbias" not in absent),
    }
    orders = dict.fromkeys(lying, (0, 2, 1, 3)) if case.layout == "rows" else {}
    sizes = dims if derived else {}  # also those that none of its tensors has
    paged = {one.name: one.operand.paged_dims for one in tensors if pages and one.operand.paged_dims}
    results = launch(kernel, read, written, values, odd, absent, orders, paged, sizes)
    return {operands[name]: array for name, array in results.items()}


MATRICES = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")
POISON = {"fp16": np.frombuffer(b"\x7f" * 2, np.float16), "fp32": np.frombuffer(b"\x7f" * 4, np.float32)}
POISON["bf16"] = np.frombuffer(b"\0\0\x7f\x7f", np.float32)


def assert_right(case: Case, call: Call, results: Arrays, exact: Results, plain: Results) -> None:
    """Rows of sequences are right, and rows of none are as they were."""
    rows_q, rows_k = call.owned
    for name, result in results.items():
        if name not in ("dbias", "dsinks"):
            count = rows_k if name in ("dk", "dv") else rows_q
            beyond, poison = result[:, :, count:], POISON["fp32" if name == "logsumexp" else case.dtype]
            same = np.array_equal(beyond, np.broadcast_to(poison.astype(np.float64), beyond.shape), equal_nan=True)
            assert same, f"{name}: rows of no sequence were written"
            result = np.concatenate([result[:, :, :count], np.zeros_like(beyond)], 2)
            if name == "logsumexp":
                result[:, :, count:] = -np.inf
        check(name, result, exact, plain, case.dtype, cut=case.dtype == "bf16")


CASES = [
    *covering(70),
    Case((0, 0, 90, 1, 33), (0, 5, 3, 130, 0), packed=True, causal=True, causal_variant="bottom_right", sinks=True),
    Case((0, 0, 90, 1, 33), (0, 5, 3, 130, 0), packed=True, beyond=40, group=2, addressing="descriptor", sinks=True),
    Case(
        (70, 3, 41),
        (33, 60, 41),
        packed=True,
        used_q=(50, 0, 41),
        used_k=(33, 40, 3),
        causal=True,
        head_dim=40,
        addressing="descriptor",
        dtype="bf16",
    ),
    Case((64,) * 3, (100,) * 3, used_q=(64, 3, 33), used_k=(1, 64, 90), softcap=4.0, addressing="descriptor"),
    Case((33,), (200,), window=(-1, 3), causal_variant="bottom_right", used_k=(77,), softcap=50.0, heads_k=1),
    Case((100,) * 2, (40,) * 2, used_q=(3, 90), bias="hiding", alibi="batch", dropout=0.1, group=2, heads_k=1),
]


BOTTOM_RIGHT: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right"}
# What calls of head dims above 256 have: with it alone they are at a level with features.
WIDE = [
    Case((40,), (40,), causal=True, heads_k=1, group=2, head_dim=512, dtype="bf16", addressing="descriptor"),
    Case((33,), (70,), window=(20, 0), causal_variant="bottom_right", softcap=4.0, sinks=True, heads_k=1, head_dim=257,
         layout="odd", number=1),
    Case((37,) * 2, (50,) * 2, bias="hiding", dropout=0.1, heads_k=1, head_dim=320, head_dim_v=512, dtype="bf16",
         addressing="descriptor", number=2),
    Case((5, 0, 41), (33, 7, 41), packed=True, beyond=6, **BOTTOM_RIGHT, alibi="heads", sinks=True, heads_k=1,
         head_dim=384, head_dim_v=64, addressing="offset32", number=3),
    Case((40,), (45,), alibi="heads", dropout=0.5, heads_k=1, head_dim=64, head_dim_v=300, dtype="fp32", number=4),
    Case((40,) * 2, (40,) * 2, used_q=(17, 40), used_k=(33, 3), softcap=4.0, heads_k=1, head_dim=500, dtype="fp32",
         number=0),
]  # fmt: skip
EVERY = [*CASES, *WIDE]
# Of both kinds that run on a GPU: as short as a tile, and of many.
RANDOM = [*random_cases(50, seed=31, longest=40), *random_cases(100, seed=32, longest=140)]


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_forward(launch: Any, case: Case) -> None:
    """attn_fwd writes out and logsumexp of every pair of features, and nothing outside of them."""
    call, given = call_of(case)
    results = run(launch, case, "attn_fwd", given, tiles=tiles_of(case))
    assert_right(case, call, results, truth(call), plain_of(case, call))


@pytest.mark.parametrize(
    ("packed", "dropout", "tiles"), [(False, 0.1, 0), (True, 0.1, 1), (True, 0.5, 3), (False, 0.9999, 4)]
)
def test_the_mask_of_dropout_is_philoxs_bit_by_bit(launch: Any, packed: bool, dropout: float, tiles: int) -> None:
    """With even weights and an identity of values out is the mask of each head and sequence, whatever the tiles; with
    one of dout so is dv; and with one of keys, where a weight's gradient is what is kept of it, dq.
    """
    count = 40
    case = Case((count,) * 3, (count,) * 3, packed=packed, dropout=dropout, head_dim=count, number=tiles)
    _, given = call_of(case)
    identity = np.broadcast_to(np.eye(count)[np.arange(case.rows_q) % count], case.q_shape)
    given |= {name: np.zeros(case.q_shape) for name in ("q", "k")} | {name: identity for name in ("v", "dout")}
    out = run(launch, case, "attn_fwd", given)
    given |= out | {"delta": (out["out"] * given["dout"]).sum(-1)}
    dv = run(launch, case, "attn_bwd_dk_dv", given)["dv"]
    given |= {"k": identity, "v": np.ones(case.k_shape), "dout": np.ones(case.q_shape)}
    given["delta"] = np.zeros_like(given["delta"])
    dq = run(launch, case, "attn_bwd_dq", given, frozenset({"dbias"}))["dq"]
    numbers = np.arange(3 * case.heads_q).reshape(3, -1)
    mask = kept(case.seed, case.offset, numbers, count, count, threshold(dropout))
    of_dv = mask.swapaxes(-1, -2)
    if packed:
        mask, of_dv = (one.swapaxes(0, 1).reshape(case.q_shape) for one in (mask, of_dv))
    assert np.array_equal(out["out"] != 0, mask)
    assert np.array_equal(dv != 0, of_dv)
    assert np.array_equal(dq != 0, mask)
    assert not mask.all()


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_backward(launch: Any, case: Case) -> None:
    """The backward kernels, given what a forward wrote, write all gradients of every pair of features, and nothing
    outside of them.
    """
    call, given = call_of(case)
    exact, plain = truth(call), plain_of(case, call)
    given |= after_forward(call, exact, plain)
    assert_right(case, call, backward(launch, case, given), exact, plain)


@pytest.mark.parametrize("case", RANDOM, ids=str)
def test_random_calls(launch: Any, case: Case) -> None:
    """A forward, and a backward with what it wrote, write all of their results, and nothing outside of them."""
    call, given = call_of(case)
    results = run(launch, case, "attn_fwd", given, tiles=tiles_of(case))
    results |= backward(launch, case, given | results)
    assert_right(case, call, results, truth(call), plain_of(case, call))


def test_most_random_calls_have_more_than_one_tile_each_way() -> None:
    """All end within a tile, and many have a sequence without queries or keys."""
    many, ends, empty = 0, 0, 0
    for case in RANDOM:
        counts = (case.used_q or case.lengths_q, case.used_k or case.lengths_k)
        (longest_q, longest_k), (of_q, of_k) = map(max, counts), tiles_of(case)
        many += longest_q > of_q and longest_k > of_k
        ends += longest_q % of_q > 0 or longest_k % of_k > 0
        empty += 0 in counts[0] or 0 in counts[1]
    assert many > len(RANDOM) / 2
    assert ends == len(RANDOM)
    assert empty > len(RANDOM) / 4


def backward(launch: Any, case: Case, given: Arrays) -> Arrays:
    """What the kernels write of gradients."""
    tiles = tiles_of(case)
    given = given | run(launch, case, "attn_bwd_preprocess", given, tiles=tiles)
    results = run(launch, case, "attn_bwd_dk_dv", given, tiles=tiles)
    without = frozenset({"dbias"} if not case.bias else ())
    results |= run(launch, case, "attn_bwd_dq", given, without, tiles=tiles)
    if case.sinks:
        results |= run(launch, case, "attn_bwd_dsinks", given, tiles=tiles)
    return results


def after_forward(call: Call, exact: Results, plain: Results) -> Arrays:
    """out and logsumexp as a forward leaves them: not numbers where there is no sequence."""
    rows_q, _ = call.owned
    made = {"out": plain.out.astype(np.float64), "logsumexp": exact.logsumexp.astype(np.float32)}
    for array in made.values():
        array[:, :, rows_q:] = np.nan
    return made
