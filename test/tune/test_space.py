"""The space: which problems and candidates there are, and why the others are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import IN_TREE, family
from aotriton.rules.family import kernel as kernel_named
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.flash.split import Keys
from aotriton.rules.gemm.operator import GEMM_HOPPER_SPLIT, HOPPER_SPLIT
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Parameter, by_vendor
from aotriton.rules.operators import derived_sizes
from aotriton.tune.flash.tuning import SPLIT_QUERIES, FlashTuning
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.problems import Problem, Wish, is_served, problems, shape_of

KERNELS = family("flash").kernels
EVERYTHING = Wish()
NOTHING_SPLIT = "no tile of this cell is split"
FAMILIES = pytest.mark.parametrize("name", IN_TREE)
GPUS = pytest.mark.parametrize(("arch", "multiprocessors"), [("sm_90", 132), ("gfx942", 304)])


def problem(kernel: str, head_dim: int, cell: tuple[int, ...], arch: str = "sm_90", **choices: Any) -> Problem:
    wanted: dict[str, Any] = {"LEVEL": 0, "T": "bf16", "BLOCK_DMODEL": head_dim, "CAUSAL": False}
    wanted |= {"ADDRESSING": "general"} | choices
    description = kernel_named(kernel)
    functional = description.functional(
        arch, **{one.name: wanted[one.name] for one in description.choices if one.name in wanted}
    )
    return Problem(functional, cell, shape_of(batch=1, heads=1))


@GPUS
@FAMILIES
def test_every_default_problem_has_candidates_and_nothing_is_lost(name: str, arch: str, multiprocessors: int) -> None:
    """Each config of the description is a candidate or skipped with a reason. Some candidate stays, but in cells where
    a kernel that splits tiles has none to split.
    """
    for one in problems(family(name).kernels, arch, multiprocessors, EVERYTHING):
        found = space(one)
        kernel, vendor, total = one.kernel, one.functional.arch_spec.vendor, 1
        for values in (*kernel.tunable_values(vendor).values(), *kernel.compile_option_values(vendor).values()):
            total *= len(values)
        if not found.candidates:
            assert one.kernel == GEMM_HOPPER_SPLIT, one
            assert NOTHING_SPLIT in {reason for _, reason in found.skipped}, one
        assert len(found.candidates) + len(found.skipped) == total
        assert all(reason for _, reason in found.skipped)


def test_candidates_that_split_tiles_have_tiles_to_split() -> None:
    """In the shape that is measured for a cell, each of them has; those that are skipped as they have none, have none.
    Cells where that leaves no candidate are there, and so are others.
    """
    empty = 0
    found = problems([GEMM_HOPPER_SPLIT], "sm_90", 132, EVERYTHING)
    for one in found:

        def split(spec: ImageSpec, sizes: Mapping[str, int] = one.sizes) -> int:
            environment = Environment(sizes=sizes, tunables=dict(spec.tunables), multiprocessors=132)
            return derived_sizes(HOPPER_SPLIT, environment)["split_tiles"]

        made = space(one)
        assert all(split(spec) for spec in made.candidates), one
        assert not any(split(spec) for spec, reason in made.skipped if reason == NOTHING_SPLIT), one
        empty += not made.candidates
    assert 0 < empty < len(found) / 4


@GPUS
@FAMILIES
def test_shapes_fall_in_their_own_bin(name: str, arch: str, multiprocessors: int) -> None:
    """What is measured for a bin is what dispatch would send to that bin."""
    for one in problems(family(name).kernels, arch, multiprocessors, EVERYTHING):
        heads = one.sizes.get("heads", 0)
        sizes = one.sizes | {"heads_q": heads, "heads_k": heads}
        reached = [
            evaluate(key.quantity, Environment(sizes=sizes, multiprocessors=multiprocessors))
            for key in one.kernel.tuning_keys
        ]
        bins = [key.bin_of(value) for key, value in zip(one.kernel.tuning_keys, reached, strict=True)]
        assert tuple(k.representatives[bin] for k, bin in zip(one.kernel.tuning_keys, bins, strict=True)) == one.cell


@GPUS
def test_sequences_are_as_long_as_their_bin_says(arch: str, multiprocessors: int) -> None:
    """Keys as long as queries, where a kernel's table does not ask for them."""
    for one in problems(KERNELS, arch, multiprocessors, EVERYTHING):
        seqlen_q = one.keys["max_seqlen_q"]
        if one.kernel in SPLIT_QUERIES:  # which are for fewer queries than their bin has
            assert (one.sizes["seqlen_q"], one.sizes["seqlen_k"]) == (
                SPLIT_QUERIES[one.kernel][seqlen_q], one.keys["max_seqlen_k"]
            )  # fmt: skip
            continue
        wanted = seqlen_q, one.keys.get("max_seqlen_k", seqlen_q)
        assert (one.sizes["seqlen_q"], one.sizes["seqlen_k"]) == wanted


def test_the_default_covers_bf16_and_fp32_most_valuable_first() -> None:
    """Every functional of bf16 and fp32 is measured, but those of pages of 16 bits, general ones in one bin only; first
    come the problems that people train. What has no choices is not measured: it has one config.
    """
    found = problems(KERNELS, "sm_90", 132, EVERYTHING)
    assert {str(p.functional) + p.kernel.name for p in found} == {
        str(functional) + kernel.name
        for kernel in KERNELS
        for functional in kernel.functionals("sm_90")
        if kernel.timed and functional["T"] in ("bf16", "fp32") and functional.get("KEYS", 0) != Keys.pages
    }
    general = [p for p in found if p.functional.addressing == "general"]
    chosen = [p for p in general if "ADDRESSING" in p.functional.as_dict()]
    assert len(chosen) == len({str(p.functional) + p.kernel.name for p in chosen})
    assert found[-len(general) :] == general
    assert {(p.keys["max_seqlen_q"], p.functional["BLOCK_DMODEL"]) for p in found[:15]} == {(2048, 128)}
    serving = {p.kernel.name for p in found if p.functional.get("BLOCK_DMODEL", 128) == 128}
    features = {"attn_fwd_hopper_features", "attn_bwd_hopper_features", "attn_fwd_hopper_fp8"}  # in no plain call
    few = {one.name for one in SPLIT_QUERIES}  # for few queries
    assert {p.kernel.name for p in found[:15]} == serving - features - few - {
        "attn_bwd_hopper_heads"
    }  # for short heads
    assert len({(p.kernel.name, str(p.functional), p.bin) for p in found}) == len(found)


def test_a_wish_narrows_the_problems() -> None:
    """Choices and bins that are named leave all others out; fp16 and general are measured where they are asked for."""
    wish = Wish(
        {"T": ("fp16",), "BLOCK_DMODEL": (64,), "CAUSAL": (True,), "ADDRESSING": ("general",)},
        {"max_seqlen_q": (512,), "max_seqlen_k": (), "waves": (1,)},
    )
    (one,) = problems([ATTN_FWD], "sm_90", 132, wish)
    assert str(one) == (
        "attn_fwd T=fp16 BLOCK_DMODEL=64 CAUSAL=True ADDRESSING=general max_seqlen_q=512 max_seqlen_k=512 waves=1"
    )
    both = Wish({"CAUSAL": (False, True)}, {"max_seqlen_q": (64,), "max_seqlen_k": (512,)})
    assert {p.functional["CAUSAL"] for p in problems([ATTN_FWD], "sm_90", 132, both)} == {False}


def test_batch_and_heads_must_reach_the_bin() -> None:
    """A shape of the user's own is measured only in the waves bin that it falls in."""
    found = problems([ATTN_FWD], "sm_90", 132, Wish({}, {"max_seqlen_q": (2048,)}, {"batch": 2, "heads": 4}))
    assert {(p.keys["waves"], p.sizes["batch"], p.sizes["heads"]) for p in found} == {(1, 2, 4)}
    found = problems([ATTN_FWD], "sm_90", 132, Wish({}, {"max_seqlen_q": (2048,)}, {"heads": 8}))
    assert {(p.keys["waves"], p.sizes["batch"], p.sizes["heads"]) for p in found} == {(1, 1, 8), (8, 8, 8)}


def reasons(one: Problem) -> dict[str, str]:
    return {spec.config: reason for spec, reason in space(one).skipped}


def test_tiles_do_not_reach_beyond_the_sequence() -> None:
    """A bin of short queries drops tall tiles, one of short keys drops wide ones."""
    short = [dict(spec.tunables) for spec in space(problem("attn_fwd", 64, (64, 64, 1))).candidates]
    assert {config["BLOCK_M"] for config in short} == {64}
    assert {config["BLOCK_N"] for config in short} == {32, 64}


def test_impossible_configs_are_skipped_before_they_are_compiled() -> None:
    """Registers and shared memory that cannot suffice, warps and stages without work: each with its reason."""
    fwd, dk_dv = problem("attn_fwd", 128, (8192, 8192, 8)), problem("attn_bwd_dk_dv", 128, (8192, 8192, 8))
    assert "registers" in reasons(fwd)["BLOCK_M=128 BLOCK_N=128 num_warps=4 num_stages=2"]
    assert "registers" in reasons(dk_dv)["BLOCK_M=128 BLOCK_N=128 num_warps=8 num_stages=2"]
    wide = reasons(problem("attn_fwd", 256, (8192, 8192, 8)))
    assert "shared memory" in wide["BLOCK_M=64 BLOCK_N=128 num_warps=8 num_stages=3"]
    narrow = reasons(problem("attn_fwd", 64, (8192, 8192, 8)))
    assert "warps" in narrow["BLOCK_M=64 BLOCK_N=32 num_warps=8 num_stages=2"]
    brief = reasons(problem("attn_fwd", 64, (64, 64, 1)))
    assert "stages" in brief["BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=3"]


def test_the_hopper_forward_has_its_own_restrictions() -> None:
    """Consumers without rows, accumulators beyond their registers, idle stages and places are skipped; known good ones
    stay.
    """
    at = (8192, 8192, 8)
    wide = reasons(problem("attn_fwd_hopper", 128, at, ADDRESSING="descriptor"))
    config = "BLOCK_N={} CONSUMERS={} STAGES={} GROUP_ROUNDS=0 Q_SLOTS={} Q_IN_REGISTERS={} num_warps=4 maxnreg={}"
    assert "registers" in wide[config.format(128, 3, 2, 1, 0, 128)]
    assert "shared memory" in wide[config.format(128, 2, 4, 1, 0, 168)]
    assert "stage" in wide[config.format(64, 2, 2, 2, 0, 168)]
    assert "maxnreg" in wide[config.format(128, 2, 2, 2, 0, 128)]
    assert "second place" in wide[config.format(128, 2, 2, 1, 0, 168)]
    assert "leaves its place" in wide[config.format(128, 2, 2, 2, 1, 168)]
    halves = "BLOCK_N=128 CONSUMERS=2 STAGES=2 GROUP_ROUNDS=0 Q_SLOTS=2 Q_IN_REGISTERS=0 OUT_PIECES=2"
    assert "all of Out" in wide[f"{halves} num_warps=4 maxnreg=168"]
    causal = reasons(problem("attn_fwd_hopper", 64, at, ADDRESSING="descriptor", CAUSAL=True))
    tall = "BLOCK_N=64 CONSUMERS=3 STAGES=2 GROUP_ROUNDS=4 Q_SLOTS=2 Q_IN_REGISTERS=0 num_warps=4 maxnreg=128"
    assert tall in causal
    short = [
        dict(s.tunables) for s in space(problem("attn_fwd_hopper", 64, (64, 64, 8), ADDRESSING="descriptor")).candidates
    ]
    assert {tunables["CONSUMERS"] for tunables in short} == {1}
    for head_dim, good in (
        (64, (128, 3, 4, 2, 0, 128)),
        (64, (128, 2, 4, 1, 1, 168)),
        (128, (128, 2, 2, 1, 1, 168)),
        (128, (128, 2, 2, 2, 0, 168)),
    ):
        found = space(problem("attn_fwd_hopper", head_dim, at, ADDRESSING="descriptor"))
        assert config.format(*good) in {spec.config for spec in found.candidates}
    ring = "BLOCK_N=64 CONSUMERS=2 STAGES=4 GROUP_ROUNDS=0 Q_SLOTS=1 Q_IN_REGISTERS=0 OUT_PIECES=2 TURNS=1 RING=1"
    found = space(problem("attn_fwd_hopper", 256, at, ADDRESSING="descriptor"))
    assert f"{ring} num_warps=4 maxnreg=168" in {spec.config for spec in found.candidates}


@pytest.mark.parametrize("causal", [False, True])
def test_columns_in_two_parts_fill_registers_and_shared_memory(causal: bool) -> None:
    """96 columns leave two consumers room for 128 keys, three for 64; 192 leave two of them room for 64, or for 128 in
    a ring of three slots, where Out is staged in halves. Q has a second place or Out is whole, if that leaves room.
    """
    tiles: dict[int, set[tuple[int, ...]]] = {}
    for head_dim in (96, 192):
        one = problem("attn_fwd_hopper_slim", head_dim, (8192, 8192, 8), CAUSAL=causal, ADDRESSING="descriptor")
        found = [dict(spec.tunables) for spec in space(one).candidates]
        names = "BLOCK_N", "CONSUMERS", "STAGES", "Q_SLOTS", "OUT_PIECES", "RING"
        tiles[head_dim] = {tuple(tunables[name] for name in names) for tunables in found}
    two = {(128, 2, 3, 1, 1, 0), (128, 2, 3, 2, 1, 0), (64, 2, 6, 1, 1, 0), (64, 2, 6, 2, 1, 0)}
    assert tiles[96] == two | {(64, 3, 6, 1, 1, 0), (64, 3, 5, 2, 2, 0), (64, 3, 4, 2, 1, 0)}
    pairs = {(64, 2, 2, 1, 1, 0), (64, 2, 3, 1, 2, 0), (64, 2, 2, 2, 2, 0)}
    rings = {(64, 2, 5, 1, 1, 1), (64, 2, 4, 2, 2, 1), (64, 2, 3, 2, 1, 1), (128, 2, 3, 1, 2, 1)}
    assert tiles[192] == pairs | rings


def test_known_good_configs_stay() -> None:
    """The settings that were fastest in earlier measurements are candidates."""
    for head_dim, config in (
        (128, "BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=2"),
        (128, "BLOCK_M=128 BLOCK_N=128 num_warps=8 num_stages=3"),
        (64, "BLOCK_M=64 BLOCK_N=128 num_warps=4 num_stages=2"),
        (64, "BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=4"),
        (256, "BLOCK_M=128 BLOCK_N=64 num_warps=8 num_stages=2"),
    ):
        found = space(problem("attn_fwd", head_dim, (8192, 8192, 8), ADDRESSING="descriptor"))
        assert config in {spec.config for spec in found.candidates}


@FAMILIES
def test_a_search_has_more_to_try(name: str) -> None:
    """The rich space holds all of today's candidates and, for each kernel that is tuned at all, others, too: of each
    that is timed. What it leaves out has a reason, and rules of thumb are none.
    """
    thumb = {rule.why for kernel in family(name).kernels for rule in kernel.restrictions if not rule.certain}
    certain = {rule.why for kernel in family(name).kernels for rule in kernel.restrictions if rule.certain}
    assert thumb
    more: dict[str, int] = {}
    every = {
        kernel: problems([kernel], "sm_90", 132, EVERYTHING)[::4]  # some of each
        for kernel in family(name).kernels
        if "sm_90" in kernel.archs and kernel.timed
    }
    for one in (one for own in every.values() for one in own):
        today, rich = space(one), space(one, rich=True)
        assert set(today.candidates) <= set(rich.candidates), one
        assert {reason for _, reason in rich.skipped} <= certain, one
        more[one.kernel.name] = max(more.get(one.kernel.name, 0), len(rich.candidates) - len(today.candidates))
    fixed = {
        f"attn_bwd_hopper{one}"
        for one in ("_pair", "_shares", "_heads", "_parts", "_pair_slim", "_dk_dv", "_dk_dv_parts", "_features")
    }
    fixed |= {"gemm_reduce", "attn_fwd_combine", "attn_fwd_plan", "attn_fwd_planned_combine"}
    assert {kernel for kernel, count in more.items() if not count} == fixed & more.keys()
    assert more.keys() == {kernel.name for kernel in family(name).kernels if "sm_90" in kernel.archs and kernel.timed}


def test_rich_spaces_are_as_large_as_a_search_can_use() -> None:
    """Some thousand configs of a matrix product, some hundred of the attention kernels; the values that are
    enumerated, in their order, do not grow with them.
    """
    known: dict[str, Any] = {"T": "fp16", "TRANS_A": False, "TRANS_B": True, "ADDRESSING": "descriptor"}
    assert 2000 <= len(space(problem("gemm", 0, (4096, 4096, 4096), **known), rich=True).candidates) <= 4000
    for kernel in ("attn_fwd", "attn_bwd_dk_dv", "attn_bwd_dq", "attn_fwd_hopper"):
        found = space(problem(kernel, 128, (2048, 2048, 8), ADDRESSING="descriptor", CAUSAL=True), rich=True)
        assert 300 <= len(found.candidates) <= 1500, kernel
    enumerated = {"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "BF16_PRODUCTS": (0, 6)}
    assert ATTN_FWD.tunable_values("cuda") == enumerated
    assert ATTN_FWD.tunable_values("cuda", rich=True)["BLOCK_N"] == (16, 32, 64, 128, 256)
    assert ATTN_FWD.compile_option_values("cuda", rich=True)["num_stages"] == (1, 2, 3, 4, 5, 6)
    assert ATTN_FWD.tunable_values("hip", rich=True) == ATTN_FWD.tunable_values("hip")


def test_what_a_kernel_cannot_do_is_in_no_space() -> None:
    """Turns of one or three consumers, accumulators beyond all registers, tiles beyond the problem: not even richly."""
    known: dict[str, Any] = {"T": "fp16", "TRANS_A": False, "TRANS_B": True, "ADDRESSING": "descriptor"}
    hopper = [
        dict(spec.tunables + spec.compile_options)
        for spec in space(problem("gemm_hopper", 0, (256, 4096, 4096), **known), rich=True).candidates
    ]
    assert {config["CONSUMERS"] for config in hopper if config["TURNS"]} == {2}
    assert {config["CONSUMERS"] for config in hopper} == {1, 2, 3}
    assert all(config["ROWS"] * config["COLUMNS"] <= 64 * 256 for config in hopper)
    short = space(problem("attn_fwd", 64, (64, 64, 1), ADDRESSING="descriptor"), rich=True).candidates
    assert max(dict(spec.tunables)["BLOCK_M"] for spec in short) == 64
    portable = space(problem("gemm", 0, (4096, 4096, 4096), **known), rich=True).candidates
    sizes = [dict(spec.tunables + spec.compile_options) for spec in portable]
    assert max(one["BLOCK_M"] * one["BLOCK_N"] / one["num_warps"] / 32 for one in sizes) <= 255


def test_more_values_must_add_to_values() -> None:
    """A value that is there already, a vendor without values, and a name that no table has are errors that say so."""
    with pytest.raises(ValueError, match="more values of 'cuda' must add to its values"):
        by_vendor(more={"cuda": {"TILE": (16, 32)}}, cuda={"TILE": (32, 64)})
    with pytest.raises(ValueError, match="more values of 'hip' must add to its values"):
        Parameter("TILE", {"cuda": (32,)}, more={"hip": (16,)})
    with pytest.raises(ValueError, match=r"cuda has more values of \['TILES'\], and no values"):
        by_vendor(more={"cuda": {"TILES": (16,)}}, cuda={"TILE": (32, 64)})


def test_no_problem_is_one_that_its_kernel_refuses() -> None:
    """Many long heads are no shape of the kernel that is for short ones; few are, and a GPU of few multiprocessors has
    few under way.
    """
    heads = [kernel for kernel in family("flash").kernels if kernel.name == "attn_bwd_hopper_heads"]
    found = {one.cell for one in problems(heads, "sm_90", 132, Wish())}
    assert (512, 512, 8) in found
    assert (8192, 8192, 1) in found
    assert (2048, 2048, 8) not in found
    for one in problems(heads, "sm_90", 132, Wish()):
        assert is_served(one.functional, FlashTuning().sizes(dict(one.shape)), 132)
