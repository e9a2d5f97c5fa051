"""Calls that append to a cache of keys and values, without a GPU: which the library takes, and which it refuses.

Run by ctest, which says where the binding is.
"""

from __future__ import annotations

import pytest

aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

from test_feature_calls import (  # noqa: E402 - it needs the binding
    Apart,
    Arguments,
    Change,
    floats,
    made,
    refused,
    taken,
    whole,
)


def dense() -> Arguments:
    """Two tokens of each of three sequences, with room for 40 keys."""
    new = {"k": made(3, 2, 2, 64), "v": made(3, 2, 2, 48)}
    return new | {"k_cache": made(3, 2, 40, 64), "v_cache": made(3, 2, 40, 48), "seqused_k": whole(3)}


def paged() -> Arguments:
    """The same with 9 pages of 16 rows, 3 of a sequence."""
    pages = {"k_cache": made(9, 2, 16, 64), "v_cache": made(9, 2, 16, 48)}
    return dense() | pages | {"block_table": made(3, 3, dtype="int32")}


def packed() -> Arguments:
    """What makes them packed ones."""
    return {"k": made(1, 2, 6, 64), "v": made(1, 2, 6, 48), "cu_seqlens_k": whole(4)}


def rotary(pairs: int = 32) -> Arguments:
    return {"rotary_cos": floats(100, pairs), "rotary_sin": floats(100, pairs)}


def side_by_side() -> Arguments:
    """q, k and v in the rows of one tensor, keys and values in the pages of another."""
    heads = {"q": 4, "k": 2, "v": 2}
    row, begin, found = 8 * 64, 0, {}
    for name, count in heads.items():
        steps = (2 * row, 64, row, 1)
        found[name] = Apart(3, count, 2, 64, steps=steps, address=(1 << 50) + 2 * begin)
        begin += count * 64
    page = 16 * 2 * 64
    for place, name in enumerate(("k_cache", "v_cache")):
        steps = (2 * page, 64, 2 * 64, 1)
        found[name] = Apart(9, 2, 16, 64, steps=steps, address=(1 << 52) + 2 * place * page)
    return found | rotary()


RIGHT: dict[str, Change] = {
    "keys and values": dict,
    "packed": packed,
    "rotated": rotary,
    "a part rotated": lambda: rotary(5) | {"rotary_interleaved": True},
    "with queries": lambda: rotary() | {"q": made(3, 6, 2, 64)},
    "packed, with queries": lambda: packed() | rotary() | {"q": made(1, 2, 6, 64)},
    "cos and sin in one tensor": lambda: {
        f"rotary_{name}": Apart(100, 32, dtype="float32", steps=(64, 1), address=(1 << 50) + 128 * place)
        for place, name in enumerate(("cos", "sin"))
    },
    "float32": lambda: (
        {name: floats(*one.shape) for name, one in dense().items() if name in ("k", "v")}
        | {name: floats(*one.shape) for name, one in paged().items() if name.endswith("cache")}
        | {"block_table": made(3, 3, dtype="int32")}
    ),
    "no sequences": lambda: (
        {name: made(0, *one.shape[1:]) for name, one in dense().items() if name in ("k", "v")}
        | {"seqused_k": whole(0), "block_table": made(0, 3, dtype="int32")}
    ),
}
WRONG: dict[str, tuple[Change, str, str]] = {
    "cos alone": (lambda: rotary() | {"rotary_sin": None}, "null_pointer", "rotary_sin"),
    "sin alone": (lambda: rotary() | {"rotary_cos": None}, "null_pointer", "rotary_cos"),
    "cos in bf16": (lambda: rotary() | {"rotary_cos": made(100, 32)}, "invalid_dtype", "rotary_cos"),
    "sin of other positions": (lambda: rotary() | {"rotary_sin": floats(99, 32)}, "invalid_shape", "rotary_sin"),
    "more pairs than the head dim has": (lambda: rotary(33), "invalid_shape", "rotary_pairs 33"),
    "queries without a rotation": (lambda: {"q": made(3, 4, 2, 64)}, "null_pointer", "rotary_cos"),
    "queries of another length": (lambda: rotary() | {"q": made(3, 4, 1, 64)}, "invalid_shape", "seqlen_new"),
    "values of other heads": (lambda: {"v": made(3, 1, 2, 48)}, "invalid_shape", "heads_k"),
    "a cache of another head dim": (lambda: {"v_cache": made(9, 2, 16, 64)}, "invalid_shape", "head_dim_v"),
    "a cache of another type": (lambda: {"v_cache": made(9, 2, 16, 48, dtype="float16")}, "invalid_dtype", "v_cache"),
    "lengths of another number": (lambda: {"seqused_k": whole(2)}, "invalid_shape", "sequences"),
    "batch of another number": (
        lambda: {"k": made(2, 2, 2, 64), "v": made(2, 2, 2, 48)},
        "invalid_shape",
        "seqused_k has 3 lengths, there are 2 sequences",
    ),
    "starts of another number": (
        lambda: packed() | {"cu_seqlens_k": whole(3)},
        "invalid_shape",
        "are 2 sequences",
    ),
    "packed with batch 3": (lambda: {"cu_seqlens_k": whole(4)}, "invalid_shape", "batch 3"),
    "lengths in int64": (lambda: {"seqused_k": whole(3, "int64")}, "invalid_dtype", "seqused_k"),
    "a cache whose heads are one": (
        lambda: {"k_cache": Apart(9, 2, 16, 64, steps=(1024, 0, 64, 1), address=1 << 50)},
        "invalid_stride",
        "k_cache is written",
    ),
    "columns apart in k": (
        lambda: {"k": Apart(3, 2, 2, 64, steps=(512, 256, 128, 2), address=1 << 50)},
        "invalid_stride",
        "k",
    ),
    "a cache for keys and values": (
        lambda: dict.fromkeys(("v_cache", "k_cache"), made(9, 2, 16, 64)) | {"v": made(3, 2, 2, 64)},
        "invalid_stride",
        "k_cache and v_cache are written",
    ),
    "queries that are the keys": (
        lambda: rotary() | dict.fromkeys(("q", "k"), made(3, 2, 2, 64)),
        "invalid_stride",
        "q is written and k is read",
    ),
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_makes_sense_is_taken(what: str) -> None:
    """The checks let such calls pass, with pages and, where only these differ, without."""
    changed = RIGHT[what]()
    taken(aotriton.kv_append, paged() | changed)
    if not changed.keys() & {"block_table", "k_cache"}:
        taken(aotriton.kv_append, dense() | changed)


def test_tensors_may_lie_side_by_side() -> None:
    """Written queries beside keys, and written keys beside values, share no memory."""
    taken(aotriton.kv_append, paged() | {"v": made(3, 2, 2, 64)} | side_by_side())


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_name_what_is_wrong(what: str) -> None:
    change, code, words = WRONG[what]
    refused(aotriton.kv_append, paged() | change(), code, words)


def test_a_cache_without_pages_has_a_row_for_each_sequence() -> None:
    """Of a dense cache, the first size is the number of sequences."""
    refused(aotriton.kv_append, dense() | {"k_cache": made(9, 2, 40, 64)}, "invalid_shape", "sequences")
    given = paged() | {"block_table": None}
    refused(aotriton.kv_append, given, "invalid_shape", "sequences")


def test_explanations_are_of_the_only_kernel() -> None:
    """Of calls with pages, and without."""
    sizes = {"batch": 3, "heads_k": 2, "seqlen_new": 1, "head_dim": 64, "sequences": 3}
    of_pages = {"pages": 9, "page_size": 16, "pages_of_sequence": 3, "block_table": True}
    of_rotary = {"q": True, "heads_q": 8, "rotary_cos": True, "rotary_sin": True, "positions": 100, "rotary_pairs": 32}
    for arch in ("sm_90", "gfx942"):
        for more in ({"seqlen_k": 40}, of_pages, of_pages | of_rotary):
            told = aotriton.explain("kv_append", arch=arch, dtype="bf16", **sizes, **more)
            assert [(one["kernel"], one["provenance"]) for one in told] == [("kv_append", "predicted")]
