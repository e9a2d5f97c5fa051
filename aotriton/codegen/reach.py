"""Reach: from a call of a model to the functionals that may serve it, as the library finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotriton.model_coverage import WantedCall
from aotriton.rules.arch import ADDRESSING, DTYPE_BYTES, DTYPES, arch_spec
from aotriton.rules.database import Product
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.kernel import Functional, KernelDescription, Operand, Tensor, Value
from aotriton.rules.operators import Operator

OFFSET_LIMIT = 1 << 31  # bytes, of a tensor that 32-bit offsets reach


@dataclass(frozen=True)
class Placed:
    """A call on a product, with the functionals of the kernels of each backend that serves it, by the backend's number.

    ``environment`` has its sizes and scalars. ``reason``: why none serves it.
    """

    call: WantedCall
    operator: Operator
    product: Product
    environment: Environment
    backends: Mapping[int, tuple[Functional, ...]]
    reason: str | None = None

    @property
    def lead(self) -> Functional:
        """The functional of the backend that is served first."""
        return next(iter(self.backends.values()))[-1]


def place(operator: Operator, call: WantedCall, product: Product) -> Placed:
    """The call on a product, with all that may serve it there."""
    scalars = {one.name: int(one.default or 0) for one in operator.scalars if one.dtype != "fp32"}
    needed = {operand.name for operand in operator.operands if not operand.optional}
    environment = Environment(
        call.sizes, scalars | dict(call.scalars), {}, call.given | needed, product.multiprocessors
    )
    found: dict[int, tuple[Functional, ...]] = {}
    reason = call.reason
    if reason is None:
        leads: dict[str, Functional | None] = {}
        for number, backend in enumerate(operator.backends):
            own = [_serving(operator, kernel, call, product.arch, environment, leads) for kernel in backend.kernels]
            functionals = tuple(one for one in own if isinstance(one, Functional))
            if len(functionals) == len(own):
                found[number] = functionals
            elif not number:
                reason = next(one for one in own if isinstance(one, str))
    return Placed(call, operator, product, environment, found, None if found else reason)


def _serving(
    operator: Operator,
    kernel: KernelDescription,
    call: WantedCall,
    arch: str,
    environment: Environment,
    leads: dict[str, Functional | None],
) -> Functional | str:
    """The kernel's functional for a call, as find_table of v2src/dispatch/select.cc finds it, or why there is none.

    ``leads`` keeps the lead's functional for each way to reach tensors.
    """
    reached = _addressing(kernel, call, arch, environment)
    if reached not in leads:
        leads[reached] = _lead(operator.lead, call, arch, environment, reached)
    lead = leads[reached]
    own = kernel.like(lead, call.sizes) if lead else None
    if own is None:
        return f"{kernel.name} has no images for such a call on {arch}"
    for guard in kernel.all_guards(call.sizes.keys()):
        if not evaluate(guard.condition, environment):
            return f"{operator.name}: {guard.why}"
    return own


def _lead(
    lead: KernelDescription, call: WantedCall, arch: str, environment: Environment, reached: str
) -> Functional | None:
    """The lead's functional for a call whose tensors are ``reached`` so; None if it has not all values."""
    values: list[Value] = []
    for choice in lead.choices:
        if choice.source.code == "dtype":
            wanted = DTYPES.index(call.dtype)
        elif choice.source.code == "addressing":
            wanted = ADDRESSING.index(reached)
        else:
            wanted = evaluate(choice.source, environment)
        numbers = {choice.number(value): value for value in choice.values}
        fitting = [number for number in numbers if number == wanted or (choice.round_up and number > wanted)]
        if not fitting:
            return None
        values.append(numbers[min(fitting)])
    return Functional(lead, arch, tuple(values))


def _addressing(kernel: KernelDescription, call: WantedCall, arch: str, environment: Environment) -> str:
    """How a kernel reaches the tensors of a call, which follow each other without gaps."""
    *_, fast = arch_spec(arch).addressing
    if not call.aligned:
        return "general"
    tensors = [one.operand for one in kernel.arguments if isinstance(one, Tensor) and not one.general]
    if fast == "offset32" and any(_bytes(one, call, environment) >= OFFSET_LIMIT for one in tensors):
        return "general"
    return fast


def _bytes(operand: Operand, call: WantedCall, environment: Environment) -> int:
    """The size of a tensor; 0 of one that is not given, or whose sizes a backend derives."""
    if (operand.optional and operand.name not in environment.present) or not set(operand.dims) <= call.sizes.keys():
        return 0
    made = DTYPE_BYTES[call.dtype if operand.dtype == "T" else operand.dtype]
    for dim in operand.dims:
        made *= call.sizes[dim]
    return made
