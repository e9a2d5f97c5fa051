"""A measured call has all sizes that its kernel's numbers follow from, also those of tensors that the kernel does not
take.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aotriton.rules.family import family
from aotriton.rules.kernel import KernelDescription, Number, Tensor
from aotriton.rules.operators import Operator
from aotriton.tune.flash.reference import Attention

OPERATORS = [one for one in family("flash").operators if one.name in ("attn_fwd", "attn_bwd")]
KERNELS = [(one, kernel) for one in OPERATORS for kernel in one.kernels if kernel.timed]
SIZES = {name: 1 for name in ("batch", "heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v")}
OPTIONAL = {"starts", "sequences", "one", "pages", "page_size", "pages_of_sequence"}  # of operands that it may lack


@pytest.mark.parametrize(("operator", "kernel"), KERNELS, ids=lambda one: getattr(one, "name", ""))
def test_a_call_has_the_sizes_of_its_numbers(operator: Operator, kernel: KernelDescription) -> None:
    """Or numbers would follow from sizes of 0."""
    numbers = [one.value for one in kernel.arguments if isinstance(one, Number)]
    derived = [size for one in operator.backends if kernel in one.kernels for size in one.sizes]
    values = [*numbers, *kernel.grid, *(one.value for one in derived)]
    named = {str(name) for value in values for code, name in value.postfix() if code == "size"}
    tensors = (one for one in kernel.arguments if isinstance(one, Tensor))
    own = {dim for one in tensors for dim in one.operand.dims} | {one.name for one in derived}
    known: dict[str, int] = vars(Attention)["sizes"].fget(SimpleNamespace(**SIZES))
    assert named - own - OPTIONAL <= set(known)
