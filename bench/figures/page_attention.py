"""Figures of attention, its features and its choices in docs/performance.md."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attention
import band
import lengths
import regret
import unseen
from contenders import CUDNN, FA2, FA4, LIBRARY

from aotriton.rules.flash.common import HEAD_DIM
from figures.comparison import compared
from figures.results import Results, date, link

OPERATORS = {"attn_fwd": "forward", "attn_bwd": "backward"}
WORST = 3  # calls that are named
NO_FA4 = " FlashAttention-4 took no part."


def unseen_problems(results: Results) -> str:
    name = results.newest("bf16-unseen")
    record = results(name)
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
        f"64 to 256, odd lengths, groups of 1, 4 and 8; {results.about(name)}), beside the best of {peers} for each: "
        f"**forward {means['forward']:.2f} ×, backward {means['backward']:.2f} ×** in geometric mean, a tenth below "
        f"{' and '.join(f'{one[len(one) // 10]:.2f}' for one in ratios.values())}, the worst "
        f"{' and '.join(f'{one[0]:.2f}' for one in ratios.values())} ([`bench/unseen.py`](../bench/README.md), "
        f"{link(name)}).{'' if with_fa4 else NO_FA4}{failed} By head dim, forward and backward: {of_dims}. "
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
    name = results.newest("bf16")
    record = results(name)
    about = record["machine"]
    table = attention.table(record).split("\n\n", 1)[1]
    versions = f"driver {about['driver']}, torch {about['torch']}, cuDNN {about['cudnn']}{attention.fa4_version(about)}"
    absent = "" if attention.fa4_version(about) else NO_FA4
    return "\n".join(
        [
            f"On the grid, all in turns in one process ([`bench/attention.py`](../bench/README.md), {link(name)}): "
            f"bf16, 16,384 tokens, heads × head dim = 2048. {about['gpu']}, {versions}, {date(record)}, "
            f"{results.of(name)}.{absent} TFLOP/s, and how many times as fast as the best peer:",
            "",
            table,
            "",
            f"Behind the best peer: {_behind(record)}.",
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


def one_call(results: Results) -> str:
    name = results.newest("latency")
    record = results(name)
    cell = record["cells"][0]
    returned, gpu = cell["us"]["return"], cell["us"]["gpu"]
    mask = "causal" if cell["causal"] else "full"
    return (
        f"One warm forward call (batch {cell['batch']}, {cell['heads']} heads, seqlen {cell['seqlen']}, head dim "
        f"{cell['head_dim']}, {mask}) returns to the host after {returned[LIBRARY]:.1f} µs through the C++ API, "
        f"cuDNN's through torch after {min(returned[CUDNN], returned[f'{CUDNN} SDPA']):.1f}; the GPU takes "
        f"{gpu[LIBRARY]:.1f} µs for it, cuDNN's {gpu[CUDNN]:.1f} and FA2's {gpu[FA2]:.1f} "
        f"({results.about(name)}, "
        f"[`bench/latency.py`](../bench/latency.py), {link(name)})."
    )


def with_features(results: Results) -> str:
    """A row for each feature and peer, worst first: speed beside the peer."""
    names = {file: results.newest(file) for file in ("features", "band")}
    of = ", and ".join(
        f"[`bench/{file}.py`](../bench/{file}.py) ({results.about(name)}, {link(name)})" for file, name in names.items()
    )
    lines = [
        f"Speed beside each peer that has the feature, in the geometric mean (and at worst), by {of}. Worst first:",
        "",
        "| feature | beside | forward | backward |",
        "|---|---|---|---|",
    ]

    def shown(times: Sequence[float]) -> str:
        return f"{statistics.geometric_mean(times):.2f} ({min(times):.2f})" if times else "not compared"

    found = [one for file, name in names.items() for one in compared(file, results(name))]
    for one in sorted(found, key=lambda one: min(one.means)):
        cells = (shown(one.times.get(direction, [])) for direction in attention.DIRECTIONS)
        lines.append(f"| {one.what} | {one.beside} | {' | '.join(cells)} |")
    full = {
        row["direction"]: row["us"][band.FULL] / row["us"][LIBRARY]
        for row in results(names["band"])["rows"] if band.FULL in row["us"]
    }  # fmt: skip
    if full:
        case = band.BESIDE_FULL
        of_both = " and ".join(f"{times:.1f} × as fast ({direction})" for direction, times in full.items())
        lines += [
            "",
            f"With a window of {case.left + 1:,} keys, a causal call of {case.seqlen_q:,} rows is {of_both} as without "
            "it.",
        ]
    return "\n".join(lines)


def choice(results: Results) -> str:
    """Regret on random shapes, and a product's by the database's rows."""
    name, by_rows = results.newest("regret"), results.newest("regret-rows")
    record, rows = results(name), results(by_rows)["cells"]
    mine = {operator: [one for one in record["cells"] if one["operator"] == operator] for operator in OPERATORS}
    refused = Counter(backend for cell in record["cells"] for backend in cell.get("refusing", ()))
    counts = ", ".join(f"{count} times `{backend}`" for backend, count in refused.most_common()) or "none"
    forward, backward = map(len, mine.values())
    shown = [one for one in regret.STATISTICS if one != "max"]
    lines = [
        f"On {forward} random shapes of the forward and {backward} of the backward, which no tuning has seen (head "
        "dims 32 to 256, both types, equal and unequal lengths, groups of 1 to 8, batches of 1 to 64; seed "
        f"{record['seed']}), how much longer the choice takes than the best of all images that ship, in whole launch "
        f"sequences side by side ([`bench/regret.py`](../bench/regret.py), {link(name)}): {results.about(name)}, "
        f"beside what tables of measured cells would choose. Backends that refuse "
        f"a shape by their guards are no candidates on it: {counts}.",
        "",
        f"| | by cells: {' | '.join(shown)} | by predicted time: {' | '.join(shown)} | predicted time off by "
        "(median) |",
        "|---" * (2 + 2 * len(shown)) + "|",
    ]
    for operator, cells in mine.items():
        numbers = []
        for who in ("cells_us", "chosen_us"):
            found = dict(zip(regret.STATISTICS, regret.regrets(cells, who).split(" | "), strict=True))
            numbers += [found[one] for one in shown]
        lines.append(f"| {OPERATORS[operator]} | {' | '.join(numbers)} | {_off(cells)} |")
    worst = sorted(record["cells"], key=lambda cell: cell["best_us"] / cell["chosen_us"])[:WORST]
    on_rows = dict(zip(regret.STATISTICS, regret.regrets(rows, "chosen_us").split(" | "), strict=True))
    lines += [
        "",
        f"The worst: {', '.join(map(_worst_choice, worst))}.",
        "",
        f"By what the tuner measured on an {results(by_rows)['product']}, in the {len(rows)} cells of the forward "
        f"where several images that ship were timed: mean {on_rows['mean']}, worst {on_rows['max']}, predicted "
        f"within {_off(rows)} in the median ({link(by_rows)}, {results.of(by_rows)}).",
    ]
    return "\n".join(lines)


def choice_of_lengths(results: Results) -> str:
    """Regret where lengths are in device memory."""
    name = results.newest("lengths")
    record = results(name)
    return "\n".join(
        [
            "Where lengths are in device memory, the library knows rows, sequences and the longest one. On "
            f"{len(record['us'])} random calls, causal at the last key (seed {record['seed']}; chunks of prompts "
            "beside decoding steps, equal chunks on caches of different lengths, packed prompts, and packed prompts "
            "behind other keys), how much longer the chosen backend takes than the fastest one "
            f"([`bench/lengths.py`](../bench/lengths.py), {link(name)}): {results.about(name)}.",
            "",
            lengths.table(record),
            "",
            f"The worst: {'; '.join(lengths.worst(record, WORST))}.",
        ]
    )


def _off(cells: Sequence[Mapping[str, Any]]) -> str:
    """How far the predicted time is off, in the median."""
    off = statistics.median(abs(cell["predicted_us"] / cell["chosen_us"] - 1) for cell in cells)
    return f"{100 * off:.1f} %"


def _worst_choice(cell: Mapping[str, Any]) -> str:
    sizes, percent = cell["sizes"], 100 * (cell["chosen_us"] / cell["best_us"] - 1)
    what = f"{'causal ' if cell['causal'] else ''}{OPERATORS[cell['operator']]}"
    shape = f"{sizes['batch']} × {sizes['heads_q']} heads, {sizes['seqlen_q']:,} queries on {sizes['seqlen_k']:,} keys"
    padded = "" if sizes["head_dim"] in map(int, HEAD_DIM.values) else ", padded"
    return f"{percent:.0f} % for a {what} of {shape}, head dim {sizes['head_dim']}{padded}, with `{cell['chosen']}`"
