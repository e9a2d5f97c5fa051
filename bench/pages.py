"""Times attention of keys and values in pages beside the same call on a contiguous cache, and mixed batches beside FA3.

python bench/pages.py --json bench/results/pages.json

Decoding: the lengths are in device memory on both sides, in memory rows of tokens come first on both sides, and pages
lie in a random order. Mixed: one call has the next chunk of some prompts, and a decoding step of other sequences;
FlashAttention-3 (`fa3_fwd`, whose wheel has no pages) gets the same sequences packed, without a cache. Each answer is
compared with fp32 before it is timed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import gpu_state, machine, race
from contenders import with_workspace
from decode import ROUNDS
from decode_calls import error

PAGE_SIZES = (16, 64, 256)
CONTIGUOUS, FA3 = "contiguous", "FA3"
TOLERATED = 0.02  # of an answer, relative to fp32 in the norm of each sequence
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """A call: of each sequence its queries, the last of its keys, and its keys."""

    name: str
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    heads_k: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.name}, {self.heads}:{self.heads_k} heads, D {self.head_dim}"


def steps(batch: int, keys: int, heads: int, heads_k: int, head_dim: int) -> Batch:
    """A decoding step of sequences of equal lengths."""
    return Batch(f"{batch} × 1 query on {keys:,} keys", (1,) * batch, (keys,) * batch, heads, heads_k, head_dim)


def log_normal(draw: Random, count: int, longest: int) -> list[int]:
    """Lengths, at most ``longest``, of which the median is a quarter of it."""
    return [min(longest, max(1, int(longest / 4 * draw.lognormvariate(0, 1)))) for _ in range(count)]


def mixed(chunks: int, chunk: int, decoding: int, longest: int, heads: int, heads_k: int, head_dim: int) -> Batch:
    """Chunks of prompts, each somewhere in its prompt, and decoding steps, on log-normal numbers of keys."""
    draw = Random(chunks * chunk + decoding)
    lengths = log_normal(draw, chunks + decoding, longest)
    queries = (chunk,) * chunks + (1,) * decoding
    keys = tuple(max(q, k) for q, k in zip(queries, lengths, strict=True))
    name = f"{chunks} × {chunk} queries and {decoding} × 1 query on up to {longest:,} keys"
    return Batch(name, queries, keys, heads, heads_k, head_dim)


DECODING = (
    steps(1, 4096, 32, 8, 128),
    steps(1, 32768, 32, 8, 128),
    steps(8, 8192, 32, 8, 128),
    steps(64, 8192, 32, 8, 128),
    steps(16, 4096, 16, 16, 64),
    steps(4, 16384, 16, 2, 256),
    steps(16, 8192, 28, 4, 128),
)
MIXED = (
    mixed(1, 512, 31, 16384, 32, 8, 128),
    mixed(2, 1024, 62, 8192, 32, 8, 128),
    mixed(4, 256, 12, 4096, 28, 4, 128),
    mixed(1, 2048, 16, 32768, 64, 8, 128),
    mixed(4, 512, 60, 8192, 16, 8, 64),
)


def truth(batch: Batch, q: Any, k: Sequence[Any], v: Sequence[Any]) -> Any:
    """The answer in fp32: q is [tokens, heads, head_dim], k and v of each sequence are [keys, heads_k, head_dim]."""
    import torch

    found, begin = [], 0
    for i, rows in enumerate(batch.queries):
        grouped = q[begin : begin + rows].float().unflatten(1, (batch.heads_k, -1))
        scores = torch.einsum("qhgd,khd->hgqk", grouped, k[i].float()) * batch.head_dim**-0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(batch.keys[i] - rows + 1)
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
        found.append(torch.einsum("hgqk,khd->qhgd", weights, v[i].float()).flatten(1, 2))
        begin += rows
    return torch.cat(found)


def paged(one: Sequence[Any], page_size: int, order: Any) -> tuple[Any, Any]:
    """A pool [pages, page_size, heads_k, head_dim] with pages in this order, and the table of the sequences."""
    import torch

    counts = [-(-len(rows) // page_size) for rows in one]
    pool = torch.empty((sum(counts), page_size, *one[0].shape[1:]), dtype=one[0].dtype, device=one[0].device)
    table = torch.zeros((len(one), max(counts)), dtype=torch.int32, device=one[0].device)
    begin = 0
    for i, (rows, count) in enumerate(zip(one, counts, strict=True)):
        places = order[begin : begin + count]
        whole = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, count * page_size - len(rows)))
        pool[places] = whole.unflatten(0, (count, page_size))
        table[i, :count] = places
        begin += count
    return pool, table


def starts(lengths: Sequence[int], device: Any) -> Any:
    """Of packed sequences of these lengths, and behind the last one, in int32."""
    import torch

    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32, device=device)


def library(batch: Batch, q: Any, given: dict[str, Any]) -> Callable[[], Any]:
    """A call of the library on packed queries, causal at the last key."""
    import torch

    import aotriton

    out = torch.empty_like(q)
    if len(set(batch.queries)) == 1:
        shape = (len(batch.queries), batch.queries[0])
        given |= {name: one.unflatten(0, shape).transpose(1, 2) for name, one in (("q", q), ("out", out))}
    else:
        given |= {name: one[None].transpose(1, 2) for name, one in (("q", q), ("out", out))}
        given |= {"cu_seqlens_q": starts(batch.queries, q.device)}
        given |= {"max_seqlen_q": max(batch.queries)}
    if max(batch.queries) > 1:
        given |= {"causal": True, "causal_variant": "bottom_right"}
    given = with_workspace("attn_fwd", given)

    def call() -> Any:
        aotriton.attn_fwd(**given)
        return out

    return call


def fa3(batch: Batch, q: Any, k: Sequence[Any], v: Sequence[Any]) -> Callable[[], Any]:
    """FlashAttention-3 on packed sequences."""
    import torch

    importlib.import_module("fa3_fwd._C")  # it registers the operator
    all_k, all_v = torch.cat(list(k)), torch.cat(list(v))
    cu = [starts(of, q.device) for of in (batch.queries, batch.keys)]
    lengths = [*cu, None, None, None, max(batch.queries), max(batch.keys)]
    others = [*[None] * 9, batch.head_dim**-0.5, True, -1, -1, 0, 0.0, True, None, 0, None, 0]
    return lambda: torch.ops.fa3_fwd.fwd(q, all_k, all_v, *[None] * 4, *lengths, *others)[0]


def measure(batch: Batch, rounds: int) -> dict[str, Any]:
    """Times by contender, of pages named after their size."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(sum(batch.keys))

    def normal(rows: int, heads: int) -> Any:
        return torch.randn((rows, heads, batch.head_dim), generator=generator, device="cuda", dtype=torch.bfloat16)

    q = normal(sum(batch.queries), batch.heads)
    k, v = ([normal(keys, batch.heads_k) for keys in batch.keys] for _ in "kv")
    used = torch.tensor(batch.keys, dtype=torch.int32, device="cuda")
    calls: dict[str, Callable[[], Any]] = {}
    absent: dict[str, str] = {}
    if max(batch.queries) == 1:
        dense = {name: torch.stack(list(one)).transpose(1, 2) for name, one in (("k", k), ("v", v))}
        calls[CONTIGUOUS] = library(batch, q, dense | {"seqused_k": used})
    else:
        try:
            calls[FA3] = fa3(batch, q, k, v)
            calls[FA3]()
        except Exception as refused:  # of another project: any
            calls.pop(FA3, None)
            absent[FA3] = str(refused).splitlines()[0][:200]
    for page_size in PAGE_SIZES:
        order = torch.randperm(sum(-(-keys // page_size) for keys in batch.keys), generator=generator, device="cuda")
        (pool_k, table), (pool_v, _) = (paged(one, page_size, order) for one in (k, v))
        given = {"k": pool_k.transpose(1, 2), "v": pool_v.transpose(1, 2), "block_table": table, "seqused_k": used}
        calls[f"pages of {page_size}"] = library(batch, q, given)
    true = truth(batch, q, k, v)
    errors = {}
    for who, call in list(calls.items()):
        errors[who] = round(error(call().reshape(true.shape), true), 5)
        if not errors[who] < TOLERATED:
            raise SystemExit(f"bench/pages.py: {who} is wrong by {errors[who]} in {batch}")
    us = {who: round(statistics.median(taken), 2) for who, taken in race(calls, rounds).items()}
    return {"batch": asdict(batch), "us": us, "errors": errors, "absent": absent}


def ratios(row: Row) -> dict[int, float]:
    """How many times as fast as the other side each page size is; none where there is no other side."""
    us: Mapping[str, float] = row["us"]
    other = us.get(CONTIGUOUS) or us.get(FA3)
    return {size: other / us[f"pages of {size}"] for size in PAGE_SIZES} if other else {}


def table(rows: Sequence[Row]) -> str:
    """Markdown, the worst first."""
    lines = [f"| call | other side, µs | {' | '.join(f'× with pages of {size}' for size in PAGE_SIZES)} |"]
    lines.append("|---" * (2 + len(PAGE_SIZES)) + "|")
    for row in sorted(rows, key=lambda row: min(ratios(row).values(), default=9)):
        found, us = ratios(row), row["us"]
        other = CONTIGUOUS if CONTIGUOUS in us else FA3
        beside = f"{other} {us[other]:.1f}" if found else "none"
        times = " | ".join(f"{found[size]:.2f}" if found else f"{us[f'pages of {size}']:.1f} µs" for size in PAGE_SIZES)
        named = Batch(**row["batch"])
        lines.append(f"| {named} | {beside} | {times} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timings of each call")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/pages.py: torch finds no CUDA GPU")
    record: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "rows": []}
    for batch in (*DECODING, *MIXED):
        record["rows"].append(row := measure(batch, options.rounds))
        torch.cuda.empty_cache()
        print(f"{batch}: {row['us']}, {row['absent']}", file=sys.stderr, flush=True)
        if options.json:  # each time: a run cut short leaves its rows
            options.json.write_text(json.dumps(record | {"gpu": gpu_state()}, indent=1) + "\n")
    print(table(record["rows"]))


if __name__ == "__main__":
    main()
