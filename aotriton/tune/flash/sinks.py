"""The data of the kernel of the gradient of sinks: logsumexp, delta and a sink for each head, and the truth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from aotriton.rules.kernel import Functional, KernelDescription, Tensor
from aotriton.tune.problem.accuracy import Check, Expected

if TYPE_CHECKING:
    import torch

FLOOR = 1e-4  # of exp2 in hardware, and another order of the sum
NO_KEY = 1 / 16  # of the rows, which have a logsumexp of minus infinity


class Sinks:
    """Normal numbers [batch, heads, rows] on ``device``. The true gradient is of float64; an ordinary implementation
    adds up numbers of fp32.
    """

    sizes: Mapping[str, int] = {}
    scalars: Mapping[str, float] = {"sm_scale": 1.0, "features": 0, "packed_sequences": 1}

    def __init__(self, functional: Functional, sizes: Mapping[str, int], device: str, seed: int = 0) -> None:
        import torch

        generator = torch.Generator(device=device).manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device)

        shape = sizes["batch"], sizes["heads_q"], sizes["seqlen_q"]
        lse = normal(*shape).masked_fill_(torch.rand(shape, generator=generator, device=device) < NO_KEY, -torch.inf)
        # Deltas have a mean, so that the sum is not all rounding.
        self.tensors = {"logsumexp": lse, "delta": normal(*shape) + 1, "sinks": normal(sizes["heads_q"])}

    def result(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int]
    ) -> tuple[torch.Tensor, float]:
        import torch

        return torch.empty_like(self.tensors["sinks"]), torch.nan

    def expect(self, kernel: KernelDescription, argument: Tensor) -> None:
        assert self._expected

    def check(
        self,
        kernel: KernelDescription,
        argument: Tensor,
        tunables: Mapping[str, int],
        results: Mapping[str, torch.Tensor],
    ) -> Check:
        import torch

        actual = results[argument.operand.name]
        if not bool(torch.isfinite(actual).all()):
            return Check(None, None, f"{argument.operand.name} has elements that were not written, or are not finite")
        return self._expected.compare(argument.operand.name, actual.double())

    @cached_property
    def _expected(self) -> Expected:
        import torch

        def gradient(kind: torch.dtype) -> torch.Tensor:
            lse, delta, sinks = (self.tensors[name].to(kind) for name in ("logsumexp", "delta", "sinks"))
            weights = (sinks[:, None] - lse).exp().masked_fill(lse == -torch.inf, 0)  # of a row without keys: none
            return -(weights * delta).sum((0, 2))

        return Expected.of(gradient(torch.float64), gradient(torch.float32).double(), FLOOR)
