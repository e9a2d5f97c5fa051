"""A GPU's station between runs: one run at a time has the GPU, and nothing that it knows reaches another one."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standin_compiler import StandinCompiler
from test_session import LAUNCHER, orders, own_store, small

from aotriton.codegen.compile import CompiledImage, ImageStore, named_request
from aotriton.tune.coordinator.cluster import new_setting
from aotriton.tune.measure.nvml import TUNER
from aotriton.tune.measure.requests import Request, Result, launch_request
from aotriton.tune.problem.candidates import space
from aotriton.tune.workers import gpu_station
from aotriton.tune.workers.compile_station import CompileStation
from aotriton.tune.workers.families import FamilyFiles, folders_of
from aotriton.tune.workers.gpu_station import GpuStation
from aotriton.tune.workers.jobs import CompileJob, Measured, MeasureJob, Setting
from aotriton.tune.workers.lock import Lock, gpu_lock

__all__ = ["orders", "own_store"]
FAST, SLOW = "BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=2", "BLOCK_M=64 BLOCK_N=16 num_warps=4 num_stages=2"


@pytest.fixture
def station(orders: dict[str, object]) -> Iterator[GpuStation]:
    made = GpuStation("0")
    yield made
    made.close()


def setting() -> Setting:
    """That of a new run."""
    return new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token", (0.0,))


def job(of: Setting, *configs: str, finish: bool = False, **more: Any) -> MeasureJob:
    (problem,) = small()
    specs = {spec.config: spec for spec in space(problem, rich=True).candidates}
    return MeasureJob(of, problem.named, tuple(_request(specs[one]) for one in configs), finish=finish, **more)


def _request(spec: Any) -> Request:
    image = StandinCompiler().compile(named_request(spec), ImageStore())
    assert isinstance(image, CompiledImage)
    return launch_request(spec, image)


def samples(reply: Measured) -> list[int]:
    """How many there are of each candidate."""
    return [len(one.samples) for one in reply.results.values() if isinstance(one, Result)]


def test_a_run_is_judged_by_its_own_candidates(station: GpuStation) -> None:
    """What an earlier run measured of the same problem neither cuts a candidate short, nor races."""
    first, second = setting(), setting()
    station.facts(first)
    assert samples(station.measure(job(first, FAST)))
    station.stop(first.run)
    station.facts(second)
    whole = samples(station.measure(job(second, SLOW)))
    finished = station.measure(job(second, SLOW, finish=True))
    assert finished.race is None, "there is but one candidate"
    third = setting()
    station.stop(second.run)
    station.facts(third)
    assert samples(station.measure(job(third, SLOW, best_us=1.0))) < whole, "the coordinator's own best counts"


def test_one_run_has_the_gpu_until_it_ends(station: GpuStation) -> None:
    """Another one's jobs come back undone; a run that has ended gets nothing more done."""
    first, second = setting(), setting()
    for one in (first, second):
        assert station.facts(one).device
    assert samples(station.measure(job(first, SLOW)))
    assert station.measure(job(second, SLOW)).taken
    assert station.facts(second).device, "what it is can be asked meanwhile"
    station.stop(first.run)
    assert samples(station.measure(job(second, SLOW)))
    assert station.measure(job(first, SLOW)) == Measured(seconds=pytest.approx(0.0, abs=60.0))


def test_a_run_that_is_heard_of_no_more_loses_the_gpu(station: GpuStation, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, and its child ends; if it comes back it goes on."""
    monkeypatch.setattr(gpu_station, "IDLE", 0.3)
    first, second = setting(), setting()
    station.facts(first)
    station.measure(job(first, FAST))
    deadline = time.monotonic() + 30
    while station._worker:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert samples(station.measure(job(second, SLOW)))
    time.sleep(0.4)
    finished = station.measure(job(first, "BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=1", finish=True))
    assert finished.race, "it knows what it had measured before"
    assert len(finished.race.samples) == 2


def test_programs_of_one_machine_take_turns(orders: dict[str, object], station: GpuStation) -> None:
    """A lock on the GPU, which its uuid names."""
    orders.update(uuid=f"GPU-{threading.get_native_id()}")
    own = setting()
    device = station.facts(own).device
    assert device
    other = gpu_lock(str(device.uuid))
    assert other.take()
    assert station.measure(job(own, SLOW)).taken
    other.release()
    assert samples(station.measure(job(own, SLOW)))
    assert not other.take()
    station.stop(own.run)
    deadline = time.monotonic() + 30
    while not other.take():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    other.release()


def test_a_lock_is_one_objects(tmp_path: Path) -> None:
    """Its file goes with it; a file that was removed meanwhile locks nothing."""
    one, two = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    assert one.take()
    assert one.take()
    assert not two.take()
    one.release()
    assert not one.path.exists()
    assert two.take()
    one.path.unlink()
    assert one.take()
    two.release()
    one.release()


def test_compilers_know_the_families_of_their_run_alone(
    orders: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle compiler of one run is not another's who has other families."""
    monkeypatch.setattr(Noting, "made", [])
    station = CompileStation(set)
    for name in ("one", "two", "one"):
        (tmp_path / name).mkdir(exist_ok=True)
        own = replace(setting(), compiler="test_station:Noting", families=(str(tmp_path / name),))
        for spec in space(small()[0]).candidates[:2]:
            station.compile(CompileJob(own, named_request(spec)))
    assert Noting.made == [(str(tmp_path / name),) for name in ("one", "two", "one")]
    gone = replace(setting(), families=("0123/gone",))
    reply = station.compile(CompileJob(gone, named_request(space(small()[0]).candidates[0])))
    assert "families/0123/gone is not there any more" in str(reply.error)


class Noting(StandinCompiler):
    """Notes the families of each compiler, and which ones were started before there was a job."""

    made: list[tuple[str, ...]] = []  # noqa: RUF012
    started: list[tuple[str, ...]] = []  # noqa: RUF012

    def __init__(self, families: Any = ()) -> None:
        self.made.append(tuple(families))
        self._families = tuple(families)

    def start(self) -> None:
        self.started.append(self._families)


def test_compilers_start_with_the_run(
    orders: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there may be at a time, in the place of those of another run; the jobs of the run have them."""
    monkeypatch.setattr(Noting, "made", [])
    monkeypatch.setattr(Noting, "started", [])
    station = CompileStation(set, 3)
    for count, name in ((3, "one"), (6, "two")):
        (tmp_path / name).mkdir()
        own = replace(setting(), compiler="test_station:Noting", families=(str(tmp_path / name),))
        station.facts(own)
        deadline = time.monotonic() + 10
        while len(Noting.started) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for spec in space(small()[0]).candidates[:4]:
            station.compile(CompileJob(own, named_request(spec)))
    station.close()
    assert Noting.made == Noting.started == [(str(tmp_path / name),) for name in ("one",) * 3 + ("two",) * 3]


def test_tensors_are_made_before_there_is_a_candidate(station: GpuStation) -> None:
    """By a job without any, which is no job without a reply; the first candidate finds them made."""
    own = setting()
    station.facts(own)
    reply = station.measure(job(own))
    assert (reply.prepared, reply.empty, reply.results) == (True, False, {})
    assert reply.preparing > 0
    after = station.measure(job(own, FAST))
    assert (after.prepared, after.preparing, len(samples(after))) == (False, 0.0, 1)


def test_a_familys_files_have_a_place_by_what_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases and Python's own files do not count; files that were changed there are put right."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "mine"
    for name in ("rules/__init__.py", "tune/__init__.py", "tritonsrc/a/b.cu", "rules/tuning_database.sqlite3", "x.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    read = FamilyFiles.read(folder)
    assert sorted(read.files) == ["rules/__init__.py", "tritonsrc/a/b.cu", "tune/__init__.py"]
    read.unpack()
    (place,) = map(Path, folders_of([read.place]))
    assert place.name == "mine"
    assert (place / "tritonsrc/a/b.cu").read_text() == "tritonsrc/a/b.cu"
    (place / "rules/__pycache__").mkdir()
    (place / "rules/__pycache__/x.pyc").write_text("")
    read.unpack()
    assert (place / "rules/__pycache__").exists(), "nothing was to be done"
    (place / "rules/__init__.py").write_text("other")
    read.unpack()
    assert FamilyFiles.read(place) == read
    (folder / "rules/__init__.py").write_text("other")
    assert FamilyFiles.read(folder).place != read.place


def test_what_the_clock_did_is_told(orders: dict[str, object], station: GpuStation) -> None:
    """A candidate whose rounds are all at another clock than those before it is recorded at its own, and named. One
    with a few such rounds is as the others.
    """
    kept, few = "BLOCK_M=128 BLOCK_N=32 num_warps=4 num_stages=2", "BLOCK_M=32 BLOCK_N=64 num_warps=4 num_stages=2"
    orders.update(clocks={kept: [1440] * 100, few: [1440, 1980, 1500]})
    reply = station.measure(job(setting(), FAST, SLOW, few, kept))
    clocks = {image: one.conditions.sm_clock for image, one in reply.results.items() if isinstance(one, Result)}
    assert list(clocks.values()) == [1980, 1980, 1980, 1440]
    (note,) = reply.notes
    assert f"{kept}: " in note
    assert "rounds ran at another clock than 1980 MHz" in note


def test_who_else_is_on_the_gpu_is_told_once(orders: dict[str, object], station: GpuStation) -> None:
    orders.update(others=["7 (train)"])
    run = setting()
    first, second = (station.measure(job(run, one)) for one in (FAST, SLOW))
    (note,) = first.notes
    assert note.startswith("another process is on GPU 0: 7 (train): ")
    assert second.notes == []
    for one in (*first.results.values(), *second.results.values()):
        assert isinstance(one, Result)
        assert one.conditions.others == ("7 (train)",)


def test_who_may_compute_on_the_gpu_is_told_once(orders: dict[str, object], station: GpuStation) -> None:
    orders.update(silent=["7 (train)"])
    run = setting()
    first, second = (station.measure(job(run, one)) for one in (FAST, SLOW))
    (note,) = first.notes
    assert note.startswith("another process is on GPU 0: 7 (train): ")
    assert note.endswith(" counts")
    assert second.notes == []


def test_a_child_is_known_as_a_tuners(orders: dict[str, object], station: GpuStation) -> None:
    """By its name, which other tuners see while it waits for the GPU."""
    station.measure(job(setting(), FAST))
    (child,) = (one for one in multiprocessing.active_children() if one.name == "gpu-0")
    assert Path(f"/proc/{child.pid}/comm").read_text().strip() == TUNER


def ahead() -> tuple[GpuStation, Any]:
    """A station whose first child was started before any run, and that child."""
    made = GpuStation("0", ahead=True)
    assert made._spare
    return made, made._spare.child


def test_the_first_run_has_the_process_that_was_started_ahead(orders: dict[str, object]) -> None:
    """It serves that run, whichever it is; the next run has a process of its own. What waits in vain ends, too."""
    made, spare = ahead()
    try:
        first, second = setting(), setting()
        assert samples(made.measure(job(first, FAST)))[0] > 0
        assert made._worker is not None
        assert made._worker._child is spare
        made.stop(first.run)
        assert samples(made.measure(job(second, FAST)))[0] > 0
        assert made._worker._child is not spare
    finally:
        made.close()
    made, spare = ahead()
    made.close()
    assert not spare.is_alive()


def test_a_run_whose_process_died_before_it_has_another_one(orders: dict[str, object]) -> None:
    made, spare = ahead()
    spare.kill()
    spare.join()
    try:
        assert samples(made.measure(job(setting(), FAST)))[0] > 0
    finally:
        made.close()
