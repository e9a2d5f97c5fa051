"""Times attention of few queries on many keys, the decoding of a batch of sequences, beside its peers and a copy.

python bench/decode.py --json bench/results/decode.json

One query for each sequence; 4 to 128 queries at the end of the keys; lengths in device memory; and cells drawn from a
seed. Peers: FlashAttention-3 (`fa3_fwd`) and FlashAttention-4 where they are installed, torch's cuDNN and
FlashAttention-2. All get the same tensors, in memory in the order that FlashAttention takes. Each answer is compared
with fp32 before it is timed; of a peer that does not take part in a cell the reason is recorded.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import gpu_state, machine, race
from contenders import LIBRARY
from decode_calls import PEERS, Cell, contenders

ROUNDS = 31
COPIED = 1 << 30  # bytes of the copy whose bandwidth is the measure
LARGE = 256e6  # bytes of keys and values from which on bandwidth is all that counts
GROUPS, HEAD_DIMS, QUERIES = (1, 4, 7, 8, 16), (64, 128, 256), (1, 1, 1, 1, 4, 16, 128)
MOST_BATCH, KEYS = 256, (1 << 10, 1 << 17)
MOST_DRAWN, DRAWN = 8e9, 12  # bytes of keys and values of a cell that is drawn; how many are
Row = Mapping[str, Any]

CELLS = (
    Cell(1, 32, 8, 1, 1024, 128),
    Cell(1, 32, 8, 1, 4096, 128),
    Cell(1, 28, 4, 1, 16384, 128),
    Cell(1, 32, 8, 1, 32768, 128),
    Cell(1, 64, 8, 1, 131072, 128),
    Cell(1, 16, 1, 1, 131072, 256),
    Cell(2, 32, 8, 1, 65536, 64),
    Cell(4, 32, 8, 1, 8192, 128),
    Cell(4, 16, 2, 1, 16384, 256),
    Cell(8, 64, 8, 1, 32768, 128),
    Cell(8, 128, 8, 1, 131072, 64),
    Cell(16, 16, 16, 1, 4096, 64),
    Cell(16, 28, 4, 1, 8192, 128),
    Cell(32, 32, 8, 1, 4096, 128),
    Cell(32, 8, 8, 1, 8192, 256),
    Cell(64, 32, 8, 1, 8192, 128),
    Cell(64, 128, 8, 1, 2048, 128),
    Cell(128, 28, 4, 1, 8192, 128),
    Cell(128, 32, 32, 1, 2048, 64),
    Cell(256, 64, 8, 1, 1024, 128),
    Cell(256, 32, 8, 1, 16384, 128),
    Cell(8, 32, 8, 4, 8192, 128),
    Cell(1, 64, 8, 4, 32768, 128),
    Cell(16, 32, 8, 16, 4096, 128),
    Cell(1, 32, 8, 128, 32768, 128),
    Cell(4, 16, 2, 128, 16384, 256),
    Cell(32, 32, 8, 1, 32768, 128, used=True),
    Cell(128, 28, 4, 1, 8192, 128, used=True),
    Cell(16, 32, 8, 4, 16384, 128, used=True),
)


def drawn(seed: int, count: int = DRAWN) -> tuple[Cell, ...]:
    """Cells that nobody tuned on: sizes that are evenly distributed over their orders of magnitude."""
    draw, found = Random(seed), list[Cell]()

    def between(low: int, high: int) -> int:
        return round(math.exp(draw.uniform(math.log(low), math.log(high))))

    while len(found) < count:
        heads_k = 2 ** draw.randint(0, 3)
        sizes = heads_k * draw.choice(GROUPS), heads_k, draw.choice(QUERIES), between(*KEYS), draw.choice(HEAD_DIMS)
        cell = Cell(between(1, MOST_BATCH), *sizes, used=draw.random() < 0.25)
        if cell.stored <= MOST_DRAWN:
            found.append(cell)
    return tuple(found)


def measure(cell: Cell, rounds: int) -> dict[str, Any]:
    """Times, errors, absent peers, and what the library runs."""
    import torch

    import aotriton

    generator = torch.Generator(device="cuda").manual_seed(cell.keys + cell.head_dim)

    def normal(rows: int, heads: int) -> Any:
        shape = cell.batch, rows, heads, cell.head_dim
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    q, k, v = normal(cell.queries, cell.heads), normal(cell.keys, cell.heads_k), normal(cell.keys, cell.heads_k)
    used = torch.tensor(cell.lengths, dtype=torch.int32, device="cuda") if cell.used else None
    calls, errors, absent = contenders(cell, q, k, v, used)
    us = {who: round(statistics.median(taken), 2) for who, taken in race(calls, rounds).items()}
    choices = aotriton.explain(
        "attn_fwd", arch=aotriton.arch(), product=aotriton.product(), multiprocessors=aotriton.multiprocessors(),
        dtype="bf16", batch=cell.batch, heads_q=cell.heads, heads_k=cell.heads_k, seqlen_q=cell.queries,
        seqlen_k=cell.keys, head_dim=cell.head_dim, **cell.mask,
        **({"seqused_k": True, "sequences": cell.batch} if cell.used else {}),
    )  # fmt: skip
    return {
        "cell": asdict(cell), "bytes": cell.bytes, "us": us, "absent": absent, "errors": errors,
        "backend": choices[-1]["backend"], "images": [[one["image"], one["provenance"]] for one in choices],
    }  # fmt: skip


def copy_bandwidth(rounds: int) -> float:
    """TB/s of reading and writing a copy, by the same clock."""
    import torch

    source = torch.zeros(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED / statistics.median(race({"copy": lambda: target.copy_(source)}, rounds)["copy"]) / 1e6


def best(row: Row) -> str:
    """The fastest peer of a cell; empty where it has none."""
    return min((who for who in row["us"] if who != LIBRARY), key=lambda who: float(row["us"][who]), default="")


def ratio(row: Row) -> float:
    """How many times as fast as the best peer the library is; infinite where there is no peer."""
    us: Mapping[str, float] = row["us"]
    return us[best(row)] / us[LIBRARY] if best(row) else math.inf


def cell_of(row: Row) -> Cell:
    return Cell(**row["cell"])


def share(row: Row, copy: float) -> float:
    """What the library reaches of the bandwidth of a copy."""
    return float(row["bytes"] / row["us"][LIBRARY] / 1e6 / copy)


def speed(rows: Sequence[Row]) -> str:
    """The geometric mean over the cells that have a peer, and the worst of them."""
    ratios = [one for one in map(ratio, rows) if one < math.inf]
    return f"{statistics.geometric_mean(ratios):.2f} ×, at worst {min(ratios):.2f}" if ratios else "not compared"


def table(rows: Sequence[Row], copy: float) -> str:
    """Markdown, the worst first."""
    lines = ["| batch × heads:heads of keys, queries on keys, D | µs | best peer, µs | × best peer | of a copy |"]
    lines.append("|---|---|---|---|---|")
    for row in sorted(rows, key=ratio):
        peer = best(row)
        beside = f"{peer} {row['us'][peer]:.1f} | {ratio(row):.2f}" if peer else "none | –"
        lines.append(f"| {cell_of(row)} | {row['us'][LIBRARY]:.1f} | {beside} | {share(row, copy):.2f} |")
    return "\n".join(lines)


def absences(rows: Sequence[Row]) -> Iterator[str]:
    """Of each peer that did not take part in all cells: in how many, and the most frequent reason."""
    for who in PEERS:
        if reasons := [row["absent"][who] for row in rows if who in row["absent"]]:
            yield f"{who} in {len(reasons)} of {len(rows)} cells ({statistics.mode(reasons)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--seed", type=int, default=0, help=f"of the {DRAWN} cells that are drawn")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timings of each call")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/decode.py: torch finds no CUDA GPU")
    copy = copy_bandwidth(options.rounds)
    record: dict[str, Any] = {"machine": machine(), "copy_tb_s": copy, "rounds": options.rounds, "seed": options.seed}
    for part, cells in (("rows", CELLS), ("drawn", drawn(options.seed))):
        record[part] = []
        for cell in cells:
            record[part].append(row := measure(cell, options.rounds))
            torch.cuda.empty_cache()
            told = f"{row['us']}, {share(row, copy):.2f} of a copy, {row['absent']}"
            print(f"{cell}: {told}", file=sys.stderr, flush=True)
            if options.json:  # each time: a run cut short leaves its cells
                options.json.write_text(json.dumps(record | {"gpu": gpu_state()}, indent=1) + "\n")
    rows = [*record["rows"], *record["drawn"]]
    print(table(rows, copy), speed(rows), *absences(rows), sep="\n")


if __name__ == "__main__":
    main()
