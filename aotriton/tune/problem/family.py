"""What a family brings to be tuned: shapes that stand for a bin, inputs, the truth, and a guess where no GPU is.

The module of a family at this stop, ``tune/<family>/``, has an object of this kind, called TUNING.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from aotriton.rules.arch import DTYPES
from aotriton.rules.family import family
from aotriton.rules.kernel import Functional, KernelDescription, Tensor
from aotriton.tune.problem.accuracy import Check

if TYPE_CHECKING:
    from aotriton.tune.problem.compute_unit import Candidate
    from aotriton.tune.problem.problems import Cell, Problem, Shape, Wish


class Data(Protocol):
    """Inputs of one shape, on the GPU, and what kernels should make of them."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """What kernels read, by operand; workspace tensors too."""

    @property
    def scalars(self) -> Mapping[str, float]: ...

    def result(self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int]) -> tuple[Any, Any]:
        """Memory for a tensor that the kernel writes or adds to, and what it holds before a checked launch: a number,
        or a tensor if the operand is ``updated``.
        """

    def expect(self, kernel: KernelDescription, argument: Tensor) -> None:
        """Computes what ``check`` compares with."""

    def check(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int], results: Mapping[str, Any]
    ) -> Check:
        """Compares what the kernel left in a tensor, which is among all its ``results``, by operand."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call of an operator: all operands by name, its scalars, and which operands are results."""

    tensors: Mapping[str, Any]
    scalars: Mapping[str, float]
    results: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)  # also those that a kernel has no tensor of


class Tuning(Protocol):
    """How a family is tuned."""

    shape_options: Sequence[str]  # sizes of a shape that a wish may fix, as the command spells them
    # The archs that it guesses for. A family may leave it out: those that the static model describes.
    guessed: Sequence[str]
    # The kernels that are not timed of which it has problems, by name, to check their images on. A family may leave it
    # out: it has none.
    untimed: Set[str]

    def selects(self, functional: Functional, cell: Cell, wish: Wish) -> bool:
        """Whether the cell is measured, by default or because it was asked for."""

    def shape(self, functional: Functional, cell: Cell, multiprocessors: int, wish: Wish) -> Shape | None:
        """Sizes that stand for the cell; None where the wished ones, or the GPU, do not reach it."""

    def sizes(self, shape: Mapping[str, int]) -> dict[str, int]:
        """The operator's sizes, as it names them, at a shape of ``shape``. Needed where the operator counts its
        operations, or a kernel has a guard on sizes.
        """

    def rank(self, problem: Problem) -> tuple[object, ...]:
        """Sorts problems, the most valuable first; those that share inputs together."""

    def data_key(self, problem: Problem) -> tuple[object, ...]:
        """Problems with equal keys share their data."""

    def data(self, problem: Problem) -> Data:
        """Inputs from a seed, on the current GPU."""

    def further(self, problem: Problem) -> Mapping[str, Data]:
        """More inputs of the problem's cell, each by what a message says of it: from another seed, of sizes that are no
        multiples of tiles. What may win is checked on them, too. A family may lack this function.
        """

    def scalars(self, functional: Functional, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """The scalars that the operator's checks set in a measured call of a level that no scalar is the source of, and
        in calls of kernels that are not timed. A family without such levels and problems may lack this function and the
        next one.
        """

    def given(self, functional: Functional) -> Set[str]:
        """The optional operands that measured calls of such a level have."""

    def draw(self, functional: Functional, random: Random) -> Shape:
        """A random shape that calls of this functional of one of an operator's leads may have: its sizes as the
        operator names them, and maybe numbers for ``scalars``, such as a window, which static models do without.

        Cost models are fitted on such shapes, so they must cover all calls that are to be predicted well. This and
        ``inputs`` are needed only where kernels describe their work.
        """

    def inputs(self, functional: Functional, shape: Shape) -> Inputs:
        """A call of the functional's operator, from a seed, on the current GPU."""

    def groups(self, functional: Functional) -> Sequence[Sequence[Cell]]:
        """The cells, in groups that share a winner where nothing is measured."""

    def guess(self, functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates in the order of a static model of the GPU, the likely fastest first, for cells that share a
        winner.
        """

    def call_time(self, functional: Functional, sizes: Mapping[str, int], candidate: Candidate) -> float:
        """Microseconds that a call takes by the same model. Needed where kernels describe their work."""

    def model_source(self, functional: Functional) -> str:
        """What those microseconds are derived from, for a reader."""


def tuning(name: str) -> Tuning:
    """How the family called ``name`` is tuned; ValueError where it does not say."""
    module = family(name).module("tune")
    try:
        found: Tuning = importlib.import_module(module).TUNING
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(f"the family {name} can not be tuned: it has no module {module}") from None
    return found


def further_data(own: Tuning, problem: Problem) -> dict[str, Data]:
    """``Tuning.further``, none where the family has no such function."""
    return dict(own.further(problem)) if hasattr(own, "further") else {}


def sizes_of(data: Data) -> Mapping[str, int]:
    """The sizes that a kernel's own tensors may not have, as the rows of keys in pages: ``data.sizes``, where there are
    any.
    """
    found: Mapping[str, int] = getattr(data, "sizes", {})
    return found


def scalars_of_level(functional: Functional, sizes: Mapping[str, int]) -> dict[str, int]:
    """``Tuning.scalars``, none at level 0 of a kernel that is timed, and where the family has no such function."""
    if not functional.level and functional.kernel.timed:
        return {}
    own = tuning(functional.kernel.family)
    return dict(own.scalars(functional, sizes)) if hasattr(own, "scalars") else {}


def given_at_level(functional: Functional) -> Set[str]:
    """``Tuning.given``, none at level 0 and where the family has no such function."""
    if not functional.level:
        return frozenset()
    own = tuning(functional.kernel.family)
    return own.given(functional) if hasattr(own, "given") else frozenset()


def types_at_level(functional: Functional) -> dict[str, int]:
    """The operands that have a type of their own in measured calls, as ``Environment.other_dtypes``."""
    tensors = (one for one in functional.kernel.arguments if isinstance(one, Tensor) and functional.level in one.dtypes)
    return {one.operand.typed_as or one.operand.name: DTYPES.index(one.dtypes[functional.level]) for one in tensors}


def results_of(kernel: KernelDescription) -> list[Tensor]:
    """The tensors that a kernel writes or adds to in a measured call, which has no feature of some levels only."""
    results = (one for one in kernel.arguments if isinstance(one, Tensor) and one.access in ("write", "add"))
    return [one for one in results if not one.levels]


def scratch_of(kernel: KernelDescription) -> list[Tensor]:
    """The tensors that a kernel needs for itself."""
    return [one for one in kernel.arguments if isinstance(one, Tensor) and one.access == "scratch"]
