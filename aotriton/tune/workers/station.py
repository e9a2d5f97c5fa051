"""The functions that a Dask worker runs: from a job to a reply, on its own GPU or its own compilers.

A worker with the resource GPU measures, one with CPU compiles. Both find what they need on their own machine: the
coordinator sends a description's name, a shape and, once, an image's bytes and the files of a family that is not in the
tree. A job is plain data: a worker's own process imports no such family, and its child processes do.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aotriton.tune.workers.compile_station import CompileStation
from aotriton.tune.workers.cores import launch_cores
from aotriton.tune.workers.gpu_station import GpuStation
from aotriton.tune.workers.jobs import GPU, Compiled, CompileJob, Facts, Greeting, Measured, MeasureJob

NAMED = re.compile(r"\bgpu-(\w[\w-]*)$")  # the GPU in a worker's name, where one machine's share an environment

_stations: weakref.WeakKeyDictionary[Any, GpuStation | CompileStation] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def _station() -> GpuStation | CompileStation:
    """The station of the Dask worker that runs this."""
    from distributed import get_worker

    worker = get_worker()
    with _making:
        if worker not in _stations:
            measures = worker.state.total_resources.get(GPU)
            _stations[worker] = (
                GpuStation(*gpu_of(str(worker.name)))
                if measures
                else CompileStation(reserved_cores, worker.state.nthreads)
            )
        return _stations[worker]


@dataclass(frozen=True)
class _Call:
    """Its pickle, where it is loaded, is the call's result."""

    run: Callable[[Any], Any]
    job: object

    def __reduce__(self) -> tuple[object, ...]:
        return self.run, (self.job,)


def packed(run: Callable[[Any], Any], job: object) -> bytes:
    """A call of a function of this module, which ``pickle.loads`` makes. A scheduler knows that function without ours,
    and passes jobs on as bytes.
    """
    return pickle.dumps(_Call(run, job))


def seat(worker: Any, station: GpuStation | CompileStation) -> None:
    """Sets the station of a Dask worker of this process."""
    _stations[worker] = station


def gpu_of(name: str) -> tuple[str, int | None]:
    """The GPU of the worker called ``name``, and the core that launches on it."""
    named = NAMED.search(name)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES") or "0"
    gpu = named[1] if named else visible.split(",")[0].strip()
    return gpu, launch_cores([gpu])[0]


def reserved_cores() -> set[int | None]:
    """The cores of this machine that launch, which compilers leave alone."""
    from aotriton.tune.measure.launcher import visible_gpus

    own = {station.core for station in list(_stations.values()) if isinstance(station, GpuStation)}
    gpus = visible_gpus()
    return own | set(launch_cores(gpus) if gpus else ())


# What Dask runs, by name.


def facts(greeting: Greeting) -> Facts:
    for files in greeting.files:
        files.unpack()
    return _station().facts(greeting.setting)


def compile_image(job: CompileJob) -> Compiled:
    from distributed import get_worker

    station = _station()
    assert isinstance(station, CompileStation)
    return replace(station.compile(job), station=get_worker().address)


def measure(job: MeasureJob) -> Measured:
    station = _station()
    assert isinstance(station, GpuStation)
    return station.measure(job)


def stop(run: str, dask_worker: Any = None) -> None:
    """Ends the worker's job of the run; Dask calls this beside the worker's tasks."""
    station = _stations.get(dask_worker)
    if isinstance(station, GpuStation):
        station.stop(run)


def close(worker: Any) -> None:
    """Ends the processes of a Dask worker of this process."""
    if station := _stations.pop(worker, None):
        station.close()
