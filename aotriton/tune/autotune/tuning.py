"""How a declared kernel is tuned: on inputs drawn from a seed, against its reference."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from aotriton.rules.expression import Environment, Expression, evaluate
from aotriton.rules.kernel import Choice, Functional, KernelDescription, Operand, Tensor
from aotriton.rules.operators import Operator
from aotriton.tune.autotune.declaration import followed
from aotriton.tune.problem.accuracy import MARGIN, Check, Expected
from aotriton.tune.problem.compute_unit import Candidate
from aotriton.tune.problem.dtypes import NAMES, torch_dtype
from aotriton.tune.problem.problems import Cell, Problem, Shape, Wish, at, belongs, keys_of, shape_of
from aotriton.tune.problem.tuning_error import TuningError

if TYPE_CHECKING:
    import torch

SEED = 0
WHOLE = 128  # whole numbers are drawn below it
ORDER = 1e-6  # relative difference of fp32 sums that are taken in another order


class DrawnData:
    """Inputs from a seed, or what ``prepare`` makes of them, and the reference's results: in fp64 as the truth, in the
    inputs' types as an ordinary implementation. Its error is allowed, and so are that of another order of sums and
    ``tolerance``.
    """

    def __init__(
        self,
        operator: Operator,
        sizes: Mapping[str, int],
        reference: Callable[..., Any],
        prepare: Callable[..., Mapping[str, Any]] | None,
        tolerance: float,
        device: str,
        seed: int = SEED,
    ) -> None:
        import torch

        self._dtypes = {name: torch_dtype(name) for name in NAMES}
        self._dtypes["T"] = self._dtypes[str(operator.lead.choices[0].values[0])]
        self._sizes, self._device = sizes, device
        generator = torch.Generator(device=device).manual_seed(seed)
        self.tensors = {
            one.name: self._draw(one, generator) for one in operator.operands if not one.written or one.updated
        }
        self.scalars = {one.name: one.default for one in operator.scalars}
        if prepare:
            for name, made in _asked(prepare, {**self.tensors, **self.scalars}).items():
                drawn = self.tensors.get(name)
                if drawn is None or (made.shape, made.dtype) != (drawn.shape, drawn.dtype):
                    raise ValueError(
                        f"prepare: {name} of {made.dtype} {list(made.shape)} is no input as it is declared"
                    )
                self.tensors[name] = made.contiguous()
        wide, own = ({name: make(one) for name, one in self.tensors.items()} for make in (_widened, _own))
        true, ordinary = (_asked(reference, {**given, **self.scalars}) for given in (wide, own))
        results = [one for one in operator.operands if one.written]
        self._expected: dict[str, Expected | Whole] = {}
        for number, one in enumerate(results):
            parts = [made[number] if isinstance(made, (tuple, list)) else made for made in (true, ordinary)]
            shape = [sizes[dim] for dim in one.dims]
            if list(parts[0].shape) != shape or (len(results) > 1 and not isinstance(true, (tuple, list))):
                raise ValueError(f"reference: it gives {list(parts[0].shape)} for {one.name}, which is {shape}")
            rounded = parts[1].to(self._dtypes[one.dtype])
            if rounded.is_floating_point():
                self._expected[one.name] = Expected.of(parts[0].double(), rounded.double(), ORDER + tolerance)
            else:
                self._expected[one.name] = Whole(parts[0].to(rounded.dtype), rounded, tolerance)

    def _draw(self, operand: Operand, generator: torch.Generator) -> torch.Tensor:
        """Normal numbers, whole numbers from 0 to WHOLE, or truth values."""
        import torch

        shape, dtype = [self._sizes[dim] for dim in operand.dims], self._dtypes[operand.dtype]
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator, device=self._device, dtype=torch.float32).to(dtype)
        most = 2 if dtype == torch.bool else WHOLE
        return torch.randint(0, most, shape, generator=generator, device=self._device).to(dtype)

    def result(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int]
    ) -> tuple[torch.Tensor, float | torch.Tensor]:
        import torch

        if argument.operand.updated:
            before = self.tensors[argument.operand.name]
            return before.clone(), before
        shape, dtype = [self._sizes[dim] for dim in argument.operand.dims], self._dtypes[argument.dtype]
        poison = torch.nan if dtype.is_floating_point else 1 if dtype == torch.bool else torch.iinfo(dtype).min
        return torch.empty(shape, dtype=dtype, device=self._device), poison

    def expect(self, kernel: KernelDescription, argument: Tensor) -> None:
        """All results are known."""

    def check(
        self,
        kernel: KernelDescription,
        argument: Tensor,
        tunables: Mapping[str, int],
        results: Mapping[str, torch.Tensor],
    ) -> Check:
        import torch

        name = argument.operand.name
        actual = results[name]
        expected = self._expected[name]
        if isinstance(expected, Whole):
            return expected.compare(name, actual)
        if not bool(torch.isfinite(actual.double()).all()):
            return Check(None, None, f"{name} has elements that were not written, or are not finite")
        return expected.compare(name, actual.double())


class Whole:
    """The true value of a result of whole numbers or truth values, and the share of its elements that may differ: twice
    what does in an ordinary implementation, and ``tolerance``.
    """

    def __init__(self, true: torch.Tensor, ordinary: torch.Tensor, tolerance: float) -> None:
        self._value, self._tolerance = true, MARGIN * _share(ordinary, true) + tolerance

    def compare(self, what: str, actual: torch.Tensor) -> Check:
        """The check of ``actual``; its error is the share of elements that differ. ``what`` names it."""
        share, wrong = _share(actual, self._value), None
        if share > self._tolerance:
            wrong = f"{what} differs in {share:.2g} of its elements, allowed {self._tolerance:.2g}"
        return Check(share, self._tolerance, wrong)


def _share(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual != expected).double().mean())


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor for the truth: fp64, or a copy of whole numbers, which index."""
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy for an ordinary implementation: a reference may write in place. torch computes nothing in 8 bits, so that
    it gets these as bf16, which has all of their values.
    """
    return tensor.bfloat16() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor.clone()


def _asked(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """The result of the function on those of its arguments that ``given`` has."""
    return function(**{name: given[name] for name in inspect.signature(function).parameters if name in given})


def of_sizes(kernel: KernelDescription) -> list[Choice]:
    """The choices that follow from sizes."""
    return [one for one in kernel.choices if one.source.code not in ("dtype", "addressing")]


def chosen(choice: Choice, sizes: Mapping[str, int]) -> int:
    """The value of a choice that follows from sizes."""
    wanted = evaluate(choice.source, Environment(sizes=sizes))
    return next((int(one) for one in choice.values if int(one) >= wanted), wanted) if choice.round_up else wanted


@dataclass(frozen=True)
class DrawnTuning:
    """The ``problem.family.Tuning`` of an operator with one kernel. Its sizes are choices, or else tuning keys.

    ``reference`` is a function in the package's module of this name: from inputs by name to the results, in the
    operator's order. ``prepare``, in another module, returns a dictionary of inputs from those that are drawn.
    ``tolerance`` is a relative error that is allowed besides that of an ordinary implementation. Sizes that are neither
    choices nor keys are ``fixed``, or are ``following`` from others.
    """

    operator: Operator
    package: str
    reference: str
    prepare: str = ""
    tolerance: float = 0.0
    fixed: Mapping[str, int] = field(default_factory=dict)
    following: Mapping[str, Expression] = field(default_factory=dict)
    shape_options: Sequence[str] = ()

    def selects(self, functional: Functional, cell: Cell, wish: Wish) -> bool:
        """Whether the choices that follow from sizes are those of the cell's."""
        sizes = self._sizes(functional, cell)
        return all(chosen(one, sizes) == functional[one.name] for one in of_sizes(functional.kernel))

    def shape(self, functional: Functional, cell: Cell, multiprocessors: int, wish: Wish) -> Shape | None:
        return shape_of(**self._sizes(functional, cell))

    def _sizes(self, functional: Functional, cell: Cell) -> dict[str, int]:
        given = {**self.fixed, **functional.as_dict(), **keys_of(functional, cell)}
        own = {name: int(given[name]) for name in self.operator.sizes if name not in self.following}
        return own | followed(self.following, own)

    def sizes(self, shape: Mapping[str, int]) -> dict[str, int]:
        return dict(shape)

    def rank(self, problem: Problem) -> tuple[object, ...]:
        return (-prod(problem.sizes.values()),)

    def data_key(self, problem: Problem) -> tuple[object, ...]:
        return (problem.shape,)

    def data(self, problem: Problem) -> DrawnData:
        return self._drawn(problem.sizes, SEED)

    def further(self, problem: Problem) -> dict[str, DrawnData]:
        """Other numbers in the same sizes, and sizes a little smaller, which are the cell's, too."""
        made = {"on other numbers": self._drawn(problem.sizes, SEED + 1)}
        smaller = self.smaller(problem)
        if smaller != problem.sizes:
            made[at(smaller)] = self._drawn(smaller, SEED + 2)
        return made

    def smaller(self, problem: Problem) -> dict[str, int]:
        """Sizes of the problem's cell, each smaller by 1 if the kernel's guards and an image's constants allow it, else
        by 16, else the same.
        """
        sizes = problem.sizes
        for name in (one.name for one in problem.kernel.tuning_keys if one.name in sizes):
            tried = ({**sizes, name: sizes[name] - step} for step in (1, 16))
            followed_by = (one | followed(self.following, one) for one in tried)
            sizes = next((one for one in followed_by if self._stays(problem, one)), sizes)
        return sizes

    def _stays(self, problem: Problem, sizes: Mapping[str, int]) -> bool:
        """Whether a call of these sizes is of the problem's cell, and has the constants of its images."""
        choices = of_sizes(problem.kernel)
        return belongs(problem, sizes) and all(chosen(one, sizes) == chosen(one, problem.sizes) for one in choices)

    def _drawn(self, sizes: Mapping[str, int], seed: int) -> DrawnData:
        reference, prepare = self._function("reference", self.reference), None
        if self.prepare:
            prepare = self._function("prepare", self.prepare)
        return DrawnData(self.operator, sizes, reference, prepare, self.tolerance, "cuda", seed)

    def _function(self, module: str, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(importlib.import_module(f"{self.package}.{module}"), name)
        return found

    def groups(self, functional: Functional) -> Sequence[Sequence[Cell]]:
        return [[cell] for cell in functional.kernel.cells()]

    def guess(self, functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
        raise TuningError(f"{functional.kernel.name} has no static model: tune it on a GPU")
