"""From results to rows, which belong to a GPU's session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from aotriton.codegen.compile import CompileFailure
from aotriton.rules.database import Measurement
from aotriton.rules.database.rows import BESIDE
from aotriton.rules.judge import judge_of
from aotriton.tune.coordinator.images import Images, Made
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.state import Gpu, Search
from aotriton.tune.coordinator.usage import Usage
from aotriton.tune.coordinator.writer import Row, Writer
from aotriton.tune.measure.requests import UNKNOWN_CONDITIONS, Conditions, Device, Race, Result
from aotriton.tune.problem.compiler_facts import FACTS
from aotriton.tune.workers.jobs import Failed

DETAIL = 300  # characters of a message that a row keeps


class Rows:
    """The rows of a run. ``begin_session`` is called with a GPU's device and gives the id of a new session."""

    def __init__(
        self,
        writer: Writer,
        images: Images,
        usage: Usage,
        progress: Progress,
        begin_session: Callable[[Device], int],
    ) -> None:
        self._writer, self._images, self._usage, self._progress = writer, images, usage, progress
        self._begin_session = begin_session

    def begin(self, gpu: Gpu, search: Search) -> int:
        """The id of the GPU's session, in which the problem has rows from now on. What the compilers alone decided is
        written first. A session begins with its GPU's first problem: a run with nothing to do leaves no trace.
        """
        if not gpu.session:
            self.new_session(gpu)
        if not search.begun:
            search.begun = True
            self._progress.problem(search.problem)
        self.put([self._row(gpu, search, name, status, detail=why) for name, status, why in search.verdicts])
        search.verdicts.clear()
        return gpu.session

    def new_session(self, gpu: Gpu) -> None:
        gpu.session = self._begin_session(gpu.device)

    def sweep(self, gpu: Gpu, search: Search, name: str, result: Result) -> None:
        """A candidate that was checked, and timed where it is right."""
        self.put([
            self._row(
                gpu, search, name, result.status, "sweep", result.samples, result.check.error, result.check.tolerance,
                result.check.wrong, result.conditions, result.checks,
            )
        ])  # fmt: skip

    def race(self, gpu: Gpu, search: Search, race: Race) -> None:
        """A race, in one transaction: a part of it would say nothing."""
        search.race_sessions.add(gpu.session)
        samples = race.samples.items()
        self.put([self._row(gpu, search, name, "ok", "race", own, conditions=race.conditions) for name, own in samples])

    def failure(self, gpu: Gpu, search: Search, name: str, phase: str, failed: Failed) -> Row:
        """The row of a candidate that crashed or timed out. It is not put yet."""
        return self._row(gpu, search, name, failed.status, phase, detail=failed.detail)

    def put(self, rows: Sequence[Row]) -> None:
        """Has the rows written, all of them or none."""
        self._writer.put(rows)
        self._usage.trials += len(rows)

    def _row(
        self,
        gpu: Gpu,
        search: Search,
        name: str,
        status: str,
        phase: str = "sweep",
        samples: Sequence[float] = (),
        error: float | None = None,
        tolerance: float | None = None,
        detail: str | None = None,
        conditions: Conditions = UNKNOWN_CONDITIONS,
        checks: int | None = None,
    ) -> Row:
        if status == "ok" and conditions.others:
            search.disturbed = True
            detail = f"{BESIDE} {', '.join(conditions.others)}"
        elif status == "ok" and conditions.silent:
            detail = f"perhaps beside {', '.join(conditions.silent)}"
        measurement = Measurement(
            search.row, 0, gpu.session, phase, status, median(samples) if samples else None, samples, error, tolerance,
            detail and shortened(detail), conditions.sm_clock, conditions.temperature,
            judge_of(search.problem.kernel), checks,
        )  # fmt: skip
        return (name, search.specs[name].config, _facts(self._images[name])), measurement


def _facts(image: Made) -> dict[str, object]:
    metadata = {} if isinstance(image, CompileFailure) else image.metadata
    return {key: metadata.get(key) for key in FACTS}


def shortened(text: str) -> str:
    """The text, or its beginning and its end where it is longer than DETAIL."""
    return text if len(text) <= DETAIL else f"{text[: DETAIL // 2]} ... {text[-DETAIL // 2 :]}"
