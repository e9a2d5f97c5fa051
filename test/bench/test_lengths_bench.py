"""The benchmark of choices where lengths are in device memory, without a GPU: its calls, and the table of a record."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import lengths  # they are no package


def test_calls_are_of_each_kind_in_turn_and_the_same_for_a_seed() -> None:
    """Each is causal at the last key, so has as many keys as queries at least; keys fit, and differ in length."""
    found = list(islice(lengths.calls(3), 120))
    assert found == list(islice(lengths.calls(3), 120)) != list(islice(lengths.calls(4), 120))
    kinds = [(op, kind) for kind, (directions, _, _) in lengths.KINDS.items() for op in directions]
    assert [(one.op, one.kind) for one in found] == kinds * (120 // len(kinds))
    for one in found:
        assert all(1 <= q <= k for q, k in zip(one.queries, one.keys, strict=True))
        assert one.heads % one.heads_k == 0
        assert not lengths.too_large(one)
        assert one.kind != "chunks" or len(set(one.queries)) == 1
        assert one.kind != "prompts" or one.queries == one.keys
        assert one.kind in ("mixed", "chunks") or not one.in_pages
    assert {one.spread for one in found} == {"log-normal", "uniform", "equal"}
    assert {one.in_pages for one in found} == {False, True}


def test_regret_is_of_the_fastest_backend() -> None:
    """What the choice took longer, and nothing where its own second timing differs; the worst kind comes first. A
    result has its calls by the seed.
    """
    slow, best = {"chosen": 15.0, "split": 15.0, "hopper_planned": 10.0}, {"chosen": 9.9, "split": 10.0}
    alone = {"chosen": 10.0}
    assert [lengths.regret(one) for one in (slow, best, alone)] == [0.5, 0.0, 0.0]
    record = {"seed": 3, "us": [best, slow, alone]}
    assert lengths.table(record).splitlines()[2:] == [
        "| `attn_fwd` | chunks | 1 | 50.0 % | 50.0 % | 50.0 % | 50.0 % |",
        "| `attn_fwd` | mixed | 1 | 0.0 % | 0.0 % | 0.0 % | 0.0 % |",
        "| `attn_fwd` | prompts | 1 | 0.0 % | 0.0 % | 0.0 % | 0.0 % |",
    ]
    call = list(islice(lengths.calls(3), 2))[1]
    assert lengths.worst(record, 1) == [f"50 %: {call}: chosen 15.0, split 15.0, hopper_planned 10.0 µs"]
