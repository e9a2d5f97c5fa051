"""Attention problems on a GPU: from sizes and a memory layout to guarded tensors and calls of the library on them."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from attention_truth import Call  # noqa: E402

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
DEVICE = "cuda"

GUARD = 256  # elements before and behind every view; a multiple of 256 bytes, so that it keeps the view's alignment


def _layout(name: str, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Strides and offset, in elements, of a [batch, heads, seqlen, head_dim] tensor."""
    b, h, s, d = sizes
    return {
        "bhsd": ((h * s * d, s * d, d, 1), 0),
        "bshd": ((s * h * d, d, h * d, 1), 0),
        "sbhd": ((h * d, d, b * h * d, 1), 0),
        "padded_rows": ((h * s * (d + 8), s * (d + 8), d + 8, 1), 0),
        "gaps": ((h * (s + 5) * d + 16, (s + 5) * d, d, 1), 0),
        # TMA takes none of the following: their strides or their start are no multiples of 16 bytes.
        "odd_rows": ((h * s * (d + 3), s * (d + 3), d + 3, 1), 0),
        "odd_heads": ((h * (s * d + 1), s * d + 1, d, 1), 0),
        "off_by_one": ((h * s * d, s * d, d, 1), 1),
    }[name]


LAYOUTS = ("bhsd", "bshd", "sbhd", "padded_rows", "gaps", "odd_rows", "odd_heads", "off_by_one")


@dataclass(frozen=True)
class Problem:
    """One attention problem. ``spread`` multiplies Q: 0.1 makes the softmax flat, 12 makes it peaked.

    ``layout`` is one of LAYOUTS for all tensors, "mixed" (each tensor its own) or "broadcast" (K and V are one head
    that every batch and head shares, by strides of 0). ``deterministic``: the backward gives the same bits each time.
    ``causal``, ``causal_variant`` and the ``window``, to the left and to the right, -1 where it is open: as in c.h.
    """

    batch: int = 2
    heads_q: int = 4
    heads_k: int = 2
    seqlen_q: int = 128
    seqlen_k: int = 128
    head_dim: int = 64
    dtype: str = "bf16"
    causal: bool = False
    spread: float = 1.0
    layout: str = "bhsd"
    deterministic: bool = False
    causal_variant: str = "top_left"
    window: tuple[int, int] = (-1, -1)

    @property
    def mask(self) -> dict[str, Any]:
        """What hides keys, as a call takes it."""
        left, right = self.window
        of_band = {"causal_variant": self.causal_variant, "window_left": left, "window_right": right}
        plain = self.causal_variant == "top_left" and self.window == (-1, -1)
        return {"causal": self.causal} if plain else {"causal": self.causal, **of_band}

    def __str__(self) -> str:
        heads, lengths = f"h{self.heads_q}:{self.heads_k}", f"s{self.seqlen_q}x{self.seqlen_k}"
        mask = "causal" if self.causal else "full"
        if self.mask.keys() > {"causal"}:
            mask += "-{}-window{}:{}".format(self.causal_variant, *self.window)
        return (
            f"b{self.batch}-{heads}-{lengths}-d{self.head_dim}-{self.dtype}-{mask}-spread{self.spread:g}-{self.layout}"
            f"{'-deterministic' if self.deterministic else ''}"
        )


class Guarded:
    """A strided view inside a larger buffer. All of it is ``fill``; reading or writing beyond the view shows."""

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype, layout: str, fill: float) -> None:
        if len(sizes) == 4:
            strides, offset = _layout(layout, sizes)
        else:
            strides, offset = torch.empty(sizes, device="meta").stride(), 0
        extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if all(sizes) else 0
        self.buffer = torch.full((2 * GUARD + offset + extent,), fill, dtype=dtype, device=DEVICE)
        self.place = (sizes, strides, GUARD + offset)
        self.view = self.buffer.as_strided(*self.place)
        self.before = self.buffer.clone()

    def assert_untouched_outside(self, name: str) -> None:
        outside = torch.ones_like(self.buffer, dtype=torch.bool)
        outside.as_strided(*self.place).fill_(False)
        changed = bits(self.buffer)[outside] != bits(self.before)[outside]
        assert not changed.any(), f"{int(changed.sum())} elements outside {name} were written"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as integers, so that NaN equals NaN."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


class Case:
    """A problem with random inputs, ready to be launched any number of times."""

    def __init__(self, problem: Problem, seed: int = 0) -> None:
        self.problem = p = problem
        self.dtype = DTYPES[p.dtype]
        self.sm_scale = p.head_dim**-0.5
        self.options = {**p.mask, "deterministic": p.deterministic}  # of a backward
        self.choose = random.Random(f"{problem} {seed}")
        self.random = torch.Generator(device=DEVICE).manual_seed(zlib.crc32(f"{problem} {seed}".encode()))
        self.q_sizes = (p.batch, p.heads_q, p.seqlen_q, p.head_dim)
        self.k_sizes = (p.batch, p.heads_k, p.seqlen_k, p.head_dim)
        self.q = self._input(self.q_sizes, p.spread)
        self.k = self._input(self.k_sizes, shared=p.layout == "broadcast")
        self.v = self._input(self.k_sizes, shared=p.layout == "broadcast")
        self.dout = self._input(self.q_sizes)

    def _tensor_layout(self) -> str:
        layout = self.problem.layout
        return self.choose.choice(LAYOUTS) if layout == "mixed" else "bhsd" if layout == "broadcast" else layout

    def _input(self, sizes: tuple[int, ...], factor: float = 1.0, shared: bool = False) -> torch.Tensor:
        """Random numbers with NaN all around them."""
        stored = (1, 1, *sizes[2:]) if shared else sizes
        guarded = Guarded(stored, self.dtype, self._tensor_layout(), float("nan"))
        guarded.view.copy_(torch.randn(stored, generator=self.random, device=DEVICE) * factor)
        return guarded.view.expand(sizes) if shared else guarded.view

    @property
    def call(self) -> Call:
        """What the truth is computed from."""
        p, (left, right) = self.problem, self.problem.window
        mask: dict[str, Any] = {
            "causal": p.causal,
            "causal_variant": p.causal_variant,
            "window_left": left,
            "window_right": right,
        }
        return Call(self.q, self.k, self.v, self.dout, self.sm_scale, **mask)

    def outputs(self) -> dict[str, Guarded]:
        """Where one forward and one backward write: NaN inside, 1 around."""
        p = self.problem
        made = {name: Guarded(self.q_sizes, self.dtype, self._tensor_layout(), 1.0) for name in ("out", "dq")}
        made |= {name: Guarded(self.k_sizes, self.dtype, self._tensor_layout(), 1.0) for name in ("dk", "dv")}
        made["logsumexp"] = Guarded((p.batch, p.heads_q, p.seqlen_q), torch.float32, "contiguous", 1.0)
        made["workspace"] = Guarded((self.workspace_size(made) // 4,), torch.float32, "contiguous", 1.0)
        for guarded in made.values():
            guarded.view.fill_(float("nan"))
        return made

    def backward_tensors(self, outputs: dict[str, Guarded]) -> list[torch.Tensor]:
        o = {name: guarded.view for name, guarded in outputs.items()}
        return [self.q, self.k, self.v, o["out"], self.dout, o["logsumexp"], o["dq"], o["dk"], o["dv"]]

    def workspace_size(self, outputs: dict[str, Guarded]) -> int:
        tensors = self.backward_tensors(outputs)
        size: int = aotriton.attn_bwd_workspace_size(*tensors, sm_scale=self.sm_scale, **self.options)
        return size + -size % 4

    def forward(self, outputs: dict[str, Guarded]) -> None:
        """Launches on torch's current stream."""
        aotriton.attn_fwd(
            self.q, self.k, self.v, outputs["out"].view, outputs["logsumexp"].view,
            sm_scale=self.sm_scale, **self.problem.mask, stream=torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip

    def backward(self, outputs: dict[str, Guarded]) -> None:
        """Launches on torch's current stream; ``outputs`` holds what ``forward`` wrote."""
        aotriton.attn_bwd(
            *self.backward_tensors(outputs), outputs["workspace"].view.view(torch.uint8),
            sm_scale=self.sm_scale, stream=torch.cuda.current_stream().cuda_stream, **self.options,
        )  # fmt: skip

    def launch(self, outputs: dict[str, Guarded]) -> None:
        """Forward and backward."""
        self.forward(outputs)
        self.backward(outputs)


RESULTS = ("out", "logsumexp", "dq", "dk", "dv")


def same_bits(a: dict[str, Guarded], b: dict[str, Guarded]) -> bool:
    """Whether two launches gave the same results, bit by bit, and no NaN."""
    return all(
        torch.equal(bits(a[name].view.contiguous()), bits(b[name].view.contiguous())) and not a[name].view.isnan().any()
        for name in RESULTS
    )
