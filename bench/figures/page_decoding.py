"""Figures of decoding, of caches and of 8 bits in docs/performance.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import decode
import decode_calls
import fp8_keys
import fp8_queries
import invariant
import latent
import pages
from contenders import LIBRARY

from figures.comparison import compared
from figures.results import Results, day, link, listed

WORST = 3  # calls that are named


def decoding(results: Results) -> str:
    """Few queries on many keys: summaries, a table of the cells that are fixed, and the worst of the others."""
    if not results.has("decode"):
        return "Not measured yet ([`bench/decode.py`](../bench/decode.py))."
    name = results.newest("decode")
    record = results(name)
    about, copy, drawn = record["machine"], record["copy_tb_s"], record["drawn"]
    rows = [*record["rows"], *drawn]
    shares = [decode.share(row, copy) for row in rows if decode.cell_of(row).stored >= decode.LARGE]
    large = (
        f" Cells with {decode.LARGE / 1e6:.0f} MB of keys and values or more reach {min(shares):.2f} to "
        f"{max(shares):.2f} of the bandwidth of a copy, {copy:.2f} TB/s."
        if shares else ""
    )  # fmt: skip
    versions = ", ".join(
        f"{what} {about[key]}"
        for what, key in (("torch", "torch"), ("cuDNN", "cudnn"), ("FA3", "fa3"), ("FA4", "fa4"))
        if about[key] != "none"
    )
    peers = [who for who in decode_calls.PEERS if any(who in row["us"] for row in rows)]
    absent = "; ".join(decode.absences(rows))
    return "\n".join(
        [
            f"Few queries at the end of many keys, in bf16, beside the best of {listed(peers or ['no peer'])} for "
            f"each cell ([`bench/decode.py`](../bench/decode.py), {link(name)}; {about['gpu']}, {versions}, "
            f"{day(record)}, {results.of(name)}): in the geometric mean **{decode.speed(rows)}**. "
            f"On {len(drawn)} of the {len(rows)} cells, which were drawn from a seed ({record['seed']}) and which no "
            f"tuning has seen: {decode.speed(drawn)}.{large} "
            "Worst first:",
            "",
            decode.table(record["rows"], copy),
            "",
            f"The worst that were drawn: {listed(map(_decoded, sorted(drawn, key=decode.ratio)[:WORST]))}."
            + (f" Peers that did not take part: {absent}." if absent else ""),
        ]
    )


def _decoded(row: Mapping[str, Any]) -> str:
    peer = decode.best(row)
    beside = f"{decode.ratio(row):.2f} × {peer}" if peer else "no peer"
    return f"{decode.cell_of(row)} ({row['us'][LIBRARY]:.1f} µs, {beside})"


def paged(results: Results) -> str:
    """Keys and values in pages: a table of decoding beside contiguous caches, and of mixed batches."""
    if not results.has("pages"):
        return "Not measured yet ([`bench/pages.py`](../bench/pages.py))."
    name = results.newest("pages")
    record = results(name)
    about, rows = record["machine"], record["rows"]
    of_mean = []
    for other, what in ((pages.CONTIGUOUS, "a contiguous cache"), (pages.FA3, "FlashAttention-3 on packed sequences")):
        found = [pages.ratios(row) for row in rows if other in row["us"]]
        shown = (
            f"{size} {statistics.geometric_mean(one[size] for one in found):.2f} (at worst "
            f"{min(one[size] for one in found):.2f})"
            for size in pages.PAGE_SIZES
        )
        of_mean += [f"Times as fast as {what}, by the page size: {', '.join(shown)}."] if found else []
    return "\n".join(
        [
            f"Keys and values in pages, in bf16 ([`bench/pages.py`](../bench/pages.py), {link(name)}; {about['gpu']}, "
            f"torch {about['torch']}, FA3 {about['fa3']}, {day(record)}, {results.of(name)}). {' '.join(of_mean)} "
            "Worst first:",
            "",
            pages.table(rows),
        ]
    )


def keys_of_8_bits(results: Results) -> str:
    name = results.newest("fp8-keys")
    record = results(name)
    said = []
    for calls, chunks in (("decoding", False), ("chunks of prompts", True)):
        of_calls = [row for row in record["rows"] if fp8_keys.is_chunk(row) == chunks]
        for where, *of in (
            ("in rows", fp8_keys.ROWS, fp8_keys.NARROW),
            ("in pages of 64", fp8_keys.PAGES, fp8_keys.NARROW_PAGES),
        ):
            gains = [fp8_keys.gain(row, *of) for row in of_calls]
            said.append(f"{calls} {where} {statistics.geometric_mean(gains):.2f} × (at worst {min(gains):.2f})")
    return "\n".join(
        [
            "Keys and values of 8 bits (e4m3) beside the same ones in bf16, with queries of bf16 "
            f"([`bench/fp8_keys.py`](../bench/fp8_keys.py), {link(name)}; {results.about(name)}): "
            f"times as fast in the geometric mean, {', '.join(said)}. FlashAttention-3 takes queries of 8 bits, too.",
            "",
            fp8_keys.table(record),
        ]
    )


def queries_of_8_bits(results: Results) -> str:
    name = results.newest("fp8-queries")
    record = results(name)
    return "\n".join(
        [
            "Queries, keys and values of 8 bits (e4m3), with results in bf16, on the layouts of the grid above and on "
            f"{fp8_queries.DRAWN} that were drawn from a seed ({fp8_queries.SEED}; "
            f"[`bench/fp8_queries.py`](../bench/fp8_queries.py), {link(name)}; {results.about(name)}). "
            f"Times as fast, in the geometric mean: {'; '.join(map(str, compared('fp8-queries', record)))}. Worst "
            "first:",
            "",
            fp8_queries.table(record),
        ]
    )


def latent_caches(results: Results) -> str:
    name = results.newest("latent")
    record = results(name)
    return "\n".join(
        [
            "Decoding with latent caches (DeepSeek: head dim 576, values of 512), in bf16 "
            f"([`bench/latent.py`](../bench/latent.py), {link(name)}; {results.about(name)}). Times as fast, in the "
            f"geometric mean: {'; '.join(map(str, compared('latent', record)))}. Peers read keys in rows. The bound is "
            "what a copy's bandwidth or a matrix product's rate allows. Worst first:",
            "",
            latent.table(record),
        ]
    )


def batch_invariant(results: Results) -> str:
    name = results.newest("invariant")
    record = results(name)
    ratios = [invariant.ratio(row) for row in record["rows"]]
    return "\n".join(
        [
            "What [the hint `batch_invariant`](hints.md#the-same-bits-in-every-batch) costs, in bf16 "
            f"([`bench/invariant.py`](../bench/invariant.py), {link(name)}; {results.about(name)}): "
            f"calls take {statistics.geometric_mean(ratios):.2f} × as long in the "
            f"geometric mean, at worst {max(ratios):.2f}. Queries that are as many as keys have a causal mask.",
            "",
            invariant.table(record),
        ]
    )
