"""The winners of functionals that borrow from each other, decided together by what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from aotriton.rules.borrow import siblings
from aotriton.rules.database import TuningDatabase, Winner, counting
from aotriton.rules.kernel import Functional
from aotriton.tune.winners import campaign
from aotriton.tune.winners.decide import CellKey, decide


def decide_siblings(database: TuningDatabase, functional: Functional, product: str) -> list[Winner]:
    """Writes and returns the winners of the functional and its siblings by what was measured on the product."""
    winners = decided(database, functional, product)
    database.put_winners(winners)
    return winners


def decided(database: TuningDatabase, functional: Functional, product: str) -> list[Winner]:
    """The winners of the functional and its siblings by what was measured on the product, without writing them."""
    group = siblings(functional)
    texts = {str(one) for one in group}
    outcomes = counting(database.evidence.outcomes(functional.arch, functional.kernel.name, product=product))
    before = database.winners(functional.arch, functional.kernel.name, product)
    searched: dict[tuple[str, str, str], set[int]] = {}
    for one in database.evidence.searched(functional.arch, functional.kernel.name, product):
        searched.setdefault((one.functional, one.bin, one.shape), set()).add(one.session)
    outcomes, held = campaign.decidable(
        group, [one for one in outcomes if one.functional in texts], before, campaign.campaigns(database), searched
    )
    return decide(group, outcomes, database.evidence.samples_of, standing(before), held)


def standing(winners: Sequence[Winner]) -> dict[CellKey, str]:
    """The image that was measured to be the best, by cell."""
    return {(one.functional, one.bin): one.image for one in winners if one.provenance == "measured"}
