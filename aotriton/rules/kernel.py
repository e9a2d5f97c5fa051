"""Kernel descriptions: from what a kernel takes, serves and may vary to its functionals and their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import prod

from aotriton.rules.arch import ADDRESSING, ARCHS, CAPABILITIES, DTYPES, ArchSpec, arch_spec
from aotriton.rules.binning import TuningKey
from aotriton.rules.checked import identifier
from aotriton.rules.expression import LEAVES, Environment, Expression, constant, equal, evaluate, other_dtype, tunable
from aotriton.rules.provider import Provider
from aotriton.rules.work import Work

Value = str | int | bool
Side = str | int | Expression

LEVELS = 8  # a kernel's levels are below this
Config = Mapping[str, int]


def _check_levels(name: str, levels: tuple[int, ...]) -> None:
    if not all(0 <= level < LEVELS for level in levels):
        raise ValueError(f"{name}: levels are from 0 to {LEVELS - 1}, got {levels}")


@dataclass(frozen=True)
class Operand:
    """A tensor of an operator. ``dims`` names its sizes, outermost first.

    ``dtype`` is "T", which the caller chooses for all operands of this type at once, or a fixed Triton type. An operand
    of type "T" may have one of its ``other_dtypes`` instead; it then has the same one as operand ``typed_as``, if that
    is given (the operator's checks say so).
    ``updated``: it is written, and what it holds before the call is an input, too.
    ``paged_dims`` names its sizes in calls with a block table: it then has pages of rows. See Operator.
    ``contiguous``: rows follow each other, and there are no strides. ``strided``: the strides may be any. Otherwise the
    last dimension must be contiguous, and the other strides may be any. ``alignment`` is what the caller must
    guarantee, in bytes; 0 means the alignment of an element.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str = "T"
    written: bool = False
    optional: bool = False
    contiguous: bool = False
    strided: bool = False
    alignment: int = 0
    updated: bool = False
    if_empty: float = 0.0  # the value of a result whose call has a size of 0
    paged_dims: tuple[str, ...] = ()
    other_dtypes: tuple[str, ...] = ()
    typed_as: str = ""

    def __post_init__(self) -> None:
        for name in (self.name, *self.dims, *self.paged_dims):
            identifier("the name of an operand or of one of its sizes", name)
        if self.dtype not in ("T", *DTYPES[1:]):
            raise ValueError(f"operand {self.name}: dtype must be T or among {DTYPES[1:]}, not {self.dtype!r}")
        if self.other_dtypes and (self.dtype != "T" or not set(self.other_dtypes) <= set(DTYPES[1:])):
            raise ValueError(f"operand {self.name}: only one of type T has other types, among {DTYPES[1:]}")
        if self.updated and not self.written:
            raise ValueError(f"operand {self.name}: what is updated is written")
        if self.contiguous and self.strided:
            raise ValueError(f"operand {self.name}: contiguous or strided, not both")
        if self.paged_dims and len(self.paged_dims) != len(self.dims):
            raise ValueError(f"operand {self.name}: its pages have {len(self.paged_dims)} sizes, not {len(self.dims)}")


@dataclass(frozen=True)
class Tensor:
    """A kernel's argument for an operand: a pointer, or a TMA descriptor if ADDRESSING says so and a block is given.

    ``block`` is the tile that one descriptor access moves, in constexpr names, integers and expressions of them. In
    shared memory of a Gluon kernel the block is ``swizzled``, or its rows follow each other.
    ``packed`` is the number of neighbours along the second dimension that count as one, with their rows side by side.
    The descriptor then has the shape [.., .. / packed, rows, packed, columns], and the neighbours share the rows of its
    ``block``.
    ``box_rows``: the rows of the box that the host's descriptor has, of a block whose rows are a part of it that the
    compiler knows of. The kernel says how many there are.
    ``does`` says what the kernel does with a workspace tensor: "read", "write" or "add" to it, or use it as "scratch",
    whose content is undefined before and after the kernel. The caller's operands are read or written. ``general``:
    every image takes a pointer of any alignment and 64-bit strides, whatever its ADDRESSING. ``levels``: see Constexpr.
    Images of the levels ``by_pointer`` have no descriptor of it, but an aligned pointer with strides. ``dtypes``: its
    element types at the levels where it does not have its operand's. ``unread``: the kernel takes its address, and
    never follows it, so that the operand may have any of its types.
    """

    name: str
    operand: Operand
    block: tuple[Side, ...] | None = None
    does: str = ""
    swizzled: bool = True
    packed: Expression | None = None
    box_rows: Expression | None = None
    general: bool = False
    levels: tuple[int, ...] = ()
    by_pointer: tuple[int, ...] = ()
    dtypes: Mapping[int, str] = field(default_factory=dict)
    unread: bool = False

    def __post_init__(self) -> None:
        if not set(self.dtypes.values()) <= set(self.operand.other_dtypes):
            raise ValueError(f"{self.name}: its other types are {self.operand.other_dtypes}, got {self.dtypes}")
        if self.packed and (self.rank != 4 or not self.block):
            raise ValueError(f"{self.name}: what is packed has four dimensions and a block")
        if self.box_rows and (self.packed or self.rank != 4 or not self.block):
            raise ValueError(f"{self.name}: a box with rows of its own has four dimensions, a block and nothing packed")
        if self.general and self.block:
            raise ValueError(f"{self.name}: general addressing has no block")
        if self.by_pointer and not self.block:
            raise ValueError(f"{self.name}: without a block it is a pointer at every level")
        _check_levels(self.name, self.levels + self.by_pointer)
        if self.does not in ("", "read", "write", "add", "scratch"):
            raise ValueError(f"{self.name}: does must be read, write, add or scratch, not {self.does!r}")

    @property
    def access(self) -> str:
        return self.does or ("write" if self.operand.written else "read")

    @property
    def rank(self) -> int:
        return len(self.operand.dims)

    def block_at(self, level: int) -> tuple[Side, ...] | None:
        """The block of its descriptor in images of this level; None where they take a pointer."""
        return None if level in self.by_pointer else self.block

    @property
    def dtype(self) -> str:
        return self.operand.dtype


@dataclass(frozen=True)
class Stride:
    """A stride, in elements, along dimension ``dim`` of argument ``tensor``; ``letter`` ends the argument's name."""

    tensor: str
    dim: int
    letter: str
    levels: tuple[int, ...] = ()  # as the tensor's

    @property
    def name(self) -> str:
        return f"stride_{self.tensor.lower()}_{self.letter}"


@dataclass(frozen=True)
class Number:
    """A number passed by value. ``dtype`` is a Triton type, ``multiple_of`` a divisor that the host guarantees, or with
    ``if_aligned`` guarantees only to images whose addressing is not general.

    ``value`` is an expression, or for "fp32" a scalar of the operator. ``levels``: see Constexpr.
    """

    name: str
    dtype: str
    value: Expression
    multiple_of: int = 1
    levels: tuple[int, ...] = ()
    if_aligned: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("i32", "i64", "fp32"):
            raise ValueError(f"{self.name}: dtype must be i32, i64 or fp32, not {self.dtype!r}")
        if self.dtype == "fp32" and self.value.code != "scalar":
            raise ValueError(f"{self.name}: a number of type fp32 must be a scalar of the operator")
        _check_levels(self.name, self.levels)


@dataclass(frozen=True)
class Constexpr:
    """A compile-time argument whose value is the choice or tunable of the same name.

    ``values``, as Python spells them, and types as ``tl.dtype('fp32')``: the argument's value is the one whose place
    the choice or tunable says; a single one needs neither. Images of these ``levels`` take the argument; empty: all.
    """

    name: str
    levels: tuple[int, ...] = ()
    values: tuple[str, ...] = ()


Argument = Tensor | Stride | Number | Constexpr


def strides(letters: str, *tensors: str, levels: tuple[int, ...] = ()) -> tuple[Stride, ...]:
    """The strides of each of the tensors: one for each letter, beginning with the outermost dimension."""
    return tuple(Stride(tensor, dim, letter, levels) for tensor in tensors for dim, letter in enumerate(letters))


@dataclass(frozen=True)
class Choice:
    """A property of the call that selects images, such as the element type; ``source`` computes it from the call.

    ``round_up``: the first value that is not smaller serves. Names leave the ``default`` out, so that a new choice
    renames nothing. ``measured_as``: the values do not differ in speed, so this value is measured and lends to the
    others, except those that stand ``apart``. ``borrows``: the values differ, but another value's winner is better than
    none. ``small`` is the value in a build of small coverage. ``option`` is the choice's name in commands, by default
    its name in small letters. ``levels``: the values are the kernel's levels (see KernelDescription).
    """

    name: str
    values: tuple[Value, ...]
    source: Expression
    round_up: bool = False
    default: Value | None = None
    measured_as: Value | None = None
    apart: tuple[Value, ...] = ()
    borrows: bool = False
    small: Value | None = None
    option: str = ""
    levels: bool = False

    def __post_init__(self) -> None:
        identifier("a choice's name", self.name)
        for value in self.values:
            if not re.fullmatch(r"[A-Za-z0-9_.+-]+", str(value)):
                raise ValueError(f"choice {self.name}: {value!r} cannot be spelled in a functional's name")
        if len(set(self.values)) != len(self.values) or not self.values:
            raise ValueError(f"choice {self.name}: values must be distinct and not empty, got {self.values}")
        for special in (self.default, self.measured_as, self.small, *self.apart):
            if special is not None and special not in self.values:
                raise ValueError(f"choice {self.name}: {special!r} is not among its values {self.values}")
        numbers = [self.number(value) for value in self.values]
        if self.round_up and numbers != sorted(numbers):
            raise ValueError(f"choice {self.name}: values that round up must ascend, got {self.values}")
        object.__setattr__(self, "option", self.option or self.name.lower().replace("_", "-"))

    def number(self, value: Value) -> int:
        """The number that ``source`` has for ``value``; ValueError if it cannot have this value."""
        names = {"dtype": DTYPES, "addressing": ADDRESSING}.get(self.source.code)
        if names is not None:
            if value not in names:
                raise ValueError(f"choice {self.name}: {value!r} is not among {names}")
            return names.index(str(value))
        if isinstance(value, str):
            raise ValueError(f"choice {self.name}: {value!r} is not a number")
        return int(value)

    def narrowed(self, *values: Value) -> Choice:
        """The same choice for a kernel that serves these values only."""
        default, measured_as = (one if one in values else None for one in (self.default, self.measured_as))
        apart = tuple(one for one in self.apart if one in values)
        return replace(self, values=values, small=None, default=default, measured_as=measured_as, apart=apart)

    def measured(self, value: Value) -> Value:
        """The value that is measured for ``value``."""
        return value if self.measured_as is None or value in self.apart else self.measured_as

    def own(self, value: Value) -> Value:
        """The choice's value that is equal to this one, which may be spelled otherwise: an enumeration's number, for
        instance, that came through JSON. Any other value as it is.
        """
        return next((one for one in self.values if one == value), value)

    def serving(self, value: Value, sizes: Mapping[str, int] | None) -> Value | None:
        """The value that serves a call which another kernel serves with ``value``.

        If the choice rounds sizes up, this is the first value that the call of these ``sizes``, of which some may be
        missing, fits in; None if that is larger than ``value``.
        """
        if sizes is None or not self.round_up or not self.sizes:
            return value
        wanted = max(sizes.get(name, 0) for name in self.sizes)
        own = next((one for one in self.values if self.number(one) >= wanted), None)
        return None if own is None or self.number(own) > self.number(value) else own

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The sizes whose largest is the source; none where the source is anything else."""
        steps = tuple(self.source.postfix())
        names = tuple(str(name) for code, name in steps if code == "size")
        return names if all(code in ("size", "maximum") for code, _ in steps) else ()

    def read(self, text: str) -> Value:
        """The value whose text is ``text``."""
        if text not in self._spelled:
            raise ValueError(f"{self.name} must be among {self.values}, not {text}")
        return self._spelled[text]

    @cached_property
    def _spelled(self) -> dict[str, Value]:
        return {str(value): value for value in reversed(self.values)}


@dataclass(frozen=True)
class Parameter:
    """A tunable or compile option, with the values that the tuner may choose for each vendor.

    Names leave the ``default`` out.

    ``more``: for each vendor, further values. Only a search tries them, because all combinations are too many.
    """

    name: str
    values: Mapping[str, tuple[int, ...]]
    default: int | None = None
    more: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        identifier("a tunable's or compile option's name", self.name)
        for vendor, values in self.values.items():
            if vendor not in {row.vendor for row in ARCHS} or not values:
                raise ValueError(f"{self.name}: {vendor!r} must be a vendor with values, got {values}")
        for vendor, values in self.more.items():
            if vendor not in self.values or set(values) & set(self.values[vendor]):
                raise ValueError(f"{self.name}: more values of {vendor!r} must add to its values, got {values}")

    def of(self, vendor: str, rich: bool) -> tuple[int, ...]:
        """The values for a vendor; with ``rich`` also those of ``more``, ascending."""
        values = self.values[vendor]
        return tuple(sorted((*values, *self.more.get(vendor, ())))) if rich else values


def by_vendor(
    defaults: Mapping[str, int] | None = None,
    more: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None,
    **vendors: Mapping[str, tuple[int, ...]],
) -> tuple[Parameter, ...]:
    """The parameters in each vendor's table of values, in order of first appearance. ``more`` has such tables, too."""
    names = dict.fromkeys(name for table in vendors.values() for name in table)
    added = more or {}
    for vendor, table in added.items():
        if unknown := table.keys() - vendors.get(vendor, {}).keys():
            raise ValueError(f"{vendor} has more values of {sorted(unknown)}, and no values")
    return tuple(
        Parameter(
            name,
            {vendor: table[name] for vendor, table in vendors.items() if name in table},
            (defaults or {}).get(name),
            {vendor: table[name] for vendor, table in added.items() if name in table},
        )
        for name in names
    )


def of_vendor(vendor: str, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """The vendor's parameters, without the values of other vendors."""

    def own(table: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {vendor: table[vendor]} if vendor in table else {}

    return tuple(replace(one, values=own(one.values), more=own(one.more)) for one in parameters if vendor in one.values)


@dataclass(frozen=True)
class Guard:
    """A condition for a call. The kernel serves the call only if ``condition`` is not 0.

    ``why`` completes the message "can not serve this call: ".
    """

    condition: Expression
    why: str

    @cached_property
    def scalars(self) -> frozenset[str]:
        """The names of scalars that the condition has."""
        return frozenset(str(name) for code, name in self.condition.postfix() if code == "scalar")


# Kernels count in 32 bits, up to the end of the last tile, and no tile has a side of more than 1024.
MOST_COUNTED = 2**31 - 1 - 1023

# The order in which a kernel processes independent slices, as in c.h: many side by side, or one after the other.
BFS, DFS = constant(1), constant(2)


@dataclass(frozen=True)
class Restriction:
    """A rule that excludes configs of a functional and bin: those to which it ``applies``.

    ``certain``: the config cannot run or cannot win. Otherwise it is a rule of thumb, which a search ignores.
    """

    why: str
    applies: Callable[[Functional, Mapping[str, int], Config], bool]
    certain: bool = True


@dataclass(frozen=True)
class KernelDescription:
    """One kernel, written in Triton or Gluon or compiled by a provider.

    ``name`` is also the name of its module in tritonsrc/<family>/kernels/ and of the function there, unless ``source``
    names another kernel, whose device code it uses. ``grid`` is the number of programs along x, y and z;
    ``tuning_keys`` are the quantities that divide its table into bins. A kernel serves the values that its choices list
    if all ``guards`` hold, on the archs with all capabilities that it ``needs``; ``archs`` are these archs, or some of
    them. ``impossible`` lists combinations of choices that no call has. ``schedule`` is BFS or DFS, an expression of
    tunables and the call; without it the kernel has no known order of slices.

    ``begins_early``: it may begin while the kernel before it in its backend still runs, the last one that has programs
    in the call (CUDA's programmatic dependent launch). Each of its programs must wait for that kernel itself, by
    ``gdc_wait``, before it reads what kernels of the backend write, writes anything, or ends; one that has no such wait
    does not compile.

    ``steered``: it takes pointers where an operator's checks say so, even if all of its tensors lie so that the arch's
    fast way reaches them.

    ``timed``: its time is measured or predicted. What is not timed has one config, which needs no time to win, and no
    measured call launches it; so it is with each kernel without choices.

    A kernel may have levels, the values of one of its choices: a level is the set of features that a call can ask an
    image for. Images of level 0 are plain. ``sources`` maps a level to the kernel whose device code serves it, if that
    is not its own.

    ``scratch``: its images may need scratch memory for each of their programs, as those do on NVIDIA that make tensor
    descriptors. It lies in the call's workspace, so that the operator takes one.
    """

    name: str
    family: str
    arguments: tuple[Argument, ...]
    choices: tuple[Choice, ...]
    tunables: tuple[Parameter, ...]
    compile_options: tuple[Parameter, ...]
    tuning_keys: tuple[TuningKey, ...]
    grid: tuple[Expression, Expression, Expression]
    impossible: tuple[Mapping[str, Value], ...] = ()
    guards: tuple[Guard, ...] = ()
    restrictions: tuple[Restriction, ...] = ()
    # By vendor, combinations of choices whose images may spill registers: those of which no config fits.
    may_spill: Mapping[str, tuple[Mapping[str, Value], ...]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # among CAPABILITIES of rules/arch.py
    archs: tuple[str, ...] = ()  # empty: all
    gluon: bool = False  # written in Gluon: descriptors name their layout in shared memory
    work: Work | None = None  # predicts its time; without it, only cells decide
    provider: Provider | None = None  # the compiler, if it is not Triton
    schedule: Expression | None = None
    begins_early: bool = False
    steered: bool = False
    timed: bool = True
    source: str = ""
    sources: Mapping[int, str] = field(default_factory=dict)
    scratch: bool = False

    def __post_init__(self) -> None:
        identifier("a kernel's name", self.name)
        identifier(f"{self.name}: family", self.family)
        for source in (self.function, *self.sources.values()):
            identifier(f"{self.name}: source", source)
        if not set(self.needs) <= set(CAPABILITIES):
            raise ValueError(f"{self.name}: needs {self.needs}, but there are: {', '.join(CAPABILITIES)}")
        meant = [arch_spec(arch) for arch in self.archs] or ARCHS
        served = tuple(one.arch for one in meant if set(self.needs) <= one.capabilities)
        object.__setattr__(self, "archs", served)  # a frozen dataclass has no other way
        object.__setattr__(self, "timed", self.timed and bool(self.choices))
        names = [argument.name for argument in self.arguments]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: an argument name appears twice in {names}")
        pinned = [choice.name for choice in self.choices] + [
            parameter.name for parameter in (*self.tunables, *self.compile_options)
        ]
        if len(set(pinned)) != len(pinned):
            raise ValueError(f"{self.name}: a choice, tunable or compile option appears twice in {pinned}")
        if len(self.grid) != 3:
            raise ValueError(f"{self.name}: the grid has {len(self.grid)} axes, not 3")
        known = {choice.name for choice in self.choices} | set(self.tunable_names)
        tensors = {argument.name: argument for argument in self.arguments if isinstance(argument, Tensor)}
        for argument in self.arguments:
            if isinstance(argument, Constexpr) and argument.name not in known and len(argument.values) != 1:
                raise ValueError(f"{self.name}: constexpr {argument.name} is neither a choice nor a tunable")
            if isinstance(argument, Stride) and not (
                argument.tensor in tensors and argument.dim < tensors[argument.tensor].rank
            ):
                raise ValueError(f"{self.name}: {argument.name} is of no dimension of a tensor")
            if isinstance(argument, Stride) and argument.levels != tensors[argument.tensor].levels:
                raise ValueError(f"{self.name}: {argument.name} is of other levels than {argument.tensor}")
            if isinstance(argument, Tensor) and argument.block is not None:
                steps = [step for side in argument.block for step in _expression(side).postfix() if step[0] in LEAVES]
                for code, name in steps:
                    if code != "tunable" or name not in known:
                        raise ValueError(
                            f"{self.name}: {name} in {argument.name}'s block is neither a choice nor a tunable"
                        )
                if len(argument.block) != (sides := argument.rank + bool(argument.packed)):
                    raise ValueError(f"{self.name}: {argument.name}'s block has not {sides} sides")
        values = {choice.name: choice.values for choice in self.choices}
        if sum(choice.levels for choice in self.choices) > 1:
            raise ValueError(f"{self.name}: two choices are its levels")
        levels = {int(value) for value in values.get(self.level_choice, (0,))}
        if not set(self.sources) <= levels or not levels <= set(range(LEVELS)):
            raise ValueError(f"{self.name}: sources of {sorted(self.sources)}, of the levels {sorted(levels)}")
        for argument in self.arguments:
            if argument.levels and levels.isdisjoint(argument.levels):
                raise ValueError(f"{self.name}: {argument.name} is of levels that it has none of: {argument.levels}")
        for parameter in self.tunables:
            for place in (place for row in (*parameter.values.values(), *parameter.more.values()) for place in row):
                if place not in range(self.places_of.get(parameter.name, place + 1)):
                    raise ValueError(f"{self.name}: {parameter.name} has no value at place {place}")
        for row in self.impossible:
            if not all(value in values.get(name, ()) for name, value in row.items()):
                raise ValueError(f"{self.name}: {dict(row)} is impossible, but is no combination of its choices")
        for vendor in {arch_spec(arch).vendor for arch in self.archs}:
            for parameter in (*self.tunables, *self.compile_options) if not self.timed else ():
                if len(parameter.of(vendor, rich=True) if vendor in parameter.values else ()) > 1:
                    raise ValueError(f"{self.name}: it is not timed, so {parameter.name} has one value")
            for parameter in self.tunables:
                if vendor not in parameter.values and parameter.default is None:
                    raise ValueError(
                        f"{self.name}: tunable {parameter.name} has neither values for {vendor} nor a default"
                    )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.functional_count))  # some of the fields are dictionaries

    def blocks(self, constexprs: Mapping[str, object]) -> dict[str, list[int]]:
        """The sides, in elements, of the block of each tensor that has one; ``constexprs`` has the values of the whole
        numbers that they follow from. KeyError names one that is not there.
        """
        numbers = {name: value for name, value in constexprs.items() if isinstance(value, int)}
        tensors = (one for one in self.arguments if isinstance(one, Tensor))
        return {one.name: block_of(one.block, numbers) for one in tensors if one.block is not None}

    @property
    def function(self) -> str:
        """The name of the module and of the function with its device code; of level 0, if it has levels."""
        return self.source or self.name

    @cached_property
    def level_choice(self) -> str:
        """The name of the choice whose values are the kernel's levels; empty if it has one level, 0."""
        return next((choice.name for choice in self.choices if choice.levels), "")

    @property
    def called(self) -> bool:
        """Whether the kernel is a Python function, which has no image to launch or to ship."""
        return self.provider is not None and self.provider.called

    def all_guards(self, sizes: Collection[str]) -> tuple[Guard, ...]:
        """The kernel's ``guards``, preceded by one for each of the caller's ``sizes`` that it takes in 32 bits, and for
        each operand with other types that it reads and does not choose by.

        A size that a choice rounds up needs no guard, because the values of the choice bound it.
        """
        known = frozenset(sizes)
        if known not in self._guards:
            self._guards[known] = self._guards_of(known)
        return self._guards[known]

    @cached_property
    def _guards(self) -> dict[frozenset[str], tuple[Guard, ...]]:
        """``all_guards``, which a fit of models asks for a million times."""
        return {}

    def _guards_of(self, sizes: frozenset[str]) -> tuple[Guard, ...]:
        bounded = {name for choice in self.choices if choice.round_up for name in choice.sizes}
        passed = dict.fromkeys(one.value for one in self.arguments if isinstance(one, Number) and one.dtype == "i32")
        counted = tuple(
            Guard(one <= MOST_COUNTED, f"{one.name} is more than {MOST_COUNTED}")
            for one in passed
            if one.code == "size" and one.name in sizes and one.name not in bounded
        )
        read = (one for one in self.arguments if isinstance(one, Tensor) and not one.unread)
        tensors = (one.operand for one in read if one.operand.other_dtypes)
        typed = dict.fromkeys(one.typed_as or one.name for one in tensors)
        chosen = {name for one in self.choices for code, name in one.source.postfix() if code == "other_dtype"}
        own = tuple(
            Guard(equal(other_dtype(name), 0), f"{name} has a type of 8 bits") for name in typed if name not in chosen
        )
        return counted + own + self.guards

    @cached_property
    def places(self) -> tuple[Mapping[Value, int], ...]:
        """The index of each value of each choice."""
        return tuple({value: place for place, value in enumerate(choice.values)} for choice in self.choices)

    @cached_property
    def _choice_names(self) -> tuple[str, ...]:
        return tuple(choice.name for choice in self.choices)

    @cached_property
    def _defaults(self) -> dict[str, Value]:
        return {choice.name: choice.default for choice in self.choices if choice.default is not None}

    @cached_property
    def _impossible(self) -> tuple[tuple[tuple[int, Value], ...], ...]:
        """The combinations of ``impossible``, with indices instead of the names of choices."""
        return tuple(
            tuple((self._choice_names.index(name), value) for name, value in row.items()) for row in self.impossible
        )

    @cached_property
    def _addressed(self) -> tuple[int, ...]:
        """The indices of the choices that are the addressing."""
        return tuple(place for place, choice in enumerate(self.choices) if choice.source.code == "addressing")

    @cached_property
    def places_of(self) -> dict[str, int]:
        """How many values a constexpr has, of those that spell them."""
        spelled = (one for one in self.arguments if isinstance(one, Constexpr) and one.values)
        return {one.name: len(one.values) for one in spelled}

    @cached_property
    def tunable_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.tunables)

    def tunable_values(self, vendor: str, rich: bool = False) -> Mapping[str, tuple[int, ...]]:
        """The values that the tuner may choose for each tunable; with ``rich`` those of a search."""
        return self._values_of[vendor, rich][0]

    def compile_option_values(self, vendor: str, rich: bool = False) -> Mapping[str, tuple[int, ...]]:
        """The values that the tuner may choose for each option of this vendor's compiler, as for ``tunable_values``."""
        return self._values_of[vendor, rich][1]

    @cached_property
    def _values_of(self) -> dict[tuple[str, bool], tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]]:
        """Of tunables and compile options, by vendor and ``rich``: restrictions ask for them for each config."""
        return {
            (vendor, rich): (
                {one.name: one.of(vendor, rich) for one in self.tunables if vendor in one.values},
                {one.name: one.of(vendor, rich) for one in self.compile_options if vendor in one.values},
            )
            for vendor in ("cuda", "hip")
            for rich in (False, True)
        }

    @property
    def functional_count(self) -> int:
        """The number of godel numbers; an arch may lack some of them."""
        return prod(len(choice.values) for choice in self.choices)

    def _available(self, arch: str, values: tuple[Value, ...]) -> bool:
        """Whether a call on the arch can have these values."""
        if any(all(values[place] == value for place, value in row) for row in self._impossible):
            return False
        if arch not in self.archs or not all(values[place] in arch_spec(arch).addressing for place in self._addressed):
            return False
        return self._others_at(values) <= {arch_spec(arch).fp8}

    def _others_at(self, values: tuple[Value, ...]) -> set[str]:
        """The other types of tensors at the level of these values."""
        if not self._retyped:
            return set()
        level = next((int(value) for value, choice in zip(values, self.choices, strict=True) if choice.levels), 0)
        return {one.dtypes[level] for one in self._retyped if level in one.dtypes}

    @cached_property
    def _retyped(self) -> tuple[Tensor, ...]:
        return tuple(one for one in self.arguments if isinstance(one, Tensor) and one.dtypes)

    def functionals(self, arch: str) -> Iterator[Functional]:
        """Every functional that the kernel serves on ``arch``, by ascending godel number."""
        for values in product(*(choice.values for choice in self.choices)):
            if self._available(arch, values):
                yield Functional(self, arch, values)

    def functional(self, arch: str, **values: Value) -> Functional:
        """The functional with these choices; other choices have their defaults.

        ValueError names a choice that is missing, unknown or out of range.
        """
        given = self._defaults | values
        if len(given) != len(self.choices) or not given.keys() <= set(self._choice_names):
            raise ValueError(f"{self.name}: choices are {list(self._choice_names)}, got {sorted(values)}")
        return Functional(self, arch, tuple(choice.own(given[choice.name]) for choice in self.choices))

    def like(self, functional: Functional, sizes: Mapping[str, int] | None = None) -> Functional | None:
        """The functional with the choices and arch of another kernel's; None if this kernel does not serve it.

        With the ``sizes`` of a call of that functional, the functional that serves this call: a choice that rounds up
        may then have a smaller value than the other kernel's.
        """
        values = tuple(
            default if place is None else choice.serving(functional.values[place], sizes)
            for choice, (place, default) in zip(self.choices, _correspondence(self, functional.kernel), strict=True)
        )
        served = all(value in places for value, places in zip(values, self.places, strict=True))
        if not served or not self._available(functional.arch, values):  # type: ignore[arg-type] # None is not served
            return None
        return Functional(self, functional.arch, values)  # type: ignore[arg-type] # see above

    @cached_property
    def cell_count(self) -> int:
        """The number of bins of a functional."""
        return prod(len(key.representatives) for key in self.tuning_keys)

    def cells(self) -> Iterator[tuple[int, ...]]:
        """Every bin of a functional as a tuple of representatives, row-major over the tuning keys."""
        return product(*(key.representatives for key in self.tuning_keys))

    def cell_like(self, keys: Mapping[str, int]) -> tuple[int, ...]:
        """The cell of these representatives, by the names of their keys; keys that the kernel lacks are ignored."""
        return tuple(keys[key.name] for key in self.tuning_keys)


@dataclass(frozen=True)
class Functional:
    """A kernel on one arch with a value for each of its choices."""

    kernel: KernelDescription
    arch: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        for choice, places, value in zip(self.kernel.choices, self.kernel.places, self.values, strict=True):
            if value not in places:
                raise ValueError(f"{self.kernel.name}: {choice.name} must be among {choice.values}, not {value!r}")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.kernel, self.arch, self.values))

    def __getitem__(self, name: str) -> Value:
        return self._by_name[name]

    def get(self, name: str, default: Value) -> Value:
        """The value of choice ``name``, or ``default`` if the kernel has no such choice."""
        return self._by_name.get(name, default)

    def as_dict(self) -> dict[str, Value]:
        return dict(self._by_name)

    @cached_property
    def _by_name(self) -> dict[str, Value]:
        return dict(zip(self.kernel._choice_names, self.values, strict=True))

    @property
    def addressing(self) -> str:
        """How the functional reaches its tensors; "general" for a kernel without the choice."""
        found = self.kernel._addressed
        return str(self.values[found[0]]) if found else "general"

    @cached_property
    def godel_number(self) -> int:
        """The mixed-radix index over the choices; the last choice varies fastest."""
        number = 0
        for places, value in zip(self.kernel.places, self.values, strict=True):
            number = number * len(places) + places[value]
        return number

    @property
    def level(self) -> int:
        return int(self.get(self.kernel.level_choice, 0))

    @property
    def function(self) -> str:
        """The name of its device code, module and function."""
        return self.kernel.sources.get(self.level, self.kernel.function)

    def dtype_of(self, tensor: Tensor) -> str:
        """The element type that its images take of a tensor."""
        dtype = tensor.dtypes.get(self.level, tensor.dtype)
        return str(self["T"]) if dtype == "T" else dtype

    def takes(self, argument: Argument) -> bool:
        """Whether its images have this argument of the kernel."""
        return not argument.levels or self.level in argument.levels

    def ruled_out(self, cell: tuple[int, ...], config: Config) -> bool:
        """Whether it is certain that a config cannot run, or win, in the cell."""
        keys = {key.name: value for key, value in zip(self.kernel.tuning_keys, cell, strict=True)}
        return any(one.certain and one.applies(self, keys, config) for one in self.kernel.restrictions)

    def wins_nowhere(self, config: Config) -> bool:
        """Whether it is certain that a config cannot run, or win, in any cell."""
        return all(self.ruled_out(cell, config) for cell in self.kernel.cells())

    @cached_property
    def measured(self) -> Functional:
        """The functional that is measured instead of this one, because some choices do not change the speed."""
        pairs = zip(self.kernel.choices, self.values, strict=True)
        values = tuple(one.measured(value) for one, value in pairs)
        return self if values == self.values else Functional(self.kernel, self.arch, values)

    @cached_property
    def plain(self) -> Functional:
        """The functional of level 0 whose other choices have the values of this one; itself, if there is none."""
        pairs = zip(self.kernel.choices, self.values, strict=True)
        values = tuple(0 if one.levels and 0 in one.values else value for one, value in pairs)
        return Functional(self.kernel, self.arch, values)

    @cached_property
    def plain_ones(self) -> tuple[Functional, ...]:
        """The functionals of level 0 that stand for this one, each followed by the one that is measured for it.

        They have its values of all choices except those that ``impossible`` restricts at its level, whatever the others
        are.
        """
        if not self.level:
            return ()
        levels = self.kernel.level_choice
        of_level = (row for row in self.kernel.impossible if row.get(levels) == self.level and len(row) == 2)
        free = {levels, *(name for row in of_level for name in row)}
        own = [
            (place, value) for place, value in enumerate(self.values) if self.kernel._choice_names[place] not in free
        ]
        found = (one for one in self.kernel.functionals(self.arch) if one.level == 0)
        alike = [one for one in found if all(one.values[place] == value for place, value in own)]
        return tuple(dict.fromkeys(other for one in alike for other in (one, one.measured)))

    @property
    def arch_spec(self) -> ArchSpec:
        return arch_spec(self.arch)

    @property
    def may_spill(self) -> bool:
        """Whether its images may spill registers, as all of them do."""
        rows = self.kernel.may_spill.get(self.arch_spec.vendor, ())
        return any(all(self[name] == value for name, value in row.items()) for row in rows)

    def __str__(self) -> str:
        """``T=bf16 WIDTH=64``; choices at their default are left out."""
        return self._text

    @cached_property
    def _text(self) -> str:
        pairs = zip(self.kernel.choices, self.values, strict=True)
        return " ".join(f"{choice.name}={value}" for choice, value in pairs if value != choice.default)


@cache
def _correspondence(own: KernelDescription, other: KernelDescription) -> tuple[tuple[int | None, Value | None], ...]:
    """The index of each choice of ``own`` among those of ``other``, or None, and the choice's default."""
    there = {choice.name: place for place, choice in enumerate(other.choices)}
    return tuple((there.get(choice.name), choice.default) for choice in own.choices)


@cache  # a functional's name has one row for each of its cells
def parse_functional(kernel: KernelDescription, arch: str, text: str) -> Functional:
    """The functional that ``str(functional)`` spelled as ``text``."""
    choices = {choice.name: choice for choice in kernel.choices}
    try:
        words = [word.partition("=") for word in text.split()]
        functional = kernel.functional(arch, **{name: choices[name].read(value) for name, _, value in words})
    except (KeyError, ValueError):
        functional = None
    if functional is None or str(functional) != text or not kernel._available(arch, functional.values):
        raise ValueError(f"{kernel.name} {arch}: {text!r} is not a functional of this kernel")
    return functional


def block_of(block: tuple[Side, ...], constexprs: Mapping[str, Value]) -> list[int]:
    """The sides of a block in elements; ``constexprs`` has the values of its names."""
    numbers = {name: int(value) for name, value in constexprs.items() if not isinstance(value, str)}
    sides: list[int] = []
    for side in block:
        if isinstance(side, str):
            sides.append(numbers[side])
        else:
            sides.append(side if isinstance(side, int) else evaluate(side, Environment(tunables=numbers)))
    return sides


def _expression(side: Side) -> Expression:
    """The expression of a block's side, in which constexprs, including choices, are tunables."""
    return tunable(side) if isinstance(side, str) else constant(side) if isinstance(side, int) else side
