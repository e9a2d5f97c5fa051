"""Times decoding with a latent cache (DeepSeek: head dim 576, whose first 512 columns are the values) beside its peers.

python bench/latent.py --json bench/results/h100-latent.json
python bench/latent.py --from bench/results/h100-latent.json   # the table again, without a GPU

The library takes keys in rows, and in pages of 64 rows that lie in any order. Peers take the same tensors: torch's
matrix products, and FlashAttention-3 (`fa3_fwd`, by its q_v) where it is installed. Each answer is compared with fp32
before it is timed. The measure is what a call must take: its bytes at the bandwidth of a copy, or its products at the
rate of a large matrix product, whichever is longer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored
from attention import gpu_state, machine, race
from contenders import LIBRARY, with_workspace
from decode import copy_bandwidth
from decode_calls import FA3, TOLERANCE, error

ROUNDS = 31
DIM, DIM_V, PAGE = 576, 512, 64
SCALE = 192**-0.5  # DeepSeek's: of the head dim before keys are absorbed
PAGED, TORCH = f"{LIBRARY}, in pages", "torch"
PEERS = (TORCH, FA3)
SIDE = 8192  # of the matrix product whose rate is the measure
Call = Callable[[], Any]  # it returns [batch, queries, heads, DIM_V]


@dataclass(frozen=True)
class Cell:
    """A call whose queries are the last rows of their sequences."""

    batch: int
    heads: int
    queries: int
    keys: int

    @property
    def bytes(self) -> int:
        """Bytes that a call has to move: keys, queries and the answer."""
        return 2 * self.batch * (self.keys * DIM + self.queries * self.heads * (DIM + DIM_V))

    @property
    def flops(self) -> int:
        """Operations of both products."""
        return 2 * self.batch * self.queries * self.heads * self.keys * (DIM + DIM_V)

    def __str__(self) -> str:
        queries = f"{self.queries} {'query' if self.queries == 1 else 'queries'}"
        return f"{self.batch} × {self.heads} heads, {queries} on {self.keys:,} keys"


# Heads of a model on one GPU, or on 8; one token, or what a model predicts at once; few long sequences, and many.
CELLS = tuple(
    Cell(batch, heads, queries, keys)
    for heads, queries in ((16, 1), (128, 1), (16, 2), (128, 2), (64, 1))
    for batch, keys in ((1, 8192), (4, 65536), (32, 4096), (128, 8192))
)


def truth(cell: Cell, q: Any, k: Any) -> Any:
    """The answer in fp32, a sequence at a time."""
    import torch

    out = torch.empty((*q.shape[:3], DIM_V), dtype=torch.float32, device=q.device)
    hidden = torch.ones(cell.queries, cell.keys, dtype=torch.bool, device=q.device).triu(cell.keys - cell.queries + 1)
    for i in range(cell.batch):
        rows = k[i, :, 0].float()
        scores = torch.einsum("qhd,kd->hqk", q[i].float(), rows) * SCALE
        scores.masked_fill_(hidden, -math.inf)
        out[i] = torch.einsum("hqk,kd->qhd", scores.softmax(-1), rows[:, :DIM_V])
    return out


def _call(given: dict[str, Any]) -> Call:
    import aotriton

    out = given["out"]
    given = with_workspace("attn_fwd", given)

    def call() -> Any:
        aotriton.attn_fwd(**given)
        return out.transpose(1, 2)

    return call


def _given(cell: Cell, q: Any, k: Any) -> dict[str, Any]:
    import torch

    out = torch.full((*q.shape[:3], DIM_V), math.nan, dtype=q.dtype, device=q.device)
    k = k.transpose(1, 2)
    mask = {"causal": True, "causal_variant": "bottom_right"} if cell.queries > 1 else {}
    return {"q": q.transpose(1, 2), "k": k, "v": k[..., :DIM_V], "out": out.transpose(1, 2), "sm_scale": SCALE} | mask


def _library(cell: Cell, q: Any, k: Any) -> Call:
    return _call(_given(cell, q, k))


def _in_pages(cell: Cell, q: Any, k: Any) -> Call:
    import torch

    count = cell.batch * cell.keys // PAGE
    order = torch.randperm(count, generator=torch.Generator(q.device).manual_seed(count), device=q.device)
    pool = torch.empty((count, PAGE, 1, DIM), dtype=k.dtype, device=k.device)
    pool[order] = k.reshape(pool.shape)
    used = torch.full((cell.batch,), cell.keys, dtype=torch.int32, device=q.device)
    table = order.to(torch.int32).view(cell.batch, -1)
    return _call(_given(cell, q, pool) | {"block_table": table, "seqused_k": used})


def _torch(cell: Cell, q: Any, k: Any) -> Call:
    if cell.queries > 1:
        raise ValueError("without a mask")
    keys = k[:, :, 0]

    def call() -> Any:
        scores = (q[:, 0] @ keys.mT) * SCALE
        return (scores.softmax(-1) @ keys[..., :DIM_V])[:, None]

    return call


def _fa3(cell: Cell, q: Any, k: Any) -> Call:
    import torch

    importlib.import_module("fa3_fwd._C")  # it registers the operator
    latent, rope = q[..., :DIM_V].contiguous(), q[..., DIM_V:].contiguous()
    tensors, starts, ends = [rope, k[..., DIM_V:], k[..., :DIM_V], None, None, latent, None], [None] * 3, [None] * 2
    longest, pages, rotary, scales = [None] * 2, [None] * 3, [None] * 3, [None] * 3
    mask = [cell.queries > 1, -1, -1, 0]
    given = [*tensors, *starts, *ends, *longest, *pages, *rotary, *scales, SCALE, *mask, 0.0, True, None, 0]
    return lambda: torch.ops.fa3_fwd.fwd(*given, None, 0)[0]


MAKERS = {LIBRARY: _library, PAGED: _in_pages, TORCH: _torch, FA3: _fa3}


def measure(cell: Cell, rounds: int) -> dict[str, Any]:
    """Times, errors and absent peers; SystemExit where an answer of the library is wrong."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(cell.keys + cell.heads)
    sizes = (cell.batch, cell.queries, cell.heads, DIM), (cell.batch, cell.keys, 1, DIM)
    q, k = (torch.randn(one, generator=generator, device="cuda").bfloat16() for one in sizes)
    true = truth(cell, q, k)
    calls, errors, absent = dict[str, Call](), dict[str, float](), dict[str, str]()
    for who, make in MAKERS.items():
        try:
            call = make(cell, q, k)
            off = error(call(), true)
        except Exception as refused:  # of another project: any
            if who in (LIBRARY, PAGED):
                raise
            absent[who] = (str(refused).splitlines() or [type(refused).__name__])[0][:100]
            continue
        if off <= TOLERANCE:
            calls[who], errors[who] = call, off
        elif who in (LIBRARY, PAGED):
            sys.exit(f"{cell}: the answer of {who} is off by {off:.2e}")
        else:
            absent[who] = f"its answer is off by {off:.1e}"
    us = {who: round(statistics.median(taken), 2) for who, taken in race(calls, rounds).items()}
    return {"cell": asdict(cell), "us": us, "errors": errors, "absent": absent}


def product_rate(rounds: int) -> float:
    """TFLOP/s of a large matrix product, by the same clock."""
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda").bfloat16() for _ in "ab")
    return 2 * SIDE**3 / statistics.median(race({"product": lambda: a @ b}, rounds)["product"]) / 1e6


def bound(cell: Cell, record: Mapping[str, Any]) -> float:
    """The microseconds that a call must take."""
    return float(max(cell.bytes / record["copy_tb_s"], cell.flops / record["product_tflop_s"]) / 1e6)


def share(row: Mapping[str, Any], record: Mapping[str, Any], who: str = LIBRARY) -> float:
    """What a contender reaches of the bound."""
    return float(bound(Cell(**row["cell"]), record) / row["us"][who])


def ratio(row: Mapping[str, Any], who: str = LIBRARY) -> float:
    """How many times as fast as the best peer a contender is; infinite where there is no peer."""
    us: Mapping[str, float] = row["us"]
    return min((us[peer] for peer in PEERS if peer in us), default=math.inf) / us[who]


def table(record: Mapping[str, Any]) -> str:
    """Markdown, the worst first."""
    lines = [
        f"| batch × heads, queries on keys | {LIBRARY}, µs | of the bound | in pages, µs | of the bound | peers, µs "
        "| × best peer |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(record["rows"], key=ratio):
        us = row["us"]
        own = " | ".join(f"{us[who]:.1f} | {share(row, record, who):.2f}" for who in (LIBRARY, PAGED))
        peers = ", ".join(f"{who} {us[who]:.1f}" for who in PEERS if who in us) or "none"
        beside = f"{ratio(row):.2f}" if ratio(row) < math.inf else "–"
        lines.append(f"| {Cell(**row['cell'])} | {own} | {peers} | {beside} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--from", type=Path, dest="source", help="a result to print, instead of measuring")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timings of each call (default: %(default)s)")
    options = parser.parse_args()
    if options.source:
        print(table(stored.load(options.source)))
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/latent.py: torch finds no CUDA GPU")
    record: dict[str, Any] = {"machine": machine(), "rows": []}
    record |= {"copy_tb_s": copy_bandwidth(options.rounds), "product_tflop_s": product_rate(options.rounds)}
    for cell in CELLS:
        record["rows"].append(row := measure(cell, options.rounds))
        torch.cuda.empty_cache()
        print(
            f"{cell}: {row['us']}, {share(row, record):.2f} of the bound, {row['absent']}", file=sys.stderr, flush=True
        )
        if options.json:  # each time: a run cut short leaves its cells
            options.json.write_text(json.dumps(record | {"gpu": gpu_state()}, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
