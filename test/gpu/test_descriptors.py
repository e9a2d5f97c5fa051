"""Autotuned kernels with tensor descriptors on a GPU: those that a kernel makes itself, in scratch memory, and those
that its caller passes. Winners give torch's results: by the binding when tuned, and by the JIT when called, also within
CUDA graphs and torch.compile.

Other tests may compute on the GPU meanwhile, so ``crowded_launcher`` stands in: it does not look for other processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernel_package import descriptors

import aotriton
from aotriton.codegen.compile import ImageStore
from aotriton.codegen.program import launch_program
from aotriton.rules import family
from aotriton.rules.database import TuningDatabase
from aotriton.tune.autotune.tuned import DATABASE, Tuned
from aotriton.tune.measure.launcher import visible_gpus

pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
pytest.importorskip("torch", reason="torch is not installed")
import torch
from triton.tools.tensor_descriptor import TensorDescriptor


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Families and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AOTRITON_IMAGE_STORE", raising=False)
    monkeypatch.setenv(family.VARIABLE, "")


def of_product(a: Any, b: Any) -> Any:
    return a @ b.T


def of_softmax(x: Any) -> Any:
    return x.softmax(-1)


PRODUCT: dict[str, Any] = {
    "inputs": {"a": "bf16[M, K]", "b": "bf16[N, K]"},
    "results": {"c": "bf16[M, N]"},
    "sizes": {"M": 1024, "N": (512, 1024), "K": 512},
    "reference": of_product,
}
TILES = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "BLOCK_K": (64,), "num_warps": (4,), "num_stages": (2, 3)}
BLOCKS = {"a": ["BLOCK_M", "BLOCK_K"], "b": ["BLOCK_N", "BLOCK_K"], "c": ["BLOCK_M", "BLOCK_N"]}
SOFTMAX: dict[str, Any] = {
    "inputs": {"x": "bf16[rows, columns]", "COLUMNS": "next_power_of_2(columns)"},
    "results": {"out": "bf16[rows, columns]"},
    "sizes": {"rows": 2048, "columns": (512, 1024)},
    "reference": of_softmax,
    "grid": "cdiv(rows, ROWS)",
    "space": {"ROWS": (1, 4), "num_warps": (4, 8)},
}

needs_maps = pytest.mark.skipif(
    not torch.cuda.is_available() or bool(torch.version.hip) or torch.cuda.get_device_capability()[0] < 9,
    reason="this GPU has no tensor maps, of which descriptors are made that a caller passes",
)


def tuned(kernel: Any, **declared: Any) -> Tuned:
    """The kernel, tuned: each config was right or pruned."""
    options = ("--launcher", "crowded_launcher:CrowdedLauncher", "--gpus", *visible_gpus())
    one: Tuned = aotriton.autotune(kernel, options=options, **declared)
    with TuningDatabase(one.folder / DATABASE, readonly=True) as database:
        assert {outcome.status for outcome in database.evidence.outcomes()} <= {"ok", "pruned"}
    return one


def factors(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    """Two factors, and room for their product."""
    a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    return a, b, torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)


def check_product(a: Any, b: Any, c: Any) -> None:
    torch.testing.assert_close(c, (a.double() @ b.double().T).bfloat16(), rtol=2**-6, atol=2**-4)


def check_softmax(x: Any, out: Any) -> None:
    torch.testing.assert_close(out, x.double().softmax(-1).bfloat16(), rtol=2**-7, atol=1e-6)


def test_a_persistent_product_makes_descriptors() -> None:
    """Three for each program. Winners are right at other sizes, too, some of which fill no tile. The winner's image,
    launched by the library's host code with as much memory as it asks for, is right; without it is refused.
    """
    space = {"PROGRAMS": (132, 264), **TILES}
    one = tuned(descriptors.persistent, **PRODUCT, grid="PROGRAMS", space=space)
    for m, n, k in ((1024, 1024, 512), (1008, 496, 208), (16, 16, 16)):
        a, b, c = factors(m, n, k)
        one(a, b, c)
        check_product(a, b, c)
    best = one.best(M=1024, N=1024, K=512)
    image = ImageStore().get(best.image)
    assert image
    (kernel,) = family.add(one.folder).kernels
    tunables = {name: value for name, value in best.config.items() if name in kernel.tunable_names}
    program = launch_program(kernel, family.operator_of(kernel))
    candidate = aotriton.Candidate(program, image.binary, image.metadata, tunables)
    a, b, c = factors(1024, 1024, 512)
    operands = {"a": a, "b": b, "c": c}
    bytes_ = aotriton.workspace_size(candidate, operands)
    assert bytes_ == best.config["PROGRAMS"] * image.metadata["global_scratch"]
    if bytes_:  # on NVIDIA
        with pytest.raises(aotriton.AotritonError, match=f"workspace is null, {bytes_} bytes are needed"):
            aotriton.launch(candidate, operands)
    aotriton.launch(candidate, operands, workspace=torch.empty(bytes_, dtype=torch.uint8, device="cuda"))
    check_product(a, b, c)
    aotriton.release(candidate)


def test_a_softmax_makes_descriptors_in_a_graph() -> None:
    """A graph has the memory of its descriptors: replays are right after torch has handed out and overwritten all that
    it had before, and with several launches in one graph.
    """
    one = tuned(descriptors.softmax, **SOFTMAX)
    x = torch.randn(2048, 1000, device="cuda").bfloat16()
    between, out = (torch.full_like(x, torch.nan) for _ in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # the JIT compiles the kernel before the capture
        one(x, between)
    torch.cuda.current_stream().wait_stream(stream)
    check_softmax(x, between)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one(x, between)
        one(between, out)
    for _ in range(3):
        spoilt = [torch.full((1 << shift,), 255, dtype=torch.uint8, device="cuda") for shift in range(9, 24)]
        x.copy_(torch.randn(2048, 1000, device="cuda"))
        between.fill_(torch.nan)
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check_softmax(x, between)
        check_softmax(between, out)
        del spoilt


def test_a_softmax_makes_descriptors_in_a_compiled_function() -> None:
    """torch.compile has the call as one operator, also where it makes CUDA graphs of what it compiles."""
    one = tuned(descriptors.softmax, **SOFTMAX)

    def twice(x: Any) -> Any:
        out = torch.empty_like(x)
        one(x + 1, out)
        return 2 * out

    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        compiled = torch.compile(twice, fullgraph=True, mode=mode)
        for _ in range(4):  # which records a graph, and replays it
            x = torch.randn(333, 1000, device="cuda").bfloat16()
            torch.testing.assert_close(compiled(x).clone(), twice(x), rtol=2**-7, atol=1e-6)


def test_launches_of_many_streams_have_memory_of_their_own() -> None:
    """Each launch takes its memory on its own stream, where the next launch may have the same."""
    one = tuned(descriptors.softmax, **SOFTMAX)
    x = torch.randn(2048, 1000, device="cuda").bfloat16()
    one(x, torch.empty_like(x))
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = [torch.full_like(x, torch.nan) for _ in range(64)]
    torch.cuda.synchronize()
    for place, out in enumerate(results):
        with torch.cuda.stream(streams[place % len(streams)]):
            one(x, out)
    torch.cuda.synchronize()
    for out in results:
        check_softmax(x, out)


@needs_maps
def test_a_product_of_descriptors_that_the_caller_passes() -> None:
    """As tensors, as descriptors of any block, and in the JIT's form; at sizes that fill no tile, too."""
    grid = ("cdiv(M, BLOCK_M)", "cdiv(N, BLOCK_N)")
    one = tuned(descriptors.by_host, **PRODUCT, grid=grid, space=TILES, descriptors=BLOCKS)
    for m, n, k in ((1024, 1024, 512), (1008, 496, 208), (16, 16, 16)):
        a, b, c = factors(m, n, k)
        one(a, b, c)
        check_product(a, b, c)
        for jit in (False, True):
            c.fill_(torch.nan)
            made = [TensorDescriptor.from_tensor(tensor, [16, 16]) for tensor in (a, b, c)]
            if jit:
                one[(1,)](*made, m, n, k, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)
            else:
                one(*made)
            check_product(a, b, c)


@needs_maps
def test_configs_with_a_hook_that_sets_blocks() -> None:
    """The author's configs are the space, and what their hooks set is what ``descriptors`` says. A graph replays the
    launch, whose tensor maps are among its arguments.
    """
    grid = ("cdiv(M, BLOCK_M)", "cdiv(N, BLOCK_N)")
    one = tuned(descriptors.with_hooks, **PRODUCT, grid=grid, descriptors=BLOCKS)
    a, b, c = factors(1024, 1024, 512)
    one(a, b, c)
    check_product(a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one(a, b, c)
    a.copy_(torch.randn(1024, 512, device="cuda"))
    c.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    check_product(a, b, c)
