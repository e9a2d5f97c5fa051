"""Attention of few queries on many keys by the library and by its peers, each answer compared with fp32."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from contenders import CUDNN, FA2, FA4, LIBRARY, flash_attention_4, with_workspace

FA3 = "FA3"
PEERS = (FA3, CUDNN, FA4, FA2)
TOLERANCE = 0.01  # relative, of a sequence's answer: what bf16 rounds is below 0.004
Call = Callable[[], Any]  # it returns [batch, queries, heads, head_dim]


@dataclass(frozen=True)
class Cell:
    """A call whose queries are the last rows of their sequences. ``used``: device memory says how many keys each has,
    log-normal numbers; else all have ``keys``.
    """

    batch: int
    heads: int
    heads_k: int
    queries: int
    keys: int
    head_dim: int
    used: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Keys of each sequence; the median is about a quarter of the room for them."""
        if not self.used:
            return (self.keys,) * self.batch
        draw = Random(self.batch * self.keys)
        drawn = (int(self.keys / 4 * draw.lognormvariate(0, 1)) for _ in range(self.batch))
        return tuple(min(self.keys, max(self.queries, one)) for one in drawn)

    @property
    def stored(self) -> int:
        """Bytes of keys and values in memory."""
        return 2 * 2 * self.batch * self.heads_k * self.keys * self.head_dim

    @property
    def bytes(self) -> int:
        """Bytes that a call has to move: keys and values that count, queries and the answer."""
        rows = self.heads_k * sum(self.lengths) + self.batch * self.heads * self.queries
        return 2 * 2 * rows * self.head_dim

    @property
    def mask(self) -> dict[str, Any]:
        """The library's arguments. One query at the end sees all keys."""
        return {"causal": True, "causal_variant": "bottom_right"} if self.queries > 1 else {}

    def __str__(self) -> str:
        keys = f"{'up to ' if self.used else ''}{self.keys:,} keys"
        queries = f"{self.queries} {'query' if self.queries == 1 else 'queries'}"
        return f"{self.batch} × {self.heads}:{self.heads_k} heads, {queries} on {keys}, D {self.head_dim}"


def truth(cell: Cell, q: Any, k: Any, v: Any) -> Any:
    """The answer in fp32; all tensors are [batch, rows, heads, head_dim]."""
    import torch

    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    rows = torch.arange(cell.queries, device=q.device)[:, None]
    for i, length in enumerate(cell.lengths):
        grouped = q[i].float().unflatten(1, (cell.heads_k, -1))
        scores = torch.einsum("qhgd,khd->hgqk", grouped, k[i, :length].float()) * cell.head_dim**-0.5
        scores.masked_fill_(torch.arange(length, device=q.device) > rows + (length - cell.queries), -torch.inf)
        out[i] = torch.einsum("hgqk,khd->qhgd", torch.softmax(scores, -1), v[i, :length].float()).flatten(1, 2)
    return out


def error(out: Any, true: Any) -> float:
    """The largest relative error of a sequence, in the norm; NaN if there is one in any."""
    apart = (out.float() - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)
    return float(apart.max())


def _library(cell: Cell, q: Any, k: Any, v: Any, used: Any) -> Call:
    import torch

    import aotriton

    out = torch.full_like(q, math.nan)
    tensors = {"q": q, "k": k, "v": v, "out": out}
    given = {name: one.transpose(1, 2) for name, one in tensors.items()} | cell.mask | {"seqused_k": used}
    given = with_workspace("attn_fwd", given)

    def call() -> Any:
        aotriton.attn_fwd(**given)
        return out

    return call


def _fa3(cell: Cell, q: Any, k: Any, v: Any, used: Any) -> Call:
    import torch

    importlib.import_module("fa3_fwd._C")  # it registers the operator

    new, starts, ends = [None] * 4, [None] * 3, [None, used]
    longest, pages, rotary, scales = [None] * 2, [None] * 3, [None] * 3, [None] * 3
    mask = [cell.queries > 1, -1, -1, 0]
    splits = [None, 0]  # as many as it likes
    given = [q, k, v, *new, *starts, *ends, *longest, *pages, *rotary, *scales, cell.head_dim**-0.5, *mask, 0.0, True]
    return lambda: torch.ops.fa3_fwd.fwd(*given, *splits, None, 0)[0]


def _cudnn(cell: Cell, q: Any, k: Any, v: Any, used: Any) -> Call:
    import torch

    if used is not None:
        raise ValueError("torch passes it no used lengths")
    if cell.queries > 1:
        raise ValueError("torch aligns its causal mask at the first key")
    heads = [one.transpose(1, 2) for one in (q, k, v)]
    asked = None, False, 0.0, False, False
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    return lambda: attention(*heads, *asked, scale=cell.head_dim**-0.5)[0].transpose(1, 2)


def _fa4(cell: Cell, q: Any, k: Any, v: Any, used: Any) -> Call:
    interface = flash_attention_4()
    if not interface:
        raise ImportError("flash_attn.cute is not installed")
    asked = {"softmax_scale": cell.head_dim**-0.5, "causal": cell.queries > 1, "seqused_k": used}

    def call(splits: int) -> Any:
        return interface._flash_attn_fwd(q, k, v, num_splits=splits, **asked)[0]

    try:
        call(0)  # as many as it likes
    except AssertionError:  # it has no splits for this GPU
        return lambda: call(1)
    return lambda: call(0)


def _fa2(cell: Cell, q: Any, k: Any, v: Any, used: Any) -> Call:
    import torch

    starts, tensors = [None, None], [q, k, v]
    if used is not None:  # only packed sequences have used lengths
        ends = torch.arange(cell.batch + 1, dtype=torch.int32, device=q.device)
        starts, tensors = [ends * cell.queries, ends * cell.keys], [one.flatten(0, 1) for one in tensors]
    sizes = cell.queries, cell.keys, 0.0, cell.queries > 1, False
    asked = {"scale": cell.head_dim**-0.5, "seqused_k": used}
    attention = torch.ops.aten._flash_attention_forward
    return lambda: attention(*tensors, *starts, *sizes, **asked)[0].reshape(q.shape)


MAKERS = {LIBRARY: _library, FA3: _fa3, CUDNN: _cudnn, FA4: _fa4, FA2: _fa2}


def contenders(
    cell: Cell, q: Any, k: Any, v: Any, used: Any
) -> tuple[dict[str, Call], dict[str, float], dict[str, str]]:
    """The calls whose answers are right, their errors, and why each other peer has none; SystemExit where the library's
    answer is wrong. ``used``: the lengths in device memory, or None.
    """
    calls, errors, absent = dict[str, Call](), dict[str, float](), dict[str, str]()
    true = truth(cell, q, k, v)
    for who, make in MAKERS.items():
        try:
            call = make(cell, q, k, v, used)
            off = error(call(), true)
        except Exception as refused:  # of another project: any
            if who == LIBRARY:
                raise
            absent[who] = (str(refused).splitlines() or [type(refused).__name__])[0][:100]
            continue
        if off <= TOLERANCE:
            calls[who], errors[who] = call, off
        elif who == LIBRARY:
            sys.exit(f"{cell}: {LIBRARY}'s answer is off by {off:.2e}")
        else:
            absent[who] = f"its answer is off by {off:.1e}"
    return calls, errors, absent
