"""Which outcomes count: which sessions are one run of ``--again``, and which cells are finished.

``--again`` is a *campaign*: its sessions' options hold ``again=<when it began>-<digest of its problems>``. A killed
campaign goes on under its name until all of its problems are finished.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType

from aotriton.rules.binning import bin_text
from aotriton.rules.database import Outcome, TuningDatabase, Winner
from aotriton.rules.kernel import Functional
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.problems import Problem
from aotriton.tune.winners.decide import CellKey, race_is_due

MARK = re.compile(r"\bagain=(\d{8}T\d{12}Z-[0-9a-f]{8})\b")


def campaigns(database: TuningDatabase) -> dict[int, str]:
    """The campaigns by session, as ``Outcome.session`` counts them, from 1."""
    return {
        place: mark[1]
        for place, options in enumerate(database.evidence.session_options(), 1)
        if (mark := MARK.search(options))
    }


def latest_campaign(database: TuningDatabase, digest: str) -> str | None:
    """The campaign that began last with problems of this digest."""
    return max((name for name in campaigns(database).values() if name.endswith(digest)), default=None)


def new_campaign(digest: str) -> str:
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%fZ}-{digest}"


def digest_of(product: str, problems: Iterable[Problem]) -> str:
    """A digest of a campaign's problems with their shapes, on this product."""
    lines = sorted(f"{problem} {problem.shape_text}" for problem in problems)
    return hashlib.sha256("\n".join([product, *lines]).encode()).hexdigest()[:8]


def finished(names: Collection[str], outcomes: Sequence[Outcome]) -> bool:
    """Whether each image of one problem has its verdict, and no race is due."""
    mine = [outcome for outcome in outcomes if outcome.image in names]
    return {outcome.image for outcome in mine}.issuperset(names) and not race_is_due(mine)


def decidable(
    functionals: Sequence[Functional],
    outcomes: Iterable[Outcome],
    winners: Iterable[Winner],
    campaign_of: Mapping[int, str],
    searched: Mapping[tuple[str, str, str], set[int]] = MappingProxyType({}),
) -> tuple[list[Outcome], set[CellKey]]:
    """The outcomes to decide by, and the cells that keep their winner until they are finished; all of one product.

    A cell that is not finished is not decided, and an unfinished campaign's measurements do not count there yet.
    ``searched`` has, by functional, bin and shape, the sessions whose strategy ended there: it need not have tried all
    candidates.
    """
    named = {str(functional): functional for functional in functionals}
    keys = functionals[0].kernel.tuning_keys
    cells = {bin_text(keys, cell): cell for cell in functionals[0].kernel.cells()}
    standing = {(w.functional, w.bin): w.image for w in winners if w.provenance == "measured"}
    problems: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.functional in named and outcome.bin in cells:
            problems.setdefault((outcome.functional, outcome.bin, outcome.shape), []).append(outcome)
    kept: list[Outcome] = []
    held: set[CellKey] = set()
    for (functional, bin, shape), rows in problems.items():
        ended = searched.get((functional, bin, shape), set())
        if not any(row.session in campaign_of for row in rows) and _search_ended(rows, ended):
            kept += rows
            continue
        names = {spec.name for spec in space(Problem(named[functional], cells[bin], ())).candidates}
        rows = _without_unfinished(names, rows, campaign_of, ended)
        if finished(names, rows) or _search_ended(rows, ended):
            kept += rows
        elif (image := standing.get((functional, bin))) in names and any(row.image == image for row in rows):
            kept += rows
            held.add((functional, bin))
    return kept, held


def _search_ended(rows: Sequence[Outcome], ended: Collection[int]) -> bool:
    """Whether a search has ended in one of these sessions, and its race is over."""
    return any(row.session in ended for row in rows) and not race_is_due(rows)


def _without_unfinished(
    names: set[str], rows: list[Outcome], campaign_of: Mapping[int, str], ended: set[int]
) -> list[Outcome]:
    """The rows of one problem without those of campaigns that have neither measured all images known before them nor
    ``ended`` a search.
    """
    for campaign in sorted({campaign_of[row.session] for row in rows if row.session in campaign_of}):
        own = [row for row in rows if campaign_of.get(row.session) == campaign]
        known = {row.image for row in rows if row.session < min(one.session for one in own)} & names
        own_known = [row for row in own if row.image in names]  # images that were new to it race, too
        complete = known.issubset(row.image for row in own_known) and not race_is_due(own_known)
        if known and not complete and not any(row.session in ended for row in own):
            rows = [row for row in rows if row not in own]
    return rows
