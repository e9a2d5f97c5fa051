"""Claims about cost models: made-up timings whose formula is known are predicted, and what each image saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from random import Random
from statistics import median
from typing import Any

import numpy as np
import pytest
from fake_build import of_halves
from toy.rules import FAST, KERNEL, OPERATOR, WEIGH
from toy_database import spec

from aotriton.rules.database.rows import Model, Sample, SequenceTiming
from aotriton.rules.expression import Environment
from aotriton.rules.flash.backward import OPERATOR as ATTN_BWD
from aotriton.rules.flash.features import FULL, PLAIN
from aotriton.rules.flash.forward import OPERATOR as ATTN_FWD
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Backend, Operator
from aotriton.rules.savings import CERTAIN, Ways, savings
from aotriton.rules.work import FORM, TERMS, terms
from aotriton.tune.costmodel.fit import fit
from aotriton.tune.costmodel.least_squares import FEWEST, LEAST_TIME, models_of
from aotriton.tune.costmodel.timings import Observation, Timings, occupancy
from aotriton.tune.costmodel.worth import _of_same_backends, with_savings
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import scalars_of

PRODUCT, GPU = "stand-in", 132
FACTS = 128, 40000  # registers and bytes of shared memory


def fitted(
    operator: Operator, samples: Sequence[Sample], facts: Mapping[str, tuple[str, int, int]], multiprocessors: int
) -> list[Model]:
    """The models of one product's samples, with what the images save."""
    return with_savings(fit(operator, "sm_90", samples, facts, multiprocessors), operator, "sm_90")


@pytest.fixture(autouse=True)
def unrestricted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up images have any config, which restrictions may rule out."""
    monkeypatch.setattr(Functional, "ruled_out", lambda functional, cell, config: False)


Time = Callable[[float], float]  # what is measured in place of what it truly takes


def exactly(time: float) -> float:
    return time


@dataclass
class Machine:
    """A made-up GPU: each image has coefficients of its own, drawn by its name."""

    operator: Operator
    functional: Functional
    drawn: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def image(self, kernel: KernelDescription, place: int = 0, sizes: Mapping[str, int] | None = None) -> ImageSpec:
        """The first config of a kernel, or one after it; of calls of these sizes."""
        functional = kernel.like(self.functional, sizes)
        assert functional
        tunables, compile_options = of_halves(kernel, "cuda"), kernel.compile_option_values("cuda")
        made = ImageSpec.of(
            functional,
            {n: v[place % len(v)] for n, v in tunables.items()},
            {n: v[0] for n, v in compile_options.items()},
        )
        if made.name not in self.drawn:
            random = Random(made.name)
            per_step = random.uniform(0.5, 1.5)
            values = {"one": random.uniform(2, 6), "steps of the rounds": per_step}
            values |= {"programs, by multiprocessor": random.uniform(0.1, 0.5), "traffic, of the first kind": 2.0}
            self.drawn[made.name] = tuple(values.get(name, 0.0) for name in TERMS)
        return made

    def takes(self, made: ImageSpec, shape: Mapping[str, int]) -> float:
        return predicted(made, shape, self.drawn[made.name])

    def facts(self) -> dict[str, tuple[str, int, int]]:
        return {name: (config, *FACTS) for name, config in self.configs.items()}

    @property
    def configs(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for kernel in self.operator.kernels:
            if kernel.timed and kernel.like(self.functional):
                found |= {one.name: one.config for one in (self.image(kernel, place) for place in range(3))}
        return found

    def samples(
        self, sequences: Sequence[tuple[str, Sequence[ImageSpec]]], count: int, seed: int = 0, measured: Time = exactly
    ) -> list[Sample]:
        """Shapes of the family, on which all of these sequences of a backend are timed."""
        random, made = Random(seed), []
        own = tuning(self.functional.kernel.family)
        for _ in range(count):
            shape = dict(own.draw(self.functional, random))
            made.append(sample(self, shape, sequences, measured))
        return made


def sample(
    machine: Machine,
    shape: Mapping[str, int],
    sequences: Sequence[tuple[str, Sequence[ImageSpec]]],
    measured: Time = exactly,
    product: str = PRODUCT,
) -> Sample:
    timings = []
    for backend, images in sequences:
        time = measured(sum(machine.takes(one, shape) for one in images if one.functional.kernel.work))
        timings.append(SequenceTiming(backend, tuple(one.name for one in images), time, 0.0, 5))
    return Sample(product, machine.operator.name, str(machine.functional), dict(shape), 0, tuple(timings))


def predicted(made: ImageSpec, shape: Mapping[str, int], coefficients: Sequence[float]) -> float:
    work = made.functional.kernel.work
    assert work
    scalars = scalars_of(made.functional, shape)
    environment = Environment(dict(shape), scalars, dict(made.tunables), multiprocessors=GPU)
    return float(np.dot(terms(work, environment, occupancy(made, *FACTS)), coefficients))


def errors(
    machine: Machine, models: Sequence[Model], held_out: Sequence[Sample], specs: Sequence[ImageSpec]
) -> list[float]:
    """How far the sum of the models is off on sequences that they have not seen, relatively."""
    known = {model.image: model.coefficients for model in models}
    by_name = {one.name: one for one in specs}
    found = []
    for one in held_out:
        shape = {name: int(str(value)) for name, value in one.shape.items()}
        for timing in one.timings:
            parts = [by_name[name] for name in timing.images]
            time = sum(predicted(part, shape, known[part.name]) for part in parts)
            true = sum(machine.takes(part, shape) for part in parts)
            found.append(abs(time / true - 1))
    return found


def forward(level: int = PLAIN) -> Machine:
    values: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": 128, "CAUSAL": False, "ADDRESSING": "descriptor"}
    return Machine(ATTN_FWD, ATTN_FWD.lead.functional("sm_90", LEVEL=level, **values))


def backward(head_dim: int = 64) -> Machine:
    values: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": head_dim, "CAUSAL": True, "ADDRESSING": "descriptor"}
    return Machine(ATTN_BWD, ATTN_BWD.lead.functional("sm_90", **values))


def star(machine: Machine, backend: Backend, places: int = 3) -> list[tuple[str, list[ImageSpec]]]:
    """Sequences where one kernel after the other varies while the others have their first image."""
    first = [machine.image(kernel) for kernel in backend.timed_kernels]
    found = [(backend.name, first)]
    for place, kernel in enumerate(backend.timed_kernels):
        others = {machine.image(kernel, number).name: machine.image(kernel, number) for number in range(1, places)}
        others.pop(first[place].name, None)
        found += [(backend.name, [*first[:place], other, *first[place + 1 :]]) for other in others.values()]
    return found


def images_of(sequences: Sequence[tuple[str, Sequence[ImageSpec]]]) -> list[ImageSpec]:
    return list({one.name: one for _, images in sequences for one in images}.values())


def test_one_kernel_is_predicted() -> None:
    """From exact timings of a known formula, times on shapes that were not seen are right within 1 % at the worst, and
    the model says what it is of.
    """
    machine = forward()
    sequences = star(machine, ATTN_FWD.backends[0])
    models = fitted(ATTN_FWD, machine.samples(sequences, 120), machine.facts(), GPU)
    assert {model.image for model in models} == {one.name for one in images_of(sequences)}
    assert max(errors(machine, models, machine.samples(sequences, 60, seed=1), images_of(sequences))) < 0.01
    for model in models:
        assert (model.arch, model.product, model.operator) == ("sm_90", PRODUCT, "attn_fwd")
        assert (model.kernel, model.functional, model.form) == ("attn_fwd", str(machine.functional), FORM)
        assert (model.occupancy, model.samples, model.source) == (4, 120, "")
        assert len(model.coefficients) == len(TERMS)
        assert min(model.coefficients) >= 0
        assert model.error < 0.005
    assert [model.image for model in models] == sorted(model.image for model in models)


def test_kernels_of_a_sequence_are_told_apart() -> None:
    """From times of three kernels together, sums of them that were not seen together are right within 3 %: what a
    candidate of one of them takes is its own.
    """
    machine = backward()
    sequences = star(machine, ATTN_BWD.backends[0])
    models = fitted(ATTN_BWD, machine.samples(sequences, 120), machine.facts(), GPU)
    assert {model.kernel for model in models} == {kernel.name for kernel in ATTN_BWD.backends[0].timed_kernels}
    last = [("portable", [machine.image(kernel, 2) for kernel in ATTN_BWD.backends[0].timed_kernels])]
    off = errors(machine, models, machine.samples(last, 60, seed=1), images_of(sequences))
    assert median(off) < 0.01
    assert max(off) < 0.03


def test_what_serves_some_calls_of_a_functional_is_fitted_to_those() -> None:
    """An image of 96 columns is timed on calls of the lead's functional of 128 that fit in them: its model is of its
    own functional, predicts them within 1 %, and saves what the others lose there.
    """
    machine, slim = forward(), ATTN_FWD.backends[2]
    first = star(machine, ATTN_FWD.backends[0], 1)
    made = machine.image(slim.kernels[0], sizes={"head_dim": 96})
    samples = machine.samples(first, 240)
    fitting = [number for number, one in enumerate(samples) if int(str(one.shape["head_dim"])) <= 96]
    assert 30 < len(fitting) < 90
    for number in fitting:
        shape = {name: int(str(value)) for name, value in samples[number].shape.items()}
        samples[number] = sample(machine, shape, [*first, (slim.name, [made])])
    facts = machine.facts() | {made.name: (made.config, *FACTS)}
    models = fitted(ATTN_FWD, samples, facts, GPU)
    (own,) = (model for model in models if model.kernel == slim.kernels[0].name)
    assert own.functional == "T=bf16 BLOCK_DMODEL=96 CAUSAL=False ADDRESSING=descriptor"
    assert own.samples == len(fitting)
    assert own.error < 0.01
    assert own.saves > 0.01


def test_backends_share_what_a_kernel_takes() -> None:
    """A kernel of two backends has one model, fitted to the timings of both, and both are predicted."""
    machine = backward(256)
    portable, split = (
        next(one for one in ATTN_BWD.backends if one.name == name) for name in ("portable", "hopper_split")
    )
    shared = set(portable.kernels) & set(split.kernels)
    assert [kernel.name for kernel in shared] == ["attn_bwd_preprocess"]
    of_portable, of_split = star(machine, portable, 2), star(machine, split, 2)
    sequences = of_portable + of_split
    samples = machine.samples(sequences, 100)
    models = fitted(ATTN_BWD, samples, machine.facts(), GPU)
    (first,) = [model for model in models if model.image == machine.image(portable.kernels[0]).name]
    wide = sum(int(str(one.shape["head_dim"])) > 192 for one in samples)  # others have images of another width in split
    assert 0 < wide < 100
    with_first = [
        sum(first.image in [one.name for one in images] for _, images in of) for of in (of_portable, of_split)
    ]
    assert first.samples == 100 * with_first[0] + wide * with_first[1]
    assert max(errors(machine, models, machine.samples(sequences, 50, seed=1), images_of(sequences))) < 0.03


def test_noise_and_outliers_are_averaged_out() -> None:
    """With timings that are off by 3 % and every twentieth half as long, the median error is below 4 %."""
    machine, random = forward(), Random(7)

    def noisy(time: float) -> float:
        return time * random.gauss(1, 0.03) * (0.5 if random.random() < 0.05 else 1)

    sequences = star(machine, ATTN_FWD.backends[0])
    models = fitted(ATTN_FWD, machine.samples(sequences, 150, measured=noisy), machine.facts(), GPU)
    off = errors(machine, models, machine.samples(sequences, 60, seed=1), images_of(sequences))
    assert median(off) < 0.04
    assert all(0.01 < model.error < 0.06 for model in models)


def test_products_do_not_mix() -> None:
    """Timings of two products are an error that names both."""
    machine = forward()
    sequences = star(machine, ATTN_FWD.backends[0], 1)
    (one,) = machine.samples(sequences, 1)
    other = sample(machine, {str(n): int(str(v)) for n, v in one.shape.items()}, sequences, product="another")
    with pytest.raises(ValueError, match="timings of stand-in and of another do not compare"):
        fitted(ATTN_FWD, [one, other], machine.facts(), GPU)


def test_nothing_is_fitted_to_nothing() -> None:
    """Without a sample there is no model."""
    assert fitted(ATTN_FWD, [], {}, GPU) == []


def test_too_few_timings_give_no_model() -> None:
    """An image needs FEWEST timings: with one less it has none, and all others are as without it."""
    machine = forward()
    first, second, third = star(machine, ATTN_FWD.backends[0])
    many = machine.samples([first, second], 60)
    for count, expected in ((FEWEST - 1, 2), (FEWEST, 3)):
        few = machine.samples([third], count, seed=5)
        models = fitted(ATTN_FWD, many + few, machine.facts(), GPU)
        assert len(models) == expected
        assert {model.samples for model in models} == {60, count} - ({count} if expected == 2 else set())
    assert fitted(ATTN_FWD, machine.samples([first], FEWEST - 1), machine.facts(), GPU) == []


def test_a_sequence_with_an_unknown_part_tells_nothing_of_the_others() -> None:
    """Sequences with an image that has too few timings do not count for the other kernels in them."""
    machine = backward()
    sequences = star(machine, ATTN_BWD.backends[0])
    _, first = sequences[0]
    rare = ("portable", [first[0], machine.image(ATTN_BWD.backends[0].timed_kernels[1], 1), first[2]])
    plain = [one for one in sequences if one[1][1] is first[1]]
    assert 1 < len(plain) < len(sequences)
    many, few = machine.samples(plain, 80), machine.samples([rare], FEWEST - 1, seed=3)
    without, beside = (fitted(ATTN_BWD, one, machine.facts(), GPU) for one in (many, many + few))
    assert [replace(one, saves=0.0) for one in beside] == [replace(one, saves=0.0) for one in without]


def test_images_of_another_source_are_left_out() -> None:
    """Where the kernel's source has changed since, and where an image's config is not known any more, timings are of
    other images: they give no model and change nothing, what others save neither.
    """
    machine = forward()
    sequences = star(machine, ATTN_FWD.backends[0])
    current = machine.samples(sequences, 60)
    models = fitted(ATTN_FWD, current, machine.facts(), GPU)
    assert any(0 < model.saves < CERTAIN for model in models)

    def renamed(one: Sample) -> Sample:
        timings = [SequenceTiming(t.backend, (f"{t.images[0]}_old",), t.median_us * 3, 0.0, 5) for t in one.timings]
        return Sample(one.product, one.operator, one.functional, one.shape, 0, tuple(timings))

    old = [renamed(one) for one in machine.samples(sequences, 60, seed=2)]
    facts = machine.facts()
    facts |= {f"{name}_old": fact for name, fact in facts.items() if fact[0] != sequences[0][1][0].config}
    facts |= {f"{sequences[0][1][0].name}_old": ("BLOCK_Q=64", *FACTS)}  # a tunable that the kernel had once
    assert fitted(ATTN_FWD, old + current, facts, GPU) == models


def test_images_that_no_cell_may_have_get_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restrictions may be newer than timings."""
    machine = forward()
    sequences = star(machine, ATTN_FWD.backends[0])
    (_, (out, *_)), *_ = sequences
    config = dict(out.tunables + out.compile_options)
    monkeypatch.setattr(Functional, "ruled_out", lambda functional, cell, other: other == config)
    found = {one.image for one in fitted(ATTN_FWD, machine.samples(sequences, 60), machine.facts(), GPU)}
    assert found == {images[0].name for _, images in sequences} - {out.name}


def test_backends_of_another_time_are_left_out() -> None:
    """Timings of a backend that is not there any more, or has more kernels now, change nothing."""
    machine = forward()
    sequences = star(machine, ATTN_FWD.backends[0])
    current = machine.samples(sequences, 60)
    (_, (image, *_)), *_ = sequences
    timings = [SequenceTiming("gone", (image.name,), 1.0, 0.0, 5)]
    timings.append(SequenceTiming("portable", (image.name, image.name), 1.0, 0.0, 5))
    old = [Sample(PRODUCT, "attn_fwd", str(machine.functional), one.shape, 0, tuple(timings)) for one in current]
    assert fitted(ATTN_FWD, [*current, *old], machine.facts(), GPU)[0].coefficients == (
        fitted(ATTN_FWD, current, machine.facts(), GPU)[0].coefficients
    )


def test_what_an_image_saves_is_of_its_predicted_times() -> None:
    """The image without which nothing runs is certain; one that is never the fastest saves nothing."""
    machine = forward()
    sequences = star(machine, ATTN_FWD.backends[0])
    best, middle, worst = (images[0].name for _, images in sequences)
    for place, name in enumerate((best, middle, worst)):
        values = {"one": 5.0 - place, "steps of the rounds": 1.0 + place, "steps of the longest program": 0.1}
        machine.drawn[name] = tuple(values.get(term, 0.0) for term in TERMS)
    machine.drawn[worst] = tuple(10 * value for value in machine.drawn[best])
    found = {m.image: m.saves for m in fitted(ATTN_FWD, machine.samples(sequences, 80), machine.facts(), GPU)}
    assert found[worst] == pytest.approx(0, abs=1e-3)
    assert sorted(found.values())[-1] == CERTAIN


def test_what_an_image_saves_does_not_fade_with_calls_that_only_others_were_timed_on() -> None:
    """Of a backend that is always twice as fast: as much with ten times as many such calls as without."""
    machine = forward()
    (first,), later = star(machine, ATTN_FWD.backends[0], 1), machine.image(ATTN_FWD.backends[1].kernels[0])
    for made, time in ((first[1][0], 40.0), (later, 20.0)):
        machine.drawn[made.name] = tuple(time if term == "one" else 0.0 for term in TERMS)
    facts = machine.facts() | {later.name: (later.config, *FACTS)}
    both = machine.samples([first, (ATTN_FWD.backends[1].name, [later])], 40, seed=3)
    for before in (0, 400):
        models = fitted(ATTN_FWD, machine.samples([first], before) + both, facts, GPU)
        assert {m.image: m.saves for m in models}[later.name] == pytest.approx(1.0, abs=0.01)


def test_an_image_serves_calls_that_it_was_not_timed_on() -> None:
    """One that came later, and is always faster, is what nothing runs without; the first saves nothing beside it."""
    machine = forward()
    slow, fast, _ = star(machine, ATTN_FWD.backends[0])
    early, late = (images[0].name for _, images in (slow, fast))
    machine.drawn[early] = tuple({"one": 20.0, "steps of the rounds": 2.0}.get(term, 0.0) for term in TERMS)
    machine.drawn[late] = tuple(value / 2 for value in machine.drawn[early])
    samples = machine.samples([slow], 80) + machine.samples([slow, fast], 40, seed=3)
    found = {m.image: m.saves for m in fitted(ATTN_FWD, samples, machine.facts(), GPU)}
    assert found == {early: pytest.approx(0, abs=1e-3), late: CERTAIN}


@pytest.mark.parametrize(("level", "beside"), [(PLAIN, "hopper"), (FULL, "hopper_features")])
def test_the_first_backend_keeps_images_for_features_that_others_lack(level: int, beside: str) -> None:
    """Of two of its images, each faster on some calls, both save something there, though another backend is faster on
    all calls that were timed.
    """
    machine = forward(level)
    first, other = (next(one for one in ATTN_FWD.backends if one.name == name) for name in ("portable", beside))
    sequences = star(machine, first, 2)
    fastest = machine.image(other.kernels[0])
    for (_, (made, *_)), values in zip(sequences, ({"one": 50.0}, {"one": 1.0, "rounds": 30.0}), strict=True):
        machine.drawn[made.name] = tuple(values.get(term, 0.0) for term in TERMS)
    machine.drawn[fastest.name] = tuple({"one": 0.5}.get(term, 0.0) for term in TERMS)
    facts = machine.facts() | {fastest.name: (fastest.config, *FACTS)}
    found = fitted(ATTN_FWD, machine.samples([*sequences, (other.name, [fastest])], 80), facts, GPU)
    least = min(one.saves for one in found if one.image != fastest.name)
    assert (least > 0.01) == (level == FULL)


@pytest.mark.parametrize(("longest", "saves"), [(500, True), (4000, False)])
def test_an_image_saves_nothing_on_calls_that_its_kernel_refuses(longest: int, saves: bool) -> None:
    """Whole heads, timed as if always faster, save time where heads are short enough for them."""
    machine = backward(64)
    portable, heads = (
        next(one for one in ATTN_BWD.backends if one.name == name) for name in ("portable", "hopper_heads")
    )
    sequences = star(machine, portable, 1) + star(machine, heads, 1)
    own = machine.image(heads.kernels[-1])
    machine.drawn[own.name] = tuple(value / 100 for value in machine.drawn[own.name])
    made = []
    for i in range(4 * FEWEST):
        seqlen = longest - 3 * i
        shape = {
            "batch": 20 + i % 7,
            "heads_q": 16,
            "heads_k": 16,
            "seqlen_q": seqlen,
            "seqlen_k": seqlen,
            "head_dim": 64,
        }
        made.append(sample(machine, shape, sequences))
    found = {model.image: model.saves for model in fitted(ATTN_BWD, made, machine.facts(), GPU)}
    assert bool(found[own.name]) == saves


class ToyTuning:
    """Shapes of the made-up family."""

    def draw(self, functional: Functional, random: Random) -> tuple[tuple[str, int], ...]:
        sizes = {
            name: random.randrange(1, most)
            for name, most in (("batch", 9), ("heads", 40), ("rows", 3000), ("taps", 500))
        }
        return (*sizes.items(), ("width", int(functional["BLOCK_DMODEL"])))


@pytest.fixture
def toy_machine(toy: KernelDescription, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setitem(globals(), "tuning", lambda name: ToyTuning())
    monkeypatch.setattr("aotriton.tune.costmodel.timings.tuning", tuning)
    return Machine(OPERATOR, KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=32, ADDRESSING="descriptor"))


def test_a_kernel_without_work_takes_no_part(toy_machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is in that of the others in the sequence, which have models; it has none, and a backend of such kernels
    alone is not predicted.
    """
    portable, fast, split = OPERATOR.backends
    for kernel in (WEIGH, FAST):
        monkeypatch.setitem(vars(kernel), "work", None)
    sequences = [*star(toy_machine, portable, 2), *star(toy_machine, fast, 1)[:1], *star(toy_machine, split, 1)]
    samples = [sample_with(one, fast.name, 3.0) for one in toy_machine.samples(sequences, 80)]
    models = fitted(OPERATOR, samples, toy_machine.facts(), GPU)
    assert {model.kernel for model in models} == {"scale_rows", "scale_rows_apply"}
    assert CERTAIN in {model.saves for model in models}
    assert all(0 <= model.saves < inf for model in models)


def sample_with(one: Sample, backend: str, time: float) -> Sample:
    """The sample where sequences of a backend take so long."""
    timings = [
        SequenceTiming(t.backend, t.images, time if t.backend == backend else t.median_us, t.spread, t.rounds)
        for t in one.timings
    ]
    return Sample(one.product, one.operator, one.functional, one.shape, one.session, tuple(timings))


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "programs"),
    [
        (128, 4, 40000, 4),  # 16384 of 65536 registers each
        (129, 4, 1000, 3),  # in eights: 136 x 128
        (32, 4, 0, 16),  # 64 warps
        (32, 8, 0, 8),
        (24, 1, 0, 32),  # as many programs as there may be
        (0, 4, 0, 16),  # not told: one at least
        (32, 4, 57344, 4),  # 228 KiB, of which a program has 1 KiB more than it asks for
        (32, 4, 57345, 3),
        (255, 16, 231424, 1),
    ],
)
def test_occupancy_on_cuda(toy: KernelDescription, registers: int, warps: int, shared: int, programs: int) -> None:
    """By registers, in eights of a thread, by warps, by programs, by shared memory: the least of them, one at least."""
    functional = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=32, ADDRESSING="general")
    assert occupancy(spec(functional, 64, warps), registers, shared) == programs


def test_occupancy_of_a_persistent_kernel(toy: KernelDescription) -> None:
    """A Gluon kernel launches what it wants of them: nothing is packed."""
    functional = FAST.functional("sm_90", T="bf16", BLOCK_DMODEL=32, HAS_BIAS=False, ADDRESSING="descriptor")
    assert occupancy(spec(functional, 64), 32, 0) == 1


@pytest.mark.parametrize(
    ("registers", "shared", "programs"), [(64, 0, 8), (128, 0, 4), (512, 0, 1), (64, 16384, 4), (64, 65536, 1)]
)
def test_occupancy_on_hip(toy: KernelDescription, registers: int, shared: int, programs: int) -> None:
    """Four SIMDs with 512 registers to a lane and 8 waves at most, for programs of 4 waves, and 64 KiB shared."""
    functional = KERNEL.functional("gfx942", T="bf16", BLOCK_DMODEL=32, ADDRESSING="general")
    assert occupancy(spec(functional, 64, 0), registers, shared) == programs


Times = Mapping[str, Sequence[Mapping[tuple[str, str], np.ndarray]]]


def ways(predicted: Times) -> list[list[list[dict[tuple[str, str], float]]]]:
    """Call by call; an image that takes infinitely long does not serve the call."""
    count = len(next(iter(next(iter(predicted.values()))[0].values())))
    return [
        [
            [{image: float(row[call]) for image, row in images.items() if row[call] < inf} for images in kernels]
            for kernels in predicted.values()
        ]
        for call in range(count)
    ]


def saved(predicted: Times, first: str) -> dict[tuple[str, str], float]:
    """What each image saves to one group of calls, where a backend must keep an image for each of its kernels."""
    return savings([ways(predicted)], list(predicted.values()), predicted[first])


def some_times(
    random: Random, backends: Mapping[str, Sequence[int]], calls: int = 6
) -> dict[str, list[dict[tuple[str, str], np.ndarray]]]:
    """Of so many images of each kernel of each backend."""
    return {
        name: [
            {
                (f"{name} kernel {k}", f"{name}_{k}_{i}"): np.array([random.uniform(1, 9) for _ in range(calls)])
                for i in range(n)
            }
            for k, n in enumerate(counts)
        ]
        for name, counts in backends.items()
    }


def counted(predicted: Times, first: str) -> Iterator[tuple[set[tuple[str, str]], float]]:
    """What goes, and what it costs, one after the other: by all ways to run a call, one by one."""

    def mean(left: set[tuple[str, str]]) -> float:
        ratios = []
        for call in range(6):
            ways = [
                sum(float(kernels[k][image][call]) for k, image in enumerate(one))
                for kernels in predicted.values()
                for one in product(*kernels)
            ]
            now = [
                sum(float(kernels[k][image][call]) for k, image in enumerate(one))
                for kernels in predicted.values()
                for one in product(*kernels)
                if set(one) <= left
            ]
            ratios.append(min(now) / min(ways))
        return sum(ratios) / len(ratios)

    def runs(kernels: Sequence[Mapping[tuple[str, str], np.ndarray]], left: set[tuple[str, str]]) -> bool:
        return all(any(image in left for image in images) for images in kernels)

    left = {image for kernels in predicted.values() for images in kernels for image in images}
    while candidates := [one for one in sorted(left) if runs(predicted[first], left - {one})]:
        before = mean(left)
        loss, gone = min((mean(left - {one}) - before, one) for one in candidates)
        of_running = {
            image
            for kernels in predicted.values()
            if runs(kernels, left - {gone})
            for images in kernels
            for image in images
        }
        stay = (left - {gone}) & of_running
        yield left - stay, loss
        left = stay
    yield left, CERTAIN


@pytest.mark.parametrize("seed", range(8))
def test_savings_are_those_of_dropping_one_by_one(seed: int) -> None:
    """On small sets, what each image saves is how much longer calls take by all ways to run them when it goes."""
    shapes: list[dict[str, list[int]]] = [
        {"a": [4]},
        {"a": [3], "b": [2]},
        {"a": [2, 3], "b": [1, 2]},
        {"a": [2], "b": [2], "c": [1, 1]},
    ]
    predicted = some_times(Random(seed), shapes[seed % len(shapes)])
    wanted = {image: loss for gone, loss in counted(predicted, "a") for image in gone}
    assert saved(predicted, "a") == pytest.approx(wanted, abs=1e-12)


def test_a_backend_that_loses_its_last_image_takes_its_others_with_it() -> None:
    """Without the one image of its second kernel a backend cannot run: its first kernel's save as much as that."""
    fast, slow = np.array([2.0, 2.0]), np.array([5.0, 5.0])
    other = [{("x", "x1"): fast / 2, ("x", "x2"): fast / 2}, {("y", "y1"): fast / 2}]
    found = saved({"first": [{("a", "a1"): slow}], "other": other}, "first")
    assert found == {("a", "a1"): CERTAIN, ("x", "x1"): 0, ("x", "x2"): 1.5, ("y", "y1"): 1.5}


def test_the_last_images_of_the_first_backend_are_certain() -> None:
    """One for each of its kernels stays whatever the others save; of equal ones that whose name comes last."""
    same = np.array([1.0])
    found = saved(
        {"first": [{("a", "a1"): same, ("a", "a2"): same}, {("b", "b1"): same * 9}], "fast": [{("c", "c1"): same}]},
        "first",
    )
    assert found == {("a", "a1"): 0, ("a", "a2"): CERTAIN, ("b", "b1"): CERTAIN, ("c", "c1"): 9}


def test_what_calls_need_is_certain() -> None:
    """Where images were timed on different calls, each without which a call has none left is certain and goes last,
    even where another one is faster; a call that nothing serves says nothing.
    """
    apart = {("a", "old"): np.array([1.0, 1.0, inf, inf]), ("a", "new"): np.array([inf, 2.0, 2.0, inf])}
    assert saved({"first": [apart]}, "first") == {("a", "old"): CERTAIN, ("a", "new"): CERTAIN}
    most = {("a", "all"): np.array([3.0, 3.0, 3.0, inf]), ("a", "one"): np.array([1.0, inf, inf, inf])}
    assert saved({"first": [most]}, "first") == {("a", "one"): pytest.approx(2 / 3), ("a", "all"): CERTAIN}
    assert saved({"first": [{("a", "none"): np.array([inf, inf])}]}, "first") == {}


def test_no_image_takes_no_time() -> None:
    """A predicted time of 0 is one that is not known, and with it its backend's. Where a sequence takes no longer than
    one of its images, another has the least time.
    """
    machine, timings = backward(), Timings(GPU)
    large, small = (machine.image(kernel) for kernel in ATTN_BWD.backends[0].timed_kernels[1:])
    own = tuning("flash")
    random = Random(0)
    for _ in range(FEWEST):
        shape = dict(own.draw(machine.functional, random))
        call = timings.add_call(machine.functional, shape)
        parts = [
            (key, timings.row(key, call))
            for key in (timings.add_image(one, (one.config, *FACTS)) for one in (large, small))
        ]
        time = machine.takes(large, shape)
        timings.observations += [Observation((parts[0],), time), Observation(tuple(parts), 0.8 * time)]
    of_image = {model.image: model for model in models_of(timings.observations, timings, ATTN_BWD, "sm_90", PRODUCT)}
    assert of_image[small.name].coefficients == (LEAST_TIME, *(0.0,) * (len(TERMS) - 1))


def test_what_a_later_session_left_out_has_no_model() -> None:
    """Where that timed others of its functional; where it timed one alone, as for calls of another level, all stay."""
    machine = forward()
    one, two, three = (machine.image(ATTN_FWD.lead, place) for place in range(3))

    def fitted_of(*later: ImageSpec) -> set[str]:
        first = machine.samples([("portable", [image]) for image in (one, two, three)], FEWEST)
        second = machine.samples([("portable", [image]) for image in later], FEWEST, seed=1)
        found = fitted(ATTN_FWD, [*first, *(replace(sample, session=1) for sample in second)], machine.facts(), GPU)
        return {model.image for model in found}

    assert fitted_of(one, two) == {one.name, two.name}
    assert fitted_of(one) == {one.name, two.name, three.name}


def test_of_images_that_are_as_good_the_one_stays_that_another_group_needs() -> None:
    """Apart, each group keeps one by name or by a hair; what an image saves is what the group loses that loses most."""
    one, two = ("a", "one"), ("a", "two")
    first = {"a": [{one: np.array([1.0]), two: np.array([1.0001])}]}
    second = {"a": [{one: np.array([2.0]), two: np.array([1.0])}]}
    assert saved(first, "a") == {one: CERTAIN, two: 0}
    assert saved(second, "a") == {one: 0, two: CERTAIN}
    together = savings([ways(first), ways(second)], [first["a"], second["a"]], [first["a"][0], second["a"][0]])
    assert together == {one: pytest.approx(1e-4), two: CERTAIN}


def test_each_product_needs_what_serves_its_calls() -> None:
    """One image each, though the other would do by its models; calls of one product count among themselves."""
    one, two = ("a", "one"), ("a", "two")
    first = {"a": [{one: np.array([1.0] * 8)}]}
    second = {"a": [{one: np.array([1.5, 1.0]), two: np.array([1.0, 1.0])}]}
    together = savings([ways(first), ways(second)], [first["a"], second["a"]], [first["a"][0], second["a"][0]])
    assert together == {one: CERTAIN, two: 0.25}


def test_calls_that_other_backends_serve_do_not_hide_what_an_image_saves() -> None:
    """At levels with features: of ten calls eight decode, and run on another backend."""
    long, wide, split = (("kernel", name) for name in ("long", "wide", "split"))
    calls: list[Ways] = [[[{long: 1.0, wide: 1.01}], [{}]], [[{long: 1.02, wide: 1.0}], [{}]]]
    calls += [[[{long: 4.0, wide: 4.0}], [{split: 1.0}]]] * 8
    backends, needed = [[{long, wide}], [{split}]], [{long, wide}]
    together, apart = (savings(groups, backends, needed) for groups in ([calls], _of_same_backends(calls)))
    assert together[long] == pytest.approx(0.01 / 10)
    assert apart[long] == pytest.approx(0.01 / 2)
