"""What a call costs: launch sequences of an operator's backends, timed side by side on one shape, in the child."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from aotriton.codegen.program import launch_program
from aotriton.rules.database.rows import SequenceTiming
from aotriton.rules.expression import Environment
from aotriton.rules.family import kernel as description
from aotriton.rules.family import operator_of
from aotriton.rules.kernel import KernelDescription, Operand, Tensor
from aotriton.rules.operators import Backend, derived_sizes
from aotriton.tune.measure.clock import AGAIN, Clocks, GpuClock, HostBehind
from aotriton.tune.measure.requests import Draw, LaunchSequence, Request
from aotriton.tune.problem.dtypes import NAMES
from aotriton.tune.problem.family import tuning, types_at_level

# Rounds by how long the fastest sequence takes, in µs: 10 µs vary by 4 % from one launch to the next, 200 µs by 0.5 %.
ROUNDS = ((20.0, 25), (50.0, 15), (200.0, 9), (2000.0, 5), (float("inf"), 3))
PATIENCE = 2  # times the rounds that are needed, before the host is too slow to time anything
MOST_LOADED = 500  # images at a time
DISAGREEMENT = 0.03  # of two right results of a 16-bit type, |a - b| / |b|: several times what their rounding makes


class Disagreement(Exception):
    """Two sequences made different results of one call."""


class Sequences:
    """Times draws on the current GPU; images stay loaded until there are MOST_LOADED of them."""

    def __init__(self, torch: Any, binding: Any, clock: GpuClock, multiprocessors: int) -> None:
        self._torch, self._binding, self._clock, self._multiprocessors = torch, binding, clock, multiprocessors
        self._candidates: dict[str, Any] = {}

    def time(self, draw: Draw, clocks: Clocks | None = None) -> list[SequenceTiming]:
        """Median microseconds of each sequence, all of them interleaved; Disagreement where results differ.

        A sequence of the lead's call that has nothing to hand on in its workspace is left out: another backend serves
        that call.
        """
        self._make_room()
        given = tuning(draw.functional.kernel.family).inputs(draw.functional, draw.shape)
        launches: dict[int, Callable[[], None]] = {}
        for number, sequence in enumerate(draw.sequences):
            if launch := self._bind(draw, sequence, given):
                launches[number] = launch
        self._compare(draw, launches, given.results)
        samples = self._rounds(launches, clocks or Clocks())
        return [
            SequenceTiming(
                backend=draw.sequences[number].backend,
                images=tuple(request.name for request in draw.sequences[number].requests),
                median_us=median(taken),
                spread=median(abs(one - median(taken)) for one in taken),
                rounds=len(taken),
            )
            for number, taken in samples.items()
        ]

    def _make_room(self) -> None:
        if len(self._candidates) < MOST_LOADED:
            return
        for candidate in self._candidates.values():
            self._binding.release(candidate)
        self._candidates.clear()

    def _candidate(self, request: Request) -> Any:
        if request.name not in self._candidates:
            kernel = description(request.kernel)
            program = launch_program(kernel, operator_of(kernel))
            self._candidates[request.name] = self._binding.Candidate(
                program, request.path.read_bytes(), request.metadata, request.tunables
            )
        return self._candidates[request.name]

    def _bind(self, draw: Draw, sequence: LaunchSequence, given: Any) -> Callable[[], None] | None:
        operator = operator_of(draw.functional.kernel)
        backend = next(one for one in operator.backends if one.name == sequence.backend)
        workspace = self._workspace(backend, draw, given.scalars, sequence)
        if workspace is None:
            return None
        tensors = {**given.tensors, **workspace}
        stream = self._torch.cuda.current_stream().cuda_stream
        calls = []
        for kernel, request in zip(backend.timed_kernels, sequence.requests, strict=True):
            operands = {name: tensors[name] for name in _operands(kernel) if name in tensors}
            calls.append((self._candidate(request), operands))

        def launch() -> None:
            for candidate, operands in calls:
                self._binding.launch(candidate, operands, given.scalars, given.sizes, stream=stream)

        return launch

    def _workspace(
        self, backend: Backend, draw: Draw, scalars: Mapping[str, float], sequence: LaunchSequence
    ) -> dict[str, Any] | None:
        """The backend's workspace tensors; None where one has no element, and another backend may do without it."""
        sizes = tuning(draw.functional.kernel.family).sizes(dict(draw.shape))
        if backend.sizes:
            asked = {name for one in backend.sizes for code, name in one.value.postfix() if code == "tunable"}
            tunables: Mapping[str, int] = next(r.tunables for r in sequence.requests if asked <= set(r.tunables))
            numbers = {name: int(value) for name, value in scalars.items()}
            environment = Environment(
                sizes, numbers, tunables, multiprocessors=self._multiprocessors,
                other_dtypes=types_at_level(draw.functional),
            )  # fmt: skip
            sizes |= derived_sizes(backend, environment)
        made = {one.name: self._empty(one, sizes, str(draw.functional["T"])) for one in backend.workspace}
        of_lead = draw.functional.kernel is operator_of(draw.functional.kernel).lead
        return made if not of_lead or all(tensor.numel() for tensor in made.values()) else None

    def _empty(self, operand: Operand, sizes: Mapping[str, int], chosen: str) -> Any:
        dtype = getattr(self._torch, NAMES[chosen if operand.dtype == "T" else operand.dtype])
        return self._torch.empty([sizes[dim] for dim in operand.dims], dtype=dtype, device="cuda")

    def _compare(self, draw: Draw, launches: Mapping[int, Callable[[], None]], results: Mapping[str, Any]) -> None:
        """Launches each sequence once, which is its warm-up, too. Disagreement where results differ from the first
        one's.
        """
        first: dict[str, Any] = {}
        for number, launch in launches.items():
            for tensor in results.values():
                tensor.fill_(self._torch.nan)
            launch()
            for name, tensor in results.items():
                if not first.get(name, tensor).isfinite().all():
                    raise Disagreement(f"{_name(draw, number)}: {name} is not finite")
                if name not in first:
                    first[name] = tensor.clone()
                    continue
                difference = (tensor - first[name]).float().norm() / first[name].float().norm().clamp_min(1e-30)
                if not float(difference) <= DISAGREEMENT:
                    by = f"from that of {_name(draw, 0)} by {float(difference):.2g}"
                    raise Disagreement(f"{_name(draw, number)}: {name} differs {by}")

    def _rounds(self, launches: Mapping[int, Callable[[], None]], clocks: Clocks) -> dict[int, list[float]]:
        rounds: list[dict[int, float]] = []
        order = list(launches)
        needed, tried = 1, 0
        while tried <= PATIENCE * needed + AGAIN:
            tried += 1
            order = order[1:] + order[:1]  # no sequence always follows the same one
            taken = self._clock.round([launches[number] for number in order])
            if any(sample is None for sample in taken):
                needed = max(needed, ROUNDS[0][1])
                continue
            rounds.append({number: float(sample or 0.0) for number, sample in zip(order, taken, strict=True)})
            clocks.note()
            counting = [one for one, counts in zip(rounds, clocks.counting, strict=True) if counts]
            samples = {number: [one[number] for one in counting] for number in launches}
            if not counting:
                continue
            least = min(map(median, samples.values()))
            needed = next(rounds for limit, rounds in ROUNDS if least <= limit)
            if len(counting) >= needed:
                return samples
        raise HostBehind(f"the host did not keep ahead of the GPU in {tried} rounds")


def _operands(kernel: KernelDescription) -> list[str]:
    return [one.operand.name for one in kernel.arguments if isinstance(one, Tensor)]


def _name(draw: Draw, number: int) -> str:
    sequence = draw.sequences[number]
    return f"{sequence.backend} {' / '.join(request.config for request in sequence.requests)}"
