"""The audit of the database that ships: what it calls measured was measured so, and its models are sound."""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from aotriton.rules.arch import ARCHS
from aotriton.rules.binning import bin_text
from aotriton.rules.database import TuningDatabase, timings_of
from aotriton.rules.database.rows import CONTRADICTION, Model, Outcome, Product, Sample, Winner
from aotriton.rules.family import IN_TREE, family
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import KernelDescription, parse_functional
from aotriton.rules.work import FORM, TERMS
from aotriton.tune.costmodel.least_squares import FEWEST
from aotriton.tune.measure.clock import interval
from aotriton.tune.problem.family import tuning
from aotriton.tune.winners.audit import audit

RENAMED = Path(__file__).resolve().parents[1] / "data" / "renamed_images.tsv.xz"
DATABASE = Path(__file__).resolve().parents[2] / "rules" / "tuning_database.sqlite3"
LARGEST_ERROR = 0.004  # of a result in bf16, which rounds by 2^-9 of each element
LARGEST_OF_8_BITS = 0.03  # of one that was rounded to 8 bits, by 2^-4 of each
OF_8_BITS = ("attn_fwd_hopper_fp8", "kv_append")  # weights, or what is written to a cache
MOST_ERROR, MOST_ERROR_OF_GUESS = 0.15, 0.2  # of a model, in the median: against timings, against the static model
MOST_LUCK = 1.1  # of a sweep, against a race of others

KERNELS = {kernel.name: kernel for name in IN_TREE for kernel in family(name).kernels}
OPERATORS = {operator.name: operator for name in IN_TREE for operator in family(name).operators}

Cell = tuple[str, str, str, str, str]  # arch, product, kernel, functional, bin


@dataclass(frozen=True)
class Content:
    """All rows that the claims are about; ``samples`` with the arch before each."""

    winners: tuple[Winner, ...]
    products: tuple[Product, ...]
    models: tuple[Model, ...]
    samples: tuple[tuple[str, Sample], ...]
    outcomes: Mapping[Cell, list[Outcome]]
    facts: Mapping[str, tuple[str, int, int]]
    spills: Mapping[str, int]

    @property
    def measured(self) -> list[Winner]:
        return [row for row in self.winners if row.provenance == "measured"]


@pytest.fixture(scope="module")
def content() -> Content:
    with TuningDatabase(DATABASE, readonly=True) as database:
        outcomes: dict[Cell, list[Outcome]] = {}
        for one in database.evidence.outcomes():
            if one.status == "ok":
                outcomes.setdefault((one.arch, one.product, one.kernel, one.functional, one.bin), []).append(one)
        samples = [
            (row.arch, one) for row in ARCHS for name in OPERATORS for one in database.evidence.samples(row.arch, name)
        ]
        found = Content(
            tuple(database.winners()), tuple(database.products()), tuple(database.models()), tuple(samples),
            outcomes, database.evidence.facts(), database.evidence.spills(),
        )  # fmt: skip
    assert found.measured, "nothing is measured"
    return found


def cell_of(row: Winner) -> Cell:
    return row.arch, row.product, row.kernel, row.functional, row.bin


def timings(content: Content, row: Winner) -> list[Outcome]:
    """The timings that the winner may be."""
    return timings_of(row, content.outcomes.get(cell_of(row), []))


def told(row: Winner) -> str:
    return f"{row.product} {row.kernel} {row.functional} {row.bin} {row.image}"


@cache
def image_name(kernel: KernelDescription, arch: str, functional: str, config: str) -> str:
    return ImageSpec.parse(parse_functional(kernel, arch, functional), config).name


def test_the_audit_finds_nothing() -> None:
    """Winners are measured with today's source, and what ``--decide`` and ``--fit`` can mend is mended."""
    with TuningDatabase(DATABASE, readonly=True) as database:
        assert [str(one) for one in audit(database)] == []


def test_a_measured_winner_is_one_timing(content: Content) -> None:
    """Its image, shape, median, day and product are those of one timing, in a session on that very product."""
    assert [told(row) for row in content.measured if not timings(content, row)] == []


def test_no_measured_winner_rests_on_a_race_that_contradicts_its_sweep(content: Content) -> None:
    """Where its timing is of a race at a clock that is not known, no racer of that session took CONTRADICTION times
    what it took in the sweep, or the other way round: the GPU was another one then, or not alone, or the host was slow.
    """
    wrong, raced = [], 0
    for row in content.measured:
        cell = [one for one in content.outcomes[cell_of(row)] if one.shape == row.shape]
        sound = []
        for timing in timings(content, row):
            session = [one for one in cell if one.session == timing.session]
            swept = {one.image: one.median_us or 0.0 for one in session if one.phase == "sweep"}
            ratios = [
                (one.median_us or 0.0) / swept[one.image]
                for one in session
                if one.phase == "race" == timing.phase and one.image in swept and one.sm_clock is None
            ]
            raced += bool(ratios)
            sound.append(all(1 / CONTRADICTION <= ratio <= CONTRADICTION for ratio in ratios))
        wrong += [] if any(sound) else [told(row)]
    assert wrong == []
    assert raced > 100


def test_no_measured_winner_is_slower_than_its_runner_up_beyond_its_interval(content: Content) -> None:
    """The fastest of those that were timed as it was, in the race or in the sweep, beats it by no more than their
    intervals leave open; a sweep that was faster than the race that it took no part in was by less than MOST_LUCK.
    """
    beaten, slower = [], 0
    with TuningDatabase(DATABASE, readonly=True) as database:
        for row in content.measured:
            phases = {one.phase for one in timings(content, row)}
            before = {config: time for config, time in row.runners_up if time < (row.low_us or row.median_us)}
            cell = [one for one in content.outcomes[cell_of(row)] if one.shape == row.shape]
            faster = [one for one in cell if before.get(one.config) == one.median_us]
            alike = [one for one in faster if one.phase in phases]
            slower += bool(before)
            if alike:
                fastest = min(alike, key=lambda one: one.median_us or 0.0)
                beaten += [told(row)] if interval(database.evidence.samples_of(fastest.id))[1] < row.low_us else []
            elif before and row.median_us > MOST_LUCK * min(before.values()):
                beaten.append(told(row))
    assert beaten == []
    assert slower < len(content.measured) / 50


def test_the_interval_of_a_winner_is_around_its_median_and_of_its_samples(content: Content) -> None:
    """Where there is one, it holds the median, and the samples of the winner's timing give it."""
    with TuningDatabase(DATABASE, readonly=True) as database:
        for row in content.measured:
            if not row.high_us:
                continue
            assert row.low_us <= row.median_us <= row.high_us, told(row)
            given = [interval(database.evidence.samples_of(one.id)) for one in timings(content, row)]
            assert any(one == pytest.approx((row.low_us, row.high_us), rel=1e-3) for one in given), told(row)


def test_runners_up_were_timed_in_the_same_cell(content: Content) -> None:
    """Each of them in this shape, on this product, in the time that is told."""
    for row in content.measured:
        known = {(one.config, one.median_us) for one in content.outcomes[cell_of(row)] if one.shape == row.shape}
        for config, time in row.runners_up:
            assert any(c == config and t == pytest.approx(time, rel=1e-4) for c, t in known), f"{told(row)}: {config}"


def test_every_product_is_known(content: Content) -> None:
    """Winners, models and samples are of products of their arch, which a session or a description names."""
    known = {(one.arch, one.name) for one in content.products} | {(row.arch, row.product) for row in ARCHS}
    rows = [(row.arch, row.product) for row in content.winners]
    rows += [(row.arch, row.product) for row in content.models]
    rows += [(arch, one.product) for arch, one in content.samples]
    assert set(rows) <= known
    timed = {(one.arch, one.product) for found in content.outcomes.values() for one in found}
    assert {(row.arch, row.product) for row in content.measured} <= timed


def test_every_winner_is_of_a_description(content: Content) -> None:
    """Its kernel is there, has this functional and bin, and takes these tunables and compile options."""
    cells: dict[tuple[str, str], set[str]] = {}
    for row in content.winners:
        kernel = KERNELS[row.kernel]
        functional = parse_functional(kernel, row.arch, row.functional)
        ImageSpec.parse(functional, row.config)
        place = row.kernel, row.arch
        if place not in cells:
            cells[place] = {bin_text(kernel.tuning_keys, cell) for cell in kernel.cells()}
        assert row.bin in cells[place], told(row)


def test_every_model_is_of_todays_terms_and_image(content: Content) -> None:
    """It has a coefficient for each of TERMS, none negative; its kernel's source is the one that was timed, its image
    was compiled, spills nothing unless its description says so, and was timed often enough; it is off by less than
    MOST_ERROR.
    """
    assert content.models
    for model in content.models:
        name = f"{model.product} {model.kernel} {model.functional} {model.image}"
        kernel = KERNELS[model.kernel]
        assert model.form == FORM, name
        assert len(model.coefficients) == len(TERMS), name
        assert min(model.coefficients) >= 0, name
        assert max(model.coefficients) > 0, name
        assert kernel.work, name
        assert kernel in OPERATORS[model.operator].kernels, name
        assert model.image in content.facts, name
        config, _, _ = content.facts[model.image]
        assert image_name(kernel, model.arch, model.functional, config) == model.image, name
        may_spill = parse_functional(kernel, model.arch, model.functional).may_spill
        assert may_spill or content.spills[model.image] == 0, name
        assert model.samples >= FEWEST, name
        # What the static model says of small tiles of fp32, and of short calls, is no sum of these terms.
        most = MOST_ERROR_OF_GUESS if model.source else MOST_ERROR
        assert 0 <= model.error < most, name
        assert model.saves >= 0, name


def test_models_are_of_the_timings_that_are_there(content: Content) -> None:
    """A model counts no more samples than name its image, on its product; one of a static model says so."""
    timed = Counter(
        (one.product, image) for _, one in content.samples for timing in one.timings for image in timing.images
    )
    for model in content.models:
        if model.source.startswith("static model"):
            assert not any(product == model.product for product, _ in timed)
            continue
        assert model.samples <= timed[model.product, model.image], f"{model.product} {model.image}"


def test_every_first_backend_is_predicted_or_not_at_all(content: Content) -> None:
    """Where a functional of an operator's lead has models, each kernel of its first backend has one that ships: else no
    predicted time decides anything.
    """
    having = {(model.product, model.kernel, model.functional) for model in content.models if model.saves > 0}
    for product in {model.product for model in content.models}:
        for operator in OPERATORS.values():
            for row in ARCHS:
                for functional in operator.lead.functionals(row.arch):
                    if (product, operator.lead.name, str(functional)) not in having:
                        continue
                    for kernel in operator.backends[0].kernels:
                        own = kernel.like(functional)
                        assert kernel.work is None or (product, kernel.name, str(own)) in having, f"{kernel.name} {own}"


def test_samples_name_known_images_that_spill_nothing(content: Content) -> None:
    """Each sequence of a backend has an image for each of its timed kernels, all of them compiled and without spills,
    or one of a kernel that is gone; each shape has the sizes of the operands that no call leaves out, and maybe a
    window.
    """
    assert content.samples
    for arch, one in content.samples:
        operator = OPERATORS[one.operator]
        operator.sampled_functional(arch, one.functional)
        sizes = tuning(operator.family).sizes({name: int(str(value)) for name, value in one.shape.items()})
        assert {*sizes} - {"window"} == {dim for of in operator.operands if not of.optional for dim in of.dims}, one
        backends = {backend.name: backend for backend in operator.backends}
        assert one.timings
        for timing in (timing for timing in one.timings if timing.backend in backends):
            kernels = backends[timing.backend].timed_kernels
            if any(image.rpartition(f"_{arch}_")[0] not in KERNELS for image in timing.images):
                continue
            assert len(timing.images) == len(kernels), timing
            for kernel, image in zip(kernels, timing.images, strict=True):
                assert image.startswith(f"{kernel.name}_{arch}_"), timing
                assert image in content.facts, timing
                assert content.spills[image] == 0, timing


def test_every_sample_times_its_first_backend(content: Content) -> None:
    """It serves every call: what others take is compared with it. Of calls that it does not serve, one that does. A
    backend with shapes of its own may be timed alone, as it is compared by predicted times.
    """
    for arch, one in content.samples:
        operator = OPERATORS[one.operator]
        functional = operator.sampled_functional(arch, one.functional)
        serving = [backend.name for backend in operator.serving(functional)]
        alone = {one.name for one in operator.backends if one.own_shapes}
        wanted = {*serving[:1], *alone} if functional.kernel is operator.lead else set(serving)
        assert any(timing.backend in wanted for timing in one.timings), one


def test_certificates_are_within_what_is_allowed() -> None:
    """Every measured winner has one, and errors are within their tolerance. What was never run has none."""
    with TuningDatabase(DATABASE, readonly=True) as database:
        certificates = database.certificates()
        winners = {row.image for row in database.winners() if row.provenance == "measured"}
    assert winners
    assert not winners - certificates.keys(), "every measured winner was checked"
    for one in (one for own in certificates.values() for one in own):
        assert 0 <= one.error <= one.allowed
        assert one.error <= (LARGEST_OF_8_BITS if one.image.startswith(OF_8_BITS) else LARGEST_ERROR)
        assert 1 <= one.problems <= one.checks
        assert one.product.startswith("NVIDIA ")


def test_renamed_images_have_the_bits_that_were_measured() -> None:
    """An image that has a new name because its source was arranged anew has the checksum that it had, of which the file
    has the first 16 digits.
    """
    rows = [row.split("\t") for row in lzma.decompress(RENAMED.read_bytes()).decode().splitlines()]
    with TuningDatabase(DATABASE, readonly=True) as opened:
        checksums = opened.checksums()
    assert len({new for _, new, _ in rows}) == len(rows) > 700
    for old, new, checksum in rows:
        assert old not in checksums, f"{old} is not renamed"
        assert checksums.get(new, checksum).startswith(checksum), f"{new} has other bits than {old}"
