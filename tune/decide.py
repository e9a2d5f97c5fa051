"""From measurements to decisions: who races, who wins a bin, and what a bin that was not measured borrows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log2

from aotriton.rules.binning import bin_text
from aotriton.rules.database import Outcome, Winner, latest_medians
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional

RACERS = 4
WITHIN = 1.05  # of the fastest: two timings of one image differ by 1 to 3.5 % from run to run
RUNNERS_UP = 3

BORROWED_ACROSS = ("T", "ADDRESSING")  # choices that change neither the tile's cost nor what fits into the GPU much


def spec_of(functional: Functional, config: str) -> ImageSpec | None:
    """The spec that ``ImageSpec.config`` spelled; None where the rules no longer have these psels and copts."""
    kernel, vendor = functional.kernel, functional.target.vendor
    try:
        values = {name: int(value) for name, value in (part.split("=") for part in config.split())}
        copts = {name: values[name] for name in values if name not in kernel.psels[vendor]}
        return ImageSpec.of(functional, {name: values[name] for name in kernel.psels[vendor]}, copts)
    except (ValueError, KeyError):
        return None


def siblings(functional: Functional) -> list[Functional]:
    """The functionals that may borrow from each other, ``functional`` among them."""

    def pinned(one: Functional) -> dict[str, object]:
        return {name: value for name, value in one.as_dict().items() if name not in BORROWED_ACROSS}

    return [one for one in functional.kernel.functionals(functional.arch) if pinned(one) == pinned(functional)]


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


def decide(functionals: Sequence[Functional], outcomes: Iterable[Outcome]) -> list[Winner]:
    """The winner of every cell of ``functionals``, which are siblings; none at all where nothing of them was measured.

    Only images that today's kernel source gives count. A cell that was not measured borrows from the nearest cell that
    was, the nearest of its own addressing first.
    """
    medians = latest_medians(outcomes)
    measured: dict[tuple[str, str], list[tuple[Outcome, ImageSpec]]] = {}
    cells = list(functionals[0].kernel.cells())
    keys = functionals[0].kernel.tuning_keys
    for functional in functionals:
        for cell in cells:
            place = str(functional), bin_text(keys, cell)
            specs = [(outcome, spec_of(functional, outcome.config)) for outcome in medians.get(place, ())]
            current = [(outcome, spec) for outcome, spec in specs if spec and spec.name == outcome.image]
            if current:
                # Those that raced were timed side by side, which a sweep's luck does not beat.
                measured[place] = sorted(current, key=lambda pair: pair[0].phase != "race")
    winners = []
    for functional in functionals:
        for cell in cells:
            place = str(functional), bin_text(keys, cell)
            if place in measured:
                winners.append(_measured(functional, measured[place]))
            elif measured:
                winners.append(_borrowed(functional, cell, functionals, cells, measured))
    return winners


def _measured(functional: Functional, found: Sequence[tuple[Outcome, ImageSpec]]) -> Winner:
    (best, spec), *others = found
    return Winner(
        arch=functional.arch,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=best.bin,
        image=spec.name,
        psels=dict(spec.psels),
        copts=dict(spec.copts),
        provenance="measured",
        median_us=best.median_us or 0.0,
        runners_up=tuple((outcome.config, outcome.median_us or 0.0) for outcome, _ in others[:RUNNERS_UP]),
    )


def _borrowed(
    functional: Functional,
    cell: tuple[int, ...],
    functionals: Sequence[Functional],
    cells: Sequence[tuple[int, ...]],
    measured: Mapping[tuple[str, str], Sequence[tuple[Outcome, ImageSpec]]],
) -> Winner:
    keys = functional.kernel.tuning_keys

    def strangeness(source: tuple[Functional, tuple[int, ...]]) -> tuple[object, ...]:
        lender, lent = source
        distance = sum(abs(log2(a) - log2(b)) for a, b in zip(cell, lent, strict=True))
        # Of two cells at the same distance the larger one: running out of tiles costs less than running out of waves.
        return (
            lender["ADDRESSING"] != functional["ADDRESSING"],
            round(distance, 6),
            lender["T"] != functional["T"],
            tuple(-value for value in lent),
            lender.godel_number,
        )

    sources = [(f, c) for f in functionals for c in cells if (str(f), bin_text(keys, c)) in measured]
    lender, lent = min(sources, key=strangeness)
    _, spec = measured[str(lender), bin_text(keys, lent)][0]
    own = ImageSpec.of(functional, dict(spec.psels), dict(spec.copts))
    differs = [f"{name}={lender[name]}" for name in BORROWED_ACROSS if lender[name] != functional[name]]
    where = "in the same bin" if lent == cell else bin_text(keys, lent)
    return Winner(
        arch=functional.arch,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=bin_text(keys, cell),
        image=own.name,
        psels=dict(own.psels),
        copts=dict(own.copts),
        provenance="borrowed",
        source=" ".join([*differs, where]),
    )
