"""The workspace that sampling gives a backend, with a stand-in for torch's tensors."""

from __future__ import annotations

from math import prod
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from aotriton.rules.arch import arch_spec
from aotriton.rules.expression import Environment
from aotriton.rules.family import family
from aotriton.rules.operators import Backend, Operator, derived_sizes
from aotriton.tune.measure.clock import Clocks
from aotriton.tune.measure.launch_sequences import ROUNDS, Sequences
from aotriton.tune.measure.requests import Draw, LaunchSequence
from aotriton.tune.problem.family import tuning

OPERATORS = [one for name in ("flash", "gemm") for one in family(name).operators]
BACKENDS = [(one, backend) for one in OPERATORS for backend in one.backends if backend.timed_kernels]


def empty(sizes: list[int], dtype: str, device: str) -> Any:
    return SimpleNamespace(sizes=sizes, dtype=dtype, numel=lambda: prod(sizes))


NAMES = {"int32": "i32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv"}
TORCH = SimpleNamespace(empty=empty, **NAMES)


@pytest.mark.parametrize(("operator", "backend"), BACKENDS, ids=lambda one: one.name)
def test_a_workspace_follows_from_what_a_draw_has(operator: Operator, backend: Backend) -> None:
    """Its sizes, from those of the call, the scalars that its inputs come with, the images' tunables and the GPU; its
    type, from the functional.
    """
    arch = backend.kernels[0].archs[0]
    functional = next(iter(operator.lead.functionals(arch)))
    own = tuning(operator.family)
    shape = own.draw(functional, Random(0))
    tunables = [
        {n: v[0] for n, v in one.tunable_values(arch_spec(arch).vendor).items()} for one in backend.timed_kernels
    ]
    images: Any = tuple(SimpleNamespace(tunables=one) for one in tunables)
    sequence: Any = LaunchSequence(backend.name, images)
    scalars = {one.name: 0.5 if one.dtype == "fp32" else 0.0 for one in operator.scalars if one.name != "deterministic"}
    draw = Draw(functional, shape, (sequence,))
    no_clock: Any = None
    made = Sequences(TORCH, None, no_clock, 132)._workspace(backend, draw, scalars, sequence)
    numbers = {name: int(value) for name, value in scalars.items()}
    asked = {name for one in backend.sizes for code, name in one.value.postfix() if code == "tunable"}
    has = next(one for one in tunables if asked <= set(one))
    sizes = own.sizes(dict(shape))
    sizes |= derived_sizes(backend, Environment(sizes, numbers, has, multiprocessors=132))
    wanted = {one.name: [sizes[dim] for dim in one.dims] for one in backend.workspace}
    assert made is None or {name: one.sizes for name, one in made.items()} == wanted
    assert made is not None or not all(map(prod, wanted.values()))
    for one in backend.workspace if made else ():
        assert made
        assert made[one.name].dtype == (functional["T"] if one.dtype == "T" else one.dtype)


def test_rounds_at_another_clock_are_timed_again() -> None:
    """They count for no sequence; where there are too many of them, all do."""

    def timed(*given: int) -> tuple[dict[int, list[float]], Clocks]:
        left, now = list(given), [1980]

        def round(launches: list[Any]) -> list[float]:
            now[0] = left.pop(0) if left else 1980
            return [10.0 * factor() * 1980 / now[0] for factor in launches]

        clock: Any = SimpleNamespace(round=round)
        clocks = Clocks(lambda: now[0])
        launches: Any = {3: lambda: 1, 5: lambda: 2}
        return Sequences(TORCH, None, clock, 132)._rounds(launches, clocks), clocks

    few, clocks = timed(1440, 1980, 1980, 1500)
    assert few == {3: [10.0] * ROUNDS[0][1], 5: [20.0] * ROUNDS[0][1]}
    assert clocks.remark == ""
    many, clocks = timed(*[1980, 1440] * 30)
    assert set(many[3]) == {10.0, 10.0 * 1980 / 1440}
    assert "rounds ran at another clock" in clocks.remark
