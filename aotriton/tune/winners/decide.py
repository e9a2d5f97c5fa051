"""From measurements to decisions: who races, and who wins a bin. All of them are about outcomes of one product."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from aotriton.rules.database import Outcome, Winner, latest_medians
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.measure.clock import WITHIN, WITHIN_OTHERWISE, interval, one_clock
from aotriton.tune.problem.candidates import spec_of

RACERS = 4
RUNNERS_UP = 3

CellKey = tuple[str, str]  # functional and bin
SamplesOf = Callable[[int], Sequence[float]]  # by ``Outcome.id``
Ranked = list[tuple[Outcome, ImageSpec]]  # what may win a key, the first does


class Swept(NamedTuple):
    """A candidate's sweep."""

    median_us: float
    config: str
    sm_clock: int | None = None


def racers(outcomes: Iterable[Outcome]) -> list[str]:
    """Names of the images of one problem that must be compared side by side before one is called the winner.

    Decided by the sweep alone, so that it does not change once the race is run. Empty where one image leads clearly.
    """
    sweep: dict[str, Outcome] = {}
    for outcome in sorted(outcomes, key=lambda o: (o.session, o.id)):
        if outcome.phase == "sweep":
            sweep[outcome.image] = outcome
    right = [one for one in sweep.values() if one.status == "ok"]
    return leaders({one.image: Swept(one.median_us or 0.0, one.config, one.sm_clock) for one in right})


def leaders(swept: Mapping[str, Swept]) -> list[str]:
    """The images that are within WITHIN of the fastest one, at most RACERS; none where that one leads alone.

    Sweeps at two clocks do not say which image is faster: then those within WITHIN_OTHERWISE race, too.
    """
    exact = {name: one._replace(median_us=float(f"{one.median_us:.5g}")) for name, one in swept.items()}  # as rows are
    order = sorted(exact, key=lambda name: exact[name][:2])[:RACERS]
    near = [name for name in order if _may_be_as_fast(exact[name], exact[order[0]])]
    return near if len(near) > 1 else []


def _may_be_as_fast(one: Swept, fastest: Swept) -> bool:
    within = WITHIN if one_clock(one.sm_clock, fastest.sm_clock) else WITHIN_OTHERWISE
    return one.median_us <= within * fastest.median_us


def race_is_due(outcomes: Sequence[Outcome]) -> list[str]:
    """The racers that must race now; none where all have raced since they were swept, or only one is left."""
    swept = {o.image: o.session for o in sorted(outcomes, key=lambda o: o.session) if o.phase == "sweep"}
    raced = {o.image: o.status for o in outcomes if o.phase == "race" and o.session >= swept.get(o.image, 0)}
    names = [name for name in racers(outcomes) if raced.get(name, "ok") == "ok"]
    return names if len(names) > 1 and not set(raced).issuperset(names) else []


def decide(
    functionals: Iterable[Functional],
    outcomes: Iterable[Outcome],
    samples_of: SamplesOf,
    standing: Mapping[CellKey, str] | None = None,
    held: Collection[CellKey] = (),
) -> list[Winner]:
    """The winners of the measured cells of ``functionals``. Only images that today's source makes count.

    ``standing`` names the image that won a cell before. It stays where the interval of its median overlaps that of the
    best one's, so that noise changes no winner; in ``held`` cells it stays as long as it is right.
    """
    named = {str(functional): functional for functional in functionals}
    winners = []
    for key, medians in latest_medians(outcomes).items():
        if ranked := _ranked(named[key[0]], medians) if key[0] in named else []:
            before = (standing or {}).get(key)
            if key in held or _overlap(ranked, before, samples_of):
                ranked.sort(key=lambda pair: pair[0].image != before)
            winners.append(_measured(named[key[0]], ranked, samples_of))
    return winners


def _ranked(functional: Functional, medians: Iterable[Outcome]) -> Ranked:
    """The outcomes of images that today's source makes, the fastest first. Images that raced come before others: they
    were timed side by side, and a sweep may be lucky.
    """
    specs = [(outcome, spec_of(functional, outcome.config)) for outcome in medians]
    current = [(outcome, spec) for outcome, spec in specs if spec and spec.name == outcome.image]
    return sorted(current, key=lambda pair: pair[0].phase != "race")


def _overlap(ranked: Ranked, image: str | None, samples_of: SamplesOf) -> bool:
    """Whether the image may be as fast as the first one, by the intervals of their medians."""
    best = ranked[0][0]
    other = next((outcome for outcome, _ in ranked if outcome.image == image), best)
    if other == best:
        return False
    (low, high), (lowest, highest) = interval(samples_of(best.id)), interval(samples_of(other.id))
    return low <= highest and lowest <= high


def _measured(functional: Functional, ranked: Ranked, samples_of: SamplesOf) -> Winner:
    (best, spec), *others = ranked
    low, high = interval(samples_of(best.id))
    return Winner(
        arch=functional.arch,
        product=best.product,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=best.bin,
        image=spec.name,
        config=spec.config,
        provenance="measured",
        median_us=best.median_us or 0.0,
        runners_up=tuple((outcome.config, outcome.median_us or 0.0) for outcome, _ in others[:RUNNERS_UP]),
        low_us=low,
        high_us=high,
        shape=best.shape,
        measured=best.started[:10],
    )
