"""From a result and what it should be to a verdict: tolerances come from an ordinary low-precision implementation."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MARGIN = 2.0  # times the error of the ordinary implementation on the same data
ROW_MARGIN = 4.0  # the same for the worst row, which varies more: it catches a mask that is wrong in a few rows only


@dataclass(frozen=True)
class Check:
    """The worst part of a result: its relative Frobenius error and the error that is allowed; ``wrong`` says what is
    wrong with it.
    """

    error: float | None
    tolerance: float | None
    wrong: str | None = None

    @property
    def badness(self) -> tuple[bool, float]:
        """Orders checks: wrong ones last, then by how much of their tolerance they use."""
        return self.wrong is not None, (self.error or 0.0) / (self.tolerance or 1.0)


@dataclass(frozen=True)
class Expected:
    """The true value of a part of a result, and the errors allowed over all of it and in its worst row."""

    value: torch.Tensor
    tolerance: float
    row_tolerance: float

    @classmethod
    def of(cls, true: torch.Tensor, ordinary: torch.Tensor, floor: float = 0.0) -> Expected:
        """The true value with the errors that are allowed of an implementation as good as ``ordinary``; ``floor`` is
        added for rounding that the ordinary one does not have.
        """
        error, row_error = errors(ordinary, true)
        return cls(true, MARGIN * error + floor, ROW_MARGIN * (row_error + floor))

    def compare(self, what: str, actual: torch.Tensor) -> Check:
        """The check of ``actual``, which has the true value's shape and precision; ``what`` names it."""
        error, row_error = errors(actual, self.value)
        if error > self.tolerance:
            return Check(error, self.tolerance, f"{what} is off by {error:.2g}, allowed {self.tolerance:.2g}")
        if row_error > self.row_tolerance:
            text = f"a row of {what} is off by {row_error:.2g}, allowed {self.row_tolerance:.2g}"
            return Check(error, self.tolerance, text)
        return Check(error, self.tolerance)


def errors(actual: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Error in the Frobenius norm, and of the worst row against the average row; absolute where all should vanish."""
    error = (actual - expected).view(len(expected), -1).norm(dim=1)
    norm = float(expected.norm()) or 1.0
    return float(error.norm()) / norm, float(error.max()) * sqrt(len(expected)) / norm
