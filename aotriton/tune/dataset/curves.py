"""The curves of a report: how fast a search came near the best candidate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

from aotriton.rules.database.rows import Outcome

FEWEST_CURVE = 4  # candidates of a problem that a search must have swept to be shown


@dataclass
class Curve:
    """How much longer the best candidate so far takes than the best of all, after each number of candidates: the
    geometric mean over problems.
    """

    kernel: str
    session: str
    problems: int
    loss: list[float]

    def points(self, width: float, height: float, most: int, worst: float) -> str:
        """The curve as the points of an SVG polyline."""
        step = width / max(most - 1, 1)
        return " ".join(f"{i * step:.1f},{height * (1 - loss / worst):.1f}" for i, loss in enumerate(self.loss))


def curves(outcomes: Iterable[Outcome]) -> list[Curve]:
    """A curve for each kernel and session that swept at least FEWEST_CURVE candidates of a problem, in their order.

    Candidates that no GPU has run do not count.
    """
    swept: dict[tuple[str, int, str], dict[tuple[str, str], list[float]]] = {}
    for one in outcomes:
        if one.phase == "sweep" and one.status not in ("pruned", "compile_failed"):
            of_session = swept.setdefault((one.kernel, one.session, one.started[:10]), {})
            time = float(one.median_us) if one.status == "ok" and one.median_us else float("inf")
            of_session.setdefault((one.functional, one.bin), []).append(time)
    found = []
    for (kernel, _, day), problems in swept.items():
        timed = [times for times in problems.values() if len(times) >= FEWEST_CURVE and min(times) < float("inf")]
        if timed:
            found.append(Curve(kernel, day, len(timed), _losses(timed)))
    return found


def _losses(problems: Sequence[Sequence[float]]) -> list[float]:
    """How much longer, relatively, the best so far takes than the best of all after 1, 2, ... candidates, in geometric
    mean.

    A problem counts from its first candidate that ran, and stays at its end when others go on.
    """
    losses = []
    for index in range(max(map(len, problems))):
        ratios = []
        for times in problems:
            best = min(times[: index + 1])
            if best < float("inf"):
                ratios.append(log(best / min(times)))
        losses.append(exp(sum(ratios) / len(ratios)) - 1 if ratios else 0.0)
    return losses
