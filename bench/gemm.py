"""Times the library's GEMM beside cuBLAS: from the shapes below to JSON and a table.

python bench/gemm.py --json bench/results/gemm.json
python bench/gemm.py --from bench/results/gemm.json   # needs no GPU
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored
from attention import gpu_state, machine, race
from contenders import LIBRARY
from cublas import CublasLt

CUBLAS, TORCH = "cuBLAS", "torch"  # cuBLAS: the fastest of what its heuristics propose; torch: what it takes
DTYPES = ("bf16", "fp16")
LAYERS = {"qkv": (6144, 4096), "out": (4096, 4096), "up": (14336, 4096), "down": (4096, 14336), "wide": (28672, 8192)}
SQUARES = (512, 1024, 2048, 4096, 8192)
# Rows, which are tokens, of the layers of transformers with 8 and 70 thousand million parameters.
PROJECTIONS = {
    64: ("out", "up", "wide"),
    128: ("out", "qkv"),
    256: ("out", "up"),
    512: ("out", "qkv", "down"),
    1024: ("qkv", "up"),
    2048: ("qkv", "down"),
    4096: ("up", "wide"),
    8192: ("qkv",),
    16384: ("out", "wide"),
}
FEW_ROWS = {1: ("out", "down", "wide"), 16: ("out", "up", "down", "wide")}

ROUNDS, SCREEN, FINALISTS = 21, 3, 3
WORK = (1e7, 2e12)  # floating-point operations of an unseen shape
CHECKED_ROWS = 64


@dataclass(frozen=True)
class Shape:
    """d [batch, m, n] = a [batch, m, k] b [batch, k, n]. ``trans_a``: a is stored [batch, k, m]; ``trans_b`` alike."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    trans_a: bool = False
    trans_b: bool = True

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        return 2 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def layout(self) -> str:
        return "".join("T" if transposed else "N" for transposed in (self.trans_a, self.trans_b))


def grid() -> list[Shape]:
    """24 shapes in each dtype, stored as layers are: weights [n, k]."""
    sizes = [(size, size, size) for size in SQUARES]
    sizes += [(m, *LAYERS[layer]) for m, layers in PROJECTIONS.items() for layer in layers]
    return [Shape(*size, dtype=dtype) for dtype in DTYPES for size in sizes]


def few_rows() -> list[Shape]:
    return [Shape(m, *LAYERS[layer]) for m, layers in FEW_ROWS.items() for layer in layers]


def unseen(count: int, seed: int) -> list[Shape]:
    """Sizes that are multiples of 8, m any; all layouts, both dtypes, some with batches."""
    draw = random.Random(seed)
    found: list[Shape] = []
    while len(found) < count:
        m = round(math.exp(draw.uniform(0, math.log(16384))))
        n, k = (8 * round(math.exp(draw.uniform(math.log(16), math.log(3584)))) for _ in range(2))
        batch = draw.choice((1, 1, 1, 2, 5, 16))
        trans_a, trans_b = draw.random() < 0.25, draw.random() < 0.6
        if trans_a:
            m = 8 * -(-m // 8)  # rows of what is stored
        shape = Shape(m, n, k, batch, draw.choice(DTYPES), trans_a, trans_b)
        if WORK[0] <= shape.flops <= WORK[1] and shape.bytes <= 4 << 30:
            found.append(shape)
    return found


def measure(shape: Shape, peer: CublasLt, rounds: int) -> dict[str, Any]:
    """The shape with times, errors and what ran; SystemExit where a result is wrong."""
    import torch

    import aotriton

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[shape.dtype]
    generator = torch.Generator(device="cuda").manual_seed(shape.m + shape.n + shape.k)

    def matrix(rows: int, columns: int, transposed: bool) -> torch.Tensor:
        if transposed:
            return matrix(columns, rows, False).transpose(1, 2)
        return torch.randn(shape.batch, rows, columns, generator=generator, device="cuda").to(dtype)

    a, b = matrix(shape.m, shape.k, shape.trans_a), matrix(shape.k, shape.n, shape.trans_b)
    d = torch.full((shape.batch, shape.m, shape.n), float("nan"), dtype=dtype, device="cuda")
    needed = aotriton.gemm_workspace_size(a, b, d)
    workspace = torch.empty(max(needed, 1), dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    calls: dict[str, Callable[[], object]] = {
        LIBRARY: lambda: aotriton.gemm(a, b, d, workspace=workspace, stream=stream),
        TORCH: lambda: torch.bmm(a, b, out=d) if shape.batch > 1 else torch.mm(a[0], b[0], out=d[0]),
    }
    algorithms: dict[str, Callable[[], object]] = {f"{CUBLAS} {one.rank}": one for one in peer.algorithms(a, b, d)}
    errors = {who: _error(call, a, b, d) for who, call in {**calls, **algorithms}.items()}
    allowed = 2 * max(errors[who] for who in (TORCH, *algorithms))
    if not errors[LIBRARY] <= allowed:
        sys.exit(f"{shape}: off by {errors[LIBRARY]:.2e}, cuBLAS by {allowed / 2:.2e} at most")
    screened = race(algorithms, SCREEN)
    finalists = sorted(algorithms, key=lambda who: statistics.median(screened[who]))[:FINALISTS]
    samples = race({**calls, **{who: algorithms[who] for who in finalists}}, rounds)
    medians = {who: statistics.median(taken) for who, taken in samples.items()}
    best = min(finalists, key=lambda who: medians[who])
    medians = {LIBRARY: medians[LIBRARY], CUBLAS: medians[best], TORCH: medians[TORCH]}
    quarters = {who: statistics.quantiles(samples[best if who == CUBLAS else who], n=4) for who in medians}
    choices = aotriton.explain(
        "gemm", arch=aotriton.arch(), product=aotriton.product(),
        multiprocessors=aotriton.multiprocessors(), dtype=shape.dtype,
        batch=shape.batch, m=shape.m, n=shape.n, k=shape.k, transposed_a=shape.trans_a, transposed_b=shape.trans_b,
    )  # fmt: skip
    return {
        **asdict(shape),
        "us": {who: round(median, 2) for who, median in medians.items()},
        "quartiles_us": {who: [round(q[0], 2), round(q[2], 2)] for who, q in quarters.items()},
        "samples": {LIBRARY: len(samples[LIBRARY]), CUBLAS: len(samples[best]), TORCH: len(samples[TORCH])},
        "algorithm": f"{best.removeprefix(CUBLAS).strip()} of {len(algorithms)}",
        "tflops": {who: round(shape.flops / median / 1e6, 1) for who, median in medians.items()},
        "tb_per_s": round(shape.bytes / medians[LIBRARY] / 1e6, 2),
        "ratio": {who: round(medians[who] / medians[LIBRARY], 4) for who in (CUBLAS, TORCH)},
        "errors": {LIBRARY: errors[LIBRARY], "peers": allowed / 2},
        "backend": choices[0]["backend"],
        "images": [[choice["image"], choice["provenance"]] for choice in choices],
        "gpu": gpu_state(),
    }


def _error(call: Callable[[], object], a: Any, b: Any, d: Any) -> float:
    """Relative error against float64 of some rows, among them the first and the last."""

    d.fill_(float("nan"))
    call()
    m = d.shape[1]
    rows = sorted({round(i * (m - 1) / (CHECKED_ROWS - 1)) for i in range(CHECKED_ROWS)})
    exact = a[:, rows].double() @ b.double()
    return float((d[:, rows].double() - exact).norm() / exact.norm())


def copy_bandwidth() -> float:
    """TB/s of a copy of 4 GiB, read and written."""
    import torch

    x, y = (torch.empty(4 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    samples = race({"copy": lambda: y.copy_(x)}, 5)
    moved: int = 2 * x.numel()
    return round(moved / statistics.median(samples["copy"]) / 1e6, 2)


def summary(cells: list[dict[str, Any]]) -> dict[str, float]:
    """Of the ratios to cuBLAS's best: geometric mean, tenth percentile and worst."""
    ratios = sorted(cell["ratio"][CUBLAS] for cell in cells)
    return {
        "geometric_mean": round(statistics.geometric_mean(ratios), 4),
        "tenth_percentile": ratios[len(ratios) // 10],
        "worst": ratios[0],
    }


def table(record: dict[str, Any]) -> str:
    """The record as markdown, the worst cells first."""
    about = record["machine"]
    lines = [f"{about['gpu']}, driver {about['driver']}, cublasLt {about['cublasLt']}, {about['date']}"]
    for part, title in (
        ("grid", "24 shapes, both dtypes"),
        ("unseen", "Shapes that nobody tuned on"),
        ("few_rows", f"Few rows; a copy runs at {record['copy_tb_per_s']} TB/s"),
    ):
        cells = record.get(part, [])
        if not cells:
            continue
        lines += ["", f"{title}. Times as fast as {CUBLAS}: {record['summary'][part]}", ""]
        lines += ["| dtype | layout | batch | m | n | k | aotriton / cuBLAS / torch, µs | TFLOP/s | TB/s | × cuBLAS |"]
        lines += ["|" + "---|" * 10]
        for cell in sorted(cells, key=lambda one: one["ratio"][CUBLAS]):
            us, layout = cell["us"], Shape(**{name: cell[name] for name in Shape.__dataclass_fields__}).layout
            lines.append(
                f"| {cell['dtype']} | {layout} | {cell['batch']} | {cell['m']} | {cell['n']} | {cell['k']} |"
                f" {us[LIBRARY]:.1f} / {us[CUBLAS]:.1f} / {us[TORCH]:.1f} | {cell['tflops'][LIBRARY]:.0f} |"
                f" {cell['tb_per_s']} | {cell['ratio'][CUBLAS]:.3f} |"
            )
    return "\n".join(lines)


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The record, again after each cell: a run cut short leaves what it has."""
    import torch

    peer = CublasLt()
    record: dict[str, Any] = {"machine": {**machine(), "cublasLt": str(peer.version)}, "rounds": options.rounds}
    record |= {"copy_tb_per_s": copy_bandwidth(), "seed": options.seed, "summary": {}}
    torch.cuda.empty_cache()
    parts = {"grid": grid(), "few_rows": few_rows(), "unseen": unseen(options.unseen, options.seed)}
    for part, shapes in parts.items():
        record[part] = []
        for shape in shapes:
            record[part].append(measure(shape, peer, options.rounds))
            record["summary"][part] = summary(record[part])
            cell = record[part][-1]
            shown = (part, shape.dtype, shape.layout, shape.batch, shape.m, shape.n, shape.k, cell["us"], cell["ratio"])
            print(*shown, cell["backend"], cell["gpu"]["clocks.sm"], file=sys.stderr, flush=True)
            yield record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--json", type=Path, help="measure, and write the record here")
    source.add_argument("--from", type=Path, dest="given", help="take this record instead of measuring")
    parser.add_argument("--unseen", type=int, default=60, help="how many random shapes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random shapes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the final race (default: %(default)s)")
    options = parser.parse_args()
    if options.given:
        record = stored.load(options.given)
    else:
        import torch

        if not torch.cuda.is_available():
            sys.exit("bench/gemm.py: torch finds no CUDA GPU")
        record = {}
        with torch.no_grad():
            for record in run(options):
                options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
