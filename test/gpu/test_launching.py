"""How launches behave: the same bits every time, on any stream, from any thread, in graphs, and as `explain` says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

from gpu.gpu_problem import Case, Guarded, Problem, same_bits  # noqa: E402 - it needs both

# Deterministic, so that a launch can be compared with another by its bits.
TYPICAL = Problem(
    batch=2, heads_q=8, heads_k=4, seqlen_q=700, seqlen_k=700, head_dim=128, causal=True, deterministic=True
)
PROBLEMS = (
    TYPICAL,
    replace(
        TYPICAL, heads_q=6, heads_k=2, seqlen_q=513, seqlen_k=1000, head_dim=64, dtype="fp16", spread=12.0, causal=False
    ),
    replace(TYPICAL, heads_q=4, heads_k=1, seqlen_q=300, seqlen_k=300, head_dim=96, layout="odd_rows"),
)


def launched(case: Case) -> dict[str, Guarded]:
    """Results of a launch on the current stream, waited for."""
    outputs: dict[str, Guarded] = case.outputs()
    case.launch(outputs)
    torch.cuda.synchronize()
    return outputs


def in_fresh_process(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``script`` in a Python that has used no GPU yet, with the tests' helpers importable."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_results_are_deterministic(problem: Problem) -> None:
    """Ten runs of forward and backward give the same bits."""
    case = Case(problem)
    first = launched(case)
    for _ in range(9):
        assert same_bits(first, launched(case))


def test_work_is_ordered_on_the_callers_stream() -> None:
    """A launch on a side stream waits for that stream's earlier work, and leaves the default stream alone."""
    case = Case(TYPICAL)
    wanted, outputs = launched(case), case.outputs()
    inputs = case.q.clone()
    case.q.fill_(float("nan"))
    torch.cuda.synchronize()
    stream, done_early = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        case.q.copy_(inputs)
        case.launch(outputs)
        done_late = torch.cuda.Event()
        done_late.record()
    done_early.record()  # on the default stream
    done_early.synchronize()
    assert not done_late.query(), "the launch ran outside its stream, or the sleep was too short"
    torch.cuda.synchronize()
    assert same_bits(wanted, outputs)


def test_torchs_current_stream_is_the_default() -> None:
    """Without a stream, a call is ordered after the work of torch's current stream, and not on the default one."""
    case = Case(TYPICAL)
    wanted, got = launched(case), case.outputs()
    o = {name: guarded.view for name, guarded in got.items()}
    inputs = case.q.clone()
    case.q.fill_(float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        case.q.copy_(inputs)
        aotriton.attn_fwd(case.q, case.k, case.v, o["out"], o["logsumexp"], sm_scale=case.sm_scale, causal=True)
        aotriton.attn_bwd(
            *case.backward_tensors(got), o["workspace"].view(torch.uint8), sm_scale=case.sm_scale, stream=None,
            **case.options,
        )  # fmt: skip
        late = torch.cuda.Event()
        late.record()
    early = torch.cuda.Event()
    early.record()  # on the default stream
    early.synchronize()
    assert not late.query(), "the launch ran outside its stream, or the sleep was too short"
    torch.cuda.synchronize()
    assert same_bits(wanted, got)


def test_two_streams_do_not_disturb_each_other() -> None:
    """Launches that overlap on two streams give what they give alone."""
    cases = [Case(problem) for problem in PROBLEMS[:2]]
    wanted = [launched(case) for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    rounds = [[case.outputs() for case in cases] for _ in range(20)]
    torch.cuda.synchronize()
    for outputs in rounds:
        for case, stream, output in zip(cases, streams, outputs, strict=True):
            with torch.cuda.stream(stream):
                case.launch(output)
    torch.cuda.synchronize()
    assert all(same_bits(want, got) for outputs in rounds for want, got in zip(wanted, outputs, strict=True))


THREADS = """
import threading
import torch
from gpu.gpu_problem import Case, Problem, same_bits

cases = [
    Case(Problem(batch=1, seqlen_q=100 + 60 * i, seqlen_k=100 + 60 * i, head_dim=(64, 128)[i % 2],
                 dtype=("bf16", "fp16")[i // 4], causal=i % 3 == 0, deterministic=True))
    for i in range(8)
]
runs = [[case.outputs() for _ in range(20)] for case in cases]
torch.cuda.synchronize()
barrier, failed = threading.Barrier(len(cases)), []

def work(case, outputs):
    try:
        torch.cuda.set_device(0)
        with torch.cuda.stream(torch.cuda.Stream()):
            barrier.wait()
            for output in outputs:
                case.launch(output)
            torch.cuda.current_stream().synchronize()
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=work, args=pair) for pair in zip(cases, runs)]
for thread in threads: thread.start()
for thread in threads: thread.join()
torch.cuda.synchronize()
for case, outputs in zip(cases, runs):
    alone = case.outputs()
    case.launch(alone)
    torch.cuda.synchronize()
    assert all(same_bits(alone, output) for output in outputs), case.problem
assert not failed, failed
print("all the same")
"""


def test_threads_may_make_the_first_launches_at_once() -> None:
    """Eight threads that race to load their images and then launch get what each gets alone."""
    done = in_fresh_process(THREADS)
    assert done.stdout == "all the same\n", done.stderr


def test_error_messages_belong_to_their_thread() -> None:
    """Threads that fail at the same time each see the argument that they got wrong."""
    mixed_up = []

    def fail(name: str) -> None:
        torch.cuda.set_device(0)
        wide = torch.zeros(1, 1, 16, 128, dtype=torch.bfloat16, device="cuda")
        tensors = {key: wide[..., ::2] if key == name else wide[..., :64] for key in ("q", "k", "v", "out")}
        for _ in range(300):
            try:
                aotriton.attn_fwd(**tensors, sm_scale=1.0)
                mixed_up.append(f"{name}: no error")
            except aotriton.AotritonError as error:
                if f"attn_fwd: {name} has" not in str(error):
                    mixed_up.append(f"{name}: {error}")

    threads = [threading.Thread(target=fail, args=(name,)) for name in ("q", "k", "v", "out")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed_up, mixed_up[:4]


def test_graphs_replay_after_preload() -> None:
    """After preload() both directions can be captured in a CUDA graph, whose replays see new inputs."""
    aotriton.preload(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    for problem in PROBLEMS:
        case, other = Case(problem), Case(problem, seed=1)
        outputs, graph = case.outputs(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            case.launch(outputs)
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(launched(case), outputs)
        for name in ("q", "k", "v", "dout"):
            getattr(case, name).copy_(getattr(other, name))
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(launched(other), outputs)


CAPTURE = """
import torch
import aotriton
from gpu.gpu_problem import Case, Problem, same_bits

case = Case(Problem(seqlen_q=256, seqlen_k=256, deterministic=True))
outputs = case.outputs()
torch.cuda.synchronize()
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    torch.ones(1, device="cuda")  # something, so that the graph is not empty
    try:
        case.launch(outputs)
        print("launched")
    except aotriton.AotritonError as error:
        print(error.code, "preload" in str(error))
aotriton.preload()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    case.launch(outputs)
graph.replay()
torch.cuda.synchronize()
again = case.outputs()
case.launch(again)
torch.cuda.synchronize()
print(same_bits(outputs, again))
"""


def test_capture_without_preload_says_so() -> None:
    """In a capture an image that is not loaded is an error, not_loaded, that names preload() and spares the capture."""
    done = in_fresh_process(CAPTURE)
    assert done.stdout == "not_loaded True\nTrue\n", done.stderr


LOG = """
import torch
import aotriton
from gpu.gpu_problem import Case, Problem

case = Case(Problem(batch=2, heads_q=8, heads_k=4, seqlen_q=700, seqlen_k=700, head_dim=128, causal=True))
outputs = case.outputs()
for _ in range(3):
    case.launch(outputs)
torch.cuda.synchronize()
"""


def test_what_explain_says_is_what_runs() -> None:
    """With AOTRITON_LOG=info each first use prints the image that explain() names, and later uses print nothing."""
    done = in_fresh_process(LOG, AOTRITON_LOG="info")
    assert done.returncode == 0, done.stderr
    shape = {"batch": 2, "heads_q": 8, "heads_k": 4, "seqlen": 700, "head_dim": 128, "causal": True}
    place = {name: getattr(aotriton, name)() for name in ("arch", "product", "multiprocessors")}
    images = [
        choice["image"]
        for op in ("attn_fwd", "attn_bwd")
        for choice in aotriton.explain(op, dtype="bf16", **place, **shape)
    ]
    assert len(images) == 4
    for image in images:
        assert done.stderr.count(image) == 1, done.stderr
