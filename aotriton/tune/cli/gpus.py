"""The GPUs of this machine that a command uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from aotriton.rules.arch import arch_spec
from aotriton.tune.cli.invocation import CannotBegin, Invocation
from aotriton.tune.cli.options import LAUNCHER
from aotriton.tune.cli.run_lock import wait_for
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.measure.launcher import visible_gpus
from aotriton.tune.measure.requests import Device
from aotriton.tune.workers.cores import launch_cores
from aotriton.tune.workers.gpu_process import GpuProcess
from aotriton.tune.workers.lock import gpu_lock


def gpus_of(call: Invocation) -> Sequence[str]:
    """The GPUs that were asked for, or all that are visible; CannotBegin where there is none.

    A stand-in for the launcher has one, whatever the machine has.
    """
    here = visible_gpus() if call.options.launcher == LAUNCHER else ["0"]
    gpus: Sequence[str] = call.options.gpus or here
    if not gpus:
        hip = bool(call.options.arch) and arch_spec(call.options.arch).vendor == "hip"
        model = f", --predict has a static model choose for {call.options.arch}" if hip else ""
        raise CannotBegin(f"no GPU here. --dry-run lists the problems, --compile-only fills the image store{model}")
    return gpus


@contextmanager
def gpu_processes(call: Invocation, progress: Progress) -> Iterator[tuple[Device, list[GpuProcess]]]:
    """A process for each of these GPUs, which no other run has meanwhile, and what the first GPU is."""
    if call.options.scheduler:
        call.parser.error(f"{call.options.command} uses this machine's GPUs: run it there, without --scheduler")
    gpus = gpus_of(call)
    cores = launch_cores(gpus)
    with ExitStack() as held:
        workers = [GpuProcess(call.options.launcher, gpu, core=core) for gpu, core in zip(gpus, cores, strict=True)]
        for worker in workers:
            held.callback(worker.close)
        devices = [worker.device() for worker in workers]
        for gpu, device in zip(gpus, devices, strict=True):
            lock = gpu_lock(device.uuid or gpu)
            wait_for(lock, f"GPU {gpu} is another run's now", progress.note)
            held.callback(lock.release)
        yield devices[0], workers
