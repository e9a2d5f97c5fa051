"""Random steps of a server on a paged cache: kv_append and attn_fwd through the binding, each step against float64.

2,000 steps, and as many more as `--random-calls` says, are shared by the setups: `--random-calls 18000` makes 20,000.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from gpu.gpu_problem import DEVICE  # noqa: E402
from serving import Setup, Simulation  # noqa: E402

STEPS = 2000
GUARD = 4096  # bytes behind the workspace

SETUPS = (
    Setup(),
    Setup(captured=True),
    Setup(head_dim=64, heads_k=1, group=8, page_size=64, rotary_pairs=16, interleaved=True, tokens_first=False),
    Setup(head_dim=64, heads_k=1, group=8, page_size=48, rotary_pairs=32, captured=True, tokens_first=False),
    Setup(head_dim=64, group=1, page_size=48, dtype="fp16", window=100),
    Setup(head_dim=64, group=7, page_size=16, sinks=True, window=128, captured=True),
    Setup(group=7, heads_k=1, page_size=48, dtype="fp16", rotary_pairs=64),
    Setup(group=8, page_size=64, sinks=True, rotary_pairs=0),
    Setup(group=1, page_size=64, softcap=5.0),
    Setup(group=4, page_size=16, window=33, dtype="fp16", tokens_first=False, interleaved=True),
    Setup(head_dim=256, heads_k=1, group=4, page_size=16, rotary_pairs=128),
    Setup(head_dim=256, heads_k=1, group=8, page_size=48, softcap=30.0, window=200, captured=True),
    Setup(head_dim=256, heads_k=2, group=1, page_size=64, dtype="fp16"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
    steps = -(-(STEPS + count) // len(SETUPS))
    metafunc.parametrize(("setup", "steps", "seed"), [(setup, steps, seed) for setup in SETUPS], ids=str)


class Binding:
    """The library's binding, on torch's current stream. The workspace is no numbers, and has others behind it."""

    def __init__(self, captured: bool) -> None:
        self.captured = captured
        self.memory = torch.empty(0, dtype=torch.uint8, device=DEVICE)
        self.size = -1
        self.graph: Any = None

    def make_room(self, size: int) -> None:
        if len(self.memory) < size + GUARD:
            self.memory = torch.empty(2 * size + GUARD, dtype=torch.uint8, device=DEVICE)
        self.size = size

    def call(self, append: dict[str, Any], attend: dict[str, Any], out: Any, logsumexp: Any) -> Any:
        attend = attend | {"out": out, "logsumexp": logsumexp}
        first = self.size < 0
        if not self.captured or first:
            self.make_room(aotriton.attn_fwd_workspace_size(**attend))
        self.memory[: self.size] = 0xFF
        behind = self.memory[self.size : self.size + GUARD]
        behind.fill_(0x5A)
        attend["workspace"] = self.memory[: max(self.size, 1)]
        if self.captured and not first:  # images are loaded
            if self.graph is None:
                self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
                with torch.cuda.graph(self.graph, stream=stream):
                    aotriton.kv_append(**append, stream=stream.cuda_stream)
                    aotriton.attn_fwd(**attend, stream=stream.cuda_stream)
            self.graph.replay()
        else:
            aotriton.kv_append(**append)
            aotriton.attn_fwd(**attend)
        return (behind != 0x5A).any()


def test_every_step_is_right(setup: Setup, steps: int, seed: int) -> None:
    """Prompts in chunks beside decoding, speculative tokens; sequences that come, end, change their rows and are
    swapped out and in; pages that move. Each step's cache, queries, out and logsumexp are as near to float64 as
    ordinary low precision is; pages and rows that count not are no numbers and are not read; what is nobody's is not
    written.
    """
    Simulation(setup, Binding(setup.captured), DEVICE, seed).run(steps)
