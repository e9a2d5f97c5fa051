"""After a run: what was measured, what changed, what failed, and what comes next, as lines for a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aotriton.rules.database import TuningDatabase
from aotriton.rules.database.rows import Outcome, Winner

FAILURES = ("wrong", "compile_failed", "crashed", "timed_out")
MOST_FAILURES = 5  # that are listed one by one

Cell = tuple[str, str, str]  # a winner's kernel, functional and bin


@dataclass(frozen=True)
class Before:
    """What the database knew of a product when a run began."""

    arch: str
    product: str
    sessions: int
    winners: Mapping[Cell, str]  # the image of each measured one

    @classmethod
    def of(cls, database: TuningDatabase, arch: str, product: str) -> Before:
        return cls(
            arch, product, len(database.evidence.session_options()), _winners(database.winners(arch, product=product))
        )


def summary(database: TuningDatabase, before: Before, left: int | None, following: str) -> list[str]:
    """The lines. ``left`` is how many problems are left, None where the run was cut off; ``following`` says what to do
    when none is left.
    """
    outcomes = [
        one for one in database.evidence.outcomes(before.arch, product=before.product) if one.session > before.sessions
    ]
    winners = _winners(database.winners(before.arch, product=before.product))
    lines = []
    if outcomes:
        problems = {(one.kernel, one.functional, one.bin) for one in outcomes}
        verdicts = Counter(one.status for one in outcomes if one.phase == "sweep")
        counts = ", ".join(f"{count} {status}" for status, count in verdicts.most_common())
        lines.append(f"measured: {len(problems)} problems, {verdicts.total()} candidates: {counts}")
    else:
        lines.append("measured: nothing, all of it is in the database")
    first = sum(cell not in before.winners for cell in winners)
    other = sum(before.winners.get(cell, image) != image for cell, image in winners.items())
    lines.append(f"winners: {first} for the first time, {other} changed, {len(winners)} in all")
    lines += _failures(outcomes)
    if left == 0:
        lines.append(f"next: {following}")
    else:
        problems_left = "some problems" if left is None else f"{left} problems"
        lines.append(f"left: {problems_left}; the same command goes on with them")
    return lines


def _winners(winners: Iterable[Winner]) -> dict[Cell, str]:
    return {(one.kernel, one.functional, one.bin): one.image for one in winners if one.provenance == "measured"}


def _failures(outcomes: Iterable[Outcome]) -> list[str]:
    failed = [one for one in outcomes if one.status in FAILURES]
    lines = [f"{one.status}: {one.kernel} {one.functional} {one.bin}: {one.config}" for one in failed[:MOST_FAILURES]]
    if len(failed) > MOST_FAILURES:
        lines.append(f"and {len(failed) - MOST_FAILURES} more that failed: --report lists how many of each kernel")
    return lines
