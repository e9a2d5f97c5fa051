"""How many machines a cluster rents: as many as the runs at its scheduler have a use for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aotriton.tune.workers.jobs import GPU, WANTED

if TYPE_CHECKING:
    from distributed.deploy import Adaptive


def as_wanted(gpus: int) -> type[Adaptive]:
    """For ``adapt(Adaptive=...)`` of a Dask cluster whose jobs are nodes with so many ``gpus``, each with a worker of
    the job's own beside those of ``serve.py``: a node for every ``gpus`` problems that runs have left. A node is given
    back when it is one too many and none of its GPUs has a job.
    """
    from distributed.deploy import Adaptive

    class AsWanted(Adaptive):  # type: ignore[misc] # of Dask, which has no types where mypy runs
        async def target(self) -> int:
            waiting = self.cluster.scheduler.unrunnable
            return -(-sum(WANTED in (task.resource_restrictions or ()) for task in waiting) // gpus)

        async def workers_to_close(self, target: int) -> list[Any]:
            workers = list(self.cluster.scheduler.workers.values())
            busy = {one.host for one in workers if one.resources.get(GPU) and one.processing}
            idle = [one.name for one in workers if one.name in self.plan and one.host not in busy]
            return idle[: len(self.plan) - target]

    return AsWanted
