"""What is wrong with a database's decisions, by its own evidence and by the source of today."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from aotriton.rules.binning import bin_text
from aotriton.rules.borrow import siblings
from aotriton.rules.database import Outcome, TuningDatabase, Winner, latest_medians, timings_of
from aotriton.rules.database.derive import ImagesOfToday
from aotriton.rules.database.rows import contradictions
from aotriton.rules.family import families
from aotriton.rules.kernel import Functional, KernelDescription, parse_functional
from aotriton.tune.winners.decide import decide
from aotriton.tune.winners.siblings import decided, standing

Cell = tuple[str, str, str, str, str]  # arch, product, kernel, functional, bin

# The kinds of findings, and what mends them.
MENDED_BY = {
    "unknown": "no description here has this kernel, functional, bin or config: --decide removes it if its kernel is",
    "unmeasured": "it is called measured, and no measurement that counts says so: --decide removes it",
    "stale": "today's source makes another image of its config: measure it again",
    "older": "it was never timed, and today's source makes another image of its config: --decide compiles that",
    "outdated": "its image was timed later with another result: --decide chooses anew",
    "undecided": "the measurements give another winner: --decide chooses anew",
    "contradicted": "a race at a clock that is not known contradicts its sweep, which decided: measure it again",
    "unlisted": "nothing is known of today's image of its config: --decide compiles it",
    "model": "the model's image is not of today's source, or was not compiled: --fit fits anew",
}


@dataclass(frozen=True)
class Finding:
    """What is wrong with the winner or the model that is named, one of the kinds of MENDED_BY."""

    kind: str
    row: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.row}: {self.why}"


def audit(database: TuningDatabase) -> list[Finding]:
    """What is wrong with the winners and models of the families that are known here, in their order.

    A winner has one finding at most, the first of MENDED_BY.
    """
    known = {one.name: one for of in families() for one in of.kernels}
    bins = {name: {bin_text(of.tuning_keys, cell) for cell in of.cells()} for name, of in known.items()}
    today, listed = ImagesOfToday(), set(database.spills())
    found: list[Finding] = []
    for arch, name in sorted({(one.arch, one.kernel) for one in database.winners()}):
        outcomes: dict[Cell, list[Outcome]] = {}
        for one in database.evidence.outcomes(arch, name):
            outcomes.setdefault((arch, one.product, name, one.functional, one.bin), []).append(one)
        winners = database.winners(arch, name)
        chosen = _decided(database, known[name], winners, outcomes) if name in known else {}
        for winner in winners:
            found += _of_winner(winner, bins.get(name), today, listed, outcomes.get(_cell(winner), []), chosen)
    facts = database.facts()
    for model in database.models():
        config = facts.get(model.image, ("", 0, 0))[0]
        where = Winner(model.arch, model.product, model.kernel, model.functional, "", model.image, config, "predicted")
        if today.of(where) not in (None, model.image) or model.image not in listed:
            row = f"{model.product} {model.kernel} {model.functional} {model.image}"
            found.append(Finding("model", row, "of another source" if model.image in listed else "never compiled"))
    return found


def _of_winner(
    winner: Winner,
    bins: set[str] | None,
    today: ImagesOfToday,
    listed: set[str],
    outcomes: list[Outcome],
    chosen: Mapping[Cell, Winner],
) -> Iterator[Finding]:
    row = f"{winner.product} {winner.kernel} {winner.functional} {winner.bin} {winner.image}"
    if bins is None:
        yield Finding("unknown", row, "no family here has its kernel")
        return
    current = today.of(winner)
    if not current or winner.bin not in bins:
        yield Finding("unknown", row, f"{winner.config} is none of its kernel's, or the bin is not")
    elif winner.provenance == "measured" and not timings_of(winner, outcomes):
        yield Finding("unmeasured", row, f"{winner.median_us} us of {winner.measured}")
    elif winner.image != current:
        kind = "stale" if winner.provenance == "measured" else "older"
        races = _contradicted(winner, outcomes)
        yield Finding(kind, row, f"{winner.provenance}, today it is {current}" + (f"; {races}" if races else ""))
    elif winner.provenance == "measured" and (latest := _latest(winner, outcomes)):
        yield Finding("outdated", row, f"{winner.median_us} us of {winner.measured}, {latest}")
    elif (other := chosen.get(_cell(winner), winner)).image != winner.image:
        yield Finding("undecided", row, f"{winner.median_us} us, {other.image} {other.median_us} us")
    elif winner.provenance == "measured" and (races := _contradicted(winner, outcomes)):
        yield Finding("contradicted", row, f"{winner.median_us} us of {winner.measured}, {races}")
    elif current not in listed:
        yield Finding("unlisted", row, winner.provenance)


def _contradicted(winner: Winner, outcomes: list[Outcome]) -> str:
    """The timings in the race of the winner's session that contradict their sweeps, where it was left out for them."""
    own = {one.session for one in timings_of(winner, outcomes) if one.phase == "sweep"}
    found = [
        one
        for one in contradictions([one for one in outcomes if one.shape == winner.shape])
        if one.session in own and one.sm_clock is None
    ]
    return ", ".join(f"its sweep contradicts the race: {one.image} {one.median_us} us" for one in found)


def _latest(winner: Winner, outcomes: list[Outcome]) -> str:
    """What the latest timing of the winner says, where that is not the winner's own; empty where it is."""
    latest = latest_medians(outcomes).get((winner.functional, winner.bin), [])
    own = next((one for one in latest if one.image == winner.image), None)
    if own is None:
        return "not right, or in another shape, since"
    same = abs((own.median_us or 0.0) - winner.median_us) <= 1e-4 * winner.median_us
    return "" if same else f"{own.median_us} us in the {own.phase} of {own.started[:10]}"


def _decided(
    database: TuningDatabase, kernel: KernelDescription, winners: list[Winner], outcomes: Mapping[Cell, list[Outcome]]
) -> dict[Cell, Winner]:
    """The winners that follow from the measurements, of those functionals with their siblings where any of them is
    another one than the measured one that is stored.
    """
    groups: dict[tuple[str, str], list[Functional]] = {}  # siblings, by product and the first one's name
    for winner in winners:
        with suppress(ValueError):
            if winner.provenance == "measured":
                group = siblings(parse_functional(kernel, winner.arch, winner.functional))
                groups[winner.product, str(group[0])] = group
    made: dict[Cell, Winner] = {}
    for (product, _), group in groups.items():
        texts = {str(one) for one in group}
        mine = [one for one in winners if one.product == product and one.functional in texts]
        timed = [one for cell, own in outcomes.items() if cell[1] == product and cell[3] in texts for one in own]
        before = standing(mine)
        quick = decide(group, timed, database.evidence.samples_of, before)
        if any(before.get((one.functional, one.bin), one.image) != one.image for one in quick):
            # Which measurements count while a cell is not finished takes longer to find.
            made |= {_cell(one): one for one in decided(database, group[0], product)}
    return made


def _cell(winner: Winner) -> Cell:
    return winner.arch, winner.product, winner.kernel, winner.functional, winner.bin
