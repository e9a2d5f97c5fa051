"""Programs: from the descriptions of an operator and its kernels to the numbered data that the C++ runner evaluates.

A program refers to operands, sizes, scalars and tunables by number, where rules/ uses names. The generator writes this
data as C++ (``template/operator.cc.j2``); the tuner passes it to the binding for an image outside of the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aotriton.rules.arch import DTYPES
from aotriton.rules.expression import LEAVES, OPERATIONS, Expression, arity
from aotriton.rules.kernel import LEVELS, KernelDescription, Number, Operand, Stride, Tensor
from aotriton.rules.operators import Operator

CODES = ("constant", *LEAVES, *OPERATIONS)  # in the order of the C++ enumeration
DEPTH = 16  # of the C++ stack

# What the C++ runner has room for; program_limits.h is generated from it. The numbers do not follow the operators of a
# build: a family that is built on an installed library shares the layout of its calls.
MAX_OPERANDS = 28  # bits of a uint32_t
MAX_SIZES = 24
MAX_SCALARS = 24
MAX_RANK = 4
MAX_STEPS = 352  # their numbers are uint16_t
MAX_CHOICES = 32
MAX_GUARDS = 64  # bits of a uint64_t
MAX_TUNABLES = 12
MAX_NUMBERS = 48
MAX_ARGUMENTS = 704
MAX_BACKENDS, MAX_KERNELS, MAX_KEYS = 12, 8, 4  # c.h and explain.h have as many, for good
LIMITS = (
    ("kMaxOperands", MAX_OPERANDS, "of an operator, with the workspace tensors of its backends"),
    ("kMaxSizes", MAX_SIZES, "of an operator, with the derived ones"),
    ("kMaxScalars", MAX_SCALARS, "of an operator"),
    ("kMaxRank", MAX_RANK, "of an operand"),
    ("kMaxSteps", MAX_STEPS, "of an operator"),
    ("kMaxChoices", MAX_CHOICES, "of an operator, those that its kernels share"),
    ("kMaxTunables", MAX_TUNABLES, "of a kernel"),
    ("kMaxKeys", MAX_KEYS, "of a kernel"),
    ("kMaxNumbers", MAX_NUMBERS, "of a kernel: i32, i64 and packed arguments"),
    ("kMaxArguments", MAX_ARGUMENTS, "of all kernels of a backend, as they are passed"),
    ("kMaxBackends", MAX_BACKENDS, "of an operator"),
)

Code = tuple[str, int]  # a name among CODES, and its number
ALL_LEVELS = (1 << LEVELS) - 1


@dataclass(frozen=True)
class Step:
    """An operation on the values of earlier steps, given by ``operands`` as their numbers, or a value of the call."""

    code: str
    operands: tuple[int, ...]
    value: int


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel. ``kind`` is "tensor", "stride", "i32", "i64" or "fp32"."""

    kind: str
    block: bool = False
    slot: int = 0
    dim: int = 0
    value: tuple[Code, ...] = ()
    levels: int = ALL_LEVELS  # whose images take it, as bits


@dataclass(frozen=True)
class ChoiceProgram:
    name: str
    value: tuple[Code, ...]
    round_up: bool
    values: tuple[int, ...]
    texts: tuple[str, ...]
    default: int  # place of the value that names leave out; -1 for none


@dataclass(frozen=True)
class KeyProgram:
    name: str
    value: tuple[Code, ...]


@dataclass(frozen=True)
class GuardProgram:
    condition: tuple[Code, ...]
    why: str


@dataclass(frozen=True)
class KernelProgram:
    name: str
    arguments: tuple[Argument, ...]
    uses: tuple[tuple[int, bool], ...]  # slot, and whether its strides are followed; not of tensors that are general
    grid: tuple[tuple[Code, ...], ...]
    guards: tuple[GuardProgram, ...]
    choices: tuple[ChoiceProgram, ...]
    keys: tuple[KeyProgram, ...]
    tunables: tuple[str, ...]
    work: tuple[tuple[Code, ...], ...]  # as Work.of_call; empty where the description has none
    schedule: tuple[Code, ...]  # empty where the description has none
    begins_early: bool
    steered: bool

    @property
    def choosing(self) -> tuple[tuple[Code, ...], ...]:
        """The expressions that the choice needs; the launch needs the others."""
        return (
            *(guard.condition for guard in self.guards),
            *(choice.value for choice in self.choices),
            *(key.value for key in self.keys),
            *self.work,
        )


@dataclass(frozen=True)
class OperandProgram:
    """``dtype`` is an index into DTYPES, 0 for the call's type; ``layout`` is "rows", "contiguous" or "strided"."""

    name: str
    dims: tuple[int, ...]
    dtype: int
    layout: str
    written: bool
    optional: bool
    alignment: int
    if_empty: float
    paged_dims: tuple[int, ...] = ()
    other_dtypes: int = 0  # as bits


@dataclass(frozen=True)
class ScalarProgram:
    name: str
    type: str
    default: float | None
    internal: bool
    values: tuple[str, ...]


@dataclass(frozen=True)
class BackendProgram:
    name: str
    kernels: tuple[str, ...]
    workspace: tuple[int, ...]
    sizes: tuple[tuple[int, tuple[Code, ...]], ...]
    tunables_of: int
    sizes_follow_tunables: bool
    own_shapes: bool


@dataclass(frozen=True)
class OperatorProgram:
    name: str
    sizes: tuple[str, ...]  # the derived ones last
    given_sizes: int  # that are not derived
    operands: tuple[OperandProgram, ...]
    workspace: tuple[OperandProgram, ...]
    scalars: tuple[ScalarProgram, ...]
    dtypes: tuple[int, ...]
    backends: tuple[BackendProgram, ...]
    kernels: tuple[KernelProgram, ...]
    fills_when_empty: bool
    checked: bool
    flops: tuple[Code, ...]  # empty if the description does not count them
    exact_cells: bool
    cut: int  # a size; -1 for none
    block_table: int  # an operand; -1 for none
    scratch: bool  # images may need scratch memory, which lies in the workspace

    @property
    def takes_workspace(self) -> bool:
        return self.scratch or bool(self.workspace)

    @property
    def first_shared(self) -> tuple[tuple[Code, ...], ...]:
        """Those of ``shared`` that every call asks for: of guards, of choices, and of backends for all shapes."""
        ordinary = {name for backend in self.backends if not backend.own_shapes for name in backend.kernels}
        return _shared_among(
            *(guard.condition for kernel in self.kernels for guard in kernel.guards),
            *(choice.value for kernel in self.kernels for choice in kernel.choices),
            *(code for kernel in self.kernels if kernel.name in ordinary for code in kernel.choosing),
        )

    @property
    def shared(self) -> tuple[tuple[Code, ...], ...]:
        """The expressions of the choice that have the same value for all kernels, without duplicates."""
        return _shared_among(*self.first_shared, *(code for kernel in self.kernels for code in kernel.choosing))

    @property
    def lead(self) -> KernelProgram:
        """The last kernel of the first backend."""
        return next(kernel for kernel in self.kernels if kernel.name == self.backends[0].kernels[-1])

    @property
    def guards(self) -> tuple[tuple[Code, ...], ...]:
        """The conditions of all kernels' guards, without duplicates."""
        return tuple(dict.fromkeys(guard.condition for kernel in self.kernels for guard in kernel.guards))

    @property
    def choices(self) -> tuple[ChoiceProgram, ...]:
        """The choices with such an expression, without duplicates."""
        shared = set(self.shared)
        choices = dict.fromkeys(choice for kernel in self.kernels for choice in kernel.choices)
        return tuple(choice for choice in choices if choice.value in shared)


def _shared_among(*codes: tuple[Code, ...]) -> tuple[tuple[Code, ...], ...]:
    """Those that follow from the call alone, without duplicates."""
    return tuple(code for code in dict.fromkeys(codes) if not {"tunable", "addressing"} & {name for name, _ in code})


def steps_of(codes: Iterable[tuple[Code, ...]]) -> tuple[tuple[Step, ...], dict[tuple[Code, ...], int]]:
    """The steps that compute these expressions, common parts once, and the number of each expression's step."""
    numbers: dict[Step, int] = {}
    roots: dict[tuple[Code, ...], int] = {}
    for code in codes:
        stack: list[int] = []
        for name, value in code:
            first = len(stack) - arity(name)
            operands = stack[first:]
            del stack[first:]
            stack.append(numbers.setdefault(Step(name, tuple(operands), value), len(numbers)))
        roots[code] = stack[0]
    return tuple(numbers), roots


def step_of(code: tuple[Code, ...], steps: Sequence[Step]) -> int | None:
    """The number of the step that has the expression's value; None where there is none."""
    numbers = {step: number for number, step in enumerate(steps)}
    stack: list[int] = []
    for name, value in code:
        first = len(stack) - arity(name)
        number = numbers.get(Step(name, tuple(stack[first:]), value))
        if number is None:
            return None
        stack[first:] = [number]
    return stack[0]


def operator_program(operator: Operator) -> OperatorProgram:
    """The operator's program; ValueError if a description uses an unknown name or exceeds a limit of the runner."""
    return _Numbering(operator).program()


def launch_program(kernel: KernelDescription, operator: Operator) -> dict[str, Any]:
    """The plain data that the binding needs to launch an image of ``kernel``."""
    whole = operator_program(operator)
    own = next(one for one in whole.kernels if one.name == kernel.name)
    names = ("name", "sizes", "given_sizes", "operands", "workspace", "scalars", "dtypes", "block_table")
    return {"operator": {name: asdict(whole)[name] for name in names}, "kernel": asdict(own)}


def _passed(kernel: KernelProgram, operator: OperatorProgram) -> int:
    """The most arguments that the compiled kernel takes. A descriptor brings its sizes and strides, in place of the
    strides that the description has; pointers to scratch memory, global and of a profile, come last.
    """
    tensors = (*operator.operands, *operator.workspace)
    count = 2
    for argument in kernel.arguments:
        if argument.kind == "tensor" and argument.block:
            count += 1 + 2 * (len(tensors[argument.slot].dims) + (argument.dim == 1 and bool(argument.value)))
        elif not (argument.kind == "stride" and argument.block):
            count += 1
    return count


def _ways(tensor: Tensor, levels: int) -> list[tuple[bool, int]]:
    """Whether images take a descriptor of the tensor, and which of ``levels`` these are, as bits."""
    by_pointer = sum(1 << level for level in tensor.by_pointer)
    ways = [(tensor.block is not None, levels & ~by_pointer), (False, levels & by_pointer)]
    return [(block, where) for block, where in ways if where]


class _Numbering:
    """The numbers of an operator's names."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.sizes = [*operator.sizes, *operator.derived_sizes]
        self.slots = [one.name for one in (*operator.operands, *operator.workspace)]
        self.scalars = [one.name for one in operator.scalars]
        for what, names, most in (
            ("sizes", self.sizes, MAX_SIZES),
            ("operands and workspace tensors", self.slots, MAX_OPERANDS),
            ("scalars", self.scalars, MAX_SCALARS),
            ("backends", operator.backends, MAX_BACKENDS),
        ):
            self._check(what, len(names), most)

    def program(self) -> OperatorProgram:
        operator = self.operator
        types = [choice for choice in operator.lead.choices if choice.source.code == "dtype"]
        made = OperatorProgram(
            name=operator.name,
            sizes=tuple(self.sizes),
            given_sizes=len(operator.sizes),
            operands=tuple(map(self._operand, operator.operands)),
            workspace=tuple(map(self._operand, operator.workspace)),
            scalars=tuple(
                ScalarProgram(
                    one.name,
                    one.dtype,
                    None if one.default is None else float(one.default),
                    one.internal,
                    one.values,
                )
                for one in operator.scalars
            ),
            dtypes=tuple(choice.number(value) for choice in types for value in choice.values),
            backends=tuple(self._backend(place) for place in range(len(operator.backends))),
            kernels=tuple(map(self._kernel, operator.kernels)),
            fills_when_empty=operator.fills_when_empty,
            checked=operator.checked,
            flops=self._code(operator.flops, [], "flops", list(operator.sizes)) if operator.flops else (),
            exact_cells=operator.exact_cells,
            cut=self._place("size", operator.cut, list(operator.sizes), "cut") if operator.cut else -1,
            block_table=self.slots.index(operator.block_table) if operator.block_table else -1,
            scratch=any(kernel.scratch for kernel in operator.kernels),
        )
        steps, _ = steps_of(made.shared)
        by_name = {kernel.name: kernel for kernel in made.kernels}
        for what, count, most in (
            ("steps to choose", len(steps), MAX_STEPS),
            ("choices that kernels share", len(made.choices), MAX_CHOICES),
            ("guards", len(made.guards), MAX_GUARDS),
            *(
                (f"arguments of {one.name}", sum(_passed(by_name[name], made) for name in one.kernels), MAX_ARGUMENTS)
                for one in made.backends
            ),
        ):
            self._check(what, count, most)
        return made

    def _check(self, what: str, count: int, most: int) -> None:
        if count > most:
            raise ValueError(f"{self.operator.name}: {count} {what}, and there is room for {most}")

    def _operand(self, operand: Operand) -> OperandProgram:
        self._check(f"dimensions of {operand.name}", len(operand.dims), MAX_RANK)
        return OperandProgram(
            name=operand.name,
            dims=self._dims(operand.dims, operand),
            dtype=0 if operand.dtype == "T" else DTYPES.index(operand.dtype),
            layout="contiguous" if operand.contiguous else "strided" if operand.strided else "rows",
            written=operand.written,
            optional=operand.optional,
            alignment=operand.alignment,
            if_empty=operand.if_empty,
            paged_dims=self._dims(operand.paged_dims, operand) if self.operator.block_table else (),
            other_dtypes=sum(1 << DTYPES.index(one) for one in operand.other_dtypes),
        )

    def _dims(self, names: Sequence[str], operand: Operand) -> tuple[int, ...]:
        return tuple(self._place("size", name, self.sizes, operand.name) for name in names)

    def _backend(self, place: int) -> BackendProgram:
        backend = self.operator.backends[place]
        self._check(f"kernels of {backend.name}", len(backend.kernels), MAX_KERNELS)
        asked = {name for one in backend.sizes for code, name in one.value.postfix() if code == "tunable"}
        having = [i for i, kernel in enumerate(backend.kernels) if asked <= set(kernel.tunable_names)]
        if not having:
            raise ValueError(f"{self.operator.name}: no kernel of {backend.name} has the tunables {sorted(asked)}")
        tunables = list(backend.kernels[having[0]].tunable_names)
        given, sizes = list(self.operator.sizes), []
        for one in backend.sizes:  # one may follow from those before
            sizes.append((self.sizes.index(one.name), self._code(one.value, tunables, one.name, given)))
            given.append(one.name)
        return BackendProgram(
            name=backend.name,
            kernels=tuple(kernel.name for kernel in backend.kernels),
            workspace=tuple(self.slots.index(one.name) for one in backend.workspace),
            sizes=tuple(sizes),
            tunables_of=having[0],
            sizes_follow_tunables=bool(asked),
            own_shapes=backend.own_shapes,
        )

    def _kernel(self, kernel: KernelDescription) -> KernelProgram:
        tunables = list(kernel.tunable_names)
        self._check(f"tunables of {kernel.name}", len(tunables), MAX_TUNABLES)
        self._check(f"tuning keys of {kernel.name}", len(kernel.tuning_keys), MAX_KEYS)
        of = [backend for backend in self.operator.backends if kernel in backend.kernels]
        derived = [one.name for backend in of for one in backend.sizes]

        def code(expression: Expression) -> tuple[Code, ...]:
            return self._code(expression, tunables, kernel.name, [*self.operator.sizes, *derived])

        tensors = {argument.name: argument for argument in kernel.arguments if isinstance(argument, Tensor)}
        slots = {name: self.slots.index(tensor.operand.name) for name, tensor in tensors.items()}
        followed = {name for name, tensor in tensors.items() if tensor.block is not None}
        followed |= {argument.tensor for argument in kernel.arguments if isinstance(argument, Stride)}
        arguments = []
        for argument in kernel.arguments:
            levels = sum(1 << level for level in argument.levels) or ALL_LEVELS
            if isinstance(argument, Tensor):
                # Which dimension of the box the value is of.
                dim, value = (2, argument.box_rows) if argument.box_rows else (1, argument.packed)
                of_box = code(value) if value else ()
                for block, where in _ways(argument, levels):
                    arguments.append(Argument("tensor", block, slots[argument.name], dim, of_box, where))
            elif isinstance(argument, Stride):
                for block, where in _ways(tensors[argument.tensor], levels):
                    arguments.append(Argument("stride", block, slots[argument.tensor], argument.dim, levels=where))
            elif isinstance(argument, Number) and argument.dtype == "fp32":
                slot = self._place("scalar", argument.value.name, self.scalars, kernel.name)
                arguments.append(Argument("fp32", slot=slot, levels=levels))
            elif isinstance(argument, Number):
                arguments.append(Argument(argument.dtype, value=code(argument.value), levels=levels))
        self._check(f"numbers of {kernel.name}", sum(bool(argument.value) for argument in arguments), MAX_NUMBERS)
        return KernelProgram(
            name=kernel.name,
            arguments=tuple(arguments),
            uses=tuple((slot, name in followed) for name, slot in slots.items() if not tensors[name].general),
            grid=tuple(map(code, kernel.grid)),
            guards=tuple(GuardProgram(code(one.condition), one.why) for one in kernel.all_guards(self.operator.sizes)),
            choices=tuple(
                ChoiceProgram(
                    one.name,
                    code(one.source),
                    one.round_up,
                    tuple(map(one.number, one.values)),
                    tuple(map(str, one.values)),
                    -1 if one.default is None else one.values.index(one.default),
                )
                for one in kernel.choices
            ),
            keys=tuple(KeyProgram(one.name, code(one.quantity)) for one in kernel.tuning_keys),
            tunables=tuple(tunables),
            work=tuple(map(code, kernel.work.of_call)) if kernel.work else (),
            schedule=code(kernel.schedule) if kernel.schedule else (),
            begins_early=kernel.begins_early,
            steered=kernel.steered,
        )

    def _code(self, expression: Expression, tunables: list[str], where: str, sizes: list[str]) -> tuple[Code, ...]:
        """The expression's postfix program, with numbers instead of names; it may name these ``sizes``."""
        names = {
            "size": self.sizes,
            "scalar": self.scalars,
            "tunable": tunables,
            "present": self.slots,
            "other_dtype": self.slots,
            "transposed": self.slots,
        }
        steps, depth, deepest = [], 0, 0
        for code, argument in expression.postfix():
            if code == "size":
                self._place(code, str(argument), sizes, where)
            number = self._place(code, str(argument), names[code], where) if code in names else int(argument or 0)
            if not -(2**31) <= number < 2**31:
                raise ValueError(f"{where}: {number} does not fit in 32 bits")
            steps.append((code, number))
            depth += 1 - arity(code)
            deepest = max(deepest, depth)
        if deepest > DEPTH:
            raise ValueError(f"{where}: an expression needs a stack of {deepest}, and there is room for {DEPTH}")
        return tuple(steps)

    def _place(self, what: str, name: str, names: list[str], where: str) -> int:
        if name not in names:
            raise ValueError(f"{self.operator.name}: {where} names {what} {name}, but there are: {', '.join(names)}")
        return names.index(name)
