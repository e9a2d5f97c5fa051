"""The space: which problems and candidates there are, and why the others are not."""

from __future__ import annotations

import pytest

from aotriton.rules import flash
from aotriton.rules.binning import waves
from aotriton.rules.kernel import Functional
from aotriton.tune.problems import Problem, Shape, Wish, problems
from aotriton.tune.space import space

EVERYTHING = Wish({}, {})


def problem(kernel: str, head_dim: int, cell: tuple[int, ...], arch: str = "sm_90", **choices: object) -> Problem:
    wanted: dict[str, object] = {"T": "bf16", "BLOCK_DMODEL": head_dim, "CAUSAL": False}
    wanted |= {"ADDRESSING": "general"} | choices
    description = flash.kernel(kernel)
    names = [choice.name for choice in description.choices]
    functional = Functional(description, arch, tuple(wanted[name] for name in names))  # type: ignore[arg-type]
    return Problem(functional, cell, Shape(1, 1, cell[0], cell[-2] if len(cell) > 1 else cell[0], head_dim))


@pytest.mark.parametrize(("arch", "multiprocessors"), [("sm_90", 132), ("gfx942", 304)])
def test_every_default_problem_has_candidates_and_nothing_is_lost(arch: str, multiprocessors: int) -> None:
    """Each config of the description is a candidate or skipped with a reason, and some candidate always stays."""
    for one in problems(flash.KERNELS, arch, multiprocessors, EVERYTHING):
        found = space(one)
        kernel, vendor, total = one.kernel, one.functional.target.vendor, 1
        for values in (*kernel.psels[vendor].values(), *kernel.copts[vendor].values()):
            total *= len(values)
        assert found.candidates, one
        assert len(found.candidates) + len(found.skipped) == total
        assert all(reason for _, reason in found.skipped)


@pytest.mark.parametrize(("arch", "multiprocessors"), [("sm_90", 132), ("gfx942", 304)])
def test_shapes_fall_in_their_own_bin(arch: str, multiprocessors: int) -> None:
    """What is measured for a bin is what dispatch would send to that bin."""
    for one in problems(flash.KERNELS, arch, multiprocessors, EVERYTHING):
        shape, keys = one.shape, one.keys
        assert (shape.seqlen_q, shape.seqlen_k) == (
            keys["max_seqlen_q"],
            keys.get("max_seqlen_k", keys["max_seqlen_q"]),
        )
        if "waves" in keys:
            tiled = shape.seqlen_q if one.kernel.tiled_axis == "q" else shape.seqlen_k
            key = one.kernel.tuning_keys[2]
            assert (
                key.representatives[key.bin_of(waves(shape.batch, shape.heads, tiled, multiprocessors))]
                == keys["waves"]
            )


def test_the_default_covers_every_bf16_functional_most_valuable_first() -> None:
    """Every bf16 functional is measured, general ones in one bin only; first come the problems that people train."""
    found = problems(flash.KERNELS, "sm_90", 132, EVERYTHING)
    assert {str(p.functional) + p.kernel.name for p in found} == {
        str(functional) + kernel.name
        for kernel in flash.KERNELS
        for functional in kernel.functionals("sm_90")
        if functional["T"] == "bf16"
    }
    general = [p for p in found if p.functional["ADDRESSING"] == "general"]
    assert len(general) == len({str(p.functional) + p.kernel.name for p in general})
    assert found[-len(general) :] == general
    assert {(p.keys["max_seqlen_q"], p.functional["BLOCK_DMODEL"]) for p in found[:12]} == {(2048, 128)}
    serving = {p.kernel.name for p in found if p.functional["BLOCK_DMODEL"] == 128}
    assert {p.kernel.name for p in found[:12]} == serving
    assert len({(p.kernel.name, str(p.functional), p.bin) for p in found}) == len(found)


def test_a_wish_narrows_the_problems() -> None:
    """Choices and bins that are named leave all others out; fp16 and general are measured where they are asked for."""
    wish = Wish(
        {"T": ("fp16",), "BLOCK_DMODEL": (64,), "CAUSAL": (True,), "ADDRESSING": ("general",)},
        {"max_seqlen_q": (512,), "max_seqlen_k": (), "waves": (1,)},
    )
    (one,) = problems([flash.ATTN_FWD], "sm_90", 132, wish)
    assert str(one) == (
        "attn_fwd T=fp16 BLOCK_DMODEL=64 CAUSAL=True ADDRESSING=general max_seqlen_q=512 max_seqlen_k=512 waves=1"
    )
    both = Wish({"CAUSAL": (False, True)}, {"max_seqlen_q": (64,), "max_seqlen_k": (512,)})
    assert {p.functional["CAUSAL"] for p in problems([flash.ATTN_FWD], "sm_90", 132, both)} == {False}


def test_batch_and_heads_must_reach_the_bin() -> None:
    """A shape of the user's own is measured only in the waves bin that it falls in."""
    found = problems([flash.ATTN_FWD], "sm_90", 132, Wish({}, {"max_seqlen_q": (2048,)}, batch=2, heads=4))
    assert {(p.keys["waves"], p.shape.batch, p.shape.heads) for p in found} == {(1, 2, 4)}
    found = problems([flash.ATTN_FWD], "sm_90", 132, Wish({}, {"max_seqlen_q": (2048,)}, heads=8))
    assert {(p.keys["waves"], p.shape.batch, p.shape.heads) for p in found} == {(1, 1, 8), (8, 8, 8)}


def reasons(one: Problem) -> dict[str, str]:
    return {spec.config: reason for spec, reason in space(one).skipped}


def test_tiles_do_not_reach_beyond_the_sequence() -> None:
    """A bin of short queries drops tall tiles, one of short keys drops wide ones."""
    short = [dict(spec.psels) for spec in space(problem("attn_fwd", 64, (64, 64, 1))).candidates]
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
    """Consumers without rows, accumulators beyond their registers and idle stages are skipped; known good ones stay."""
    at = (8192, 8192, 8)
    wide = reasons(problem("attn_fwd_hopper", 128, at, ADDRESSING="descriptor"))
    config = "BLOCK_N={} CONSUMERS={} STAGES={} GROUP_ROUNDS=0 OUT_IN_Q={} Q_IN_REGISTERS={} EARLY_WAIT=0"
    config += " num_warps=4 maxnreg={}"
    assert "registers" in wide[config.format(128, 3, 2, 0, 0, 128)]
    assert "shared memory" in wide[config.format(128, 2, 4, 0, 0, 168)]
    assert "stage" in wide[config.format(64, 2, 2, 1, 0, 168)]
    assert "maxnreg" in wide[config.format(128, 2, 2, 0, 0, 128)]
    short = [
        dict(s.psels) for s in space(problem("attn_fwd_hopper", 64, (64, 64, 8), ADDRESSING="descriptor")).candidates
    ]
    assert {psels["CONSUMERS"] for psels in short} == {1}
    for head_dim, good in (
        (64, (128, 3, 4, 0, 0, 128)),
        (64, (128, 2, 4, 0, 1, 168)),
        (128, (128, 2, 2, 0, 1, 168)),
        (128, (128, 2, 3, 1, 0, 168)),
        (256, (64, 2, 2, 1, 0, 168)),
    ):
        found = space(problem("attn_fwd_hopper", head_dim, at, ADDRESSING="descriptor"))
        assert config.format(*good) in {spec.config for spec in found.candidates}


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
