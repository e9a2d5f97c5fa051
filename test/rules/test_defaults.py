"""Claims about defaults: a description grows, and what was written of it before is found as it was."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from toy.rules import HAS_BIAS, KERNEL, PORTABLE
from toy_database import cells, session_on

from aotriton.codegen.compile_pool import request_of
from aotriton.codegen.generate import write
from aotriton.codegen.plan import PlanError, plan
from aotriton.codegen.read_database import products_in, read
from aotriton.rules.borrow import siblings
from aotriton.rules.database import Measurement, TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription, Parameter, by_vendor, parse_functional
from aotriton.rules.operators import Backend, Operator
from aotriton.tune.problem.candidates import configs
from aotriton.tune.winners.decide import decide

NEW = ("HAS_BIAS", "UNROLL")

# The kernel of the family as it was before it had a bias and a loop to unroll.
OLD = replace(
    KERNEL,
    arguments=tuple(one for one in KERNEL.arguments if one.name not in NEW),
    choices=tuple(one for one in KERNEL.choices if one.name not in NEW),
    tunables=tuple(one for one in KERNEL.tunables if one.name not in NEW),
    schedule=None,
)
# And as it may be one day: a choice in the midst of the others, a tunable and a compile option in front of the others.
GROWN = replace(
    KERNEL,
    choices=tuple(replace(one, small=False) if one == HAS_BIAS else one for one in KERNEL.choices),
    tunables=KERNEL.tunables[::-1],
    compile_options=(*by_vendor({"num_stages": 2}, cuda={"num_stages": (2, 3)}), *KERNEL.compile_options),
)
GROWTH = pytest.mark.parametrize("kernel", [KERNEL, GROWN], ids=["one choice and tunable", "a compile option, too"])


def operator(kernel: KernelDescription) -> Operator:
    return replace(PORTABLE, backends=(Backend("portable", (kernel,)),))


def same(kernel: KernelDescription, old: Functional) -> Functional:
    """What the functional of the old kernel is today."""
    found = kernel.like(old)
    assert found
    return found


@GROWTH
def test_texts_and_names_stay(toy: KernelDescription, kernel: KernelDescription) -> None:
    """Functionals and configs are spelled as before, each old spelling is read back, and images keep their names."""
    for arch in OLD.archs:
        for functional in OLD.functionals(arch):
            now = same(kernel, functional)
            assert now["HAS_BIAS"] is False
            assert str(now) == str(functional)
            assert parse_functional(kernel, arch, str(functional)) == now
            for spec in configs(functional):
                today = ImageSpec.parse(now, spec.config)
                assert today.config == spec.config
                assert today.name == spec.name
                assert dict(today.tunables)["UNROLL"] == 1


@GROWTH
def test_other_values_have_other_texts_and_names(toy: KernelDescription, kernel: KernelDescription) -> None:
    """What is not at its default is spelled, and no two images have one name."""
    functional = kernel.functional("sm_90", T="bf16", BLOCK_DMODEL=32, ADDRESSING="general")
    other = kernel.functional("sm_90", T="bf16", BLOCK_DMODEL=32, HAS_BIAS=True, ADDRESSING="general")
    assert str(other) == "T=bf16 BLOCK_DMODEL=32 HAS_BIAS=True ADDRESSING=general"
    assert parse_functional(kernel, "sm_90", str(other)) == other
    with pytest.raises(ValueError, match="is not a functional"):
        parse_functional(kernel, "sm_90", "T=bf16 BLOCK_DMODEL=32 HAS_BIAS=False ADDRESSING=general")
    specs = [*configs(functional), *configs(other)]
    assert len({spec.name for spec in specs}) == len(specs)
    assert len({spec.config for spec in configs(functional)}) == len(specs) / 2
    assert sum("UNROLL=2" in spec.config for spec in specs) == len(specs) / 2


def test_a_default_reaches_the_compiler(toy: KernelDescription) -> None:
    """Though names leave it out: the request of an image has every constexpr and every option."""
    spec = ImageSpec.of(next(GROWN.functionals("sm_90")), {"BLOCK_M": 64}, {"num_warps": 4})
    request = spec.compiler_request()
    assert request["constexprs"]["UNROLL"] == 1
    assert request["constexprs"]["HAS_BIAS"] is False
    assert request["options"]["num_stages"] == 2
    assert request_of(spec)["tunables"] == {"UNROLL": 1, "BLOCK_M": 64}


def test_a_compile_option_of_another_vendor_is_none(toy: KernelDescription) -> None:
    """A default does not bring an option to a vendor that has not the parameter."""
    spec = ImageSpec.of(next(GROWN.functionals("gfx942")), {"BLOCK_M": 64}, {"num_warps": 4, "waves_per_eu": 0})
    assert "num_stages" not in spec.compiler_request()["options"]
    with pytest.raises(ValueError, match=r"scale_rows gfx942: expected \['num_warps', 'waves_per_eu'\]"):
        ImageSpec.of(spec.functional, {"BLOCK_M": 64}, {"num_warps": 4, "waves_per_eu": 0, "num_stages": 2})


def measured(path: Path) -> None:
    """A database of the old kernel on sm_90: three images in every bin of every functional, and its winners."""
    with TuningDatabase(path) as database:
        session = session_on(database)
        for functional in OLD.functionals("sm_90"):
            for place, cell in enumerate(cells(functional)):
                problem = database.evidence.problem_id("sm_90", OLD.name, str(functional), cell, {"rows": 64})
                for rank, spec in enumerate(list(configs(functional))[:3]):
                    image = database.evidence.image_id(
                        spec.name, spec.config, sha256(spec.name.encode()).hexdigest(), 1, 0, 1
                    )
                    median = 10.0 + (rank + place) % 3
                    database.evidence.record(Measurement(problem, image, session, "sweep", "ok", median, [median]))
            database.put_winners(decide([functional], database.evidence.outcomes(), database.evidence.samples_of))


@GROWTH
def test_measurements_decide_as_before(toy: KernelDescription, kernel: KernelDescription, tmp_path: Path) -> None:
    """The winners that follow from a database of before are those that it has, and other values borrow nothing."""
    measured(tmp_path / "db")
    with TuningDatabase(tmp_path / "db") as database:
        before = database.winners()
        for functional in OLD.functionals("sm_90"):
            found = [
                w
                for w in decide(
                    siblings(same(kernel, functional)), database.evidence.outcomes(), database.evidence.samples_of
                )
            ]
            own = [winner for winner in found if winner.functional == str(functional)]
            assert sorted(own, key=lambda w: w.bin) == [w for w in before if w.functional == str(functional)]
        with_bias = kernel.functional("sm_90", T="bf16", BLOCK_DMODEL=32, HAS_BIAS=True, ADDRESSING="general")
        assert decide(siblings(with_bias), database.evidence.outcomes(), database.evidence.samples_of) == []


@GROWTH
def test_old_rows_make_the_same_build(toy: KernelDescription, kernel: KernelDescription, tmp_path: Path) -> None:
    """Where only old functionals are asked for, plan and generator find a winner for every cell: the same images, with
    the same evidence, and nothing is called out of date.
    """
    measured(tmp_path / "db")
    small = replace(kernel, choices=GROWN.choices)
    made = {}
    for name, description in (("old", OLD), ("new", small)):
        with TuningDatabase(tmp_path / "db", readonly=True) as opened:
            products = products_in([opened], ["sm_90"])
            winners, timings, checksums, spills = read(opened, [description], products)
        made[name] = plan([operator(description)], products, "small", winners, timings, spills)
        write(made[name], [operator(description)], tmp_path / name, checksums)
    (old,), (new,) = made["old"].tables, made["new"].tables
    assert list(old.images) == list(new.images)
    for one, other in zip(old.functionals, new.functionals, strict=True):
        for cell, now in zip(one.cells, other.cells, strict=True):
            assert (now.image, now.provenance, now.source) == (cell.image, "measured", "")
            assert (now.median_us, now.runners_up) == (cell.median_us, cell.runners_up)
    text = (tmp_path / "new" / "scale_rows.sm_90.lut.cc").read_text()
    assert "// T=bf16 BLOCK_DMODEL=64 ADDRESSING=general" in text
    assert "HAS_BIAS" not in text


def test_only_the_new_is_missing(toy: KernelDescription, tmp_path: Path) -> None:
    """Of all functionals, those of the new value have no winner, and the command that fills them names it."""
    measured(tmp_path / "db")
    with TuningDatabase(tmp_path / "db", readonly=True) as opened:
        products = products_in([opened], ["sm_90"])
        winners, timings, *_ = read(opened, [KERNEL], products)
    with pytest.raises(PlanError) as caught:
        plan([operator(KERNEL)], products, "default", winners, timings)
    *missing, _, command = str(caught.value).splitlines()
    assert len(missing) == 4
    assert all("HAS_BIAS=True" in line and line.endswith("no winner in any bin") for line in missing)
    assert " --bias " in command


def test_a_default_may_not_be_among_the_values() -> None:
    """A kernel that another vendor's tuner may vary has its default there, though it has no values of its own."""
    unroll = Parameter("UNROLL", {"cuda": (2, 4)}, default=1)
    kernel = replace(KERNEL, tunables=(KERNEL.tunables[0], unroll))
    assert kernel.tunable_values("hip") == {"BLOCK_M": (32, 64)}
    functional = next(kernel.functionals("gfx942"))
    assert ImageSpec.of(functional, {"BLOCK_M": 32}, {"num_warps": 4, "waves_per_eu": 0}).tunables[1] == ("UNROLL", 1)
