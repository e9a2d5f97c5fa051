"""The data of the kernel that appends to a cache: new rows, pages, and what these are to hold."""

from __future__ import annotations

from collections.abc import Mapping
from math import pi
from typing import TYPE_CHECKING

from aotriton.rules.kernel import Functional, KernelDescription, Tensor
from aotriton.tune.flash import stored_keys
from aotriton.tune.problem.accuracy import Check, Expected
from aotriton.tune.problem.dtypes import torch_dtype

if TYPE_CHECKING:
    import torch

CACHES = {"k_cache": "k", "v_cache": "v"}
FLOOR = 2.0**-21  # of two products of fp32 and their sum, which may be fused


class Append:
    """New rows of q, k and v for caches in pages, with a rotary embedding of a part of the columns.

    There are as many rows of each sequence, and its halves are pairs; where ``seed`` is odd, sequences of different
    lengths are packed, and neighbours are pairs. The last sequence has no keys, so that nothing is done with its rows.
    What is no row's place holds numbers, and must keep them.
    A cache of another type than new rows has scales. The truth is of float64; an ordinary implementation rotates in
    fp32, and rounds to the type of new rows and then to that of the cache.
    """

    sizes: Mapping[str, int] = {}

    def __init__(self, functional: Functional, sizes: Mapping[str, int], device: str, seed: int = 0) -> None:
        import torch

        tensors = (one for one in functional.kernel.arguments if isinstance(one, Tensor))
        kinds = {one.operand.name: torch_dtype(functional.dtype_of(one)) for one in tensors}
        generator = torch.Generator(device=device).manual_seed(seed)
        packed = bool(seed % 2)
        count, most, width = sizes["batch"], sizes["seqlen_k"], sizes["head_dim"]
        self._dtype, self._pairs = kinds["k"], 3 * width // 8
        self.scalars = {"rotary_interleaved": int(packed)}

        def normal(of: str, batch: int, rows: int) -> torch.Tensor:
            heads, columns = sizes["heads_q" if of == "q" else "heads_k"], sizes["head_dim_v"] if of == "v" else width
            shape = batch, heads, rows, columns
            return torch.randn(shape, generator=generator, device=device).to(self._dtype)

        new = [sizes["seqlen_new"] + (i % 3 if packed else 0) for i in range(count)]
        used = [most - 37 * i for i in range(count - 1)] + [0]
        self._new = {name: normal(name, *((1, sum(new)) if packed else (count, new[0]))) for name in "qkv"}
        caches = {name: normal(of, count, most).to(kinds[name]) for name, of in CACHES.items()}
        self._scales: dict[str, torch.Tensor] = {}
        if kinds["k_cache"] != self._dtype:
            scales = torch.empty(2, count, sizes["heads_k"], device=device)
            self._scales = dict(zip(CACHES, scales.uniform_(*stored_keys.SCALES, generator=generator), strict=True))
        pages = stored_keys.in_pages(caches, seed)
        angles = torch.empty(most, self._pairs, device=device).uniform_(-pi, pi, generator=generator)

        def whole(numbers: list[int]) -> torch.Tensor:
            return torch.tensor(numbers, dtype=torch.int32, device=device)

        self.tensors = {
            "k": self._new["k"],
            "v": self._new["v"],
            "seqused_k": whole(used),
            "block_table": pages["block_table"],
            "rotary_cos": angles.cos(),
            "rotary_sin": angles.sin(),
            **{f"{CACHES[name]}_descale": one for name, one in self._scales.items()},
            **({"cu_seqlens_k": whole([sum(new[:i]) for i in range(count + 1)])} if packed else {}),
        }
        # Of each row that is appended: its sequence, its position, and its place in new rows.
        rows = [(i, used[i] - new[i] + row, row) for i in range(count - 1) for row in range(new[i])]
        self._sequence, position, row = torch.tensor(rows, device=device).T
        before = torch.tensor([sum(new[:i]) for i in range(count)], device=device)[self._sequence]
        self._position = position
        self._of_new = (self._sequence * 0, before + row) if packed else (self._sequence, row)
        page = pages["block_table"][self._sequence, position // stored_keys.PAGE].long()
        self._of_cache = page, position % stored_keys.PAGE
        self._before = {"q": self._new["q"]} | {name: pages[name] for name in CACHES}
        for name in CACHES:
            unwritten = _words(torch.tensor(torch.nan, device=device).to(self._before[name].dtype))
            _words(self._before[name])[self._places(name)] = unwritten
        self._expected: dict[str, Expected] = {}

    def result(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before = self._before[argument.operand.name]
        return before.clone(), before

    def expect(self, kernel: KernelDescription, argument: Tensor) -> None:
        name = argument.operand.name
        if name not in self._expected:
            floor = FLOOR if self._dtype.itemsize == 4 and name != "v_cache" else 0.0
            self._expected[name] = Expected.of(self._appended(name, False), self._appended(name, True), floor)

    def check(
        self,
        kernel: KernelDescription,
        argument: Tensor,
        tunables: Mapping[str, int],
        results: Mapping[str, torch.Tensor],
    ) -> Check:
        import torch

        name = argument.operand.name
        words, before, places = _words(results[name]), _words(self._before[name]), self._places(name)
        others = words.clone()
        others[places] = before[places]
        if not torch.equal(others, before):
            return Check(None, None, f"{name} was written where no row is appended")
        rows = words[places].view(results[name].dtype).float().double().flatten(0, 1)
        if not bool(torch.isfinite(rows).all()):
            return Check(None, None, f"{name} has rows that were not written, or are not finite")
        self.expect(kernel, argument)
        return self._expected[name].compare(name, rows)

    def _places(self, name: str) -> tuple[torch.Tensor | slice, ...]:
        """The indices of what is written in a tensor, as [rows, heads, columns]."""
        outer, row = self._of_cache if name in CACHES else self._of_new
        return outer, slice(None), row

    def _appended(self, name: str, low: bool) -> torch.Tensor:
        """[rows * heads, columns] of what is written: exact, or as an ordinary implementation rounds it."""
        import torch

        outer, row = self._of_new
        new = self._new[CACHES.get(name, name)][outer, :, row]
        kind = torch.float32 if low else torch.float64
        x = new.to(kind) if name == "v_cache" else self._rotated(new.to(kind))
        x = x.to(self._dtype).to(kind) if low else x
        if name in self._scales:
            x = x / self._scales[name][self._sequence][..., None].to(kind)
            x = x.to(self._before[name].dtype).float() if low else x
        return x.double().flatten(0, 1)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, heads, columns], of which pairs are turned by the angles of their row's position."""
        import torch

        cos, sin = (self.tensors[f"rotary_{of}"][self._position][:, None].to(x.dtype) for of in ("cos", "sin"))
        turned, rest = x[..., : 2 * self._pairs], x[..., 2 * self._pairs :]
        neighbours = bool(self.scalars["rotary_interleaved"])
        a, b = turned.unflatten(-1, (-1, 2)).unbind(-1) if neighbours else turned.chunk(2, -1)
        both = a * cos - b * sin, b * cos + a * sin
        return torch.cat([torch.stack(both, -1).flatten(-2) if neighbours else torch.cat(both, -1), rest], -1)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits: not all operations know numbers of 8 bits."""
    import torch

    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
