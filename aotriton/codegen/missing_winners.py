"""Gaps of the database: from cells without a winner to a message with the commands that would fill them.

``plan.py`` raises the message as a ``PlanError``, and the build stops.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aotriton.rules.binning import bin_text
from aotriton.rules.commands import tuner
from aotriton.rules.family import family
from aotriton.rules.kernel import Functional


def where(functional: Functional) -> str:
    """The functional as error messages name it: ``scale_rows sm_90 F7 (T=bf16 ...)``."""
    return f"{functional.kernel.name} {functional.arch} F{functional.godel_number} ({functional})"


@dataclass(frozen=True)
class Missing:
    """The cells of one functional that have no winner."""

    functional: Functional
    cells: tuple[tuple[int, ...], ...]

    @property
    def complete(self) -> bool:
        """Whether all cells of the functional lack a winner."""
        return len(self.cells) == self.functional.kernel.cell_count

    def __str__(self) -> str:
        if self.complete:
            return f"{where(self.functional)}: no winner in any bin"
        first, others = bin_text(self.functional.kernel.tuning_keys, self.cells[0]), len(self.cells) - 1
        return f"{where(self.functional)}: no winner for {first}" + (f", nor for {others} other bins" if others else "")


def report(problems: Sequence[str], missing: Sequence[Missing], measured_archs: Collection[str]) -> str:
    """One message: every problem, every functional with gaps, then the commands that would fill them.

    For HIP archs without any measurement, the commands use the static model, which needs no GPU.
    """
    lines = [*problems, *map(str, missing)]
    if missing:
        lines.append("to fill what is missing, run:")
        groups: dict[tuple[str, str, bool], list[Missing]] = {}
        for gap in missing:
            groups.setdefault((gap.functional.kernel.name, gap.functional.arch, gap.complete), []).append(gap)
        for (_, arch, complete), gaps in groups.items():
            predict = gaps[0].functional.arch_spec.vendor == "hip" and arch not in measured_archs
            together = complete and _is_product(gaps)
            for members in [gaps] if together else [[gap] for gap in gaps]:
                lines.append(f"  {_command(members, predict)}")
    return "\n".join(lines)


def _is_product(gaps: Sequence[Missing]) -> bool:
    """Whether the functionals are all existing combinations of their choices' values; then one command names them."""
    having = [set(values) for values in zip(*(gap.functional.values for gap in gaps), strict=True)]
    kernel, arch = gaps[0].functional.kernel, gaps[0].functional.arch
    return len(gaps) == sum(
        all(value in values for value, values in zip(one.values, having, strict=True))
        for one in kernel.functionals(arch)
    )


def _command(gaps: Sequence[Missing], predict: bool) -> str:
    """The command that tunes these cells, and perhaps a few more, because it tunes all combinations of its options."""
    functional = gaps[0].functional
    kernel = functional.kernel
    words = [f"{tuner()} --family {family(kernel.family).place} --arch {functional.arch} --kernel {kernel.name}"]
    words += ["--predict"] if predict else []
    for choice, values in zip(kernel.choices, zip(*(gap.functional.values for gap in gaps), strict=True), strict=True):
        if all(isinstance(value, bool) for value in choice.values):
            words += [f"--{'' if values[0] else 'no-'}{choice.option}"] if len(set(values)) == 1 else []
        else:
            words.append(" ".join([f"--{choice.option}", *map(str, dict.fromkeys(values))]))
    if not gaps[0].complete:
        for key, edges in zip(kernel.tuning_keys, zip(*gaps[0].cells, strict=True), strict=True):
            words.append(" ".join([f"--{key.option}", *map(str, sorted(set(edges)))]))
    return " ".join(words)
