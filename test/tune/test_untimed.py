"""The images of kernels that are not timed, and of others on pages: the data on which --certify checks them, and that
the device code and the truth agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the reference needs torch, which only tuning machines have")

import torch

from aotriton.rules.arch import DTYPES
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import family, operator_of
from aotriton.rules.flash.append import KV_APPEND
from aotriton.rules.flash.planned import ATTN_FWD_HOPPER_PLANNED
from aotriton.rules.flash.split import Keys
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription, Tensor
from aotriton.tune.coordinator.certify import problem_of
from aotriton.tune.flash import untimed
from aotriton.tune.flash.reference import PARTIAL_LSE, PARTIALS
from aotriton.tune.flash.tuning import FlashTuning
from aotriton.tune.measure.launcher import GpuLauncher
from aotriton.tune.problem.candidates import configs
from aotriton.tune.problem.dtypes import NAMES
from aotriton.tune.problem.family import results_of, sizes_of
from aotriton.tune.problem.problems import Problem

UNTIMED = [kernel for kernel in family("flash").kernels if not kernel.timed]
PAGES = [one for one in ATTN_FWD_HOPPER_PLANNED.functionals("sm_90") if one["KEYS"] == Keys.pages]
FUNCTIONALS = [*(one for kernel in UNTIMED for one in kernel.functionals("sm_90")), *PAGES]
SMALL = {"batch": 1, "heads": 2}
TYPES = {getattr(torch, name): DTYPES.index(kind) for kind, name in NAMES.items() if kind in DTYPES}


def image_of(functional: Functional) -> ImageSpec:
    return configs(functional)[0]


def problem(functional: Functional) -> Problem:
    found = problem_of(image_of(functional), 132)
    assert found is not None
    return found


def data_of(functional: Functional, seed: int = 0, whole: bool = False) -> Any:
    """The data that a problem's images are checked on, of fewer heads."""
    own = problem(functional)
    sizes = own.sizes | (SMALL if "heads" in own.sizes else {})
    sizes |= untimed.WHOLE[functional.kernel] if whole else {}
    return FlashTuning().data_on("cpu", own, sizes, seed, whole)


class Launched:
    """What the tuner's launcher hands to the binding."""

    def __init__(self, data: Any, functional: Functional) -> None:
        launcher: Any = GpuLauncher.__new__(GpuLauncher)  # without a GPU
        launcher.torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=0)))
        launcher.binding = SimpleNamespace(launch=self._launch)
        tunables = dict(image_of(functional).tunables)
        self.opened = launcher._on(data, "candidate", functional.kernel, tunables)
        for one in self.opened.results.values():
            one.restore()
        self.opened.launch()

    def _launch(self, _: Any, operands: Any, scalars: Any, sizes: Any, stream: int) -> None:
        self.operands, self.scalars, self.sizes = operands, scalars, dict(sizes)


def test_every_kernel_that_is_not_timed_has_a_problem() -> None:
    """A new one fails here until the tuner has data for it."""
    assert {kernel.name for kernel in UNTIMED} == FlashTuning.untimed


def environment_of(launched: Launched, functional: Functional) -> tuple[Environment, str]:
    """What the library makes of a call: what its expressions may name, and the type of its tensors."""
    operator, given = operator_of(functional.kernel), launched.operands
    workspace = (one for of in operator.backends if functional.kernel in of.kernels for one in of.workspace)
    every = {one.name: one for one in (*operator.operands, *workspace)}
    sizes: dict[str, int] = {}
    own, others = set[int](), {}
    for name, tensor in given.items():
        operand, kind = every[name], TYPES[tensor.dtype]
        dims = operand.paged_dims if operator.block_table in given and operand.paged_dims else operand.dims
        for dim, count in zip(dims, tensor.shape, strict=True):
            assert sizes.setdefault(dim, count) == count, f"{name} has {dim} {count}, others {sizes[dim]}"
        if operand.dtype != "T":
            assert DTYPES[kind] == operand.dtype, name
        elif DTYPES[kind] in operand.other_dtypes:
            others[name] = kind
        else:
            own.add(kind)
    assert len(own) <= 1, "all other tensors have one type"
    scalars = {one.name: one.default for one in operator.scalars} | launched.scalars
    assert {one.name for one in operator.scalars} == scalars.keys()
    assert None not in scalars.values(), "the binding refuses a call without it"
    environment = Environment(
        {**dict.fromkeys((*operator.sizes, *operator.derived_sizes), 0), **launched.sizes, **sizes},
        {name: int(value) for name, value in scalars.items()},
        dict(image_of(functional).tunables),
        given.keys(),
        132,
        others,
    )
    return environment, DTYPES[own.pop()] if own else ""


@pytest.mark.parametrize("functional", FUNCTIONALS, ids=lambda one: f"{one.kernel.name} {one}")
def test_the_library_takes_the_call(functional: Functional) -> None:
    """What the library asks of a call that names its image: sizes agree, no scalar is missing, each choice has the
    image's value, guards hold. The grid has programs.
    """
    kernel = functional.kernel
    for seed, whole in [(0, False), (1, False), (2, True)][: 3 if kernel in untimed.WHOLE else 2]:
        launched = Launched(data_of(functional, seed, whole), functional)
        needed = {one.operand.name for one in kernel.arguments if isinstance(one, Tensor) and not one.operand.optional}
        assert needed <= launched.operands.keys()
        environment, dtype = environment_of(launched, functional)
        for choice, value in zip(kernel.choices, functional.values, strict=True):
            if choice.source.code == "dtype":
                assert dtype == value
            elif choice.source.code != "addressing":
                reached = evaluate(choice.source, environment)
                served = [one for one in choice.values if choice.number(one) >= reached]
                assert (served[0] if choice.round_up else reached) == value, choice.name
        for guard in kernel.all_guards(operator_of(kernel).sizes):
            assert evaluate(guard.condition, environment), guard.why
        assert all(evaluate(axis, environment) > 0 for axis in kernel.grid)
        split = environment.sizes.get("partial_splits")
        if kernel in untimed.WHOLE:
            assert split == 0 if whole else split and split > 1


@pytest.mark.parametrize(
    ("kernel", "seed"),
    [(one, seed) for one in UNTIMED if not one.gluon for seed in range(3 if one in untimed.WHOLE else 2)],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_device_code_is_right(launch: Any, kernel: KernelDescription, seed: int) -> None:
    """What Triton's interpreter, which rounds to bf16 towards zero, makes of the data in other types passes, at each
    level; ``seed`` 2: of keys that are not split. Nothing passes with a row that is another one, or not written.
    """
    narrow = [one for one in kernel.functionals("sm_90") if one.get("BLOCK_DMODEL", 32) == 32]
    for functional in (one for one in narrow if one.get("T", "fp16") != "bf16"):
        data = data_of(functional, seed, seed == 2)
        opened = Launched(data, functional).opened
        for one in results_of(kernel):
            data.expect(kernel, one)
        before = {name: one.tensor.clone() for name, one in opened.results.items()}
        assert wrongs(data, kernel, before), "nothing was written"
        interpret(launch, functional, data, opened)
        results = {name: one.tensor for name, one in opened.results.items()}
        assert wrongs(data, kernel, results) == [], functional
        for name, tensor in results.items():
            changed = (~torch.isclose(tensor.double(), before[name].double(), 0, 0, equal_nan=True)).nonzero()
            if name in PARTIALS:  # of the first head, whose rows see all keys alike
                changed = changed[changed[:, 1] < data.seqlen_q]
            for place in map(tuple, changed[[0, len(changed) // 2, -1]].tolist() if len(changed) else []):
                row = place[:-1] if tensor.ndim > 1 and name not in (PARTIAL_LSE, "logsumexp") else place
                for value in (before[name][row], (1.5 - tensor[row].float()).to(tensor.dtype)):
                    broken = {one: result.clone() for one, result in results.items()}
                    words(broken[name])[row] = words(value)
                    assert wrongs(data, kernel, broken), f"{functional}: {name} at {row}"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cache_keeps_what_is_not_appended(seed: int) -> None:
    """A right call passes, of every type, and none that changes one number more."""
    for functional in KV_APPEND.functionals("sm_90"):
        data = data_of(functional, seed)
        results = {name: one.tensor for name, one in Launched(data, functional).opened.results.items()}
        kept = {name: tensor.clone() for name, tensor in results.items()}
        for name, tensor in results.items():
            rows = data._appended(name, True).unflatten(0, (-1, tensor.shape[1])).to(tensor.dtype)
            words(tensor)[data._places(name)] = words(rows)
        assert wrongs(data, KV_APPEND, results) == []
        for name, tensor in results.items():
            same = (words(tensor) == words(kept[name])).all(-1).nonzero()
            place = (*same[-1].tolist(), 3)
            broken = {one: result.clone() for one, result in results.items()}
            words(broken[name])[place] ^= 1
            assert wrongs(data, KV_APPEND, broken) == [f"{name} was written where no row is appended"]


def wrongs(data: Any, kernel: KernelDescription, results: Mapping[str, torch.Tensor]) -> list[str]:
    """What is wrong with the results, which stay as they are."""
    checks = [data.check(kernel, one, {}, {name: result.clone() for name, result in results.items()})
              for one in results_of(kernel)]  # fmt: skip
    return [check.wrong for check in checks if check.wrong is not None]


def words(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def interpret(launch: Any, functional: Functional, data: Any, opened: Any) -> None:
    """Runs the kernel on what the launcher has opened, and leaves its results there."""
    kernel = functional.kernel
    operator = operator_of(kernel)
    taken = [one for one in kernel.arguments if isinstance(one, Tensor) and functional.takes(one)]
    results = {name: one.tensor for name, one in opened.results.items()}
    given = {**data.tensors, **results}
    written = {one.name: tuple(results[one.operand.name].shape) for one in taken if one.operand.name in results}
    read = {one.name: given[one.operand.name].float().double().numpy() for one in taken
            if one.operand.name in given and (one.operand.name not in results or one.operand.updated)}  # fmt: skip
    paged = {one.name: one.operand.paged_dims for one in taken
             if operator.block_table in data.tensors and one.operand.paged_dims}  # fmt: skip
    there = {dim for one in taken for dim in paged.get(one.name, one.operand.dims)}
    absent = {dim: 0 for dim in (*operator.sizes, *operator.derived_sizes) if dim not in there} | dict(sizes_of(data))
    values = {"ADDRESSING": "general", **functional.as_dict(), **dict(image_of(functional).tunables), **data.scalars}
    values |= {"multiprocessors": 132, "EARLY": 0}  # there is one kernel at a time
    found = launch(kernel.name, read, written, values, 0, frozenset(), {}, paged, absent)
    for one in taken:
        if one.operand.name in results:
            tensor, left = results[one.operand.name], torch.from_numpy(found[one.name])
            # Memory that nobody wrote has the interpreter's poison.
            poison = torch.full((tensor.element_size(),), 0x7F, dtype=torch.uint8).view(tensor.dtype).double()
            tensor.copy_(torch.where(left == poison, tensor.double(), left).to(tensor.dtype))
