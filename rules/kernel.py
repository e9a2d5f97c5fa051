"""Descriptions: of a kernel by its arguments, choices, psels, copts and tuning keys, of an operator by its backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from aotriton.rules.binning import TuningKey
from aotriton.rules.target import TARGETS, Target, target

Value = str | int | bool


@dataclass(frozen=True)
class Tensor:
    """A tensor argument: a pointer, or a TMA descriptor where ADDRESSING says so and a block is given.

    ``dtype`` is "T", the functional's type choice, or a fixed Triton type. ``block`` is the tile that one descriptor
    access moves, in constexpr names and integers.
    """

    name: str
    rank: int
    dtype: str = "T"
    block: tuple[str | int, ...] | None = None


@dataclass(frozen=True)
class Stride:
    """Distance in elements along ``dim`` of ``tensor``. The last dimension has none: it is contiguous."""

    tensor: str
    dim: str

    @property
    def name(self) -> str:
        return f"stride_{self.tensor.lower()}_{self.dim}"


@dataclass(frozen=True)
class Scalar:
    """A number passed by value. ``dtype`` is a Triton type, ``multiple_of`` a divisor that the host guarantees."""

    name: str
    dtype: str
    multiple_of: int = 1


@dataclass(frozen=True)
class Constexpr:
    """A compile-time argument whose value is the choice or psel of the same name."""

    name: str


Argument = Tensor | Stride | Scalar | Constexpr


@dataclass(frozen=True)
class Choice:
    """Something that the caller's request pins: a *type* or a *feature*."""

    name: str
    kind: str  # "type" or "feature"
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if self.kind not in ("type", "feature"):
            raise ValueError(f"choice {self.name}: kind must be 'type' or 'feature', not {self.kind!r}")
        if len(set(self.values)) != len(self.values) or not self.values:
            raise ValueError(f"choice {self.name}: values must be distinct and not empty, got {self.values}")


@dataclass(frozen=True)
class KernelDescription:
    """One Triton kernel. ``name`` is also its module in tritonsrc/, the function in it and its host file in v2src/.

    ``psels`` and ``copts`` give, by vendor, the values that the tuner may pick for each performance parameter and each
    compiler option. A kernel serves the values that its choices list, on ``archs``.
    """

    name: str
    family: str
    arguments: tuple[Argument, ...]
    choices: tuple[Choice, ...]
    psels: Mapping[str, Mapping[str, tuple[int, ...]]]
    copts: Mapping[str, Mapping[str, tuple[int, ...]]]
    tuning_keys: tuple[TuningKey, ...]
    tiled_axis: str  # "q" or "k": whose rows and heads the grid walks, and the `waves` key counts
    archs: tuple[str, ...] = tuple(row.arch for row in TARGETS)
    gluon: bool = False  # written in Gluon: descriptors name their layout in shared memory, and no register may spill

    def __post_init__(self) -> None:
        names = [argument.name for argument in self.arguments]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: an argument name appears twice in {names}")
        for vendor in self.psels:
            if tuple(self.psels[vendor]) != self.psel_names:
                raise ValueError(f"{self.name}: every vendor must list the psels {self.psel_names} in this order")
        known = {choice.name for choice in self.choices} | set(self.psel_names)
        for argument in self.arguments:
            if isinstance(argument, Constexpr) and argument.name not in known:
                raise ValueError(f"{self.name}: constexpr {argument.name} is neither a choice nor a psel")

    @property
    def psel_names(self) -> tuple[str, ...]:
        return tuple(next(iter(self.psels.values())))

    @property
    def functional_count(self) -> int:
        """Number of godel numbers; an arch may lack some of them."""
        return prod(len(choice.values) for choice in self.choices)

    def functionals(self, arch: str) -> Iterator[Functional]:
        """Every functional that the kernel serves on ``arch``, by ascending godel number."""
        if arch not in self.archs:
            return
        available = target(arch).addressing
        for values in product(*(choice.values for choice in self.choices)):
            functional = Functional(self, arch, values)
            if functional.get("ADDRESSING", available[0]) in available:
                yield functional

    def functional(self, arch: str, **values: Value) -> Functional:
        """The functional with these choices; ValueError names a choice that is missing, unknown or out of range."""
        if set(values) != {choice.name for choice in self.choices}:
            raise ValueError(f"{self.name}: choices are {[c.name for c in self.choices]}, got {sorted(values)}")
        return Functional(self, arch, tuple(values[choice.name] for choice in self.choices))

    def like(self, functional: Functional) -> Functional | None:
        """The functional with the choices and arch of another kernel's; None where this kernel does not serve it."""
        given = functional.as_dict()
        values = tuple(given.get(choice.name) for choice in self.choices)
        return next((own for own in self.functionals(functional.arch) if own.values == values), None)

    def cells(self) -> Iterator[tuple[int, ...]]:
        """Every bin of a functional as a tuple of representatives, row-major over the tuning keys."""
        return product(*(key.representatives for key in self.tuning_keys))

    def cell_like(self, keys: Mapping[str, int]) -> tuple[int, ...]:
        """The cell of these representatives, given by their keys' names; keys that the kernel lacks are left out."""
        return tuple(keys[key.name] for key in self.tuning_keys)


@dataclass(frozen=True)
class Backend:
    """One way to run an operator: kernels in launch order. It serves what each of them serves."""

    name: str
    kernels: tuple[KernelDescription, ...]


@dataclass(frozen=True)
class Operator:
    """What a caller asks for. The first backend serves all of it; another one the cells where it measured faster.

    A cell is one of the ``lead``, the first backend's last kernel, which has every choice and tuning key of the others.
    """

    name: str
    family: str
    backends: tuple[Backend, ...]

    def __post_init__(self) -> None:
        choices, keys = {choice.name for choice in self.lead.choices}, set(self.lead.tuning_keys)
        for kernel in (kernel for backend in self.backends for kernel in backend.kernels):
            if not {choice.name for choice in kernel.choices} <= choices or not set(kernel.tuning_keys) <= keys:
                raise ValueError(f"{self.name}: {kernel.name} has a choice or a tuning key that {self.lead.name} lacks")

    @property
    def lead(self) -> KernelDescription:
        return self.backends[0].kernels[-1]


def kernels_of(operators: Iterable[Operator]) -> tuple[KernelDescription, ...]:
    """Every kernel of the operators, each once, in launch order."""
    backends = (backend for operator in operators for backend in operator.backends)
    return tuple({kernel.name: kernel for backend in backends for kernel in backend.kernels}.values())


@dataclass(frozen=True)
class Functional:
    """All choices of a kernel pinned, on one arch: what the caller asks for."""

    kernel: KernelDescription
    arch: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        for choice, value in zip(self.kernel.choices, self.values, strict=True):
            if value not in choice.values:
                raise ValueError(f"{self.kernel.name}: {choice.name} must be among {choice.values}, not {value!r}")

    def __getitem__(self, name: str) -> Value:
        for choice, value in zip(self.kernel.choices, self.values, strict=True):
            if choice.name == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Value) -> Value:
        """The value of choice ``name``, or ``default`` where the kernel has no such choice."""
        return self.as_dict().get(name, default)

    def as_dict(self) -> dict[str, Value]:
        return {choice.name: value for choice, value in zip(self.kernel.choices, self.values, strict=True)}

    @property
    def godel_number(self) -> int:
        """Mixed-radix index over the choices; the last choice varies fastest."""
        number = 0
        for choice, value in zip(self.kernel.choices, self.values, strict=True):
            number = number * len(choice.values) + choice.values.index(value)
        return number

    @property
    def target(self) -> Target:
        return target(self.arch)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.as_dict().items())


def parse_functional(kernel: KernelDescription, arch: str, text: str) -> Functional:
    """The functional that ``str(functional)`` spelled as ``text``."""
    spelled = {str(functional): functional for functional in kernel.functionals(arch)}
    if text not in spelled:
        raise ValueError(f"{kernel.name} {arch}: {text!r} is not a functional of this kernel")
    return spelled[text]
