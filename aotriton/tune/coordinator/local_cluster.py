"""A Dask cluster within this process, for a run without a scheduler of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotriton.tune.workers.jobs import CPU, GPU

if TYPE_CHECKING:
    from distributed import SpecCluster


def local_cluster(gpus: Sequence[str], jobs: int) -> SpecCluster:
    """A scheduler and workers as threads of this process: GPUs and compilers have processes of their own anyway."""
    import logging

    import dask
    from distributed import Scheduler, SpecCluster, Worker

    dask.config.set({"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False})
    options = {"dashboard": False, "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
    workers = {
        f"gpu-{gpu}": {"cls": Worker, "options": {"nthreads": 1, "resources": {GPU: 1}, **options}} for gpu in gpus
    }
    workers["compile"] = {"cls": Worker, "options": {"nthreads": jobs, "resources": {CPU: jobs}, **options}}
    scheduler = {"cls": Scheduler, "options": {"protocol": "inproc://", "dashboard_address": "127.0.0.1:0"}}
    return SpecCluster(workers=workers, scheduler=scheduler, asynchronous=False, silence_logs=logging.ERROR)
