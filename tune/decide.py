"""From measurements to decisions: who races, who wins a bin, and what a bin that was not measured borrows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import log2

from aotriton.rules.binning import bin_text
from aotriton.rules.database import Outcome, Winner, latest_medians
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Choice, Functional

RACERS = 4
WITHIN = 1.05  # of the fastest: two timings of one image differ by 1 to 3.5 % from run to run
RUNNERS_UP = 3


def spec_of(functional: Functional, config: str) -> ImageSpec | None:
    """The spec that ``ImageSpec.config`` spelled; None where the rules no longer have these psels and copts."""
    try:
        return ImageSpec.parse(functional, config)
    except ValueError:
        return None


def siblings(functional: Functional) -> list[Functional]:
    """The functionals that may borrow from each other, ``functional`` among them."""

    def pinned(one: Functional) -> list[object]:
        pairs = zip(one.kernel.choices, one.values, strict=True)
        return [value for choice, value in pairs if not choice.lends and choice.measured_as is None]

    return [one for one in functional.kernel.functionals(functional.arch) if pinned(one) == pinned(functional)]


def differences(one: Functional, other: Functional) -> list[Choice]:
    """The choices in which two functionals of a kernel differ."""
    rows = zip(one.kernel.choices, one.values, other.values, strict=True)
    return [choice for choice, mine, theirs in rows if mine != theirs]


def racers(outcomes: Iterable[Outcome]) -> list[str]:
    """Names of the images of one problem that must be compared side by side before one is called the winner.

    Decided by the sweep alone, so that it does not change once the race is run. Empty where one image leads clearly.
    """
    sweep: dict[str, Outcome] = {}
    for outcome in sorted(outcomes, key=lambda o: (o.session, o.id)):
        if outcome.phase == "sweep":
            sweep[outcome.image] = outcome
    ok = sorted((o for o in sweep.values() if o.status == "ok"), key=lambda o: (o.median_us or 0, o.config))
    near = [o.image for o in ok[:RACERS] if (o.median_us or 0) <= WITHIN * (ok[0].median_us or 0)]
    return near if len(near) > 1 else []


def race_is_due(outcomes: Sequence[Outcome]) -> list[str]:
    """The racers that are still in; nothing where all of them have raced since they were swept, or only one is left."""
    swept = {o.image: o.session for o in sorted(outcomes, key=lambda o: o.session) if o.phase == "sweep"}
    raced = {o.image: o.status for o in outcomes if o.phase == "race" and o.session >= swept.get(o.image, 0)}
    names = [name for name in racers(outcomes) if raced.get(name, "ok") == "ok"]
    return names if len(names) > 1 and not set(raced).issuperset(names) else []


def decide(
    functionals: Sequence[Functional],
    outcomes: Iterable[Outcome],
    unfit: Collection[str] = (),
    held: Mapping[tuple[str, str], str] | None = None,
) -> list[Winner]:
    """The winner of every cell of ``functionals``, which are siblings; none at all where nothing of them was measured.

    Only images that today's kernel source gives count. A cell that was not measured borrows from the nearest cell that
    was, the nearest of its own kind first; but no image of ``unfit``, by name: one element type may spill registers
    where another does not. ``held`` names the image that stays first in a (functional, bin) if it is right.
    """
    named = {str(functional): functional for functional in functionals}
    cells = list(functionals[0].kernel.cells())
    keys = functionals[0].kernel.tuning_keys
    measured = {
        place: found
        for place, medians in latest_medians(outcomes).items()
        if place[0] in named and (found := _ranked(named[place[0]], medians, (held or {}).get(place)))
    }
    sources = [(f, c) for f in functionals for c in cells if (str(f), bin_text(keys, c)) in measured]
    winners = []
    for functional in functionals:
        differing = {lender: differences(lender, functional) for lender in {lender for lender, _ in sources}}
        for cell in cells:
            place = str(functional), bin_text(keys, cell)
            if place in measured:
                winners.append(_measured(functional, measured[place]))
            elif sources:
                lender, lent = min(sources, key=lambda source: _strangeness(source, cell, differing[source[0]]))
                offered = [spec for _, spec in measured[str(lender), bin_text(keys, lent)]]
                winners.append(_borrowed(functional, cell, lender, lent, offered, unfit))
    return winners


def winner_of(functional: Functional, outcomes: Iterable[Outcome]) -> Winner | None:
    """The winner of the one cell that ``outcomes`` are of; None where no image was right."""
    found = [ranked for medians in latest_medians(outcomes).values() if (ranked := _ranked(functional, medians))]
    return _measured(functional, found[0]) if found else None


def _ranked(
    functional: Functional, medians: Iterable[Outcome], held: str | None = None
) -> list[tuple[Outcome, ImageSpec]]:
    """What today's kernel source gives, the fastest first, ``held`` before it. Those that raced were timed side by
    side, which a sweep's luck does not beat.
    """
    specs = [(outcome, spec_of(functional, outcome.config)) for outcome in medians]
    current = [(outcome, spec) for outcome, spec in specs if spec and spec.name == outcome.image]
    return sorted(current, key=lambda pair: (pair[0].image != held, pair[0].phase != "race"))


def _measured(functional: Functional, found: Sequence[tuple[Outcome, ImageSpec]]) -> Winner:
    (best, spec), *others = found
    return Winner(
        arch=functional.arch,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=best.bin,
        image=spec.name,
        psels=spec.canonical()[0],
        copts=spec.canonical()[1],
        provenance="measured",
        median_us=best.median_us or 0.0,
        runners_up=tuple((outcome.config, outcome.median_us or 0.0) for outcome, _ in others[:RUNNERS_UP]),
    )


def _strangeness(
    source: tuple[Functional, tuple[int, ...]], cell: tuple[int, ...], differing: Sequence[Choice]
) -> tuple[object, ...]:
    """Orders the cells that ``cell`` may borrow from, the nearest of its own kind first."""
    lender, lent = source
    return (
        any(choice.lends for choice in differing),
        round(sum(abs(log2(a) - log2(b)) for a, b in zip(cell, lent, strict=True)), 6),
        len(differing),
        # Of two cells at the same distance the larger one: running out of tiles costs less than running out of waves.
        tuple(-value for value in lent),
        lender.godel_number,
    )


def _borrowed(
    functional: Functional,
    cell: tuple[int, ...],
    lender: Functional,
    lent: tuple[int, ...],
    offered: Sequence[ImageSpec],
    unfit: Collection[str],
) -> Winner:
    keys = functional.kernel.tuning_keys
    specs = [ImageSpec.of(functional, dict(spec.psels), dict(spec.copts)) for spec in offered]
    own = next((spec for spec in specs if spec.name not in unfit), specs[0])
    differs = [f"{choice.name}={lender[choice.name]}" for choice in differences(lender, functional)]
    where = "in the same bin" if lent == cell else bin_text(keys, lent)
    return Winner(
        arch=functional.arch,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=bin_text(keys, cell),
        image=own.name,
        psels=own.canonical()[0],
        copts=own.canonical()[1],
        provenance="borrowed",
        source=" ".join([*differs, where]),
    )
