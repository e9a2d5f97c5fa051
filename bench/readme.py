"""The figures of README.md and docs/pytorch.md, written from the results: each between two comments with its name."""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import attention
import decode
import decode_calls
import fp8_keys
import fp8_queries
import gemm
import invariant
import latent
import pages
import regret
import stored
import unseen
from contenders import CUDNN, FA2, FA4, LIBRARY

from aotriton.rules.flash.common import HEAD_DIM

FOLDER = Path(__file__).resolve().parent / "results"
DOCUMENTS = ("README.md", "docs/pytorch.md")
PLACE = re.compile(r"<!-- figures: (?P<name>[a-z-]+) -->(?P<text>.*?)<!-- end of (?P=name) -->", re.DOTALL)
WORST = 3  # calls of each kind that are named
OPERATORS = {"attn_fwd": "forward", "attn_bwd": "backward"}
DOOR, OPERATOR = "aotriton in SDPA", "aotriton's operator"  # of bench/pytorch.py, which needs torch


class Results:
    """The results that the documents quote, read when they are asked for.

    ``older(name, record)`` says whether a result is of an older state than the tree.
    """

    def __init__(self, folder: Path, older: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self._folder, self._older = folder, older

    def __call__(self, name: str) -> dict[str, Any]:
        record: dict[str, Any] = stored.load(self._folder / f"{name}.json")
        return record

    def newest(self, file: str) -> str:
        """The name of the latest result of a figure, "<gpu>-<file>", of any GPU."""
        return max(self._of(file), key=lambda name: _date(self(name)))

    def has(self, file: str) -> bool:
        """Whether there is a result of a figure, of any GPU."""
        return bool(self._of(file))

    def _of(self, file: str) -> list[str]:
        names = (path.name.partition(".")[0] for path in self._folder.glob(f"*-{file}.json*"))
        return [name for name in names if name.partition("-")[2] == file]

    def of(self, name: str) -> str:
        """Which commit and state a result is of, and whether it is an older one."""
        record = self(name)
        state = record["state"]
        told = [f"{kind} {state[kind]}" for kind in ("images", "runtime") if kind in state]
        older = "**of an older state**, " if self._older(name, record) else ""
        return f"{older}{', '.join(['commit ' + state['commit'], *told])}"


def _date(record: Mapping[str, Any]) -> str:
    return str(record.get("machine", record)["date"])


def _day(record: Mapping[str, Any]) -> str:
    return _date(record)[:10]


def _result(name: str, above: str = "") -> str:
    """A link to a result, from the root of the tree or from a folder that has the root ``above``."""
    return f"[result]({above}bench/results/{stored.place(FOLDER / f'{name}.json').name})"


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


# ---- README.md -------------------------------------------------------------------------------------------------------


def build_size(results: Results) -> str:
    size = results("build-size")
    return f"{size['images']} images, which make a `libaotriton_v2.a` of {size['archive_bytes'] / 1e6:.1f} MB"


def choice(results: Results) -> str:
    """Regret on random shapes, and the other product's by the database's rows."""
    record, rows = results("h200-regret"), results("h100-regret-rows")["cells"]
    mine = {name: [one for one in record["cells"] if one["operator"] == name] for name in OPERATORS}
    refused = Counter(backend for cell in record["cells"] for backend in cell.get("refusing", ()))
    counts = ", ".join(f"{count} times `{backend}`" for backend, count in refused.most_common()) or "none"
    forward, backward = (len(mine[name]) for name in OPERATORS)
    shown = [name for name in regret.STATISTICS if name != "max"]
    lines = [
        f"On {forward} random shapes of the forward and {backward} of the backward, which no tuning has seen (head "
        "dims 32 to "
        "256, both types, equal and unequal lengths, groups of 1 to 8, batches of 1 to 64; seed "
        f"{record['seed']}), how much longer the choice takes than the best of all images that ship, in whole launch "
        f"sequences side by side ([`bench/regret.py`](bench/regret.py), {_result('h200-regret')}): "
        f"{record['machine']['gpu']}, {_day(record)}, {results.of('h200-regret')}, beside what tables of measured "
        "cells "
        f"would choose. Backends that refuse a shape by their guards are no candidates on it: {counts}.",
        "",
        f"| | by cells: {' | '.join(shown)} | by predicted time: {' | '.join(shown)} | predicted time off by "
        "(median) |",
        "|---" * (2 + 2 * len(shown)) + "|",
    ]
    for name, cells in mine.items():
        numbers = []
        for who in ("cells_us", "chosen_us"):
            found = dict(zip(regret.STATISTICS, regret.regrets(cells, who).split(" | "), strict=True))
            numbers += [found[one] for one in shown]
        off = statistics.median(abs(cell["predicted_us"] / cell["chosen_us"] - 1) for cell in cells)
        lines.append(f"| {OPERATORS[name]} | {' | '.join(numbers)} | {100 * off:.1f} % |")
    worst = sorted(record["cells"], key=lambda cell: cell["best_us"] / cell["chosen_us"])[:WORST]
    on_rows = dict(zip(regret.STATISTICS, regret.regrets(rows, "chosen_us").split(" | "), strict=True))
    off = statistics.median(abs(cell["predicted_us"] / cell["chosen_us"] - 1) for cell in rows)
    lines += [
        "",
        f"The worst: {', '.join(map(_worst_choice, worst))}. By its models of the H200, on an H100, in the "
        f"{len(rows)} cells "
        f"where several of its images that ship were timed: mean {on_rows['mean']}, worst {on_rows['max']}, "
        "predicted within "
        f"{100 * off:.1f} % in the median ({_result('h100-regret-rows')}, {results.of('h100-regret-rows')}).",
    ]
    return "\n".join(lines)


def _worst_choice(cell: Mapping[str, Any]) -> str:
    sizes, percent = cell["sizes"], 100 * (cell["chosen_us"] / cell["best_us"] - 1)
    what = f"{'causal ' if cell['causal'] else ''}{OPERATORS[cell['operator']]}"
    shape = f"{sizes['batch']} × {sizes['heads_q']} heads, {sizes['seqlen_q']:,} queries on {sizes['seqlen_k']:,} keys"
    padded = "" if sizes["head_dim"] in map(int, HEAD_DIM.values) else ", padded"
    return f"{percent:.0f} % for a {what} of {shape}, head dim {sizes['head_dim']}{padded}, with `{cell['chosen']}`"


def unseen_problems(results: Results) -> str:
    record = results("h200-bf16-unseen")
    cells = record["cells"]
    by_direction = {d: [cell for cell in cells if cell["direction"] == d] for d in attention.DIRECTIONS}
    with_fa4 = any(FA4 in cell["us"] for cell in cells)
    peers = "FlashAttention-4, cuDNN and FlashAttention-2" if with_fa4 else "cuDNN and FlashAttention-2"
    means = {d: unseen.mean(mine) for d, mine in by_direction.items()}
    ratios = {d: sorted(cell["ratio"] for cell in mine) for d, mine in by_direction.items()}

    def both(wanted: Callable[[dict[str, Any]], bool]) -> str:
        found = (unseen.mean([cell for cell in mine if wanted(cell)]) for mine in by_direction.values())
        return " and ".join(f"{one:.2f}" for one in found)

    def of_dim(dim: int) -> Callable[[dict[str, Any]], bool]:
        return lambda cell: bool(cell["head_dim"] == dim)

    failed = f" {len(record['failed'])} more failed." if record.get("failed") else ""
    of_dims = ", ".join(f"{dim} {both(of_dim(dim))}" for dim in sorted({cell["head_dim"] for cell in cells}))
    text = (
        f"On {len(by_direction['forward'])} random problems that no tuning has seen (seed {record['seed']}; head dims "
        "64 to 256, odd "
        f"lengths, groups of 1, 4 and 8; {record['machine']['gpu']}, {_day(record)}, "
        f"{results.of('h200-bf16-unseen')}), beside "
        f"the best of {peers} for each: **forward {means['forward']:.2f} ×, backward {means['backward']:.2f} ×** "
        "in geometric "
        f"mean, a tenth below {' and '.join(f'{one[len(one) // 10]:.2f}' for one in ratios.values())}, the worst "
        f"{' and '.join(f'{one[0]:.2f}' for one in ratios.values())} ([`bench/unseen.py`](bench/README.md), "
        f"{_result('h200-bf16-unseen')}).{failed} By head dim, forward and backward: {of_dims}. "
        f"Problems above 1 TFLOP have {both(lambda cell: unseen.work_class(cell) == 'above')}."
    )
    if with_fa4:
        others = {}
        for direction, mine in by_direction.items():
            times = [(c["us"], [c["us"][peer] for peer in (FA2, CUDNN) if peer in c["us"]]) for c in mine]
            others[direction] = statistics.geometric_mean(min(theirs) / us[LIBRARY] for us, theirs in times if theirs)
        text += (
            " Beside the better of cuDNN and FlashAttention-2 alone, on the same problems: forward "
            f"{others['forward']:.2f} ×, backward {others['backward']:.2f} ×."
        )
    return text


def grid(results: Results) -> str:
    record, other = results("h200-bf16"), results("h100-bf16")
    about = record["machine"]
    table = attention.table(record).split("\n\n", 1)[1]
    versions = f"driver {about['driver']}, torch {about['torch']}, cuDNN {about['cudnn']}{attention.fa4_version(about)}"
    means = attention.geometric_means(other["cells"])
    without = "" if attention.fa4_version(other["machine"]) else ", without FlashAttention-4 among the peers"
    return "\n".join(
        [
            "On the grid, all in turns in one process ([`bench/attention.py`](bench/README.md), "
            f"{_result('h200-bf16')}): bf16, 16,384 tokens, heads × head dim = 2048. {about['gpu']}, {versions}, "
            f"{_date(record)}, "
            f"{results.of('h200-bf16')}. TFLOP/s, and how many times as fast as the best peer:",
            "",
            table,
            "",
            f"Behind the best peer: {_behind(record)}. On an H100{without}: forward {means['forward']['best']:.2f} "
            "×, backward "
            f"{means['backward']['best']:.2f} × ({_result('h100-bf16')}, {_day(other)}, "
            f"{results.of('h100-bf16')}); behind: "
            f"{_behind(other)}.",
        ]
    )


def _behind(record: Mapping[str, Any]) -> str:
    """The cells of each direction that are shown as less than 1, the worst first."""
    parts = []
    for direction in attention.DIRECTIONS:
        mine = [cell for cell in record["cells"] if cell["direction"] == direction]
        slow = sorted((cell for cell in mine if round(attention.best(cell), 2) < 1), key=attention.best)
        cells = (
            f"D {cell['head_dim']} {'causal' if cell['causal'] else 'full'} {cell['seqlen']} "
            f"({attention.best(cell):.2f})"
            for cell in slow
        )
        parts.append(f"{direction} {', '.join(cells) or 'nowhere'}")
    return "; ".join(parts)


FEATURES = {  # of bench/features.py
    "dropout": "dropout",
    "packed": "packed sequences",
    "alibi": "ALiBi",
    "bias": "bias with its gradient",
    "softcap": "softcap",
}


def with_features(results: Results) -> str:
    """A row for each feature and peer, worst first: speed beside the peer."""
    names = {file: results.newest(file) for file in ("features", "band")}
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    for file, name in names.items():
        for row in results(name)["rows"]:
            what = FEATURES[row["case"]["feature"]] if file == "features" else "windows, causal with unequal lengths"
            own = row["us"][LIBRARY]
            for peer, us in row["us"].items():
                if peer != LIBRARY:
                    times.setdefault((what, peer), {}).setdefault(row["direction"], []).append(us / own)
    of = ", and ".join(
        f"[`bench/{file}.py`](bench/{file}.py) ({results(name)['machine']['gpu']}, {_day(results(name))}, "
        f"{results.of(name)}, {_result(name)})"
        for file, name in names.items()
    )
    lines = [
        f"Speed beside each peer that has the feature, in the geometric mean (and at worst), by {of}. Worst first:",
        "",
        "| feature | beside | forward | backward |",
        "|---|---|---|---|",
    ]

    def shown(ratios: Sequence[float]) -> str:
        return f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f})" if ratios else "not compared"

    worst = sorted(times.items(), key=lambda of_one: min(map(statistics.geometric_mean, of_one[1].values())))
    for (what, peer), by_direction in worst:
        cells = (shown(by_direction.get(direction, [])) for direction in ("forward", "backward"))
        lines.append(f"| {what} | {peer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def decoding(results: Results) -> str:
    """Few queries on many keys: summaries, a table of the cells that are fixed, and the worst of the others."""
    if not results.has("decode"):
        return "Not measured yet ([`bench/decode.py`](bench/decode.py))."
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
            f"Few queries at the end of many keys, in bf16, beside the best of {_listed(peers or ['no peer'])} for "
            f"each cell ([`bench/decode.py`](bench/decode.py), {_result(name)}; {about['gpu']}, {versions}, "
            f"{_day(record)}, {results.of(name)}): "
            f"in the geometric mean **{decode.speed(rows)}**. On {len(drawn)} of the {len(rows)} cells, which were "
            f"drawn from a seed ({record['seed']}) and which no tuning has seen: {decode.speed(drawn)}.{large} "
            "Worst first:",
            "",
            decode.table(record["rows"], copy),
            "",
            f"The worst that were drawn: {_listed(map(_decoded, sorted(drawn, key=decode.ratio)[:WORST]))}."
            + (f" Peers that did not take part: {absent}." if absent else ""),
        ]
    )


def paged(results: Results) -> str:
    """Keys and values in pages: a table of decoding beside contiguous caches, and of mixed batches."""
    if not results.has("pages"):
        return "Not measured yet ([`bench/pages.py`](bench/pages.py))."
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
            f"Keys and values in pages, in bf16 ([`bench/pages.py`](bench/pages.py), {_result(name)}; {about['gpu']}, "
            f"torch {about['torch']}, FA3 {about['fa3']}, {_day(record)}, {results.of(name)}). {' '.join(of_mean)} "
            "Worst first:",
            "",
            pages.table(rows),
        ]
    )


def _decoded(row: Mapping[str, Any]) -> str:
    peer = decode.best(row)
    beside = f"{decode.ratio(row):.2f} × {peer}" if peer else "no peer"
    return f"{decode.cell_of(row)} ({row['us'][LIBRARY]:.1f} µs, {beside})"


def one_call(results: Results) -> str:
    name = results.newest("latency")
    record = results(name)
    cell = record["cells"][0]
    returned, gpu = cell["us"]["return"], cell["us"]["gpu"]
    mask = "causal" if cell["causal"] else "full"
    return (
        f"One warm forward call (batch {cell['batch']}, {cell['heads']} heads, seqlen {cell['seqlen']}, head dim "
        f"{cell['head_dim']}, {mask}) returns to the host after {returned[LIBRARY]:.1f} µs through the C++ API, "
        "cuDNN's through "
        f"torch after {min(returned[CUDNN], returned[f'{CUDNN} SDPA']):.1f}; the GPU takes {gpu[LIBRARY]:.1f} µs "
        "for it, cuDNN's "
        f"{gpu[CUDNN]:.1f} and FA2's {gpu[FA2]:.1f} ({record['machine']['gpu']}, {_day(record)}, {results.of(name)}, "
        f"[`bench/latency.py`](bench/latency.py), {_result(name)})."
    )


def in_pytorch(results: Results) -> str:
    names = [results.newest(file) for file in ("pytorch", "pytorch-train")]
    calls, training = map(results, names)

    def gain(of_mode: Mapping[str, Mapping[str, float]]) -> str:
        peers = max(of_mode[peer]["tokens_per_s"] for peer in (FA2, CUDNN))
        return f"{of_mode[DOOR]['tokens_per_s'] / peers:.2f} ×"

    train, prefill = training["train"], calls["prefill"]
    plain, recorded = ({who: us[1] for who, us in calls["host"][mode].items()} for mode in HOST_MODES)
    return (
        "Beside the better of torch's FlashAttention-2 and cuDNN, in turns in one process "
        f"({calls['machine']['gpu']}, {_day(calls)}, {results.of(names[0])}; training {training['machine']['gpu']}, "
        f"{_day(training)}, "
        f"{results.of(names[1])}): "
        f"training of a GPT of 124 million parameters {gain(train['compiled'])} compiled and "
        f"{gain(train['eager'])} in eager "
        f"mode, prefill of a Llama {gain(prefill['compiled'])} and {gain(prefill['eager'])}; a warm forward "
        "through SDPA keeps the "
        f"host for {plain[DOOR]:.0f} µs (cuDNN's {plain[CUDNN]:.0f}), as an operator {plain[OPERATOR]:.0f}; with a "
        "gradient recorded "
        f"{recorded[DOOR]:.0f} and {recorded[OPERATOR]:.0f} (cuDNN's {recorded[CUDNN]:.0f}) "
        "([figures](docs/pytorch.md#what-it-costs-and-saves))."
    )


HOST_MODES = ("inference_mode", "gradient recorded")


def products(results: Results) -> str:
    record = results("h200-gemm")
    about, cells = record["machine"], record["grid"]
    lt = int(about["cublasLt"])
    lines = [
        "Beside the fastest algorithm that cublasLt's heuristics propose, in turns in one process "
        f"([`bench/gemm.py`](bench/README.md), {_result('h200-gemm')}): bf16, weights stored [n, k]. cublasLt "
        f"{lt // 10000}.{lt // 100 % 100}.{lt % 100}, {about['gpu']}, {_date(record)}, {results.of('h200-gemm')}. "
        "Worst first:",
        "",
        "| m | n | k | aotriton / cuBLAS, TFLOP/s | × cuBLAS |",
        "|---|---|---|---|---|",
    ]
    for cell in sorted(
        (cell for cell in cells if cell["dtype"] == "bf16"), key=lambda cell: cell["ratio"][gemm.CUBLAS]
    ):
        rates = " / ".join(f"{cell['tflops'][who]:.0f}" for who in (LIBRARY, gemm.CUBLAS))
        lines.append(f"| {cell['m']} | {cell['n']} | {cell['k']} | {rates} | {cell['ratio'][gemm.CUBLAS]:.2f} |")
    told = {part: gemm.summary(record[part]) for part in ("grid", "few_rows", "unseen")}
    lines += [
        "",
        "Geometric mean over these, which are sizes that layers have and in part what was tuned on, and the same "
        "in fp16: "
        f"{told['grid']['geometric_mean']:.3f}. With 1 or 16 rows, where memory is what counts: "
        f"{told['few_rows']['geometric_mean']:.2f}. On {len(record['unseen'])} random products that were never "
        "tuned on, of all "
        f"layouts (seed {record['seed']}): {told['unseen']['geometric_mean']:.2f}, down to "
        f"{told['unseen']['worst']:.2f}.",
    ]
    return "\n".join(lines)


def batch_invariant(results: Results) -> str:
    name = results.newest("invariant")
    record = results(name)
    ratios = [invariant.ratio(row) for row in record["rows"]]
    return "\n".join(
        [
            "What [the hint `batch_invariant`](docs/hints.md#the-same-bits-in-every-batch) costs, in bf16 "
            f"([`bench/invariant.py`](bench/invariant.py), {_result(name)}; {record['machine']['gpu']}, "
            f"{_day(record)}, {results.of(name)}): calls take {statistics.geometric_mean(ratios):.2f} × as long in the "
            f"geometric mean, at worst {max(ratios):.2f}. Queries that are as many as keys have a causal mask.",
            "",
            invariant.table(record),
        ]
    )


def keys_of_8_bits(results: Results) -> str:
    name = results.newest("fp8-keys")
    record = results(name)
    rows, pages = (
        [fp8_keys.gain(row, *of) for row in record["rows"]]
        for of in ((fp8_keys.ROWS, fp8_keys.NARROW), (fp8_keys.PAGES, fp8_keys.NARROW_PAGES))
    )
    means = [statistics.geometric_mean(one) for one in (rows, pages)]
    return "\n".join(
        [
            "Keys and values of 8 bits (e4m3) beside the same ones in bf16, with queries of bf16 "
            f"([`bench/fp8_keys.py`](bench/fp8_keys.py), {_result(name)}; {record['machine']['gpu']}, "
            f"{_day(record)}, {results.of(name)}): {means[0]:.2f} × as fast in the geometric mean, at worst "
            f"{min(rows):.2f}; in pages of 64 rows {means[1]:.2f} ×, at worst {min(pages):.2f}. FlashAttention-3 takes "
            "queries of 8 bits, too.",
            "",
            fp8_keys.table(record),
        ]
    )


def queries_of_8_bits(results: Results) -> str:
    name = results.newest("fp8-queries")
    record = results(name)

    def beside(what: str) -> tuple[float, float]:
        found = [one for row in record["rows"] if (one := fp8_queries.times_as_fast(row, what))]
        return statistics.geometric_mean(found), min(found)

    wide, fa3 = beside(fp8_queries.ROWS), beside(fp8_queries.FA3)
    return "\n".join(
        [
            "Queries, keys and values of 8 bits (e4m3), with results in bf16, on the layouts of the grid above and on "
            f"{fp8_queries.DRAWN} that were drawn from a seed ({fp8_queries.SEED}; "
            f"[`bench/fp8_queries.py`](bench/fp8_queries.py), {_result(name)}; {record['machine']['gpu']}, "
            f"{_day(record)}, {results.of(name)}): {fa3[0]:.2f} × as fast as FlashAttention-3 with 8 bits in the "
            f"geometric mean, at worst {fa3[1]:.2f}, and {wide[0]:.2f} × as fast as this library with 16 bits, at "
            f"worst {wide[1]:.2f}.",
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
            f"([`bench/latent.py`](bench/latent.py), {_result(name)}; {record['machine']['gpu']}, "
            f"{_day(record)}, {results.of(name)}). The bound is what a copy's bandwidth or a matrix product's rate "
            "allows.",
            "",
            latent.table(record),
        ]
    )


def new_shape(results: Results) -> str:
    name = results.newest("new-shape")
    record = results(name)
    values = {row["what"]: row["value"] for row in record["rows"]}
    us = {what: value / 1000 for what, value in values.items()}
    return (
        "A call of a shape that the thread has not made lately costs the library "
        f"{us['forward, new shape']:.1f} µs forward and {us['backward, new shape']:.1f} backward, with a "
        "`workspace_limit` "
        f"{us['backward, new shape, workspace_limit']:.0f}, beside the driver's own time; a warm one "
        f"{us['forward, warm']:.2f} and "
        f"{us['backward, warm']:.2f} (the host of an {name[:4].upper()}, {_day(record)}, {results.of(name)}, "
        f"[`bench/new_shape.cc`](bench/new_shape.cc), {_result(name)})."
    )


def first_call(results: Results) -> str:
    name = results.newest("first-call")
    record = results(name)
    took = [f"{statistics.median(row['first_ms']):.1f} ms for a {row['call']}" for row in record["rows"]]
    most = max(max(row["first_ms"]) for row in record["rows"])
    return (
        f"The first call of a process, whose CUDA context is there, takes {_listed(took)} in the median of "
        f"{record['processes']} processes, at most {most:.1f} ms: the library loads no more than the call's images "
        f"({record['machine']['gpu']}, {_day(record)}, {results.of(name)}, "
        f"[`bench/first_call.py`](bench/first_call.py), {_result(name)})."
    )


def launches(results: Results) -> str:
    name = results.newest("launch")
    record = results(name)
    lines = [
        "Beside a bare `cuLaunchKernel` of the same kernels, warm, from C++ ([`bench/launch.cc`](bench/launch.cc), "
        f"{_result(name)}): {record['gpu']}, {_day(record)}, {results.of(name)}.",
        "",
        "| | kernels | call | prepared call |",
        "|---|---|---|---|",
    ]
    for case in record["cases"]:
        what = case["call"] if "," in case["call"] else f"{case['call']}, TMA descriptors"
        lines.append(f"| {what} | {case['launches']} | {case['library']:.2f} | {case['prepared']:.2f} |")
    return "\n".join(lines)


def warm_call(results: Results) -> str:
    more = [round(100 * (case["library"] - 1)) for case in results(results.newest("launch"))["cases"]]
    return f"{min(more)} to {max(more)} %"


# ---- docs/pytorch.md -------------------------------------------------------------------------------------------------

MODES = {
    "inference_mode": "`inference_mode`",
    "no_grad": "`no_grad`",
    "no gradient asked for": "no gradient is asked for",
    "gradient recorded": "a gradient is recorded",
}
COLUMNS = {FA2: "FA2", CUDNN: "cuDNN", DOOR: "this backend in SDPA"}


def pytorch_host(results: Results) -> str:
    name = results.newest("pytorch")
    record = results(name)
    lines = [
        f"{record['machine']['gpu']}, {_day(record)}, {results.of(name)} ({_result(name, '../')}):",
        "",
        f"| | {' | '.join(COLUMNS.values())} | `torch.ops.aotriton.attn_fwd` |",
        "|---|---|---|---|---|",
    ]
    for mode, cells in record["host"].items():
        shown = (f"{cells[who][1]:.1f}" for who in (*COLUMNS, OPERATOR))
        lines.append(f"| {MODES[mode]} | {' | '.join(shown)} |")
    return "\n".join(lines)


def pytorch_tokens(results: Results) -> str:
    names = [results.newest(file) for file in ("pytorch", "pytorch-train")]
    calls, training = map(results, names)
    lines = [
        f"Training: {training['machine']['gpu']}, {_day(training)}, {results.of(names[1])} "
        f"({_result(names[1], '../')}); prefill as above.",
        "",
        f"| | {' | '.join(COLUMNS.values())} | operator |",
        "|---|---|---|---|---|",
    ]
    for what, parts in (("training", training["train"]), ("prefill", calls["prefill"])):
        for mode, cells in parts.items():
            shown = (f"{cells[who]['tokens_per_s']:,}" for who in (*COLUMNS, OPERATOR))
            lines.append(f"| {what}, {mode} | {' | '.join(shown)} |")
    return "\n".join(lines)


FIGURES: dict[str, Callable[[Results], str]] = {
    "build-size": build_size,
    "warm-call": warm_call,
    "choice": choice,
    "unseen": unseen_problems,
    "grid": grid,
    "features": with_features,
    "decoding": decoding,
    "paged": paged,
    "batch-invariant": batch_invariant,
    "narrow-keys": keys_of_8_bits,
    "narrow-queries": queries_of_8_bits,
    "latent": latent_caches,
    "one-call": one_call,
    "pytorch": in_pytorch,
    "gemm": products,
    "new-shape": new_shape,
    "first-call": first_call,
    "launch": launches,
    "pytorch-host": pytorch_host,
    "pytorch-tokens": pytorch_tokens,
}


def written(text: str, results: Results) -> str:
    """The document with its figures anew. ValueError where a name is none of FIGURES, or a comment has no other "
    "end."""
    opened = re.findall(r"<!-- figures: ([^ ]*) -->", text)
    closed = [match["name"] for match in PLACE.finditer(text)]
    if opened != closed or set(opened) - set(FIGURES):
        wrong = [name for name in opened if name not in closed or name not in FIGURES]
        raise ValueError(f"figures {', '.join(wrong)}: of no such name, or without their end")
    return PLACE.sub(partial(_written, results), text)


def _written(results: Results, place: re.Match[str]) -> str:
    name, found = place["name"], FIGURES[place["name"]](results)
    # A part of a sentence stays in its line; all else has lines of its own.
    between = "\n" if place["text"].startswith("\n") or not place["text"] else ""
    return f"<!-- figures: {name} -->{between}{found}{between}<!-- end of {name} -->"
