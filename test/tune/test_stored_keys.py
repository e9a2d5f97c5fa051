"""Keys and values as caches hold them, for the tuner: inputs of 8 bits and in pages, what is right of them, and what is
measured.
"""

from __future__ import annotations

from random import Random

import pytest

from aotriton.rules.family import operator as operator_named
from aotriton.rules.flash.split import ATTN_FWD_DECODE, ATTN_FWD_SPLIT, OF_CACHES, OF_FP8, OF_PAGES, Keys
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.tune.flash.tuning import FlashTuning
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.problems import Wish, is_served, problems, scalars_of

KERNELS = ATTN_FWD_DECODE, ATTN_FWD_SPLIT
OWN = FlashTuning()
OF_ARCH = {"sm_90": (Keys.fp8e4nv, Keys.pages_fp8e4nv), "gfx942": (Keys.fp8e4b8, Keys.pages_fp8e4b8)}


def functional_of(keys: Keys, kernel: KernelDescription = ATTN_FWD_DECODE, head_dim: int = 64) -> Functional:
    arch = "gfx942" if "fp8e4b8" in str(keys) else "sm_90"
    addressing = {"sm_90": "descriptor", "gfx942": "offset32"}[arch]
    return kernel.functional(arch, T="bf16", BLOCK_DMODEL=head_dim, CAUSAL=False, ADDRESSING=addressing, KEYS=keys)


@pytest.mark.parametrize("arch", OF_ARCH)
def test_levels_of_8_bits_are_measured_where_rows_of_16_are(arch: str) -> None:
    """In the same cells, at the same shapes; pages of 16 bits only where they are asked for."""
    found = [(p.kernel.name, p.functional, p.bin, p.shape_text) for p in problems(KERNELS, arch, 132, Wish())]
    by_level = {
        keys: {(kernel, str(one.plain), *rest) for kernel, one, *rest in found if one.level == keys} for keys in Keys
    }
    assert {keys for keys, own in by_level.items() if own} == {Keys.rows, *OF_ARCH[arch]}
    assert len({frozenset(own) for own in by_level.values() if own}) == 1
    asked = problems(KERNELS, arch, 132, Wish({"KEYS": [Keys.pages]}))
    assert {(p.kernel.name, str(p.functional.plain), p.bin, p.shape_text) for p in asked} == by_level[Keys.rows]
    assert {p.functional.level for p in asked} == {Keys.pages}


def test_few_warps_are_candidates_of_few_rows_alone() -> None:
    """One and two warps, two and three stages, and steps of 32 and 64 keys are candidates of each cell of decoding from
    pages; rows of 16 bits have none of these warps.
    """
    for one in problems(KERNELS, "sm_90", 132, Wish({"KEYS": [Keys.rows, Keys.pages]})):
        configs = {(c["num_warps"], c["num_stages"], c["BLOCK_N"], c["BLOCK_M"]) for c in
                   (dict(spec.tunables + spec.compile_options) for spec in space(one).candidates)}  # fmt: skip
        few = {config for config in configs if config[0] < 4}
        assert bool(few) == bool(one.functional.level), one
        if one.functional.level and one.kernel is ATTN_FWD_DECODE:
            assert {(w, s, n, 16) for w in (1, 2, 4) for s in (2, 3) for n in (32, 64)} <= configs, one


def test_a_step_of_8_bits_has_as_many_bytes_as_registers_hold() -> None:
    """Of few rows on Hopper: 16 KiB of keys or half of them, and 16 keys or more of each warp, in any search. Other
    kernels have no step of 256 keys.
    """
    steps = {256: {64}, 128: {64, 128}, 64: {128, 256}, 32: {256}}
    found = problems([ATTN_FWD_DECODE], "sm_90", 132, Wish({"KEYS": [*OF_ARCH["sm_90"]]}))
    assert {one.functional.level for one in found} == {*OF_ARCH["sm_90"]}
    for one in found:
        configs = [dict(spec.tunables + spec.compile_options) for spec in space(one).candidates]
        assert {c["BLOCK_N"] for c in configs} == steps[int(one.functional["BLOCK_DMODEL"])], one
        assert {(c["num_warps"], c["num_stages"]) for c in configs} == {(4, 2)}
        rich = [dict(spec.tunables + spec.compile_options) for spec in space(one, rich=True).candidates]
        assert all(c["BLOCK_N"] >= 16 * c["num_warps"] and c["num_stages"] == 2 for c in rich)
    for one in problems([ATTN_FWD_DECODE], "sm_90", 132, Wish({"KEYS": [Keys.rows, Keys.pages]})):
        assert max(dict(spec.tunables)["BLOCK_N"] for spec in space(one).candidates) <= 128


@pytest.mark.parametrize("keys", OF_CACHES[1:], ids=str)
def test_calls_are_drawn_that_a_backend_serves(keys: Keys) -> None:
    """By their sizes; each is served by one of the kernels, or by both of up to 64 rows of 8 bits on Hopper, both have
    some; columns fill vectors, rows fill pages.
    """
    random, served = Random(1), [0, 0]
    for head_dim in (32, 256):
        functionals = [functional_of(keys, kernel, head_dim) for kernel in KERNELS]
        for _ in range(100):
            sizes = dict(OWN.draw(functionals[0], random))
            by = [is_served(one, sizes, 132) for one in functionals]
            rows = sizes["seqlen_q"] * sizes["heads_q"] // sizes["heads_k"]
            assert sum(by) == 1 + (keys in OF_ARCH["sm_90"] and 16 < rows <= 64), sizes
            served = [a + b for a, b in zip(served, by, strict=True)]
            assert sizes["head_dim"] % (16 if keys in OF_FP8 else 8) == 0
            assert sizes["head_dim"] <= head_dim
            assert not (keys in OF_PAGES and sizes["seqlen_k"] % 64)
    assert min(served) > 20


def test_scalars_are_those_of_a_call_that_hides_nothing() -> None:
    """Rows count from the first key; of pages the kernel finds lengths, which the number of splits follows."""
    sizes = {"batch": 2, "heads_q": 8, "heads_k": 2, "seqlen_q": 3, "seqlen_k": 640, "head_dim": 64}
    narrow = scalars_of(functional_of(Keys.fp8e4nv), sizes)
    assert (narrow["level"], narrow["lo"], narrow["hi"], narrow["features"]) == (4, -3, 640, 0)
    paged = scalars_of(functional_of(Keys.pages_fp8e4nv), sizes)
    assert (paged["level"], paged["lo"], paged["hi"], paged["features"]) == (6, -640, 640, 1024 + 16)
    assert scalars_of(functional_of(Keys.rows), sizes)["level"] == 0


def test_samples_are_named_by_leads() -> None:
    """A functional of a level that the lead lacks is the first kernel's that has it; others are the lead's."""
    operator = operator_named("attn_fwd")
    assert [one.name for one in operator.leads] == ["attn_fwd", "attn_fwd_decode"]
    lead = operator.lead.functional("sm_90", T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor")
    for own in (functional_of(Keys.fp8e4nv), lead):
        assert operator.sampled_functional("sm_90", str(own)) == own
    names = [one.name for one in operator.serving(functional_of(Keys.fp8e4nv))]
    assert {"decode", "split"} <= set(names)
    assert "portable" not in names
    assert operator.serving(next(iter(operator.lead.functionals("sm_90")))) == operator.backends
