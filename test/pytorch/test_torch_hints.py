"""Hints on their way through torch: what the library is told in eager mode, and by graphs of torch's compilers."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import torch
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.utils.checkpoint import checkpoint

import aotriton
from aotriton.torch import attention, gemm, hinted, keep_hints, stats
from aotriton.torch.hints import text_of

OPS = torch.ops.aotriton
BACKENDS = ["eager", "aot_eager", "inductor"]


def tensor(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


Q = tensor(1, 2, 5, 8)


@pytest.fixture
def told() -> Callable[[], Counter[tuple[str, str]]]:
    """{(operator, hints): calls} since the beginning of the test, or since it was asked last."""

    def now() -> Counter[tuple[str, str]]:
        return Counter({(op, text): n for op, texts in stats()["hints"].items() for text, n in texts.items()})

    before = now()

    def since() -> Counter[tuple[str, str]]:
        nonlocal before
        before, gone = now(), before
        return before - gone

    return since


def both(text: str, calls: int = 1) -> Counter[tuple[str, str]]:
    return Counter({("attn_fwd", text): calls, ("attn_bwd", text): calls})


def model(q: Any) -> Any:
    """Three regions, one inside another, and calls outside of them."""
    q = attention(q, q, q)
    with aotriton.hints(schedule="dfs"):
        q = attention(q, q, q)
        with aotriton.hints(schedule="bfs", deterministic=True):
            q = attention(q, q, q)
    with aotriton.hints(workspace_limit=1 << 20):
        q = attention(q, q, q)
    return attention(q, q, q)


IN_MODEL = both("schedule=dfs") + both("schedule=dfs schedule=bfs deterministic=1") + both("workspace_limit=1048576")


def backward(call: Any) -> Any:
    q = Q.clone().requires_grad_()
    call(q).float().square().sum().backward()
    return q.grad


def test_regions_in_eager_mode(told: Callable[[], Any]) -> None:
    """Calls in a region are told its hints, an inner region's after the outer one's; their backward, which runs outside
    of them, too; and nothing is computed otherwise.
    """
    gradient = backward(model)
    assert told() == IN_MODEL
    assert torch.equal(gradient, backward(lambda q: [q := attention(q, q, q) for _ in range(5)][-1]))
    assert not told()


def test_operators_in_a_region(told: Callable[[], Any]) -> None:
    """Operators are told the region's hints as the functions are, with gradients or without; their own come last."""
    with aotriton.hints(schedule="dfs"):
        with torch.inference_mode():
            OPS.attn_fwd(Q, Q, Q)
            OPS.gemm(Q[0], Q[0].mT)
            gemm(Q[0], Q[0].mT)
        backward(lambda q: OPS.attn_fwd(q, q, q, hints="schedule=bfs")[0])
    expected = Counter({("attn_fwd", "schedule=dfs"): 1, ("gemm", "schedule=dfs"): 2})
    assert told() == expected + both("schedule=dfs schedule=bfs")


def test_a_region_ends(told: Callable[[], Any]) -> None:
    """Also by an exception; and it is the thread's own."""
    with pytest.raises(KeyError), aotriton.hints(schedule="dfs"):
        raise KeyError
    with aotriton.hints(schedule="dfs"):
        thread = threading.Thread(target=lambda: attention(Q, Q, Q))
        thread.start()
        thread.join()
    OPS.attn_fwd(Q, Q, Q)
    assert not told()


def test_sdpa_in_a_region(told: Callable[[], Any]) -> None:
    """torch's own attention, where it runs here, is told the region's hints."""
    OPS._activate("CPU")
    with aotriton.hints(schedule="dfs"):
        torch.ops.aten._scaled_dot_product_flash_attention(Q, Q, Q)
    OPS._restore()
    assert told() == Counter({("attn_fwd", "schedule=dfs"): 1})


def test_words() -> None:
    """Hints become words; what a word cannot hold is refused by its name."""
    wishes = {"schedule": "dfs", "deterministic": True, "latency": False, "exclude": ["a", "b"], "workspace_limit": 5}
    assert text_of(wishes) == "schedule=dfs deterministic=1 latency=0 exclude=a,b workspace_limit=5"
    for wrong in ({"schedule": "d fs"}, {"two words": 1}, {"a": ""} | {"b": " "}):
        with pytest.raises(ValueError, match="is no word"):
            text_of(wrong)


def test_names_and_values(told: Callable[[], Any]) -> None:
    """An unknown hint is ignored; a value that a known one cannot have is refused, by both names."""
    with aotriton.hints(prefetch="far"):
        attention(Q, Q, Q)
    assert told() == Counter({("attn_fwd", "prefetch=far"): 1})
    with aotriton.hints(schedule="sideways"), pytest.raises(RuntimeError, match=r"schedule.*sideways"):
        attention(Q, Q, Q)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(backend: str, told: Callable[[], Any]) -> None:
    """A compiled model tells the library what the eager one does, forward and backward."""
    torch._dynamo.reset()
    expected = backward(model)
    told()
    gradient = backward(torch.compile(model, fullgraph=True, backend=backend))
    assert told() == IN_MODEL
    torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.05)


def test_graphs_have_the_hints() -> None:
    """The nodes of both graphs have the hints as an argument, and as metadata; the backward in reverse."""
    torch._dynamo.reset()
    recorder = AotEagerAndRecordGraphs()
    backward(torch.compile(model, fullgraph=True, backend=recorder))

    def found(graph: Any, target: Any) -> list[tuple[str, str]]:
        nodes = graph.graph.find_nodes(op="call_function", target=target)
        return [(n.kwargs.get("hints", ""), n.meta.get("custom", {}).get("aotriton.hints", "")) for n in nodes]

    texts = ["", "schedule=dfs", "schedule=dfs schedule=bfs deterministic=1", "workspace_limit=1048576", ""]
    assert found(recorder.fw_graphs[0], OPS.attn_fwd.default) == [(text, text) for text in texts]
    assert found(recorder.bw_graphs[0], OPS.attn_bwd.default) == [(text, text) for text in reversed(texts)]


def test_a_region_around_a_compiled_function(told: Callable[[], Any]) -> None:
    """A compiled function is told the hints of where it is called, each time."""
    torch._dynamo.reset()
    call = torch.compile(lambda q: attention(q, q, q), fullgraph=True, backend="aot_eager")
    for wish in ("dfs", "bfs", "dfs"):
        with aotriton.hints(schedule=wish):
            q = Q.clone().requires_grad_()
            out = call(q)
        out.float().sum().backward()
        assert told() == both(f"schedule={wish}")
    call(Q)
    assert not told()


def test_a_region_around_a_compiled_operator(told: Callable[[], Any]) -> None:
    """An operator by itself, compiled, is told the hints of where it runs, and its backward none: the graph that was
    made in one region is not bound to it.
    """
    torch._dynamo.reset()
    call = torch.compile(lambda q: OPS.attn_fwd(q, q, q)[0], fullgraph=True, backend="aot_eager")
    for wish in ("dfs", "bfs"):
        with aotriton.hints(schedule=wish):
            out = call(Q.clone().requires_grad_())
        out.float().sum().backward()
        assert told() == Counter({("attn_fwd", f"schedule={wish}"): 1})


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpoint(compiled: bool, told: Callable[[], Any]) -> None:
    """What activation checkpointing computes again is told what it was told before, and so is its backward."""
    torch._dynamo.reset()

    def call(q: Any) -> Any:
        with aotriton.hints(schedule="dfs"):
            return checkpoint(lambda x: attention(x, x, x).sin(), q, use_reentrant=False, **how)

    how = {} if compiled else {"context_fn": keep_hints}  # a graph has its hints
    backward(torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)
    seen = told()
    assert set(seen) == set(both("schedule=dfs"))
    assert seen["attn_fwd", "schedule=dfs"] == 2
    assert seen["attn_bwd", "schedule=dfs"] == 1


def test_checkpoint_that_forgets(told: Callable[[], Any]) -> None:
    """Without the context function, what a checkpoint computes again after the region is told nothing; the backward is
    that of the first time.
    """
    q = Q.clone().requires_grad_()
    with aotriton.hints(schedule="dfs"):
        out = checkpoint(lambda x: attention(x, x, x).sin(), q, use_reentrant=False)
    out.float().sum().backward()
    assert told() == both("schedule=dfs")


def test_a_backward_of_another_thread(told: Callable[[], Any]) -> None:
    """A backward has its forward's hints wherever it runs, each of several its own; and nobody else's."""
    outs = []
    for wish in ("dfs", "bfs", "dfs"):
        with aotriton.hints(schedule=wish):
            outs.append(OPS.attn_fwd(*[Q.clone().requires_grad_()] * 3, hints="deterministic=1")[0])
    outs.append(OPS.attn_fwd(*[Q.clone().requires_grad_()] * 3, hints="schedule=dfs")[0])
    outs.append(attention(*[Q.clone().requires_grad_()] * 3))
    for out in outs:
        thread = threading.Thread(target=out.float().sum().backward)
        thread.start()
        thread.join()
    expected = both("schedule=dfs deterministic=1", 2) + both("schedule=bfs deterministic=1") + both("schedule=dfs")
    assert told() == expected


def test_passes_over_a_graph(told: Callable[[], Any]) -> None:
    """Hints survive copies of a graph and of its nodes; a call that is dropped takes its own along; calls that differ
    in hints alone are not made one.
    """
    from torch._functorch.compile_utils import fx_graph_cse
    from torch.fx.experimental.proxy_tensor import make_fx

    def twice(q: Any) -> Any:
        with aotriton.hints(schedule="dfs"):
            a, same, _ = attention(q, q, q), attention(q, q, q), attention(q, q, q, causal=True)
        with aotriton.hints(schedule="bfs"):
            return a + same + attention(q, q, q)

    graph = make_fx(twice)(Q)
    told()
    copied = copy.deepcopy(graph)
    copied.graph.eliminate_dead_code()
    once = torch.fx.GraphModule(copied, fx_graph_cse(copied.graph))
    for module, dfs in ((graph, 3), (torch.fx.GraphModule(graph, copy.copy(graph.graph)), 3), (copied, 2), (once, 1)):
        module.recompile()
        assert torch.equal(module(Q), twice(Q))
        told_here = told() - Counter({("attn_fwd", "schedule=dfs"): 3, ("attn_fwd", "schedule=bfs"): 1})
        assert told_here == Counter({("attn_fwd", "schedule=dfs"): dfs, ("attn_fwd", "schedule=bfs"): 1})


class Model(torch.nn.Module):
    def forward(self, q: Any) -> Any:
        return model(q)


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict: bool, told: Callable[[], Any]) -> None:
    """An exported program has the hints as arguments, also after decomposition."""
    program = torch.export.export(Model(), (Q,), strict=strict)
    forward = Counter({key: n for key, n in IN_MODEL.items() if key[0] == "attn_fwd"})
    for one in (program, program.run_decompositions()):
        told()
        one.module()(Q)
        assert told() == forward


@pytest.mark.parametrize("backend", BACKENDS)
def test_hints_wrapper(backend: str, told: Callable[[], Any]) -> None:
    """With the backend ``hinted``, PyTorch's own operator for hints reaches the library, forward and backward: for
    functions and for plain operators, around a region and inside of one, nested, with several results.
    """
    torch._dynamo.reset()
    wrapper = torch.ops.higher_order.hints_wrapper

    def inner(x: Any) -> Any:
        return OPS.attn_fwd(x, x, x)[0]

    def outer(x: Any, y: Any) -> Any:
        return attention(x, y, y), wrapper(inner, (x,), {}, hints={"schedule": "bfs"})

    def call(q: Any) -> Any:
        a, b = wrapper(outer, (q, q.sin()), {}, hints={"schedule": "dfs"})
        with aotriton.hints(deterministic=True):
            return OPS.attn_fwd(a, b, b)[0]

    backward(torch.compile(call, fullgraph=True, backend=hinted(backend)))
    assert told() == both("schedule=dfs") + both("schedule=dfs schedule=bfs") + both("deterministic=1")


def test_another_backend_runs_the_same_model() -> None:
    """A backend that knows nothing of hints runs a model of torch's own operators in a region as if there was none."""
    torch._dynamo.reset()

    def call(q: Any) -> Any:
        with aotriton.hints(schedule="dfs"):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(Q), call(Q))
