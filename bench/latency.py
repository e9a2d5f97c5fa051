"""Latency of one warm forward call: the library's C++ API beside FA2 and cuDNN through torch, as JSON and a table.

python bench/latency.py --library build/default/bench-latency.so --json bench/results/latency.json
python bench/latency.py --from bench/results/latency.json   # needs no GPU
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored
from attention import OPERATORS, compare, gpu_state, machine, race
from contenders import CUDNN, FA2, LIBRARY, contenders

FA2_SDPA, CUDNN_SDPA, BINDING, NOTHING = "FA2 SDPA", "cuDNN SDPA", "binding", "nothing"
ROWS = {
    LIBRARY: "aotriton, C++ API",
    FA2: "FA2, `torch.ops.aten`",
    FA2_SDPA: "FA2, `scaled_dot_product_attention`",
    CUDNN: "cuDNN, `torch.ops.aten`",
    CUDNN_SDPA: "cuDNN, `scaled_dot_product_attention`",
    BINDING: "aotriton, from Python",
    NOTHING: "an empty Python function",
}
THROUGH_TORCH = (FA2, FA2_SDPA, CUDNN, CUDNN_SDPA)
CLOCKS = {
    "return": "host, to its return",
    "complete": "host, to the end of a stream synchronise",
    "events": "events around it, GPU idle before",
    "gpu": "events around it, GPU busy before",
}

BATCH, HEADS, HEAD_DIM = 1, 16, 128
CELLS = ((512, True), (512, False), (128, True), (2048, True))  # seqlen, causal
ROUNDS, WARM_UP = 1001, 50


class Call(Protocol):
    """A contender's call. ``host`` and ``events`` make it once untimed, wait for it, and then make it timed."""

    def __call__(self) -> Any:
        """The call alone, without waiting for it. Gives the output, or a tuple that starts with it."""

    def host(self, stream: Any) -> tuple[int, int]:
        """Nanoseconds from before the call to its return, and to the end of a synchronise of the stream after it."""

    def events(self, stream: Any, start: Any, end: Any) -> None:
        """Records the events right around the call, and waits for them."""


@dataclass
class PythonCall:
    """A call that Python makes. Its results are freed before the next, so torch's allocator has memory at hand."""

    call: Callable[[], Any]
    selection: Callable[[], AbstractContextManager[object]] = nullcontext  # entered around it, outside the timing

    def __call__(self) -> Any:
        with self.selection():
            return self.call()

    def host(self, stream: Any) -> tuple[int, int]:
        call, synchronize = self.call, stream.synchronize
        with self.selection():
            result = call()
            synchronize()
            del result
            start = perf_counter_ns()
            result = call()
            returned = perf_counter_ns()
            synchronize()
            end = perf_counter_ns()
            del result
        return returned - start, end - start

    def events(self, stream: Any, start: Any, end: Any) -> None:
        call, synchronize = self.call, stream.synchronize
        with self.selection():
            result = call()
            synchronize()
            del result
            start.record(stream)
            result = call()
            end.record(stream)
            synchronize()
            del result


class Problem(ctypes.Structure):
    """`Problem` of latency.cc."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "logsumexp", "stream")),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "seqlen", "head_dim")),
        ("sm_scale", ctypes.c_float),
        ("causal", ctypes.c_int32),
    )


def load(path: Path) -> ctypes.CDLL:
    """latency.cc, ready to be called; every function of it raises RuntimeError where it fails."""
    library = ctypes.CDLL(str(path.resolve()))
    pointer, number = ctypes.POINTER(Problem), ctypes.POINTER(ctypes.c_int64)

    def failed(message: bytes | None, function: Any, arguments: Any) -> None:
        if message is not None:
            raise RuntimeError(message.decode())

    for name, parameters in {
        "latency_open": (),
        "latency_call": (pointer,),
        "latency_host": (pointer, number, number),
        "latency_events": (pointer, ctypes.c_void_p, ctypes.c_void_p),
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype, function.errcheck = parameters, ctypes.c_char_p, failed
    library.latency_open()
    return library


class CppCall:
    """The call that latency.cc makes: Python starts a sample, but is not between its clock readings or events."""

    def __init__(self, library: ctypes.CDLL, problem: Problem, out: Any = None, keep: Any = None) -> None:
        self.library, self.problem, self.out = library, problem, out
        self.keep = keep  # tensors that the problem points to

    def __call__(self) -> Any:
        self.library.latency_call(self.problem)
        return self.out

    def host(self, stream: Any) -> tuple[int, int]:
        to_return, to_end = ctypes.c_int64(), ctypes.c_int64()
        self.library.latency_host(self.problem, to_return, to_end)
        return to_return.value, to_end.value

    def events(self, stream: Any, start: Any, end: Any) -> None:
        self.library.latency_events(self.problem, start.cuda_event, end.cuda_event)


def cpp_call(library: ctypes.CDLL, q: Any, k: Any, v: Any, causal: bool) -> CppCall:
    """The library's forward on these tensors and torch's current stream, with logsumexp, as the peers write it."""
    import torch

    out = torch.full_like(q, float("nan"))
    logsumexp = torch.full(q.shape[:3], float("nan"), dtype=torch.float32, device=q.device)
    stream = torch.cuda.current_stream().cuda_stream
    addresses = (*(tensor.data_ptr() for tensor in (q, k, v, out, logsumexp)), stream)
    problem = Problem(*addresses, *q.shape, q.shape[-1] ** -0.5, causal)
    return CppCall(library, problem, out, (q, k, v, logsumexp))


def all_contenders(library: ctypes.CDLL, q: Any, k: Any, v: Any, dout: Any, causal: bool) -> dict[str, Call]:
    """{row: contender}, in the table's order."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    below_autograd = contenders(q, k, v, dout, causal)
    sdpa = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=causal)
    return {
        LIBRARY: cpp_call(library, q, k, v, causal),
        FA2: PythonCall(below_autograd[FA2].forward),
        FA2_SDPA: PythonCall(sdpa, partial(sdpa_kernel, SDPBackend.FLASH_ATTENTION)),
        CUDNN: PythonCall(below_autograd[CUDNN].forward),
        CUDNN_SDPA: PythonCall(sdpa, partial(sdpa_kernel, SDPBackend.CUDNN_ATTENTION)),
        BINDING: PythonCall(below_autograd[LIBRARY].forward),
        NOTHING: PythonCall(lambda: None),
    }


def take_turns(
    calls: dict[str, Call], stream: Any, start: Any, end: Any, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """{clock: {row: microseconds}} of one call on an idle GPU, in a rotating order, always with these two events."""
    samples = {clock: {who: list[float]() for who in calls} for clock in ("return", "complete", "events")}
    order = list(calls)
    gc.collect()
    gc.disable()  # as timeit does
    try:
        for turn in range(-WARM_UP, rounds):
            for who in order:
                returned, complete = calls[who].host(stream)
                calls[who].events(stream, start, end)
                if turn >= 0:
                    samples["return"][who].append(returned / 1000)
                    samples["complete"][who].append(complete / 1000)
                    samples["events"][who].append(1000 * start.elapsed_time(end))
            order.append(order.pop(0))
    finally:
        gc.enable()
    return samples


def measure(library: ctypes.CDLL, rounds: int) -> Iterator[dict[str, Any]]:
    """One record for each problem."""
    import torch

    import aotriton

    stream = torch.cuda.current_stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(stream)  # torch makes an event when it is first recorded
    end.record(stream)
    for seqlen, causal in CELLS:
        generator = torch.Generator(device="cuda").manual_seed(seqlen)
        shape = (BATCH, HEADS, seqlen, HEAD_DIM)
        q, k, v, dout = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        calls = all_contenders(library, q, k, v, dout, causal)
        results = {}
        for who, call in calls.items():
            if who != NOTHING:
                result = call()
                results[who] = {"out": result[0] if isinstance(result, tuple) else result}
        errors = compare(q, k, v, dout, causal, results)
        del results, result

        samples = take_turns(calls, stream, start, end, rounds)
        samples["gpu"] = race(calls, rounds, cold=False)
        medians = {
            clock: {who: statistics.median(taken) for who, taken in rows.items()} for clock, rows in samples.items()
        }
        quarters = {
            clock: {who: statistics.quantiles(taken, n=4) for who, taken in rows.items()}
            for clock, rows in samples.items()
        }
        choices = aotriton.explain(
            OPERATORS["forward"], arch=aotriton.arch(), product=aotriton.product(),
            multiprocessors=aotriton.multiprocessors(), dtype="bf16",
            batch=BATCH, heads=HEADS, seqlen=seqlen, head_dim=HEAD_DIM, causal=causal,
        )  # fmt: skip
        yield {
            "batch": BATCH, "heads": HEADS, "seqlen": seqlen, "head_dim": HEAD_DIM, "causal": causal,
            "us": {c: {who: round(us, 3) for who, us in rows.items()} for c, rows in medians.items()},
            "quartiles_us": {
                c: {who: [round(q[0], 3), round(q[2], 3)] for who, q in rows.items()} for c, rows in quarters.items()
            },
            "samples": {c: {who: len(taken) for who, taken in rows.items()} for c, rows in samples.items()},
            "ratio": {
                c: {peer: round(rows[peer] / rows[LIBRARY], 4) for peer in THROUGH_TORCH} for c, rows in medians.items()
            },
            "errors": errors,
            "images": [[choice["image"], choice["provenance"]] for choice in choices],
            "gpu": gpu_state(),
        }  # fmt: skip


def cpu() -> str:
    """The processor's model, which latency depends on as much as on the GPU's."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def beside(cell: dict[str, Any], clock: str, peer: str) -> str:
    """Where the library's quartiles lie from a peer's: "below", "above", or "level" where the two ranges overlap."""
    (low, high), (peer_low, peer_high) = (cell["quartiles_us"][clock][who] for who in (LIBRARY, peer))
    return "below" if high < peer_low else "above" if low > peer_high else "level"


def verdict(cell: dict[str, Any], clock: str) -> str:
    """Whether the library's call is below every peer's through torch, beside whom it is not, and the smallest ratio."""
    groups: dict[str, list[str]] = {}
    for peer in THROUGH_TORCH:
        groups.setdefault(beside(cell, clock, peer), []).append(peer)
    groups.pop("below", None)
    answer = "; ".join(("no", *(f"{where}: {', '.join(peers)}" for where, peers in groups.items())))
    return f"{answer if groups else 'yes'} (× {min(cell['ratio'][clock].values()):.2f})"


def table(record: dict[str, Any]) -> str:
    """The record as markdown: medians and quartiles of each problem, and whether the library is below its peers."""
    about = record["machine"]
    versions = f"driver {about['driver']}, torch {about['torch']}, cuDNN {about['cudnn']}"
    lines = [f"{about['gpu']}, {about['cpu']}, {versions}, {about['date']}"]
    lines.append(f"Microseconds of one warm call, median (quartiles) of {record['rounds']} rounds, bf16.")
    for cell in record["cells"]:
        mask = "causal" if cell["causal"] else "full"
        name = f"B{cell['batch']} H{cell['heads']} S{cell['seqlen']} D{cell['head_dim']} {mask}"
        lines += ["", f"| {name} | {' | '.join(CLOCKS.values())} |", "|---" * (1 + len(CLOCKS)) + "|"]
        for who, label in ROWS.items():
            line = f"| {label} |"
            for clock in CLOCKS:
                low, high = cell["quartiles_us"][clock][who]
                line += f" {cell['us'][clock][who]:.1f} ({low:.1f} to {high:.1f}) |"
            lines.append(line)
        answers = " | ".join(verdict(cell, clock) for clock in CLOCKS)
        lines.append(f"| C++ API below all four through torch (× the closest) | {answers} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--json", type=Path, help="measure, and write the record here")
    source.add_argument("--from", type=Path, dest="given", help="take this record instead of measuring")
    parser.add_argument("--library", type=Path, help="bench-latency.so, which the build target bench-latency makes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.given:
        print(table(stored.load(options.given)))
        return
    if not options.library:
        parser.error("--json needs --library")

    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/latency.py: torch finds no CUDA GPU")
    torch.zeros(1, device="cuda")  # makes the device current for the library
    library = load(options.library)
    record: dict[str, Any] = {"machine": machine() | {"cpu": cpu()}, "rounds": options.rounds, "cells": []}
    # A stream of their own, as engines have; the library's C++ call is a little cheaper on the default one.
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        for cell in measure(library, options.rounds):
            record["cells"].append(cell)
            options.json.write_text(json.dumps(record, indent=1) + "\n")  # each time: a run cut short leaves its cells
    print(table(record))


if __name__ == "__main__":
    main()
