"""The curves of a report: how fast searches came near the best candidate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median, quantiles

from aotriton.rules.database.rows import Outcome

FEWEST_CURVE = 4  # candidates of a problem that a search must have swept to be shown


@dataclass
class Curve:
    """How much longer the best candidate so far takes than the best of all, relatively, after each number of
    candidates: the median over the ``searches`` of a kernel, one for each problem of a session, and a tenth and nine
    tenths of them.
    """

    kernel: str
    searches: int
    loss: list[float]
    low: list[float]
    high: list[float]

    def points(self, width: float, height: float, most: int, worst: float) -> str:
        """The median as the points of an SVG polyline."""
        return " ".join(_points(self.loss, width, height, most, worst))

    def band(self, width: float, height: float, most: int, worst: float) -> str:
        """What lies between a tenth and nine tenths as the points of an SVG polygon."""
        high, low = (_points(losses, width, height, most, worst) for losses in (self.high, self.low))
        return " ".join([*high, *reversed(low)])


def _points(losses: Sequence[float], width: float, height: float, most: int, worst: float) -> list[str]:
    step = width / max(most - 1, 1)
    return [f"{i * step:.1f},{height * (1 - min(loss / worst, 1)):.1f}" for i, loss in enumerate(losses)]


def curves(outcomes: Iterable[Outcome]) -> list[Curve]:
    """A curve for each kernel of which a session swept at least FEWEST_CURVE candidates of a problem, in their order.

    Candidates that no GPU has run do not count.
    """
    swept: dict[str, dict[tuple[int, str, str], list[float]]] = {}
    for one in outcomes:
        if one.phase == "sweep" and one.status not in ("pruned", "compile_failed"):
            time = float(one.median_us) if one.status == "ok" and one.median_us else inf
            swept.setdefault(one.kernel, {}).setdefault((one.session, one.functional, one.bin), []).append(time)
    found = []
    for kernel, searches in swept.items():
        timed = [times for times in searches.values() if len(times) >= FEWEST_CURVE and min(times) < inf]
        if timed:
            found.append(Curve(kernel, len(timed), *map(list, zip(*_spreads(timed), strict=True))))
    return found


def _spreads(searches: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
    """Median, a tenth and nine tenths of the losses of searches after 1, 2, ... candidates.

    A search counts from its first candidate that ran, and stays at its end when others go on.
    """
    spreads = []
    for count in range(1, max(map(len, searches)) + 1):
        losses = [min(times[:count]) / min(times) - 1 for times in searches if min(times[:count]) < inf]
        tenths = quantiles(losses * 2 if len(losses) == 1 else losses or [0.0, 0.0], n=10, method="inclusive")
        spreads.append((median(losses or [0.0]), tenths[0], tenths[-1]))
    return spreads


def regrets(outcomes: Iterable[Outcome], winners: Mapping[tuple[str, str], str]) -> list[float]:
    """How much longer, relatively, the winners took than the fastest candidate of each sweep that has the winner and
    FEWEST_CURVE candidates at least. Times of two sessions are never compared.

    ``winners``: images by functional and bin, of the outcomes' kernel and product.
    """
    swept: dict[tuple[int, str, str], dict[str, float]] = {}
    for one in outcomes:
        if one.phase == "sweep" and one.status == "ok" and one.median_us:
            swept.setdefault((one.session, one.functional, one.bin), {})[one.image] = one.median_us
    return [
        times[image] / min(times.values()) - 1
        for (_, *place), times in swept.items()
        if len(times) >= FEWEST_CURVE and (image := winners.get((place[0], place[1]), "")) in times
    ]
