"""Decisions: pure functions from measurements to racers and winners."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aotriton.rules.binning import bin_text
from aotriton.rules.borrow import siblings
from aotriton.rules.database import Outcome, Winner, latest_medians
from aotriton.rules.database.rows import contradictions
from aotriton.rules.flash.forward import ATTN_FWD as KERNEL
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.measure.clock import interval
from aotriton.tune.problem.candidates import spec_of
from aotriton.tune.winners.decide import decide, race_is_due, racers

FAST, SLOW = ({"BLOCK_M": m, "BLOCK_N": 64} for m in (128, 64))
COMPILE_OPTIONS = {"num_warps": 4, "num_stages": 2}
CELL = (512, 512, 8)
PLACE = "T=bf16 BLOCK_DMODEL=64 CAUSAL=False ADDRESSING=descriptor", "max_seqlen_q=512 max_seqlen_k=512 waves=8"


def functional(T: str = "bf16", addressing: str = "descriptor", causal: bool = False) -> Functional:
    return KERNEL.functional("sm_90", T=T, BLOCK_DMODEL=64, CAUSAL=causal, ADDRESSING=addressing)


class Log:
    """Outcomes as the database would give them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._spread: dict[int, float] = {}

    def add(
        self,
        where: Functional,
        cell: tuple[int, ...],
        tunables: dict[str, int],
        median_us: float,
        phase: str = "sweep",
        session: int = 1,
        status: str = "ok",
        image: str | None = None,
        product: str = "GPU",
        spread: float = 0.0,
        sm_clock: int | None = None,
    ) -> str:
        spec = ImageSpec.of(where, tunables, COMPILE_OPTIONS)
        bin = bin_text(KERNEL.tuning_keys, cell)
        name = image or spec.name
        row = (len(self.outcomes), "sm_90", product, KERNEL.name, str(where), bin, "{}", name, spec.config)
        self._spread[len(self.outcomes)] = spread
        told = session, phase, status, median_us, f"2026-05-0{session}T01:02:03+00:00", "", sm_clock
        self.outcomes.append(Outcome(*row, *told))
        return name

    def samples_of(self, id: int) -> list[float]:
        """Fifteen, the middle half of which lies within ``spread`` of the median."""
        (median,) = [float(o.median_us or 0) for o in self.outcomes if o.id == id]
        return [median + self._spread[id] * place / 4 for place in range(-7, 8)]

    def decide(self, *functionals: Functional, **given: Any) -> list[Winner]:
        return decide(functionals or [functional()], self.outcomes, self.samples_of, **given)


def test_a_config_is_read_back() -> None:
    """``spec_of`` undoes ``ImageSpec.config``; a config that the rules no longer know gives None."""
    spec = ImageSpec.of(functional(), FAST, COMPILE_OPTIONS)
    assert spec_of(functional(), spec.config) == spec
    assert spec_of(functional(), "BLOCK_M=64") is None
    assert spec_of(functional(), spec.config + " maxnreg=128") is None
    assert spec_of(functional(), "nonsense") is None


def test_the_fastest_right_image_wins_its_bin() -> None:
    """Wrong and failed candidates do not win, however fast; runners-up follow with their medians."""
    log, cell = Log(), (512, 512, 8)
    log.add(functional(), cell, SLOW, 20.0)
    name = log.add(functional(), cell, FAST, 10.0)
    log.add(functional(), cell, {"BLOCK_M": 64, "BLOCK_N": 32}, 1.0, status="wrong")
    (winner,) = log.decide()
    assert (winner.image, winner.median_us, winner.config) == (
        name,
        10.0,
        ImageSpec.of(functional(), FAST, COMPILE_OPTIONS).config,
    )
    assert winner.runners_up == (("BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=2", 20.0),)
    assert ((winner.functional, winner.bin), winner.source, winner.provenance) == (PLACE, "", "measured")
    assert (winner.product, winner.shape, winner.measured) == ("GPU", "{}", "2026-05-01")


def test_the_race_decides() -> None:
    """A sweep's luck does not beat a race; an image that failed in the race is out."""
    log, cell = Log(), (512, 512, 8)
    for tunables, sweep, raced in ((FAST, 10.0, 10.6), (SLOW, 10.1, 10.4)):
        log.add(functional(), cell, tunables, sweep)
        name = log.add(functional(), cell, tunables, raced, "race")
    log.add(functional(), cell, {"BLOCK_M": 64, "BLOCK_N": 32}, 10.3)
    (winner,) = log.decide()
    assert winner.image == name
    log.add(functional(), cell, SLOW, 0.0, "race", session=2, status="crashed")
    (winner,) = log.decide()
    assert winner.config == ImageSpec.of(functional(), FAST, COMPILE_OPTIONS).config


def test_only_todays_images_count() -> None:
    """A measurement of an image that the kernel's source no longer gives decides nothing."""
    log = Log()
    log.add(functional(), (512, 512, 8), FAST, 10.0, image="attn_fwd_sm_90_0123456789abcdef")
    assert log.decide(*siblings(functional())) == []


def test_only_what_was_measured_is_decided() -> None:
    """Other cells and siblings have no winner: what they borrow is nobody's decision."""
    log = Log()
    log.add(functional(), CELL, FAST, 10.0)
    assert [(w.functional, w.bin) for w in log.decide(*siblings(functional()))] == [PLACE]


def test_a_winner_carries_the_interval_of_its_median() -> None:
    """From the fourth of fifteen samples to the twelfth, whichever order they came in; of none from 0 to 0."""
    log = Log()
    log.add(functional(), CELL, FAST, 10.0, spread=1.0)
    (winner,) = log.decide()
    assert (winner.low_us, winner.median_us, winner.high_us) == (9.0, 10.0, 11.0)
    assert interval([5.0, 1.0, 9.0]) == (1.0, 9.0)
    assert interval([7.0]) == (7.0, 7.0)
    assert interval([]) == (0.0, 0.0)


def test_an_interval_holds_the_median_19_times_of_20() -> None:
    """Of skewed noise too, for as many samples as sweeps and races have."""
    rng = random.Random(1)
    for count in (9, 15, 25, 60):
        drawn = [interval([rng.lognormvariate(0, 1) for _ in range(count)]) for _ in range(1000)]
        assert 0.93 <= sum(low <= 1.0 <= high for low, high in drawn) / 1000 <= 0.99


@pytest.mark.parametrize(("faster", "stays"), [(9.9, True), (8.1, True), (7.9, False)])
def test_noise_changes_no_winner(faster: float, stays: bool) -> None:
    """The image that stands does as long as the new best's interval overlaps its own, and is told with its new time."""
    log = Log()
    old = log.add(functional(), CELL, SLOW, 10.0, session=2, spread=1.0)
    new = log.add(functional(), CELL, FAST, faster, session=2, spread=1.0)
    (winner,) = log.decide(standing={PLACE: old})
    assert (winner.image, winner.median_us) == ((old, 10.0) if stays else (new, faster))
    assert winner.measured == "2026-05-02"
    assert [w.image for w in log.decide()] == [new]
    assert [w.image for w in log.decide(standing={PLACE: "of an older source"})] == [new]


def test_an_unfinished_place_keeps_its_winner() -> None:
    """However much faster another image is; but not one that failed since."""
    log = Log()
    old = log.add(functional(), CELL, SLOW, 10.0)
    new = log.add(functional(), CELL, FAST, 1.0)
    assert [w.image for w in log.decide(standing={PLACE: old}, held={PLACE})] == [old]
    log.add(functional(), CELL, SLOW, 0.0, session=2, status="crashed")
    assert [w.image for w in log.decide(standing={PLACE: old}, held={PLACE})] == [new]


@pytest.mark.parametrize(("raced", "counts"), [(12.4, True), (12.6, False), (8.1, True), (7.9, False)])
def test_a_race_that_contradicts_its_sweep_does_not_count(raced: float, counts: bool) -> None:
    """By more than a quarter, either way: then none of its timings does, and the sweep decides."""
    log = Log()
    names = [log.add(functional(), CELL, tunables, median) for tunables, median in ((FAST, 10.0), (SLOW, 10.1))]
    log.add(functional(), CELL, FAST, raced, "race")
    log.add(functional(), CELL, SLOW, 10.2, "race")
    (medians,) = latest_medians(log.outcomes).values()
    assert {o.phase for o in medians} == {"race" if counts else "sweep"}
    assert {o.image: o.median_us for o in medians} == {
        names[0]: raced if counts else 10.0,
        names[1]: 10.2 if counts else 10.1,
    }
    assert race_is_due(log.outcomes) == [], "it was run, and another one would say the same"


def test_a_race_at_a_known_clock_counts_also_against_its_sweep() -> None:
    """Its launches follow those of other images, as in a program; the image that is faster then wins."""
    log = Log()
    for tunables, swept, raced in ((FAST, 25.2, 32.3), (SLOW, 25.8, 26.9)):
        log.add(functional(), CELL, tunables, swept, sm_clock=1980)
        log.add(functional(), CELL, tunables, raced, "race", sm_clock=1980)
    assert [one.median_us for one in log.decide()] == [26.9]
    assert [one.median_us for one in contradictions(log.outcomes)] == [32.3]


def test_a_contradiction_is_of_one_session() -> None:
    """A race of another session, between images that were swept before it, is judged by its own sweeps alone."""
    log = Log()
    log.add(functional(), CELL, FAST, 10.0)
    log.add(functional(), CELL, FAST, 20.0, "race")
    log.add(functional(), CELL, FAST, 15.0, session=2)
    log.add(functional(), CELL, FAST, 15.5, "race", session=2)
    (medians,) = latest_medians(log.outcomes).values()
    assert [o.median_us for o in medians] == [15.5]
    (medians,) = latest_medians(log.outcomes[:2]).values()
    assert [o.median_us for o in medians] == [10.0]


def test_products_are_never_compared() -> None:
    """Timings of two products side by side are an error, not a decision."""
    log = Log()
    log.add(functional(), CELL, FAST, 10.0, product="one")
    log.add(functional(), CELL, SLOW, 5.0, product="two")
    with pytest.raises(ValueError, match="timings of one and two do not compare"):
        log.decide()


def test_decisions_do_not_depend_on_the_order_of_rows() -> None:
    """The same measurements give the same winners, ties included."""
    log = Log()
    for cell in ((64, 64, 1), (512, 512, 8), (2048, 2048, 8)):
        for tunables in (FAST, SLOW):
            log.add(functional(), cell, tunables, 10.0)
    expected = log.decide(*siblings(functional()))
    for seed in range(5):
        random.Random(seed).shuffle(log.outcomes)
        assert log.decide(*siblings(functional())) == expected


def test_racers_are_the_close_leaders() -> None:
    """At most four within 5 % of the best sweep; nobody races alone."""
    log, cell = Log(), (512, 512, 8)
    names = [
        log.add(functional(), cell, {"BLOCK_M": m, "BLOCK_N": n}, median)
        for m, n, median in (
            (64, 32, 10.0),
            (64, 64, 10.4),
            (64, 128, 10.6),
            (128, 32, 10.1),
            (128, 64, 10.2),
            (128, 128, 10.3),
        )
    ]
    assert racers(log.outcomes) == [names[0], names[3], names[4], names[5]]
    assert racers(log.outcomes[2:3]) == []
    assert racers(log.outcomes[:1] + log.outcomes[2:3]) == []


@pytest.mark.parametrize(
    ("clocks", "slower", "race"),
    [
        ((1980, 1440), 1.12, True),
        ((1440, 1980), 1.12, True),
        ((1980, 1440), 1.14, False),
        ((1980, 1965), 1.12, False),
        ((1980, None), 1.12, False),
    ],
)
def test_sweeps_at_two_clocks_race(clocks: tuple[int | None, int | None], slower: float, race: bool) -> None:
    """Though one leads by more than WITHIN: which of the two is faster is known side by side alone."""
    log = Log()
    names = [
        log.add(functional(), CELL, tunables, median, sm_clock=sm_clock)
        for tunables, median, sm_clock in zip((FAST, SLOW), (10.0, 10.0 * slower), clocks, strict=True)
    ]
    assert racers(log.outcomes) == (names if race else [])


def test_a_race_is_run_once() -> None:
    """It is due until all racers have run since their last sweep; one that failed in it does not call for another."""
    log, cell = Log(), (512, 512, 8)
    names = {log.add(functional(), cell, tunables, 10.0) for tunables in (FAST, SLOW)}
    assert set(race_is_due(log.outcomes)) == names
    log.add(functional(), cell, FAST, 10.0, "race")
    assert set(race_is_due(log.outcomes)) == names
    log.add(functional(), cell, SLOW, 11.0, "race")
    assert race_is_due(log.outcomes) == []
    log.add(functional(), cell, SLOW, 10.0, session=2)
    assert set(race_is_due(log.outcomes)) == names
    log.add(functional(), cell, SLOW, 0.0, "race", session=2, status="crashed")
    assert race_is_due(log.outcomes) == []
