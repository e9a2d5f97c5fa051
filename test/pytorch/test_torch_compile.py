"""What torch's compilers make of the operators, on tensors of a CPU: graphs, results, export, AOTInductor."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import torch
from torch._dynamo.testing import AotEagerAndRecordGraphs

import aotriton
from aotriton.torch import attention, gemm
from aotriton.torch.library import find

OPS = torch.ops.aotriton
BACKENDS = [
    "eager",
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="inductor wants g++ for a CPU")),
]


def tensor(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


def block(x: Any, heads: int, w: Any) -> Any:
    """Attention of a model: a product gives q, k and v, which are views into it, and another one takes the result."""
    batch, rows, width = x.shape
    q, k, v = gemm(x.flatten(0, 1), w).view(batch, rows, 3, heads, -1).permute(2, 0, 3, 1, 4)
    out = attention(q, k, v, causal=True)
    return gemm(out.transpose(1, 2).reshape(batch * rows, width), w[:, :width], activation="silu")


def loss_and_gradients(call: Any, *args: Any) -> list[Any]:
    x, heads, w = args
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    loss = call(leaves[0], heads, leaves[1]).float().square().sum()
    return [loss, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_is_eager(backend: str) -> None:
    """A block with both operators compiles as one graph; results and gradients are eager's, of several sizes too."""
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for rows in (6, 9, 10):
        args = (tensor(2, rows, 32), 2, tensor(32, 96, seed=1) / 8)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), block(*args), rtol=0.02, atol=0.02)
        for got, expected in zip(loss_and_gradients(compiled, *args), loss_and_gradients(block, *args), strict=True):
            torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)


def test_masks_go_through_transforms() -> None:
    """A variant and a window reach the operator, both ways, compiled, mapped, differentiated by torch.func, and
    exported.
    """

    def masked(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, causal=True, causal_variant="bottom_right", window_left=3)

    torch._dynamo.reset()
    given = [tensor(2, 4, 9, 16, seed=seed) for seed in range(3)]
    leaves = [x.clone().requires_grad_() for x in given]
    out = masked(*leaves)
    assert not torch.equal(out, attention(*given, causal=True))
    gradients = torch.autograd.grad(out.float().sum(), leaves)
    compiled = torch.compile(masked, fullgraph=True, backend="aot_eager")(*leaves)
    assert torch.equal(compiled, out)
    again = torch.autograd.grad(compiled.float().sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(again, gradients, strict=True))
    mapped = torch.vmap(masked)(*(x[None].expand(3, *x.shape) for x in given))
    assert all(torch.equal(one, out) for one in mapped)
    by_func = torch.func.grad(lambda q: masked(q, *given[1:]).float().sum())(given[0])
    assert torch.equal(by_func, gradients[0])

    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return masked(q, k, v)

    exported = torch.export.export(Model(), tuple(given))
    assert torch.equal(exported.module()(*given), out)


def test_graphs_keep_the_operators() -> None:
    """The compiled graphs have each operator once and its backward once, with the arguments that were given."""
    torch._dynamo.reset()
    backend = AotEagerAndRecordGraphs()
    loss_and_gradients(torch.compile(block, fullgraph=True, backend=backend), tensor(2, 6, 32), 2, tensor(32, 96))

    def calls(graph: Any) -> list[tuple[str, dict[str, Any]]]:
        nodes = graph.graph.find_nodes(op="call_function", target=OPS.attn_fwd.default)
        nodes += graph.graph.find_nodes(op="call_function", target=OPS.attn_bwd.default)
        return [(node.target.name(), dict(node.kwargs)) for node in nodes]

    (forward,), (backward,) = backend.fw_graphs, backend.bw_graphs
    assert calls(forward) == [("aotriton::attn_fwd", {"causal": True})]
    assert calls(backward) == [("aotriton::attn_bwd", {"causal": True})]
    (dynamo,) = backend.graphs
    assert len(dynamo.graph.find_nodes(op="call_function", target=OPS.attn_fwd.default)) == 1


class Block(torch.nn.Module):
    def forward(self, x: Any, w: Any) -> Any:
        return block(x, 2, w)


def test_export_keeps_the_operators() -> None:
    """An exported program has the operators, not what they do, and computes the same."""
    args = tensor(2, 6, 32), tensor(32, 96)
    program = torch.export.export(Block(), args)
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(OPS.attn_fwd.default) == 1
    assert targets.count(OPS.gemm.default) == 2
    assert torch.equal(program.module()(*args), Block()(*args))


@pytest.mark.skipif(not shutil.which("g++"), reason="AOTInductor wants g++ for a CPU")
def test_aot_inductor(tmp_path: Any) -> None:
    """A package of AOTInductor calls the operators, and computes what the module does."""
    args = tensor(2, 6, 32), tensor(32, 96) / 8
    program = torch.export.export(Block(), args)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "block.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(*args), Block()(*args), rtol=0.02, atol=0.02)


@pytest.mark.skipif(not shutil.which("g++"), reason="AOTInductor wants g++ for a CPU")
def test_a_program_without_python(tmp_path: Path) -> None:
    """A C++ program that has loaded libaotriton_torch.so runs a package of AOTInductor: no Python is in the process."""

    class Module(torch.nn.Module):
        def forward(self, q: Any) -> Any:
            return attention(q, q, q, causal=True)

    sizes = 2, 4, 8, 16
    q = torch.arange(math.prod(sizes)).sin().reshape(sizes).bfloat16()
    program = torch.export.export(Module(), (q,))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "module.pt2"))
    folder, source, binary = Path(torch.__file__).parent, Path(__file__).with_name("torch_program.cc"), tmp_path / "run"
    command = [os.environ.get("CXX", "g++"), "-std=c++17", str(source), "-o", str(binary)]
    command += [f"-I{folder}/include", f"-L{folder}/lib", f"-Wl,--no-as-needed,-rpath,{folder}/lib"]
    subprocess.run([*command, "-ltorch", "-ltorch_cpu", "-lc10"], check=True)
    arguments = [str(find(list(aotriton.__path__))), package, *map(str, sizes)]
    done = subprocess.run([str(binary), *arguments], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(Module()(q).double().sum().item(), rel=1e-6)
    linked = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=True).stdout
    assert "libpython" not in linked


def featured(q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
    """Calls with each kind of feature: of a batch, and of sequences of different lengths."""
    slopes = torch.tensor([0.5, 0.25])
    out = attention(q, k, v, bias=bias, sinks=sinks, alibi_slopes=slopes, causal=True)
    batch, _, rows, _ = q.shape
    starts = torch.arange(0, batch * rows + 1, rows, dtype=torch.int32)
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": rows, "max_seqlen_k": rows}
    packed = [x.transpose(1, 2).flatten(0, 1) for x in (out, k, v)]
    return attention(*packed, **lengths, causal=True, sinks=sinks, softcap=1.5).sin()


@pytest.mark.parametrize("backend", BACKENDS)
def test_features_compile(backend: str) -> None:
    """Calls with features are in one graph, forward and backward, of several sizes too, and give eager's results."""
    torch._dynamo.reset()
    compiled = torch.compile(featured, fullgraph=True, backend=backend)
    for rows in (6, 9, 10):
        given = [*(tensor(2, 2, rows, 16, seed=seed) for seed in range(3)), tensor(rows, rows), torch.ones(2)]
        results = []
        for call in (compiled, featured):
            leaves = [x.clone().requires_grad_() for x in given]
            out = call(*leaves)
            results.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_compiles(backend: str) -> None:
    """A compiled call draws another seed each time, from torch's generator, and its backward drops what the forward
    dropped.
    """
    torch._dynamo.reset()
    q, v = torch.zeros(1, 1, 64, 128).bfloat16(), torch.eye(128).bfloat16()[None, None].requires_grad_()
    call = torch.compile(lambda v: attention(q, v, v, dropout=0.3), fullgraph=True, backend=backend)
    first, second = call(v), call(v)
    assert not torch.equal(first, second)
    for out in (first, second):  # weights themselves, as v is the identity
        assert (out == 0).float().mean().item() == pytest.approx(0.3, abs=0.03)
        (dv,) = torch.autograd.grad(out, v, torch.ones_like(out))
        torch.testing.assert_close(dv[0, 0, :, 0].float(), out[0, 0].float().sum(0), rtol=0.02, atol=0.02)
    torch.manual_seed(3)
    again = call(v)
    torch.manual_seed(3)
    assert torch.equal(call(v), again)


class Featured(torch.nn.Module):
    def forward(self, *args: Any) -> Any:
        return featured(*args)


def test_features_are_exported() -> None:
    """An exported program has the operator's overload with features, and computes the same."""
    args = (*(tensor(2, 2, 9, 16, seed=seed) for seed in range(3)), tensor(9, 9), torch.ones(2))
    program = torch.export.export(Featured(), args)
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(OPS.attn_fwd.features) == 2
    assert torch.equal(program.module()(*args), featured(*args))
