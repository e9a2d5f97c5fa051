"""Figures of matrix products, PyTorch, host time and kernels of others in pages of docs/."""

from __future__ import annotations

import statistics

import gemm
import public_kernels as public
from contenders import CUDNN, FA2, LIBRARY
from losses import apart, at_the_end, between_seeds, numbers

from figures.comparison import DOOR, OPERATOR, PACKED_PEERS, PACKED_WAYS, gain
from figures.results import Results, date, day, gpu_of, link, listed

HOST_MODES = ("inference_mode", "gradient recorded")
MODES = {
    "inference_mode": "`inference_mode`",
    "no_grad": "`no_grad`",
    "no gradient asked for": "no gradient is asked for",
    "gradient recorded": "a gradient is recorded",
}
COLUMNS = {FA2: "FA2", CUDNN: "cuDNN", DOOR: "this backend in SDPA"}


def in_pytorch(results: Results) -> str:
    names = [results.newest(file) for file in ("pytorch", "pytorch-train")]
    calls, training = map(results, names)

    train, prefill = ({mode: gain(who) for mode, who in one.items()} for one in (training["train"], calls["prefill"]))
    plain, recorded = ({who: us[1] for who, us in calls["host"][mode].items()} for mode in HOST_MODES)
    return (
        "Beside the better of torch's FlashAttention-2 and cuDNN, in turns in one process "
        f"({results.about(names[0])}; training {results.about(names[1])}): training of a GPT of 124 million parameters "
        f"{train['compiled']:.2f} × compiled and {train['eager']:.2f} × in eager mode, prefill of a Llama "
        f"{prefill['compiled']:.2f} × and {prefill['eager']:.2f} ×; a warm forward through SDPA keeps the host for "
        f"{plain[DOOR]:.0f} µs (cuDNN's {plain[CUDNN]:.0f}), as an operator {plain[OPERATOR]:.0f}; with a gradient "
        f"recorded {recorded[DOOR]:.0f} and {recorded[OPERATOR]:.0f} (cuDNN's {recorded[CUDNN]:.0f}) "
        "([figures](pytorch.md#what-it-costs-and-saves))."
    )


def products(results: Results) -> str:
    name = results.newest("gemm")
    record = results(name)
    about, cells = record["machine"], record["grid"]
    lt = int(about["cublasLt"])
    lines = [
        "Beside the fastest algorithm that cublasLt's heuristics propose, in turns in one process "
        f"([`bench/gemm.py`](../bench/README.md), {link(name)}): bf16, weights stored [n, k]. cublasLt "
        f"{lt // 10000}.{lt // 100 % 100}.{lt % 100}, {about['gpu']}, {date(record)}, {results.of(name)}. Worst "
        "first:",
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
        f"in fp16: {told['grid']['geometric_mean']:.3f}. With 1 or 16 rows, where memory is what counts: "
        f"{told['few_rows']['geometric_mean']:.2f}. On {len(record['unseen'])} random products that were never "
        f"tuned on, of all layouts (seed {record['seed']}): {told['unseen']['geometric_mean']:.2f}, down to "
        f"{told['unseen']['worst']:.2f}.",
    ]
    return "\n".join(lines)


def new_shape(results: Results) -> str:
    name = results.newest("new-shape")
    record = results(name)
    values = {row["what"]: row["value"] for row in record["rows"]}
    us = {what: value / 1000 for what, value in values.items()}
    return (
        "A call of a shape that the thread has not made lately costs the library "
        f"{us['forward, new shape']:.1f} µs forward and {us['backward, new shape']:.1f} backward, with a "
        f"`workspace_limit` {us['backward, new shape, workspace_limit']:.0f}, beside the driver's own time; a warm one "
        f"{us['forward, warm']:.2f} and {us['backward, warm']:.2f} (the host of an {gpu_of(name)}, {day(record)}, "
        f"{results.of(name)}, "
        f"[`bench/new_shape.cc`](../bench/new_shape.cc), {link(name)})."
    )


def first_call(results: Results) -> str:
    name = results.newest("first-call")
    record = results(name)
    took = [f"{statistics.median(row['first_ms']):.1f} ms for a {row['call']}" for row in record["rows"]]
    most = max(max(row["first_ms"]) for row in record["rows"])
    return (
        f"The first call of a process, whose CUDA context is there, takes {listed(took)} in the median of "
        f"{record['processes']} processes, at most {most:.1f} ms: the library loads no more than the call's images "
        f"({results.about(name)}, "
        f"[`bench/first_call.py`](../bench/first_call.py), {link(name)})."
    )


def launches(results: Results) -> str:
    name = results.newest("launch")
    record = results(name)
    lines = [
        f"Beside a bare `cuLaunchKernel` of the same kernels, warm, from C++, medians of {record['processes']} "
        f"processes ([`bench/launch.py`](../bench/launch.py), {link(name)}): {results.about(name)}.",
        "",
        "| | kernels | call | prepared call |",
        "|---|---|---|---|",
    ]
    for case in record["cases"]:
        what = case["call"] if "," in case["call"] else f"{case['call']}, TMA descriptors"
        lines.append(f"| {what} | {case['launches']} | {case['library']:.2f} | {case['prepared']:.2f} |")
    return "\n".join(lines)


def pytorch_host(results: Results) -> str:
    name = results.newest("pytorch")
    record = results(name)
    lines = [
        f"{results.about(name)} ({link(name)}):",
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
        f"Training: {results.about(names[1])} ({link(names[1])}); prefill as above.",
        "",
        f"| | {' | '.join(COLUMNS.values())} | operator |",
        "|---|---|---|---|---|",
    ]
    for what, parts in (("training", training["train"]), ("prefill", calls["prefill"])):
        for mode, cells in parts.items():
            shown = (f"{cells[who]['tokens_per_s']:,}" for who in (*COLUMNS, OPERATOR))
            lines.append(f"| {what}, {mode} | {' | '.join(shown)} |")
    return "\n".join(lines)


def pytorch_packed(results: Results) -> str:
    """Tokens/s with dropout and without, and how far losses are apart, beside what draws and seeds do to them."""
    if not results.has("pytorch-packed"):
        return "Not measured yet: `python bench/all.py --only packed-train` does it."
    name = results.newest("pytorch-packed")
    train = results(name)["train"]
    labels = {who: who for who in PACKED_PEERS} | PACKED_WAYS
    lines = [
        f"{results.about(name)} ({link(name)}):",
        "",
        f"| | {' | '.join(labels.values())} |",
        "|---" * (len(labels) + 1) + "|",
    ]
    for run, modes in train.items():
        for mode, found in modes.items():
            shown = (f"{found[who]['tokens_per_s']:,}" if who in found else "" for who in labels)
            lines.append(f"| {run}, {mode} | {' | '.join(shown)} |")
    dropped, plain = (train[run]["compiled"] for run in ("dropout", "no dropout"))
    lines += ["", "Losses when compiled, and their distance from FA2's in the mean, by seed:", ""]
    labels |= {f"{FA2}, other draws": "FA2 once more, which drops other weights"}
    for run, found in (("dropout", dropped), ("no dropout", plain)):
        losses = {label: found[who]["losses"] for who, label in labels.items() if who in found and who != FA2}
        told = (f"{label} {numbers(apart(one, found[FA2]['losses']))}" for label, one in losses.items())
        lines.append(f"* {run}: {'; '.join(told)}")
    if between := between_seeds(dropped[FA2]["losses"]):
        lines.append(f"* dropout, FA2 with one seed and with another: {numbers(between)}")
    ends = (f"{label} {at_the_end(dropped[who]['losses']):.3f}" for who, label in labels.items() if who in dropped)
    lines.append(f"* dropout, mean loss of the last tenth of the steps: {'; '.join(ends)}")
    gradients = max(plain[who]["gradients_apart"] for who in PACKED_WAYS)
    lines.append(f"* no dropout, gradients of the first step: at most {100 * gradients:.2g} % from FA2's in any layer")
    return "\n".join(lines)


def public_kernels(results: Results) -> str:
    """Each kernel of a public package: how it was tuned, and its winner beside its author's config."""
    if not results.has("public-kernels"):
        return "Not measured yet: `python bench/all.py --only public-kernels` does it."
    name = results.newest("public-kernels")
    record = results(name)
    rows = [row for row in record["rows"] if "error" not in row]
    packages = sorted({row["package"] for row in record["rows"]})
    lines = [f"{results.about(name)}, Triton {record['machine']['triton']}, {listed(packages)} ({link(name)})."]
    if rows:
        ratios = [public.ratio(row) for row in rows]
        lines[0] += (
            f" Of {len(record['rows'])} kernels {len(rows)} were tuned, with declarations of"
            f" {statistics.median(row['lines'] for row in rows):.0f} lines in the median, in"
            f" {sum(row['tuned_s'] for row in rows):.0f} s together; they are {statistics.geometric_mean(ratios):.2f} ×"
            f" as fast as with their authors' configs in the geometric mean, {min(ratios):.2f} to {max(ratios):.2f}:"
        )
    return "\n".join([*lines, "", public.table(record)])
