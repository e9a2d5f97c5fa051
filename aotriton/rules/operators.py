"""Operator descriptions: the arguments of a call, and the backends that turn them into launches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from aotriton.rules.checked import identifier
from aotriton.rules.expression import Environment, Expression, constant, evaluate
from aotriton.rules.kernel import Argument, Functional, KernelDescription, Operand, Tensor, Value, parse_functional

ZERO = constant(0)


@dataclass(frozen=True)
class Scalar:
    """A number of the call that is not a size: "fp32", "i32" or "bool"; ``default`` is used if the caller gives none.

    Only fp32 may have a default of None: the operator's own checks then get a NaN and replace it by a value that
    depends on the call. ``values`` are names for 0, 1 and so on, which Python and the command line also accept.
    ``internal``: the operator's own checks set the scalar, not the caller; ``measured`` is its value in the calls that
    are measured.
    """

    name: str
    dtype: str
    default: float | None = 0
    internal: bool = False
    values: tuple[str, ...] = ()
    measured: Expression = ZERO

    def __post_init__(self) -> None:
        identifier("a scalar's name", self.name)
        if self.dtype not in ("fp32", "i32", "bool"):
            raise ValueError(f"scalar {self.name}: dtype must be fp32, i32 or bool, not {self.dtype!r}")
        if self.default is None and self.dtype != "fp32":
            raise ValueError(f"scalar {self.name}: only fp32 can do without a default, and it is {self.dtype}")
        for value in self.values:
            identifier(f"scalar {self.name}: a value's name", value)
        if self.values and (self.dtype != "i32" or len(set(self.values)) != len(self.values)):
            raise ValueError(f"scalar {self.name}: only an i32 has names of values, each once, got {self.values}")


@dataclass(frozen=True)
class DerivedSize:
    """A size that follows only from the call, the backend and the GPU, such as a number of splits."""

    name: str
    value: Expression

    def __post_init__(self) -> None:
        identifier("a derived size's name", self.name)


@dataclass(frozen=True)
class Backend:
    """One way to run an operator: kernels in launch order. It serves the calls that all of its kernels serve.

    ``workspace`` are contiguous tensors in the caller's memory, in which kernels pass results to each other. ``sizes``
    are the sizes that the backend derives. ``own_shapes``: its kernels are measured on other shapes than the first
    backend's, so that only predicted times compare them; where those are not known, it serves the calls that it can.
    """

    name: str
    kernels: tuple[KernelDescription, ...]
    workspace: tuple[Operand, ...] = ()
    sizes: tuple[DerivedSize, ...] = ()
    own_shapes: bool = False

    def __post_init__(self) -> None:
        identifier("a backend's name", self.name)

    @property
    def timed_kernels(self) -> tuple[KernelDescription, ...]:
        """The kernels that measured calls launch, in this order."""
        return tuple(kernel for kernel in self.kernels if kernel.timed)


def derived_sizes(backend: Backend, environment: Environment) -> dict[str, int]:
    """The values of the derived sizes. ``environment`` is of the backend's first kernel that has their tunables."""
    sizes, made = dict(environment.sizes), {}
    for one in backend.sizes:  # one may follow from those before
        made[one.name] = sizes[one.name] = evaluate(one.value, replace(environment, sizes=sizes))
    return made


@dataclass(frozen=True)
class Operator:
    """An operation that callers can run. The first backend serves all calls, others the cells where they are faster.

    ``sizes`` are named by the operands' ``dims``. A cell is one of the ``lead``, the first backend's last kernel, which
    has every choice and tuning key of the others. ``fills_when_empty``: a call with a size of 0 launches nothing and
    fills its results with their ``if_empty``. ``checked``: v2src/<family>/ has a ``check_<name>`` of its own.
    ``written``: it has the C functions, too; otherwise a C++ header and its functions are generated. ``flops``: the
    floating-point operations of a call, as its users count them. ``exact_cells``: a call whose tuning keys are all at
    representatives is the problem that was measured for its cell, so the cell decides, not a prediction. ``cut``: the
    size along which a call may be divided into pieces whose results do not depend on each other. The operator's own
    checks say which calls may not, such as those that ask for an optional result without this size.
    """

    name: str
    family: str
    operands: tuple[Operand, ...]
    scalars: tuple[Scalar, ...]
    backends: tuple[Backend, ...]
    fills_when_empty: bool = False
    checked: bool = False
    written: bool = False
    flops: Expression | None = None
    exact_cells: bool = False
    cut: str = ""
    block_table: str = ""
    sizes: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        identifier("an operator's name", self.name)
        identifier(f"{self.name}: family", self.family)
        named = [*(one.dims for one in self.operands), *(one.paged_dims for one in self.operands if self.block_table)]
        sizes = dict.fromkeys(dim for dims in named for dim in dims)
        object.__setattr__(self, "sizes", tuple(sizes))
        if self.block_table and not any(one.name == self.block_table and one.optional for one in self.operands):
            raise ValueError(f"{self.name}: the block table {self.block_table} is no optional operand")
        for operand in self.operands if self.cut else ():
            fixed = operand.written and not operand.optional
            if operand.dims.count(self.cut) != 1 and (fixed or self.cut in operand.dims):
                raise ValueError(f"{self.name}: {operand.name} cannot be cut along {self.cut}, it has {operand.dims}")
        names = [*self.sizes, *(operand.name for operand in (*self.operands, *self.workspace))]
        names += [scalar.name for scalar in self.scalars] + [*self.derived_sizes]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: a size, operand, workspace tensor or scalar appears twice in {names}")
        of_backends = [backend.name for backend in self.backends]
        if len(set(of_backends)) != len(of_backends) or not of_backends:
            raise ValueError(f"{self.name}: backends must have names of their own, got {of_backends}")
        for backend in self.backends:
            if not backend.kernels:
                raise ValueError(f"{self.name}: backend {backend.name} has no kernel")
            if (first := backend.kernels[0]).begins_early:
                raise ValueError(f"{self.name}: {first.name} begins early, and is the first of backend {backend.name}")
            derived = [one.name for one in backend.sizes]
            if len(set(derived)) != len(derived):
                raise ValueError(f"{self.name}: backend {backend.name} derives a size twice: {derived}")
        adding = [kernel.name for kernel in self.kernels if any(_adds(one) for one in kernel.arguments)]
        if adding and "deterministic" not in {scalar.name for scalar in self.scalars}:
            raise ValueError(f"{self.name}: {adding[0]} adds in any order, and there is no scalar deterministic")
        choices, keys = {choice.name for choice in self.lead.choices}, set(self.lead.tuning_keys)
        for backend in self.backends:
            given = {operand.name: operand for operand in (*self.operands, *backend.workspace)}
            for kernel in backend.kernels:
                own = {choice.name for choice in kernel.choices if choice.default is None}
                if not own <= choices or not set(kernel.tuning_keys) <= keys:
                    raise ValueError(
                        f"{self.name}: {kernel.name} has a choice or a tuning key that {self.lead.name} lacks"
                    )
                for argument in kernel.arguments:
                    if isinstance(argument, Tensor) and given.get(argument.operand.name) != argument.operand:
                        raise ValueError(
                            f"{self.name}: {argument.name} of {kernel.name} is no operand of the operator, nor a"
                            f" workspace tensor of backend {backend.name}"
                        )

    @property
    def lead(self) -> KernelDescription:
        return self.backends[0].kernels[-1]

    @property
    def leads(self) -> tuple[KernelDescription, ...]:
        """The kernels by whose functionals samples are named: the lead, and of each choice of levels that the lead
        lacks the first timed kernel that has it, in levels other than 0.
        """
        found = {self.lead.level_choice: self.lead}
        for kernel in self.kernels:
            if kernel.timed and kernel.work and kernel.level_choice:
                found.setdefault(kernel.level_choice, kernel)
        return tuple(found.values())

    def sampled_functional(self, arch: str, text: str) -> Functional:
        """The functional of one of the ``leads`` that ``str(functional)`` spelled as ``text``."""
        own = next((one for one in self.leads[1:] if f" {one.level_choice}=" in text), self.lead)
        return parse_functional(own, arch, text)

    def serving(self, functional: Functional) -> tuple[Backend, ...]:
        """The backends that may serve calls of a functional of one of the ``leads``: where that is not the lead, those
        with a kernel that has its levels.
        """
        if functional.kernel is self.lead:
            return self.backends
        levels = functional.kernel.level_choice
        return tuple(one for one in self.backends if any(kernel.level_choice == levels for kernel in one.timed_kernels))

    @property
    def plain_operands(self) -> tuple[Operand, ...]:
        """The operands that are no features, as ``OperatorInfo::plain_operands`` of C++: all that callers may give by
        position. Features are a run of several at the end that may be left out.
        """
        count = len(self.operands)
        while count and self.operands[count - 1].optional:
            count -= 1
        while count < len(self.operands) and self.operands[count].written:
            count += 1
        return self.operands[:count] if len(self.operands) - count > 1 else self.operands

    @property
    def workspace(self) -> tuple[Operand, ...]:
        """The workspace tensors of all backends, without duplicates."""
        return tuple(dict.fromkeys(operand for backend in self.backends for operand in backend.workspace))

    @property
    def takes_workspace(self) -> bool:
        """Whether calls may bring a workspace: for tensors, or for the scratch memory of images."""
        return bool(self.workspace) or any(kernel.scratch for kernel in self.kernels)

    @property
    def derived_sizes(self) -> tuple[str, ...]:
        """The names of the sizes that backends derive, without duplicates: two backends may derive the same one."""
        return tuple(dict.fromkeys(one.name for backend in self.backends for one in backend.sizes))

    @cached_property
    def kernels(self) -> tuple[KernelDescription, ...]:
        return kernels_of([self])


def with_own_shapes(operators: Iterable[Operator]) -> set[str]:
    """The names of the kernels that are measured on shapes of their own: only predicted times choose their images."""
    backends = (backend for operator in operators for backend in operator.backends if backend.own_shapes)
    return {kernel.name for backend in backends for kernel in backend.kernels}


def without_samples(operators: Iterable[Operator]) -> set[str]:
    """The names of the kernels whose levels no lead has: no random shapes are timed of their calls, so winners of cells
    choose their images.
    """
    found = set()
    for operator in operators:
        sampled = {(one.level_choice, value) for one in operator.leads for value in _levels_of(one)}
        for kernel in operator.kernels:
            levels = {(kernel.level_choice, value) for value in _levels_of(kernel)}
            if levels and not levels & sampled:
                found.add(kernel.name)
    return found


def _levels_of(kernel: KernelDescription) -> tuple[Value, ...]:
    return next((one.values for one in kernel.choices if one.name == kernel.level_choice), ())


def _adds(argument: Argument) -> bool:
    return isinstance(argument, Tensor) and argument.access == "add"


def kernels_of(operators: Iterable[Operator]) -> tuple[KernelDescription, ...]:
    """Every kernel of the operators, each once, in launch order; ValueError if two kernels have the same name."""
    found: dict[str, KernelDescription] = {}
    for kernel in (kernel for operator in operators for backend in operator.backends for kernel in backend.kernels):
        if found.setdefault(kernel.name, kernel) != kernel:
            raise ValueError(f"two kernels are called {kernel.name}")
    return tuple(found.values())
