"""Claims about the rules: descriptions agree with the kernels, and each addressing lowers to its own types."""

from __future__ import annotations

import ast
import json
from collections.abc import Set
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fp8_cases import types_of

from aotriton.rules.arch import ARCHS, DTYPE_BYTES, DTYPES, ArchSpec, arch_spec
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import IN_TREE, family, operator_of, source_module
from aotriton.rules.family import kernel as kernel_named
from aotriton.rules.flash.append import KV_APPEND
from aotriton.rules.flash.backward import (
    ATTN_BWD_DSINKS,
    ATTN_BWD_HOPPER_DQ_SLIM,
    ATTN_BWD_HOPPER_FEATURES,
    ATTN_BWD_HOPPER_FEATURES_FINISH,
    ATTN_BWD_HOPPER_FEATURES_PREPARE,
    ATTN_BWD_HOPPER_HEADS,
    ATTN_BWD_HOPPER_PAIR,
    ATTN_BWD_HOPPER_PAIR_SLIM,
    ATTN_BWD_HOPPER_PARTS,
    ATTN_BWD_HOPPER_SHARES,
    ATTN_BWD_HOPPER_SHARES_FINISH,
    GUARD_PLAIN,
    GUARD_SEEN,
    HEADS_TOGETHER,
    OPERATOR,
    PARTS,
    SHARES,
    SPLIT_PARTS,
    SPLIT_TOGETHER,
    TOGETHER,
)
from aotriton.rules.flash.common import BIAS, DBIAS, DSINKS, FIRST, PLAIN_ONLY, REST
from aotriton.rules.flash.forward import (
    ATTN_FWD,
    ATTN_FWD_HOPPER,
    ATTN_FWD_HOPPER_FEATURES,
    ATTN_FWD_HOPPER_SLIM,
)
from aotriton.rules.flash.fp8 import ATTN_FWD_HOPPER_FP8, GUARD_MASK
from aotriton.rules.flash.invariant import ATTN_FWD_INVARIANT, GUARD_ASKED, INVARIANT, PART
from aotriton.rules.flash.invariant import SPLITS as SPLITS_OF_PARTS
from aotriton.rules.flash.latent import (
    ATTN_FWD_HOPPER_LATENT,
    ATTN_FWD_LATENT,
    ATTN_FWD_LATENT_COMBINE,
    GUARD_LATENT,
    HOPPER_LATENT,
    LATENT,
)
from aotriton.rules.flash.latent import KEYS_OF_SPLIT as KEYS_OF_LATENT_SPLIT
from aotriton.rules.flash.latent import SPLITS as SPLITS_OF_LATENT_KEYS
from aotriton.rules.flash.planned import (
    ATTN_FWD_HOPPER_PLANNED,
    ATTN_FWD_PLAN,
    PLANNED,
)
from aotriton.rules.flash.split import (
    ATTN_FWD_COMBINE,
    ATTN_FWD_DECODE,
    ATTN_FWD_SPLIT,
    DECODE,
    KEYS_OF_SPLIT,
    Keys,
    splits_keys,
)
from aotriton.rules.flash.split import SPLITS as SPLITS_OF_KEYS
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import (
    MOST_COUNTED,
    Argument,
    Constexpr,
    Functional,
    KernelDescription,
    Number,
    Stride,
    Tensor,
    block_of,
    parse_functional,
)
from aotriton.rules.operators import Operator, derived_sizes
from aotriton.tritonsrc.flash.lib.features import ALIBI, DROPOUT, PACKED, SINKS, SOFTCAP, USED_K, USED_Q
from aotriton.tritonsrc.flash.lib.features import BIAS as BIAS_BIT
from aotriton.tritonsrc.flash.lib.features import DBIAS as DBIAS_BIT

ROOT = Path(__file__).resolve().parents[2]

FLASH = family("flash")
KERNELS = pytest.mark.parametrize("kernel", FLASH.kernels, ids=lambda kernel: kernel.name)
EVERY_FAMILY = [family(name) for name in IN_TREE]
EVERY_KERNEL = pytest.mark.parametrize(
    "kernel", [kernel for one in EVERY_FAMILY for kernel in one.kernels], ids=lambda kernel: kernel.name
)
EVERY_OPERATOR = pytest.mark.parametrize(
    "operator", [operator for one in EVERY_FAMILY for operator in one.operators], ids=lambda operator: operator.name
)


def serving(arch: str, addressing: str) -> pytest.MarkDecorator:
    """Parametrizes with the kernels that have this addressing on ``arch``."""
    found = [k for k in FLASH.kernels if any(f.addressing == addressing for f in k.functionals(arch))]
    return pytest.mark.parametrize("kernel", found, ids=lambda kernel: kernel.name)


def taken(functional: Functional) -> list[Argument]:
    """The kernel's arguments that its images have."""
    return [argument for argument in functional.kernel.arguments if functional.takes(argument)]


def smallest(functional: Functional) -> ImageSpec:
    """Some candidate of the functional."""
    kernel, vendor = functional.kernel, functional.arch_spec.vendor
    tunables = {name: values[0] for name, values in kernel.tunable_values(vendor).items()}
    return ImageSpec.of(
        functional, tunables, {name: values[0] for name, values in kernel.compile_option_values(vendor).items()}
    )


def requests(kernel: KernelDescription, arch: str, addressing: str) -> list[tuple[dict[str, Any], list[Argument]]]:
    """Of each level, the compiler request of some candidate for this addressing, and the arguments that it takes, each
    with the type that it has there.
    """
    of_levels: dict[int, Functional] = {}
    for one in kernel.functionals(arch):
        if one.addressing == addressing:
            of_levels.setdefault(one.level, one)
    return [(smallest(one).compiler_request(), typed(one)) for one in of_levels.values()]


def typed(functional: Functional) -> list[Argument]:
    """As `taken`, with the operand's type in place of those of levels."""
    made: list[Argument] = []
    for one in taken(functional):
        if isinstance(one, Tensor) and functional.level in one.dtypes:
            operand = replace(one.operand, dtype=one.dtypes[functional.level], other_dtypes=(), typed_as="")
            one = replace(one, operand=operand, dtypes={})
        made.append(one)
    return made


@EVERY_KERNEL
def test_descriptions_match_the_kernels(kernel: KernelDescription) -> None:
    """tritonsrc/<family>/kernels/<function>.py has a function of this name with these arguments, constexprs marked; of
    each level.
    """
    of_levels = {one.level: one for arch in reversed(kernel.archs) for one in kernel.functionals(arch)}
    assert {one.function for one in of_levels.values()} == {kernel.function, *kernel.sources.values()}
    for one in of_levels.values():
        path = ROOT.joinpath(*source_module(kernel, one.function).split(".")[1:]).with_suffix(".py")
        assert path == ROOT / "tritonsrc" / kernel.family / "kernels" / f"{one.function}.py"
        tree = ast.parse(path.read_text())
        (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == one.function)
        assert [argument.arg for argument in function.args.args] == [argument.name for argument in taken(one)]
        marked = {a.arg for a in function.args.args if a.annotation and "constexpr" in ast.unparse(a.annotation)}
        assert marked == {argument.name for argument in taken(one) if isinstance(argument, Constexpr)}


@KERNELS
def test_functionals_keep_their_text_through_json(kernel: KernelDescription) -> None:
    """Compilers in other processes get values as JSON, and write the functional's text beside the image."""
    for row in ARCHS:
        for functional in kernel.functionals(row.arch):
            values = json.loads(json.dumps(functional.as_dict()))
            assert str(kernel.functional(row.arch, **values)) == str(functional)


@KERNELS
def test_descriptions_hold_together(kernel: KernelDescription) -> None:
    """Strides are of all dimensions but the last, or of all where that may be strided, outermost first, of tensors that
    have their own; no value is negative.
    """
    tensors = {argument.name: argument for argument in kernel.arguments if isinstance(argument, Tensor)}
    dims: dict[str, list[int]] = {}
    for argument in kernel.arguments:
        if isinstance(argument, Stride):
            dims.setdefault(argument.tensor, []).append(argument.dim)
    assert dims == {name: list(range(tensors[name].rank - (not tensors[name].operand.strided))) for name in dims}
    assert all(not tensors[name].operand.contiguous for name in dims)
    for parameter in (*kernel.tunables, *kernel.compile_options):
        assert set(parameter.values) <= {arch_spec(arch).vendor for arch in kernel.archs}
        assert all(values and min(values) >= 0 for values in parameter.values.values())


@EVERY_KERNEL
@pytest.mark.parametrize("row", ARCHS, ids=lambda row: row.arch)
def test_functionals_of_each_arch(kernel: KernelDescription, row: ArchSpec) -> None:
    """An arch has all combinations of choices with the addressings it can do, but those that no call has; each reads
    back from its text.

    Archs that the kernel is not for have none.
    """
    functionals = list(kernel.functionals(row.arch))
    names = [choice.name for choice in kernel.choices]
    every = [dict(zip(names, values, strict=True)) for values in product(*(one.values for one in kernel.choices))]
    here = [one for one in every if one.get("ADDRESSING", "general") in row.addressing and row.arch in kernel.archs]
    possible = [one for one in here if not any(rows.items() <= one.items() for rows in kernel.impossible)]
    possible = [one for one in possible if types_of(one) <= {row.fp8}]
    assert [functional.as_dict() for functional in functionals] == possible
    for functional in functionals:
        assert functional.as_dict().get("ADDRESSING", "general") == functional.addressing
        assert functional.addressing in row.addressing
        assert parse_functional(kernel, row.arch, str(functional)) == functional


def pointer(tensor: Tensor) -> str:
    """The type of a pointer to a tensor of a call of fp16."""
    return f"*{element(tensor)}"


def element(tensor: Tensor) -> str:
    return "fp16" if tensor.dtype == "T" else tensor.dtype


def always_general(kernel: KernelDescription) -> set[str]:
    """The arguments that every image reaches by general addressing: the kernel's general tensors and their strides."""
    tensors = {one.name for one in kernel.arguments if isinstance(one, Tensor) and one.general}
    return tensors | {one.name for one in kernel.arguments if isinstance(one, Stride) and one.tensor in tensors}


@serving("sm_90", "general")
def test_general_addressing(kernel: KernelDescription) -> None:
    """general: pointers and 64-bit strides of which nothing is promised, but that L, Delta and what kernels hand on are
    aligned.
    """
    aligned = {"L", "Delta", "Partial", "PartialL", "Items", "Splits", "Counts", "Turned"}
    for made, arguments in requests(kernel, "sm_90", "general"):
        for argument in arguments:
            given = made["signature"][argument.name], made["attrs"].get(argument.name)
            if isinstance(argument, Tensor):
                promised = [["tt.divisibility", 16]] if argument.name in aligned else None
                assert given == (pointer(argument), promised)
            elif isinstance(argument, Stride):
                assert given == ("i64", None)


@pytest.mark.parametrize("row", ARCHS, ids=lambda row: row.arch)
@KERNELS
def test_what_is_general_is_so_in_every_image(kernel: KernelDescription, row: ArchSpec) -> None:
    """General tensors are pointers and their strides have 64 bits, of which nothing is promised, by any addressing."""
    general = always_general(kernel)
    for addressing in row.addressing:
        for made, arguments in requests(kernel, row.arch, addressing):
            for argument in (one for one in arguments if one.name in general):
                kind = pointer(argument) if isinstance(argument, Tensor) else "i64"
                assert (made["signature"][argument.name], made["attrs"].get(argument.name)) == (kind, None)


def test_operands_of_features_are_general() -> None:
    """Of no alignment and of any size that fits memory: all but what a call without features has."""
    plain = {"q", "k", "v", "out", "dout", "logsumexp", "dq", "dk", "dv", "delta"}
    for kernel in (ATTN_FWD, *OPERATOR.backends[0].kernels):
        tensors = [one for one in kernel.arguments if isinstance(one, Tensor)]
        assert [one.name for one in tensors if one.general] == [
            one.name for one in tensors if one.operand.name not in plain
        ]


@serving("gfx942", "offset32")
def test_offset32_addressing(kernel: KernelDescription) -> None:
    """offset32: aligned pointers within 2 GiB and 32-bit strides that are multiples of 8 elements, 16 bytes; of all
    that is not general.
    """
    general = always_general(kernel)
    for made, arguments in requests(kernel, "gfx942", "offset32"):
        tensors = {one.name: one for one in arguments if isinstance(one, Tensor)}
        for argument in (one for one in arguments if one.name not in general):
            given = made["signature"][argument.name], made["attrs"].get(argument.name)
            if isinstance(argument, Tensor):
                assert given == (pointer(argument), [["tt.divisibility", 16], ["tt.pointer_range", 32]])
            elif isinstance(argument, Stride):
                assert given == ("i32", [["tt.divisibility", 16 // DTYPE_BYTES[element(tensors[argument.tensor])]]])


@serving("sm_90", "descriptor")
def test_descriptor_addressing(kernel: KernelDescription) -> None:
    """descriptor: arguments with a block are TMA descriptors of it, whose strides are 0, known to the compiler.

    The others are aligned pointers, whose strides are i64 and multiples of 16 bytes, if they are not general. A Gluon
    kernel's descriptors name their layout, too.
    """
    general = always_general(kernel)
    found = requests(kernel, "sm_90", "descriptor")
    of_levels = [(made, one, arguments) for made, arguments in found for one in arguments if one.name not in general]
    for made, argument, arguments in of_levels:
        tensors = {one.name: one for one in arguments if isinstance(one, Tensor)}
        kind, attributes = made["signature"][argument.name], made["attrs"].get(argument.name)
        level = int(made["constexprs"].get("LEVEL", 0))
        if isinstance(argument, Tensor) and argument.block_at(level):
            sides = ",".join(map(str, block_of(argument.block or (), made["constexprs"])))
            kind, comma, _ = kind.removesuffix(">").partition(",NVMMA")
            dtype = "fp16" if argument.dtype == "T" else argument.dtype
            assert (kind, attributes) == (f"tensordesc<{dtype}[{sides}]", None)
            assert bool(comma) == kernel.gluon
        elif isinstance(argument, Tensor):
            assert kind.startswith("*")
            assert attributes == [["tt.divisibility", 16]]
        elif isinstance(argument, Stride) and tensors[argument.tensor].block_at(level):
            assert (kind, attributes, made["constexprs"][argument.name]) == ("constexpr", None, 0)
        elif isinstance(argument, Stride):
            divisor = 16 // DTYPE_BYTES[element(tensors[argument.tensor])]
            assert (kind, attributes) == ("i64", [["tt.divisibility", divisor]])


@EVERY_KERNEL
def test_numbers_and_options(kernel: KernelDescription) -> None:
    """Numbers keep type and divisor, unless only other addressing has that; every constexpr has its value, and fused
    multiply-add is asked for by name.
    """
    where = ("gfx942", "general") if "gfx942" in kernel.archs else ("sm_90", "descriptor")
    for made, arguments in requests(kernel, *where):
        assert list(made["signature"]) == [argument.name for argument in arguments]
        for argument in arguments:
            if isinstance(argument, Number):
                assert made["signature"][argument.name] == argument.dtype
                sure = argument.multiple_of > 1 and not (argument.if_aligned and where[1] == "general")
                divisor = [["tt.divisibility", argument.multiple_of]] if sure else None
                assert made["attrs"].get(argument.name) == divisor
        assert set(made["constexprs"]) == {name for name, kind in made["signature"].items() if kind == "constexpr"}
        assert made["options"]["enable_fp_fusion"] is True
        assert "num_warps" in made["options"]


def test_unknown_names_are_errors() -> None:
    """An unknown arch, kernel, family, functional text or choice value is an error that says what there is."""
    with pytest.raises(ValueError, match="unknown arch 'sm_1': choose from sm_90, gfx942"):
        arch_spec("sm_1")
    with pytest.raises(ValueError, match="unknown kernel 'x': choose from attn_fwd, "):
        kernel_named("x")
    with pytest.raises(ValueError, match="unknown family 'x': choose from flash"):
        family("x")
    for text in ("T=fp8", "T=bf16", "CAUSAL=False T=bf16 BLOCK_DMODEL=64 ADDRESSING=general", "nonsense"):
        with pytest.raises(ValueError, match=f"{text!r} is not a functional of this kernel"):
            parse_functional(ATTN_FWD, "sm_90", text)
    with pytest.raises(ValueError, match=r"attn_fwd: BLOCK_DMODEL must be among \(32, 64, 128, 256, 512\), not 48"):
        ATTN_FWD.functional("sm_90", T="bf16", BLOCK_DMODEL=48, CAUSAL=False, ADDRESSING="general")
    with pytest.raises(ValueError, match=r"attn_fwd: choices are \['LEVEL', 'T', .*\], got \['T', 'X'\]"):
        ATTN_FWD.functional("sm_90", T="bf16", X=1)


def test_the_layout_is_gluons_own() -> None:
    """The layout that rules spell is what Gluon itself takes for such a tile, for every head dim."""
    from triton.experimental.gluon import language as gl

    for functional in ATTN_FWD_HOPPER.functionals("sm_90"):
        signature = smallest(functional).compiler_request()["signature"]
        dtype = {"fp16": gl.float16, "bf16": gl.bfloat16}[str(functional["T"])]
        layout = gl.NVMMASharedLayout.get_default_for([1, 1, 64, 1, functional["BLOCK_DMODEL"]], dtype)
        assert signature["Q"].partition("],")[2] == f"{layout!r}>"


@EVERY_OPERATOR
def test_the_portable_backend_serves_everything(operator: Operator) -> None:
    """Whatever another backend of an operator serves, the first one serves on every arch, and more. Its kernels have
    images of every addressing, or one for all: then none of their tensors has another.
    """
    assert operator.backends[0].name == "portable"
    for row in ARCHS:
        for kernel in operator.backends[0].kernels:
            chosen = any(choice.name == "ADDRESSING" for choice in kernel.choices)
            addressing = set(row.addressing) if chosen else {"general"}
            assert {functional.addressing for functional in kernel.functionals(row.arch)} == addressing
            of_call = [one for one in kernel.arguments if isinstance(one, Tensor) and one.dtype == "T"]
            assert chosen or all(one.general for one in of_call)
        for backend in operator.backends[1:]:
            for kernel in backend.kernels:
                for functional in kernel.functionals(row.arch):
                    wanted: dict[str, Any] = functional.as_dict()
                    for one in operator.backends[0].kernels:
                        shared = {choice.name for choice in one.choices} & set(wanted)
                        rounding = {choice.name for choice in one.choices if choice.round_up} & shared
                        served = [f for f in one.functionals(row.arch) if all(f[n] >= wanted[n] for n in rounding)]
                        exact = shared - rounding
                        assert {n: wanted[n] for n in exact} in [{n: f[n] for n in exact} for f in served]


@pytest.mark.parametrize(
    ("head_dim", "padded", "slim"),
    [(8, 32, None), (64, 64, None), (72, 128, 96), (96, 128, 96), (104, 128, None), (136, 256, 192), (200, 256, None)],
)
def test_head_dims_between_are_served_by_their_own_columns(head_dim: int, padded: int, slim: int | None) -> None:
    """Of a call that others pad, where its columns are fewer than theirs; a call that has an image of fewer columns
    still is not computed with more. Columns of both parts are powers of two, and no more than the choice says.
    """
    values: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": padded, "CAUSAL": True, "ADDRESSING": "descriptor"}
    lead = ATTN_FWD.functional("sm_90", **values)
    sizes = {"head_dim": head_dim}
    assert ATTN_FWD_HOPPER.like(lead, sizes) == ATTN_FWD_HOPPER.like(lead)
    own = ATTN_FWD_HOPPER_SLIM.like(lead, sizes)
    assert (own and own["BLOCK_DMODEL"]) == slim
    assert ATTN_FWD_HOPPER_SLIM.like(lead) is None
    of_backward = (one.like(lead, sizes) for one in (ATTN_BWD_HOPPER_PAIR_SLIM, ATTN_BWD_HOPPER_DQ_SLIM))
    assert [one["BLOCK_DMODEL"] for one in of_backward if one] == ([slim] if slim else [])
    if own:
        tunables = {"BLOCK_N": 64, "BLOCK_DMODEL": int(own["BLOCK_DMODEL"])}
        first, rest = (block_of((side,), tunables)[0] for side in (FIRST, REST))
        assert first + rest == slim
        assert [n & (n - 1) for n in (first, rest)] == [0, 0]
        assert first > rest


@pytest.mark.parametrize(
    ("kernel", "head_dim", "boxes"),
    [
        (ATTN_BWD_HOPPER_PAIR, 32, ["32,64"]),
        (ATTN_BWD_HOPPER_PAIR, 128, ["64,64"]),
        (ATTN_BWD_HOPPER_SHARES, 128, ["64,64"]),
        (ATTN_BWD_HOPPER_HEADS, 128, ["64,64"]),
        (ATTN_BWD_HOPPER_PARTS, 64, ["64,64"]),
        (ATTN_BWD_HOPPER_PAIR_SLIM, 96, ["64,64", "32,64"]),
    ],
)
def test_pieces_of_the_sum_of_dq_lie_together(kernel: KernelDescription, head_dim: int, boxes: list[str]) -> None:
    """A piece of 64 columns is 64 rows of the sum, one of 32 columns 32 rows, and they are not swizzled; the backend's
    tiles of 64 rows of dq have as many columns as the kernel.
    """
    functional = kernel.functional("sm_90", T="bf16", BLOCK_DMODEL=head_dim, CAUSAL=False, ADDRESSING="descriptor")
    signature = smallest(functional).compiler_request()["signature"]
    layout = "NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=4,"
    found = [kind for name, kind in signature.items() if name.startswith("DQSum")]
    assert [kind.partition(" transposed")[0] for kind in found] == [
        f"tensordesc<fp32[1,1,{box}],{layout}" for box in boxes
    ]
    assert all("swizzle_byte_width=0" not in kind for name, kind in signature.items() if not name.startswith("DQSum"))
    backend = next(one for one in OPERATOR.backends if kernel in one.kernels)
    call = {"batch": 1, "heads_q": 2, "heads_k": 2, "seqlen_q": 130, "seqlen_k": 130, "head_dim": head_dim}
    sizes = derived_sizes(backend, Environment(call, {"causal": 0}, multiprocessors=132))
    assert (sizes["dq_rows"], sizes["dq_columns"]) == (3 * head_dim, 64)


@EVERY_OPERATOR
def test_kernels_use_tensors_as_they_say(operator: Operator) -> None:
    """In launch order, a backend's kernels read a workspace tensor, or add to it, only after one has written it, and
    together they write every result. What kernels do with the caller's tensors follows from the operator, but for what
    programs need that sweep: dq and marks, which they leave alone where a kernel is measured by itself. A backend that
    serves plain calls only does not write what a call with features alone asks for, and one without bias no dbias.
    """
    results = {operand.name for operand in operator.operands if operand.written}
    featured = results & {DBIAS.name, DSINKS.name}
    assert all(operand.optional for operand in operator.operands if operand.name in featured)
    for backend in operator.backends:
        filled: set[str] = set()
        written: set[str] = set()
        for kernel in backend.kernels:
            for argument in (one for one in kernel.arguments if isinstance(one, Tensor)):
                name = argument.operand.name
                if kernel is ATTN_BWD_HOPPER_FEATURES and name in ("dq", "marks"):
                    assert argument.does == "scratch"
                elif argument.operand in backend.workspace:
                    assert (argument.access in ("write", "scratch")) != (name in filled), f"{kernel.name}: {name}"
                    filled |= {name}
                else:
                    assert argument.does == ""
                    assert (argument.access == "write") == (name in results)
                    written |= {name} if argument.access == "write" else set()
        plain = any(choice == PLAIN_ONLY for kernel in backend.kernels for choice in kernel.choices)
        read = {one.operand.name for kernel in backend.kernels for one in kernel.arguments if isinstance(one, Tensor)}
        missing = featured if plain else set() if BIAS.name in read else {DBIAS.name}
        assert written == results - missing, backend.name
        assert filled == {operand.name for operand in backend.workspace}, backend.name


SIZES = {
    "batch": 3, "heads_q": 6, "heads_k": 2, "seqlen_q": 1000, "seqlen_k": 1300, "head_dim": 40, "head_dim_v": 40,
}  # fmt: skip

# Whose rows a kernel has programs for, and how many each of them takes: a tunable or a number.
TILES: dict[str, tuple[str, str | int]] = {
    "attn_fwd": ("q", "BLOCK_M"),
    "attn_fwd_turn": ("k", "ROWS"),
    "attn_bwd_preprocess": ("q", "BLOCK_M"),
    "attn_bwd_dk_dv": ("k", "BLOCK_N"),
    "attn_bwd_dq": ("q", "BLOCK_M"),
    "attn_bwd_hopper_prepare": ("q", "BLOCK_M"),
    "attn_bwd_hopper_pair": ("k", 128),
    "attn_bwd_hopper_shares": ("k", 128),
    "attn_bwd_hopper_shares_finish": ("q", "BLOCK_M"),
    "attn_bwd_hopper_pair_slim": ("k", 128),
    "attn_bwd_hopper_heads": ("k", SIZES["seqlen_k"]),
    "attn_bwd_hopper_parts_prepare": ("qk", "BLOCK_M"),
    "attn_bwd_hopper_parts": ("k", 128),
    "attn_bwd_hopper_parts_finish": ("qk", "BLOCK_M"),
    "attn_bwd_hopper_finish": ("q", "BLOCK_M"),
    "attn_bwd_hopper_features_prepare": ("q", "BLOCK_M"),
    "attn_bwd_hopper_features": ("k", 128),
    "attn_bwd_hopper_features_finish": ("q", "BLOCK_M"),
    "attn_bwd_hopper_dk_dv": ("k", 64),
    "attn_bwd_hopper_split_prepare": ("qk", "BLOCK_M"),
    "attn_bwd_hopper_dk_dv_parts": ("k", 64),
    "attn_bwd_hopper_split_finish": ("k", "BLOCK_M"),
    "attn_bwd_hopper_dq": ("q", 128),
    "attn_bwd_hopper_dq_slim": ("q", 128),
}
TILES |= {f"{name}_slim": TILES[name] for name in ("attn_fwd", "attn_bwd_dk_dv", "attn_bwd_dq")}
SPLITS = 7
IN_PARTS = {
    "attn_bwd_hopper_parts": PARTS,
    "attn_bwd_hopper_dk_dv_parts": SPLIT_PARTS,
}


def scalars_of(kernel: KernelDescription, sizes: dict[str, int], **given: int) -> dict[str, int]:
    """The whole numbers among the scalars of a dense call of these sizes, but those that are given."""
    scalars = (one for one in operator_of(kernel).scalars if one.internal)
    dense = {one.name: evaluate(one.measured, Environment(sizes)) for one in scalars}
    return {"causal": 0, "skip_gradients": 0, **dense, **given}


LATENT_KERNELS = ATTN_FWD_LATENT, ATTN_FWD_HOPPER_LATENT
FOLLOWING = [
    "attn_fwd",
    "attn_fwd_hopper_features",
    "attn_fwd_slim",
    "attn_bwd_dk_dv",
    "attn_bwd_dq",
    "attn_bwd_dk_dv_slim",
    "attn_bwd_dq_slim",
    "attn_bwd_hopper_features",
    "attn_bwd_hopper_features_finish",
    "attn_fwd_decode",
    "attn_fwd_split",
    "attn_fwd_combine",
    *(kernel.name for kernel in (*INVARIANT.kernels, *LATENT.kernels, *HOPPER_LATENT.kernels)),
    "attn_fwd_plan",
]  # whose grid is that of packed sequences, too


@KERNELS
def test_grids_count_tiles_of_all_heads_and_batches(kernel: KernelDescription) -> None:
    """A program for each tile of each head of each batch, or for each part of its walk, all along x; or for each head.
    Persistent kernels have no more than there are multiprocessors.
    """
    if kernel in (ATTN_BWD_DSINKS, KV_APPEND, *PLANNED.kernels) or splits_keys(kernel):
        return  # their own claims are below
    for row in (row for row in ARCHS if row.arch in kernel.archs):
        for functional in kernel.functionals(row.arch):
            tunables = dict(smallest(functional).tunables)
            sizes = SIZES | {"splits": SPLITS}
            environment = Environment(sizes, scalars_of(kernel, SIZES), tunables, multiprocessors=132)
            sides, rows = TILES.get(kernel.name, ("q", 64 * tunables.get("CONSUMERS", 0)))
            rows = tunables[rows] if isinstance(rows, str) else rows
            tiles = sum(SIZES[f"heads_{side}"] * -(-SIZES[f"seqlen_{side}"] // rows) for side in sides)
            programs = SIZES["batch"] * tiles
            if kernel.name in IN_PARTS:
                programs *= evaluate(IN_PARTS[kernel.name], environment)
            if kernel is ATTN_BWD_HOPPER_SHARES:
                programs = 132
            if kernel is ATTN_BWD_HOPPER_FEATURES_PREPARE:  # which clears whole tiles of 64 rows
                programs = SIZES["batch"] * SIZES["heads_q"] * -(-SIZES["seqlen_q"] // 64) * 64 // tunables["BLOCK_M"]
            if kernel is ATTN_BWD_HOPPER_SHARES_FINISH:
                programs += SPLITS * 8
            if kernel in (ATTN_BWD_HOPPER_HEADS, ATTN_BWD_HOPPER_PAIR):
                many = Environment(sizes=SIZES | {"batch": 67}, tunables=tunables, multiprocessors=132)
                assert evaluate(kernel.grid[0], many) == 132
            if kernel in (ATTN_FWD_HOPPER, ATTN_FWD_HOPPER_FEATURES, ATTN_FWD_HOPPER_SLIM, ATTN_FWD_HOPPER_FP8):
                few = Environment(SIZES | {"batch": 1}, environment.scalars, tunables, multiprocessors=132)
                assert evaluate(kernel.grid[0], few) == programs // SIZES["batch"] < 132 < programs
                programs = 132
            assert [evaluate(axis, environment) for axis in kernel.grid] == [programs, 1, 1]


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_hopper_forward_with_features_is_persistent(head_dim: int) -> None:
    """But where lengths are in device memory, whatever else a call has, and with dropout of heads above 64."""
    kernel, sizes = ATTN_FWD_HOPPER_FEATURES, SIZES | {"head_dim": head_dim}
    functional = next(one for one in kernel.functionals("sm_90") if one["BLOCK_DMODEL"] == head_dim)
    tunables = dict(smallest(functional).tunables)

    def persistent(*asked: Any) -> bool:
        scalars = scalars_of(kernel, sizes, features=sum(one.value for one in asked))
        return evaluate(kernel.grid[0], Environment(sizes, scalars, tunables, multiprocessors=132)) == 132

    assert persistent()
    assert persistent(ALIBI, SINKS)
    assert persistent(ALIBI, SINKS, DROPOUT) == (head_dim == 64)
    for lengths in (PACKED, USED_Q, USED_K):
        assert not any(persistent(lengths, *others) for others in ((), (ALIBI, SINKS), (DROPOUT,)))


@KERNELS
def test_grids_of_packed_sequences_follow_the_longest(kernel: KernelDescription) -> None:
    """Each sequence has as many programs for each head as the longest one has tiles, whatever all rows are together, or
    so many as its rows fill, and one more; all other kernels' grids do not ask for sequences, and their backends serve
    no packed call or walk rows of any.
    """
    named = {str(name) for axis in kernel.grid for code, name in axis.postfix() if code == "scalar"}
    if kernel is ATTN_BWD_HOPPER_FEATURES_PREPARE:
        return  # it clears the tiles of all sequences
    assert (kernel.name in FOLLOWING) == bool(named & {"longest_q", "longest_k", "packed_sequences"})
    if kernel.name not in FOLLOWING or splits_keys(kernel) or kernel is ATTN_FWD_PLAN or kernel in INVARIANT.kernels:
        return  # those that split keys, or plan how, have their own claim below
    tunables = dict(smallest(next(iter(kernel.functionals(kernel.archs[0])))).tunables)
    side, rows = TILES.get(kernel.name, ("q", 64 * tunables.get("CONSUMERS", 0)))
    sizes = SIZES | {"batch": 1}
    packed = scalars_of(kernel, sizes, packed_sequences=5, longest_q=333, longest_k=444, features=4)
    rows, heads = tunables[rows] if isinstance(rows, str) else rows, sizes[f"heads_{side}"]
    given = Environment(sizes, packed, tunables, present={f"cu_seqlens_{side}"})
    wanted = 5 * heads * -(-packed[f"longest_{side}"] // rows)
    if kernel in (ATTN_FWD_HOPPER_FEATURES, ATTN_BWD_HOPPER_FEATURES, ATTN_BWD_HOPPER_FEATURES_FINISH):
        wanted = (sizes[f"seqlen_{side}"] // rows + 5) * heads
        used = Environment(sizes, packed | {"packed_sequences": 1}, tunables)  # which says nothing of where rows are
        assert evaluate(kernel.grid[0], used) == -(-packed[f"longest_{side}"] // rows) * heads
    assert [evaluate(axis, given) for axis in kernel.grid] == [wanted, 1, 1]


def test_parts_of_a_batch_invariant_call_have_a_program_each_where_rows_are_few() -> None:
    """As many as the longest sequence has, whatever the GPU; one goes through all of them where rows are many, or where
    a band hides most of the keys.
    """

    def of(queries: int, keys: int, **scalars: int) -> int:
        sizes = {"batch": 3, "heads_q": 8, "heads_k": 2, "seqlen_q": queries, "seqlen_k": keys, "head_dim": 64}
        return evaluate(SPLITS_OF_PARTS, Environment(sizes, scalars_of(ATTN_FWD_INVARIANT, sizes, **scalars)))

    assert [of(1, keys) for keys in (0, 1, PART, PART + 1, 100 * PART)] == [1, 1, 1, 2, 100]
    assert [of(queries, 2 * PART) for queries in (256, 257)] == [2, 1]
    window = {"level": 2, "lo": 20000 - 1 - 4000, "hi": 20000 - 1}
    assert of(1, 20000, **window) == 1
    assert of(1, 20000, **window | {"lo": 20000 - 1 - 5000}) == 40


def test_keys_are_split_into_rounds_that_are_nearly_full() -> None:
    """As few rounds as possible; two steps of 64 keys at least are a split's; a tile has rows of a whole group; a GPU
    that tiles fill keeps them whole, and then nothing is left to combine.
    """

    def of(
        batch: int, heads: int, heads_k: int, queries: int, keys: int, head_dim: int = 128, of_k: int = 0,
        **scalars: int,
    ) -> Any:  # fmt: skip
        sizes = {"batch": batch, "heads_q": heads, "heads_k": heads_k, "seqlen_q": queries, "seqlen_k": keys}
        sizes |= {"head_dim": head_dim, "head_dim_v": head_dim}
        scalars = scalars_of(ATTN_FWD_SPLIT, sizes, features=0, **scalars)
        tunables, types = {"BLOCK_M": 16, "AT_ONCE": 8}, {"k": of_k}
        environment = Environment(sizes, scalars, tunables, frozenset(), 132, types)
        sizes |= derived_sizes(DECODE, environment)
        environment = replace(environment, sizes=sizes)
        programs = [evaluate(one.grid[0], environment) for one in (ATTN_FWD_DECODE, ATTN_FWD_COMBINE)]
        return evaluate(SPLITS_OF_KEYS, environment), evaluate(KEYS_OF_SPLIT, environment), *programs

    assert of(1, 32, 8, 1, 32768) == (32, 1024, 8 * 32, 32)  # of 33, for 264 programs at once
    assert of(1, 32, 8, 1, 1024) == (8, 128, 64, 32)
    assert of(1, 28, 4, 1, 100) == (1, 128, 4, 0)
    assert of(64, 32, 8, 1, 8192) == (1, 8192, 512, 0)  # nearly two rounds
    assert of(40, 32, 8, 1, 4096) == (3, 1408, 960, 1280)  # 4 rounds: one, two and three are less than 85 % full
    assert of(16, 16, 16, 1, 4096, head_dim=64) == (3, 1408, 768, 256)  # 396 programs at once
    assert of(16, 16, 16, 1, 4096, head_dim=64, of_k=DTYPES.index("fp8e4b8")) == of(16, 16, 16, 1, 4096, head_dim=64)
    assert of(16, 16, 16, 1, 4096, head_dim=64, of_k=DTYPES.index("fp8e4nv")) == (
        1,
        4096,
        256,
        0,
    )  # 264 programs at once
    assert of(1, 8, 8, 5, 32768) == (32, 1024, 8 * 32, 40)
    banded = {"level": 4, "lo": 32000, "hi": 32767}
    assert of(1, 32, 8, 1, 32768, **banded) == (6, 128, 48, 32)  # 768 keys of each row
    packed = {"level": 4, "lo": -70, "hi": 0, "longest_q": 2, "longest_k": 640, "packed_sequences": 5}
    assert of(1, 8, 2, 7, 3000, **packed) == (1, 128, 10, 0)  # 72 keys
    packed |= {"lo": -5000}
    assert of(1, 8, 2, 7, 3000, **packed) == (5, 128, 50, 2 * 8 * 5)


def test_keys_of_latent_caches_are_split_for_one_program_of_a_multiprocessor() -> None:
    """A tile has 64 rows of all heads; four steps of 64 keys at least are a split's; sequences of different lengths are
    split further.
    """

    def of(batch: int, heads: int, queries: int, keys: int, features: int = 0) -> Any:
        sizes = {"batch": batch, "heads_q": heads, "heads_k": 1, "seqlen_q": queries, "seqlen_k": keys}
        sizes |= {"head_dim": 576, "head_dim_v": 512}
        scalars = scalars_of(ATTN_FWD_LATENT, sizes, features=features, level=4, lo=-queries, hi=keys - 1)
        environment = Environment(sizes, scalars, {"BLOCK_M": 64}, multiprocessors=132)
        environment = replace(environment, sizes=sizes | derived_sizes(LATENT, environment))
        programs = [evaluate(one.grid[0], environment) for one in (ATTN_FWD_LATENT, ATTN_FWD_LATENT_COMBINE)]
        assert evaluate(ATTN_FWD_HOPPER_LATENT.grid[0], environment) == programs[0]
        return evaluate(SPLITS_OF_LATENT_KEYS, environment), evaluate(KEYS_OF_LATENT_SPLIT, environment), *programs

    assert of(1, 16, 1, 8192) == (32, 256, 32, 16)
    assert of(1, 16, 1, 65536) == (128, 512, 128, 16)
    assert of(1, 128, 1, 65536) == (64, 1024, 2 * 64, 128)  # of 66, for 132 programs at once
    assert of(128, 16, 1, 8192) == (1, 8192, 128, 0)
    assert of(100, 16, 1, 8192) == (5, 1664, 500, 1600)  # nearly four rounds
    assert of(32, 64, 2, 256) == (1, 256, 64, 0)
    assert of(128, 16, 1, 8192, USED_K.value) == (2, 4096, 256, 2048)


def test_a_plan_has_a_program_for_each_sequence_and_room_for_all_items() -> None:
    """What follows it has a program for each multiprocessor, or for some rows of two split tiles for each. Heads that
    share keys are packed, up to 16 of them.
    """
    sizes = {"batch": 1, "heads_q": 28, "heads_k": 4, "seqlen_q": 1000, "seqlen_k": 9000, "head_dim": 64}
    scalars = scalars_of(ATTN_FWD_PLAN, sizes, packed_sequences=50, level=4)
    environment = Environment(sizes, scalars, {"ROWS": 16}, multiprocessors=132)
    grids = [[evaluate(axis, environment) for axis in one.grid] for one in PLANNED.kernels]
    assert grids == [[50, 1, 1], [132, 1, 1], [132 * 2 * 8, 1, 1]]
    derived = derived_sizes(PLANNED, environment)
    # 18 positions in seven heads are a tile: 56 of them are full, and each sequence may have one that is not.
    assert derived["plan_items"] == (56 + 49) * 4 + 4 * 132
    assert (derived["plan_tiles"], derived["part_places"], derived["part_rows"]) == (264, 528, 128)
    alone = derived_sizes(PLANNED, replace(environment, sizes=sizes | {"heads_q": 71, "heads_k": 1}))
    assert alone["plan_items"] == (-(-1000 // 128) + 49) * 71 + 4 * 132


def test_the_gradient_of_sinks_has_a_program_for_each_head_where_it_is_asked_for() -> None:
    """And none where it is not: then there is no launch."""

    def programs(*present: str) -> list[int]:
        return [evaluate(axis, Environment(SIZES, present=frozenset(present))) for axis in ATTN_BWD_DSINKS.grid]

    assert programs("dsinks", "sinks") == [SIZES["heads_q"], 1, 1]
    assert programs("sinks") == [0, 1, 1]


def test_parts_fill_the_gpu() -> None:
    """A walk has as many parts as make whole rounds of programs, at least two, and no more than steps where that is
    more; so many heads of a causal call begin together as have 32 MB.
    """

    def of(causal: int, **sizes: int) -> tuple[int, int]:
        environment = Environment({"batch": 1, **sizes}, {"causal": causal}, multiprocessors=132)
        return evaluate(PARTS, environment), evaluate(TOGETHER, environment)

    few = {"heads_q": 8, "heads_k": 2, "seqlen_q": 1600, "seqlen_k": 1600, "head_dim": 128}  # 26 tiles, of 100 steps
    assert of(0, **few) == (5, 1)  # 130 programs
    assert of(1, **few) == (10, 2)  # two rounds: 260
    assert of(0, **few | {"head_dim": 64, "seqlen_k": 4000}) == (4, 1)  # 64 tiles, of 52 steps: two rounds, 256
    assert of(0, **few | {"seqlen_k": 300, "heads_q": 32}) == (22, 1)  # 6 tiles, of 400 steps: 132
    assert of(0, **few | {"seqlen_q": 70, "heads_q": 2}) == (2, 1)  # two steps
    many = {"batch": 32, "heads_q": 16, "heads_k": 16, "seqlen_q": 8192, "seqlen_k": 8192, "head_dim": 64}
    assert of(1, **many) == (2, 8)


def test_heads_that_persistent_programs_take_together() -> None:
    """Causal, they fill two rounds of tiles, or as many up to four as stay in L2; and are no more than there are."""

    def of(**sizes: int) -> int:
        sizes = {"batch": 8, "heads_q": 64, "heads_k": 64, "head_dim": 64} | sizes
        return evaluate(HEADS_TOGETHER, Environment(sizes, {"causal": 1}, multiprocessors=132))

    assert of(seqlen_q=2048, seqlen_k=2048) == 32  # of 33 for four rounds of 16 tiles, 2^20 bytes each
    assert of(seqlen_q=2048, seqlen_k=2048, head_dim=128) == 17  # two rounds, though but 16 stay in L2
    assert of(seqlen_q=2048, seqlen_k=2048, head_dim=32) == 33  # four rounds
    assert of(seqlen_q=2048, seqlen_k=2048, batch=1, heads_q=8, heads_k=8) == 8
    assert of(seqlen_q=40_000, seqlen_k=40_000) == 1  # more than two rounds


def test_programs_that_share_tiles() -> None:
    """One for each multiprocessor, if there are as many tiles, or two steps of 128 rows for each."""

    def of(causal: int, **sizes: int) -> int:
        sizes = {"batch": 1, "heads_q": 8, "heads_k": 2, "seqlen_q": 1600, "seqlen_k": 1600} | sizes
        return evaluate(SHARES, Environment(sizes, {"causal": causal}, multiprocessors=132))

    assert of(0) == of(1) == 132  # 26 tiles, of 52 steps
    assert of(0, seqlen_q=100) == 52  # of 4
    assert of(1, seqlen_q=300, seqlen_k=300, heads_q=2, heads_k=2) == 6  # tiles
    assert of(0, seqlen_q=100, heads_q=60, heads_k=60) == 132


def test_parts_of_tiles_of_64_keys_fill_the_gpu() -> None:
    """The same for the backends of two main kernels, where dq is not added up and 32 MB are more heads."""

    def of(causal: int, **sizes: int) -> tuple[int, int]:
        environment = Environment({"batch": 1, **sizes}, {"causal": causal}, multiprocessors=132)
        return evaluate(SPLIT_PARTS, environment), evaluate(SPLIT_TOGETHER, environment)

    few = {"heads_q": 4, "heads_k": 1, "seqlen_q": 1393, "seqlen_k": 1393, "head_dim": 256}  # 22 tiles, of 88 steps
    assert of(0, **few) == of(1, **few) == (6, 1)  # 132 programs
    assert of(0, **few | {"heads_q": 16}) == (18, 1)  # 352 steps: three rounds
    assert of(0, **few | {"seqlen_q": 70, "heads_q": 1}) == (2, 1)  # two steps
    many = {"batch": 32, "heads_q": 8, "heads_k": 8, "seqlen_q": 4096, "seqlen_k": 4096, "head_dim": 192}
    assert of(1, **many) == (2, 10)


def refused(
    kernel: KernelDescription, sizes: dict[str, int], given: Set[str] = frozenset(), /, **scalars: int
) -> list[str]:
    """Why the kernel does not serve a call, whose values have the head dim of keys unless it is given; without a level,
    apart from that it is plain, and has no band. It has no pages, and of the
    optional operands those that are ``given``.
    """
    sizes = {"head_dim_v": sizes["head_dim"], "page_size": 0, "pages": 0} | sizes
    leveled = "level" in scalars
    scalars = scalars_of(kernel, sizes) | {"deterministic": 0} | scalars
    environment = Environment(sizes, scalars, present=given, multiprocessors=132)
    guards = (
        one
        for one in kernel.all_guards(operator_of(kernel).sizes)
        if (leveled or one not in (GUARD_PLAIN, GUARD_SEEN, GUARD_MASK)) and one not in (GUARD_ASKED, GUARD_LATENT)
    )
    return [guard.why for guard in guards if not evaluate(guard.condition, environment)]


@KERNELS
def test_guards_are_where_32_bits_end(kernel: KernelDescription) -> None:
    """A kernel refuses more rows than it counts, of each sequence that it takes, by name; one row less is fine."""
    if kernel is KV_APPEND:
        return  # its own claim is below
    taken = {argument.name for argument in kernel.arguments if isinstance(argument, Number)}
    packed = any(isinstance(argument, Tensor) and argument.packed for argument in kernel.arguments)
    packed &= kernel is not ATTN_FWD_HOPPER_PLANNED  # which counts positions
    for side in "qk":
        one = dict.fromkeys(("batch", "heads_q", "heads_k", "seqlen_q", "seqlen_k", "head_dim"), 1)
        large = one | {f"seqlen_{side}": MOST_COUNTED}
        assert all("share a head of k" in one for one in refused(kernel, large))  # too many rows to split keys
        why = [
            one
            for one in refused(kernel, large | {f"seqlen_{side}": MOST_COUNTED + 1})
            if "share a head of k" not in one
        ]
        names = [f"seqlen_{side}"] + ["seqlen_q, times the heads that are packed,"] * (side == "q" and packed)
        wanted = [f"{name} is more than {MOST_COUNTED}" for name in names if f"max_seqlen_{side}" in taken]
        wanted += [f"q has more than {MOST_COUNTED} rows"] * (
            side == "q" and kernel in (ATTN_FWD_DECODE, ATTN_FWD_SPLIT, ATTN_FWD_INVARIANT, *LATENT_KERNELS)
        )
        assert why == wanted
    if kernel in (ATTN_FWD_DECODE, ATTN_FWD_SPLIT, ATTN_FWD_INVARIANT, *LATENT_KERNELS):
        return  # which serve no call of so many rows
    grouped = one | {"heads_q": 12, "seqlen_q": MOST_COUNTED // 4}
    assert refused(kernel, grouped) == []
    assert len(refused(kernel, grouped | {"seqlen_q": MOST_COUNTED // 4 + 1})) == packed
    assert MOST_COUNTED + 1024 == 2**31


def test_appending_takes_a_program_for_a_few_tokens_of_each_head() -> None:
    """Of q, k and v, whatever sequences the tokens are of; none where a cache has no rows. All tokens are counted."""
    tunables = dict(smallest(KV_APPEND.functional("sm_90", T="bf16")).tunables)
    sizes = dict.fromkeys(operator_of(KV_APPEND).sizes, 1)
    sizes |= {"batch": 3, "seqlen_new": 7, "heads_q": 0, "heads_k": 5, "page_size": 16}

    def programs(**changes: int) -> int:
        assert [evaluate(axis, Environment(sizes, tunables=tunables)) for axis in KV_APPEND.grid[1:]] == [1, 1]
        return evaluate(KV_APPEND.grid[0], Environment(sizes | changes, tunables=tunables))

    assert programs() == -(-3 * 7 // tunables["ROWS"]) * 10
    assert programs(heads_q=40) == -(-3 * 7 // tunables["ROWS"]) * 50
    assert programs(page_size=0) == programs(batch=0) == programs(seqlen_new=0) == 0
    most = {"batch": 1, "seqlen_new": MOST_COUNTED}
    assert refused(KV_APPEND, sizes | most) == []
    assert refused(KV_APPEND, sizes | most | {"batch": 2}) == [f"k has more than {MOST_COUNTED} rows"]
    assert refused(KV_APPEND, sizes | {"positions": 2**31}) == [f"positions is more than {MOST_COUNTED}"]


def test_keys_of_sequences_of_different_lengths_are_split_further() -> None:
    """Programs that find no keys leave rounds to others, where there are rounds: few tiles are split as ever."""

    def splits(sizes: dict[str, int], features: int) -> int:
        last = sizes["seqlen_k"] - 1
        banded = {"level": 4, "lo": -3, "hi": last, "features": features, "longest_k": last + 1}
        return evaluate(
            SPLITS_OF_KEYS, Environment(sizes, scalars_of(ATTN_FWD_SPLIT, sizes) | banded, multiprocessors=132)
        )

    few = {"batch": 1, "heads_q": 14, "heads_k": 2, "head_dim": 64, "head_dim_v": 64, "seqlen_q": 3, "seqlen_k": 50000}
    used = USED_K.value
    assert [splits(few, one) for one in (0, used)] == [196, 196]
    assert [splits(few | {"batch": 300}, one) for one in (0, used)] == [2, 5]
    assert [splits(few | {"batch": 300, "seqlen_k": 600}, one) for one in (0, used)] == [2, 2]


def test_guards_of_single_kernels() -> None:
    """The persistent forward counts tiles of 64 rows in 31 bits, twice; the adding backward is not deterministic."""
    most = 2**30 - 1
    sizes = {"batch": most, "heads_q": 1, "heads_k": 1, "seqlen_q": 64, "seqlen_k": 64, "head_dim": 64}
    assert refused(ATTN_FWD_HOPPER, sizes) == []
    assert refused(ATTN_FWD_HOPPER, sizes | {"seqlen_q": 65}) == ["it has more tiles than are counted in 32 bits"]
    assert refused(ATTN_BWD_HOPPER_HEADS, sizes | {"batch": 2**29 - 1}) == []
    assert refused(ATTN_BWD_HOPPER_HEADS, sizes) == ["it has more heads than are counted in 32 bits"]
    many = {"batch": 32, "heads_q": 16, "heads_k": 16, "head_dim": 128}

    def too_long(seqlen: int, **scalars: int) -> bool:
        return bool(refused(ATTN_BWD_HOPPER_HEADS, many | {"seqlen_q": seqlen, "seqlen_k": seqlen}, **scalars))

    assert [too_long(n) for n in (256, 512, 2048)] == [False, True, True]
    assert [too_long(n, causal=1) for n in (256, 512, 640, 641)] == [False, False, False, True]
    assert not too_long(2048, deterministic=1)
    banded = {"level": 4, "features": 0, "lo": -1000, "hi": 0, "longest_q": 1000}
    narrow = ["its keys are seen by few rows each: others are faster"]
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **banded | {"lo": -41}) == narrow  # 42 rows of three heads
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **banded | {"lo": -42}) == []
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **banded | {"level": 0}) == ["it is plain, and has no band"]
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **banded) == []
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **banded | {"features": SOFTCAP.value}) == ["it has softcap"]
    dropping = banded | {"level": 5, "features": DROPOUT.value | SINKS.value}
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **dropping | {"lo": -42}) == []
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **dropping | {"lo": -41}) == narrow
    for bit in (ALIBI.value, BIAS_BIT.value, DBIAS_BIT.value):
        more = dropping | {"features": DROPOUT.value | SINKS.value | bit}
        assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **more) == ["it has ALiBi or a bias"]
    ragged = banded | {"features": PACKED.value}
    lengths = ["it has sequences or used lengths"]
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **ragged | {"longest_q": 171}) == []
    assert refused(ATTN_BWD_HOPPER_FEATURES, SIZES, **ragged | {"longest_q": 170}) == narrow  # 510 rows
    assert refused(ATTN_FWD_HOPPER_FEATURES, SIZES, **ragged) == lengths
    both = ragged | {"features": PACKED.value | SOFTCAP.value}
    assert refused(ATTN_FWD_HOPPER_FEATURES, SIZES, **both) == ["it has softcap", *lengths]
    assert refused(ATTN_FWD_HOPPER_FEATURES, SIZES, **banded) == []
    for bits in (DROPOUT.value, ALIBI.value | DROPOUT.value | SINKS.value, ALIBI.value | PACKED.value | USED_K.value):
        asked, seeds = dropping | {"features": bits}, {"dropout_seed"}  # which a call without dropout may have, too
        assert refused(ATTN_FWD_HOPPER_FEATURES, SIZES, seeds, **asked) == []
        in_twos = ["it has dropout, and heads that share keys and values in twos"] if bits & DROPOUT.value else []
        assert refused(ATTN_FWD_HOPPER_FEATURES, SIZES | {"heads_q": 12, "heads_k": 2}, seeds, **asked) == in_twos
        assert refused(ATTN_FWD_HOPPER_FEATURES, SIZES, {"bias"} | seeds, **asked) == ["it has a bias"]
    few = {"batch": 1, "heads_q": 2, "heads_k": 2, "head_dim": 128, "seqlen_q": 4096, "seqlen_k": 4096}
    assert refused(ATTN_BWD_HOPPER_HEADS, few) == []
    features = {"level": 0, "features": 0}
    rows = {"batch": 1, "heads_q": 14, "heads_k": 2, "head_dim": 64, "seqlen_k": 5000}
    for queries, kernel in ((1, ATTN_FWD_DECODE), (2, ATTN_FWD_DECODE), (3, ATTN_FWD_SPLIT), (146, ATTN_FWD_SPLIT)):
        assert refused(kernel, rows | {"seqlen_q": queries}, **features) == []
        other = ATTN_FWD_SPLIT if kernel is ATTN_FWD_DECODE else ATTN_FWD_DECODE
        assert len(refused(other, rows | {"seqlen_q": queries}, **features)) == 1
    for queries, of_k, served in ((9, "fp8e4nv", True), (10, "fp8e4nv", False), (9, "fp8e4b8", False)):
        sizes = rows | {"seqlen_q": queries, "head_dim_v": 64}
        typed = Environment(sizes, {"longest_q": queries}, multiprocessors=132, other_dtypes={"k": DTYPES.index(of_k)})
        assert bool(evaluate(ATTN_FWD_DECODE.guards[-1].condition, typed)) == served, of_k
    assert refused(ATTN_FWD_SPLIT, rows | {"seqlen_q": 147}) == ["more than 1024 rows of q share a head of k"]
    few = rows | {"seqlen_q": 3}
    weighted = ["it has bias, ALiBi or dropout"]
    assert refused(ATTN_FWD_HOPPER_PLANNED, few, **features) == []
    assert len(refused(ATTN_FWD_HOPPER_PLANNED, few | {"seqlen_q": 2}, **features)) == 1
    asked = features | {"level": 5, "features": SOFTCAP.value}
    assert refused(ATTN_FWD_HOPPER_PLANNED, few, **asked) == [*weighted, "it has softcap"]
    assert refused(ATTN_FWD_SPLIT, few, **features | {"level": 4, "lo": -3, "hi": 4999}) == []
    assert refused(ATTN_FWD_DECODE, few | {"seqlen_q": 1}, **features | {"level": 5}) == weighted
    masked = ["queries of 8 bits see all keys, or those up to their own position of as many"]
    as_many, fewer = SIZES | {"seqlen_q": 90, "seqlen_k": 90}, SIZES | {"seqlen_q": 90, "seqlen_k": 91}
    for shape, lo, hi, why in (
        (as_many, -90, 90, []), (as_many, -89, 89, []), (as_many, -90, 0, []), (as_many, -88, 0, masked),
        (as_many, -90, 88, masked), (as_many, -90, -1, masked), (fewer, -90, 90, []), (fewer, -90, 0, masked),
        (fewer, -90, 89, masked),
    ):  # fmt: skip
        of_fp8 = {"level": 4, "features": 0, "lo": lo, "hi": hi}
        assert refused(ATTN_FWD_HOPPER_FP8, shape, **of_fp8) == why, (lo, hi)
    softcap = {"level": 4, "features": SOFTCAP.value, "lo": -90, "hi": 90}
    assert refused(ATTN_FWD_HOPPER_FP8, as_many, **softcap) == ["queries of 8 bits have no other features"]
    of_latent = SIZES | {"head_dim": 576, "head_dim_v": 512}
    for kernel in LATENT_KERNELS:
        assert refused(kernel, of_latent) == []
    assert [one[:13] for one in refused(ATTN_FWD, of_latent)] == ["head_dim 576 "]
    others = (of_latent | {"head_dim": 512}, of_latent | {"head_dim_v": 576})
    assert [evaluate(GUARD_LATENT.condition, Environment(sizes)) for sizes in (of_latent, *others)] == [1, 0, 0]
    for kernel in FLASH.kernels:
        if kernel in (ATTN_FWD_DECODE, ATTN_FWD_SPLIT, KV_APPEND, ATTN_FWD_HOPPER_PLANNED):
            continue
        adds = any(isinstance(one, Tensor) and one.access == "add" for one in kernel.arguments)
        assert bool(refused(kernel, SIZES, deterministic=1)) == adds, kernel.name


def test_the_planned_forward_serves_keys_of_8_bits_with_all_its_kernels() -> None:
    """The one that makes the plan takes an address of keys, which it follows never; a kernel that reads them as of 16
    bits refuses them.
    """
    typed = "k has a type of 8 bits"
    refusing = {one.name: typed in {guard.why for guard in one.all_guards(())} for one in PLANNED.kernels}
    assert not any(refusing.values()), refusing
    assert typed in {guard.why for guard in ATTN_FWD.all_guards(())}


@pytest.mark.parametrize(("keys", "fits"), [("rows", True), ("fp8e4nv", False), ("pages_fp8e4nv", False)])
def test_bytes_of_keys_take_shared_memory_of_their_own(keys: str, fits: bool) -> None:
    """So a config of 16 bits may fit nowhere with 8."""
    functional = ATTN_FWD_HOPPER_PLANNED.functional(
        "sm_90", T="bf16", BLOCK_DMODEL=128, CAUSAL=False, ADDRESSING="descriptor", KEYS=Keys[keys]
    )
    config = {"BLOCK_N": 128, "STAGES": 3, "num_warps": 4, "maxnreg": 168}
    assert functional.wins_nowhere(config) != fits
    assert not functional.wins_nowhere(config | {"STAGES": 2})
