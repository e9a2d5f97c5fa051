"""The benchmark of scale on a few simulated machines: real scheduler, connections and rows."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import scale  # noqa: E402 - it is no package

from aotriton.rules.database import TuningDatabase  # noqa: E402

NAME = "gemm_hopper-16x6144x4096"


def test_simulated_machines_find_what_was_recorded(tmp_path: Path) -> None:
    """Four machines, eight workers: each config of the problem is tried once, the recorded best wins, and the result
    tells of all trials and of what they cost.
    """
    (recorded,) = scale.Recordings([NAME]).all
    with scale.simulated(tmp_path, machines=4, slots=16) as processes:
        result = scale.tuned(tmp_path, {recorded.problem: recorded.specs}, processes)
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        swept = Counter(one.image for one in database.evidence.outcomes() if one.phase == "sweep")
        (winner,) = (one for one in database.winners() if one.provenance == "measured")
    assert swept == Counter(spec.name for spec in recorded.specs)
    times = {place: us for place, us in enumerate(recorded.recording.passes[0]) if us is not None}
    assert winner.median_us == result["best_us"] == pytest.approx(min(times.values()), rel=1e-4)
    assert times[recorded.places[winner.image]] <= 1.0001 * min(times.values())
    assert result["trials"] == len(recorded.specs)
    assert result["dollars"] == pytest.approx(0.80 * 4 / 10 * result["seconds"] / 70.6, abs=1e-4)
