"""Claims about the rules: descriptions agree with the kernels, and each addressing lowers to its own types."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from conftest import ROOT

from aotriton.rules import flash
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import (
    Backend,
    Choice,
    Constexpr,
    KernelDescription,
    Operator,
    Scalar,
    Stride,
    Tensor,
    parse_functional,
)
from aotriton.rules.target import TARGETS, Target, target

KERNELS = pytest.mark.parametrize("kernel", flash.KERNELS, ids=lambda kernel: kernel.name)


def serving(arch: str, addressing: str) -> pytest.MarkDecorator:
    """Parametrizes with the kernels that have this addressing on ``arch``."""
    found = [k for k in flash.KERNELS if any(f["ADDRESSING"] == addressing for f in k.functionals(arch))]
    return pytest.mark.parametrize("kernel", found, ids=lambda kernel: kernel.name)


def request(kernel: KernelDescription, arch: str, addressing: str) -> dict[str, Any]:
    """The compiler request of some candidate for this addressing."""
    vendor = target(arch).vendor
    functional = next(f for f in kernel.functionals(arch) if f["ADDRESSING"] == addressing)
    psels = {name: values[0] for name, values in kernel.psels[vendor].items()}
    copts = {name: values[0] for name, values in kernel.copts[vendor].items()}
    return ImageSpec.of(functional, psels, copts).compiler_request()


@KERNELS
def test_descriptions_match_the_kernels(kernel: KernelDescription) -> None:
    """tritonsrc/<kernel>.py has a function <kernel> with the described arguments, in order, constexprs marked."""
    tree = ast.parse((ROOT / "tritonsrc" / f"{kernel.name}.py").read_text())
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == kernel.name)
    assert [argument.arg for argument in function.args.args] == [argument.name for argument in kernel.arguments]
    marked = {a.arg for a in function.args.args if a.annotation and "constexpr" in ast.unparse(a.annotation)}
    assert marked == {argument.name for argument in kernel.arguments if isinstance(argument, Constexpr)}


@KERNELS
def test_descriptions_hold_together(kernel: KernelDescription) -> None:
    """Strides are of tensor arguments, outermost first; blocks fit their tensors; no candidate value is negative."""
    tensors = {argument.name: argument for argument in kernel.arguments if isinstance(argument, Tensor)}
    dims: dict[str, str] = {}
    for argument in kernel.arguments:
        if isinstance(argument, Stride):
            dims[argument.tensor] = dims.get(argument.tensor, "") + argument.dim
        if isinstance(argument, Tensor) and argument.block:
            assert len(argument.block) == argument.rank
            assert {side for side in argument.block if isinstance(side, str)} <= {"BLOCK_DMODEL", *kernel.psel_names}
    assert set(dims) <= set(tensors)
    assert set(dims.values()) <= {"bhs"}
    for lists in (*kernel.psels.values(), *kernel.copts.values()):
        assert all(values and all(value >= 0 for value in values) for values in lists.values())
    assert set(kernel.psels) == set(kernel.copts) == {target(arch).vendor for arch in kernel.archs}
    assert len(kernel.psel_names) <= 8
    assert len(kernel.tuning_keys) <= 4


@KERNELS
@pytest.mark.parametrize("row", TARGETS, ids=lambda row: row.arch)
def test_functionals_of_each_arch(kernel: KernelDescription, row: Target) -> None:
    """An arch has all combinations of choices with the addressings it can do, and each reads back from its text.

    Archs that the kernel is not for have none.
    """
    functionals = list(kernel.functionals(row.arch))
    (addressing,) = (choice.values for choice in kernel.choices if choice.name == "ADDRESSING")
    here = set(addressing) & set(row.addressing) if row.arch in kernel.archs else ()
    assert len(functionals) == kernel.functional_count * len(here) // len(addressing)
    for functional in functionals:
        assert functional["ADDRESSING"] in row.addressing
        assert parse_functional(kernel, row.arch, str(functional)) == functional


@serving("sm_90", "general")
def test_general_addressing(kernel: KernelDescription) -> None:
    """general: pointers and 64-bit strides of which nothing is promised, but that L and Delta are aligned."""
    made = request(kernel, "sm_90", "general")
    for argument in kernel.arguments:
        given = made["signature"][argument.name], made["attrs"].get(argument.name)
        if isinstance(argument, Tensor):
            assert given == (("*fp16", None) if argument.dtype == "T" else ("*fp32", [["tt.divisibility", 16]]))
        elif isinstance(argument, Stride):
            assert given == ("i64", None)


@serving("gfx942", "offset32")
def test_offset32_addressing(kernel: KernelDescription) -> None:
    """offset32: aligned pointers within 2 GiB and 32-bit strides that are multiples of 8 elements, 16 bytes."""
    made = request(kernel, "gfx942", "offset32")
    for argument in kernel.arguments:
        given = made["signature"][argument.name], made["attrs"].get(argument.name)
        if isinstance(argument, Tensor):
            kind = "*fp16" if argument.dtype == "T" else "*fp32"
            assert given == (kind, [["tt.divisibility", 16], ["tt.pointer_range", 32]])
        elif isinstance(argument, Stride):
            assert given == ("i32", [["tt.divisibility", 8]])


@serving("sm_90", "descriptor")
def test_descriptor_addressing(kernel: KernelDescription) -> None:
    """descriptor: arguments with a block are TMA descriptors of it, the others aligned pointers; strides are i64.

    A Gluon kernel's descriptors name their layout, too.
    """
    made = request(kernel, "sm_90", "descriptor")
    for argument in kernel.arguments:
        kind, attributes = made["signature"][argument.name], made["attrs"].get(argument.name)
        if isinstance(argument, Tensor) and argument.block:
            rows = made["constexprs"].get(argument.block[2], argument.block[2])
            kind, comma, _ = kind.removesuffix(">").partition(",NVMMA")
            dtype = "fp16" if argument.dtype == "T" else argument.dtype
            assert (kind, attributes) == (f"tensordesc<{dtype}[1,1,{rows},{made['constexprs']['BLOCK_DMODEL']}]", None)
            assert bool(comma) == kernel.gluon
        elif isinstance(argument, Tensor):
            assert kind.startswith("*")
            assert attributes == [["tt.divisibility", 16]]
        elif isinstance(argument, Stride):
            assert (kind, attributes) == ("i64", [["tt.divisibility", 8]])


@KERNELS
def test_scalars_and_options(kernel: KernelDescription) -> None:
    """Scalars keep type and divisor, every constexpr has its value, and fused multiply-add is asked for by name."""
    made = request(kernel, *(("gfx942", "general") if "gfx942" in kernel.archs else ("sm_90", "descriptor")))
    assert list(made["signature"]) == [argument.name for argument in kernel.arguments]
    for argument in kernel.arguments:
        if isinstance(argument, Scalar):
            assert made["signature"][argument.name] == argument.dtype
            divisor = [["tt.divisibility", argument.multiple_of]] if argument.multiple_of > 1 else None
            assert made["attrs"].get(argument.name) == divisor
    assert set(made["constexprs"]) == {
        argument.name for argument in kernel.arguments if isinstance(argument, Constexpr)
    }
    assert made["options"]["enable_fp_fusion"] is True
    assert "num_warps" in made["options"]


def test_unknown_names_are_errors() -> None:
    """An unknown arch, kernel, functional text, choice value or choice kind is an error that says what there is."""
    with pytest.raises(ValueError, match="unknown arch 'sm_1': choose from sm_90, gfx942"):
        target("sm_1")
    with pytest.raises(ValueError, match="unknown kernel 'x': choose from attn_fwd, "):
        flash.kernel("x")
    with pytest.raises(ValueError, match="'T=fp8' is not a functional of this kernel"):
        parse_functional(flash.ATTN_FWD, "sm_90", "T=fp8")
    with pytest.raises(ValueError, match=r"attn_fwd: BLOCK_DMODEL must be among \(32, 64, 128, 256\), not 48"):
        flash.ATTN_FWD.functional("sm_90", T="bf16", BLOCK_DMODEL=48, CAUSAL=False, ADDRESSING="general")
    with pytest.raises(ValueError, match="kind must be 'type' or 'feature'"):
        Choice("X", "psel", (1,))
    portable, other = Backend("portable", (flash.ATTN_BWD_PREPROCESS,)), Backend("other", (flash.ATTN_FWD,))
    with pytest.raises(ValueError, match="attn_fwd has a choice or a tuning key that attn_bwd_preprocess lacks"):
        Operator("attn_bwd", "flash", (portable, other))


def test_the_layout_is_gluons_own() -> None:
    """The layout that rules spell is what Gluon itself takes for such a tile, for every head dim."""
    from triton.experimental.gluon import language as gl

    for functional in flash.ATTN_FWD_HOPPER.functionals("sm_90"):
        psels = {name: values[0] for name, values in flash.ATTN_FWD_HOPPER.psels["cuda"].items()}
        copts = {name: values[0] for name, values in flash.ATTN_FWD_HOPPER.copts["cuda"].items()}
        signature = ImageSpec.of(functional, psels, copts).compiler_request()["signature"]
        dtype = {"fp16": gl.float16, "bf16": gl.bfloat16}[str(functional["T"])]
        layout = gl.NVMMASharedLayout.get_default_for([1, 1, 64, functional["BLOCK_DMODEL"]], dtype)
        assert signature["Q"].partition("],")[2] == f"{layout!r}>"


def test_the_portable_backend_serves_everything() -> None:
    """Whatever another backend of an operator serves, the first one serves on every arch, and more."""
    for operator in flash.OPERATORS:
        assert operator.backends[0].name == "portable"
        for row in TARGETS:
            for kernel in operator.backends[0].kernels:
                assert len(list(kernel.functionals(row.arch))) * 3 == kernel.functional_count * 2
            for backend in operator.backends[1:]:
                for kernel in backend.kernels:
                    for functional in kernel.functionals(row.arch):
                        wanted = functional.as_dict()
                        for one in operator.backends[0].kernels:
                            shared = {choice.name for choice in one.choices} & set(wanted)
                            served = [{name: f[name] for name in shared} for f in one.functionals(row.arch)]
                            assert {name: wanted[name] for name in shared} in served
