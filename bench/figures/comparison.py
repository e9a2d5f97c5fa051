"""What results compare the library with, in one form: so README's summary has a row for each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import attention
import band
import decode
import fp8_keys
import fp8_queries
import gemm
import invariant
import latent
import pages
import public_kernels
from contenders import CUDNN, FA2, LIBRARY, PEERS
from decode_calls import PEERS as DECODING_PEERS

from figures.results import Results, day, gpu_of, link, listed

DOOR, OPERATOR = "aotriton in SDPA", "aotriton's operator"  # of bench/pytorch.py, which needs torch
# Of bench/packed_training.py, which needs it, too.
PACKED_WAYS = {
    "aotriton in torch's operator": "this backend in torch's operator",
    "aotriton's flash_attn_varlen_func": "`flash_attn_varlen_func`",
}
PACKED_PEERS = (FA2, "FlexAttention")
FEATURES = {  # of bench/features.py
    "dropout": "dropout",
    "packed": "packed sequences",
    "alibi": "ALiBi",
    "bias": "bias with its gradient",
    "softcap": "softcap",
}
TORCHS = {"memory-efficient": "torch's memory-efficient"}
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """How many times as fast as the best of the ``peers`` the library is, in each call. ``times`` has directions, or
    one part without a name.
    """

    what: str
    peers: tuple[str, ...]
    times: Mapping[str, Sequence[float]]

    @property
    def beside(self) -> str:
        return f"the best of {listed(self.peers)}" if len(self.peers) > 1 else self.peers[0]

    @property
    def means(self) -> list[float]:
        return list(map(geometric_mean, self.times.values()))

    def __str__(self) -> str:
        parts = (
            f"{direction} {geometric_mean(times):.2f} × (at worst {min(times):.2f})".lstrip()
            for direction, times in self.times.items()
        )
        return f"{self.what}, beside {self.beside}: {', '.join(parts)}"


def _there(peers: Iterable[str], rows: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The peers that take part in a row at least."""
    named = {peer for row in rows for peer in row}
    return tuple(peer for peer in peers if peer in named)


def _by_direction(rows: Sequence[Record], ratio: Callable[[Any], float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for direction in attention.DIRECTIONS:
        if mine := [ratio(row) for row in rows if row["direction"] == direction]:
            found[direction] = mine
    return found


def _grid(record: Record) -> Iterator[Comparison]:
    cells = record["cells"]
    peers = _there(PEERS, (cell["ratio"] for cell in cells))
    yield Comparison("attention, a grid of shapes", peers, _by_direction(cells, attention.best))


def _unseen(record: Record) -> Iterator[Comparison]:
    cells = record["cells"]
    peers = _there(PEERS, (cell["us"] for cell in cells))
    yield Comparison("attention, random shapes", peers, _by_direction(cells, lambda cell: float(cell["ratio"])))


def _one_call(record: Record) -> Iterator[Comparison]:
    for clock, what in (("return", "until it returns"), ("gpu", "time of the GPU")):
        times = [min(cell["ratio"][clock].values()) for cell in record["cells"]]
        yield Comparison(f"a small call from C++ (others from Python), {what}", (FA2, CUDNN), {"": times})


def _decoding(record: Record) -> Iterator[Comparison]:
    rows = [*record["rows"], *record["drawn"]]
    if times := [one for one in map(decode.ratio, rows) if one < math.inf]:
        yield Comparison("decoding", _there(DECODING_PEERS, (row["us"] for row in rows)), {"": times})


def _pages(record: Record) -> Iterator[Comparison]:
    for other, what, peer in (
        (pages.CONTIGUOUS, "decoding from pages", "this library, contiguous keys"),
        (pages.FA3, "prompts mixed with decoding, in pages", "FA3 without pages"),
    ):
        rows = [row for row in record["rows"] if other in row["us"]]
        if rows:
            yield Comparison(what, (peer,), {"": [one for row in rows for one in pages.ratios(row).values()]})


def _invariant(record: Record) -> Iterator[Comparison]:
    times = [1 / invariant.ratio(row) for row in record["rows"]]
    yield Comparison("the hint `batch_invariant`", ("this library without it",), {"": times})


def _keys_of_8_bits(record: Record) -> Iterator[Comparison]:
    for calls, chunks in (("decoding", False), ("chunks of prompts", True)):
        rows = [row for row in record["rows"] if fp8_keys.is_chunk(row) == chunks]
        for what, *both in (
            ("keys of 8 bits", fp8_keys.ROWS, fp8_keys.NARROW),
            ("keys of 8 bits in pages", fp8_keys.PAGES, fp8_keys.NARROW_PAGES),
        ):
            times = [fp8_keys.gain(row, *both) for row in rows]
            yield Comparison(f"{calls}, {what}", ("this library, keys of 16 bits",), {"": times})


def _queries_of_8_bits(record: Record) -> Iterator[Comparison]:
    for other, peer in ((fp8_queries.FA3, "FA3 with 8 bits"), (fp8_queries.ROWS, "this library with 16 bits")):
        if times := [one for row in record["rows"] if (one := fp8_queries.times_as_fast(row, other))]:
            yield Comparison("prompts of 8 bits", (peer,), {"": times})


def _latent(record: Record) -> Iterator[Comparison]:
    peers = _there(latent.PEERS, (row["us"] for row in record["rows"]))
    for who, what in ((LIBRARY, "latent caches (DeepSeek)"), (latent.PAGED, "latent caches in pages")):
        if times := [one for row in record["rows"] if (one := latent.ratio(row, who)) < math.inf]:
            yield Comparison(what, peers, {"": times})


def _of_features(record: Record) -> Iterator[Comparison]:
    yield from _by_peer(record["rows"], lambda row: FEATURES[row["case"]["feature"]])


def _band(record: Record) -> Iterator[Comparison]:
    peers = [{**row, "us": {name: us for name, us in row["us"].items() if name != band.FULL}} for row in record["rows"]]
    yield from _by_peer(peers, lambda row: "windows, causal with unequal lengths")


def _by_peer(rows: Sequence[Record], what: Callable[[Record], str]) -> Iterator[Comparison]:
    """Of each kind of rows and each peer in them."""
    for one, peer in dict.fromkeys((what(row), peer) for row in rows for peer in row["us"] if peer != LIBRARY):
        mine = [row for row in rows if what(row) == one and peer in row["us"]]
        times = _by_direction(mine, lambda row, peer=peer: float(row["us"][peer] / row["us"][LIBRARY]))  # type: ignore[misc]  # a default is no Callable's
        yield Comparison(one, (TORCHS.get(peer, peer),), times)


def gain(of_mode: Mapping[str, Mapping[str, float]]) -> float:
    """How many times as many tokens as the better peer SDPA with this library takes in a second."""
    return of_mode[DOOR]["tokens_per_s"] / max(of_mode[peer]["tokens_per_s"] for peer in (FA2, CUDNN))


def _pytorch(record: Record) -> Iterator[Comparison]:
    hosts = record["host"].values()  # quartiles
    times = [min(us[peer][1] for peer in (FA2, CUDNN)) / us[DOOR][1] for us in hosts]
    yield Comparison("PyTorch, host time of a warm call", (FA2, CUDNN), {"": times})
    prefill = list(map(gain, record["prefill"].values()))
    yield Comparison("PyTorch, prefill of a Llama", (FA2, CUDNN), {"": prefill})


def _training(record: Record) -> Iterator[Comparison]:
    times = list(map(gain, record["train"].values()))
    yield Comparison("PyTorch, training of a GPT", (FA2, CUDNN), {"": times})


def packed_gains(of_mode: Mapping[str, Mapping[str, float]]) -> list[float]:
    """How many times as many tokens as the best peer each of the library's ways into PyTorch takes in a second."""
    best = max(of_mode[peer]["tokens_per_s"] for peer in PACKED_PEERS if peer in of_mode)
    return [of_mode[way]["tokens_per_s"] / best for way in PACKED_WAYS]


def _packed_training(record: Record) -> Iterator[Comparison]:
    for run, modes in record["train"].items():
        times = [one for of_mode in modes.values() for one in packed_gains(of_mode)]
        what = f"PyTorch, training of a GPT on packed documents, windows, {run}"
        yield Comparison(what, _there(PACKED_PEERS, modes.values()), {"": times})


def _products(record: Record) -> Iterator[Comparison]:
    for part, what in (
        ("grid", "matrix products of layers"),
        ("few_rows", "matrix products of 1 or 16 rows"),
        ("unseen", "matrix products, random shapes"),
    ):
        yield Comparison(what, ("cuBLAS",), {"": [cell["ratio"][gemm.CUBLAS] for cell in record[part]]})


def _launches(record: Record) -> Iterator[Comparison]:
    for way, what in (("library", "a warm call"), ("prepared", "a prepared call")):
        times = [1 / case[way] for case in record["cases"]]
        yield Comparison(f"host time of {what}", ("bare launches of the same kernels",), {"": times})


def _public_kernels(record: Record) -> Iterator[Comparison]:
    if times := [public_kernels.ratio(row) for row in record["rows"] if "error" not in row]:
        yield Comparison("kernels of public packages, tuned", ("their authors' configs",), {"": times})


COMPARISONS: Mapping[str, Callable[[Record], Iterator[Comparison]]] = {
    "bf16": _grid,
    "bf16-unseen": _unseen,
    "decode": _decoding,
    "pages": _pages,
    "fp8-keys": _keys_of_8_bits,
    "fp8-queries": _queries_of_8_bits,
    "latent": _latent,
    "features": _of_features,
    "band": _band,
    "invariant": _invariant,
    "pytorch": _pytorch,
    "pytorch-train": _training,
    "pytorch-packed": _packed_training,
    "gemm": _products,
    "latency": _one_call,
    "launch": _launches,
    "public-kernels": _public_kernels,
}


def compared(figure: str, record: Record) -> list[Comparison]:
    """Nothing where a figure compares nothing."""
    return list(COMPARISONS[figure](record)) if figure in COMPARISONS else []


def also(results: Results, figure: str) -> Iterator[str]:
    """A line for each result of a figure that is not its newest: another GPU's."""
    for name in results.ranked(figure)[1:]:
        told = "; ".join(map(str, compared(figure, results(name))))
        of = f"{day(results(name))}, {results.of(name)}, {link(name)}"
        yield f"Also on an {gpu_of(name)} ({of}){told and ': '}{told}."
