"""The cost limit of a search: from what the user wrote to trials of a problem, or to a time for the run."""

from __future__ import annotations

import re
from dataclasses import dataclass

WRITTEN = re.compile(r"(\d+(?:\.\d+)?)(s|usd)?")


@dataclass(frozen=True)
class Budget:
    """Most ``trials`` of a problem, ``seconds`` of the run, or ``dollars`` for all of its workers together; None where
    there is no limit.
    """

    trials: int | None = None
    seconds: float | None = None
    dollars: float | None = None


def budget(text: str, price: float | None) -> Budget:
    """The budget that ``text`` says: trials as ``64``, seconds as ``60s``, dollars as ``0.80usd``.

    ``price`` is what a GPU costs an hour, in dollars. ValueError where the text is none of these, or is of dollars
    without a price.
    """
    found = WRITTEN.fullmatch(text)
    if not found or float(found[1]) <= 0:
        raise ValueError(f"--budget must be trials (64), seconds (60s) or dollars (0.80usd), not {text!r}")
    amount, unit = float(found[1]), found[2]
    if unit is None:
        if amount != int(amount):
            raise ValueError(f"--budget: {text} is no number of trials")
        return Budget(trials=int(amount))
    if unit == "s":
        return Budget(seconds=amount)
    if not price:
        raise ValueError("--budget in dollars needs --price, what a GPU costs an hour")
    return Budget(dollars=amount)
