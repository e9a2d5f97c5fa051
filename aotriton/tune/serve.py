"""A machine's part in a cluster: its GPUs and its compilers as Dask workers, for as long as this runs.

Run it as ``python tune/serve.py tcp://host:8786`` on each machine. When the scheduler goes away, it waits for its
return.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

from aotriton.codegen.compile import cpu_count
from aotriton.tune.measure.launcher import visible_gpus
from aotriton.tune.workers import station
from aotriton.tune.workers.jobs import CPU, GPU

AGAIN = 1.0  # seconds between two looks for a scheduler


async def serve(address: str, name: str, resource: str, count: int) -> None:
    """One Dask worker that runs ``count`` jobs at a time, made anew whenever it loses its scheduler."""
    from distributed import Worker

    while True:
        with suppress(OSError, asyncio.TimeoutError):
            worker = Worker(
                address,
                nthreads=count,
                name=f"{socket.gethostname()}-{uuid4().hex[:8]}-{name}",  # Dask refuses a name that it still has
                resources={resource: count},
                memory_limit=0,
                dashboard=False,
                dashboard_address=":0",
            )
            try:
                async with worker:
                    print(f"{name} serves {address}", file=sys.stderr, flush=True)
                    await worker.finished()
            finally:
                await asyncio.to_thread(station.close, worker)
            print(f"{name}: {address} went away, waiting for it", file=sys.stderr, flush=True)
        await asyncio.sleep(AGAIN)


async def _serve_all(address: str, gpus: Sequence[str], jobs: int) -> None:
    own = [serve(address, f"gpu-{gpu}", GPU, 1) for gpu in gpus]
    await asyncio.gather(*own, *([serve(address, "compile", CPU, jobs)] if jobs else []))


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    made = argparse.ArgumentParser(prog="serve.py", description="Lends this machine to a Dask cluster that tunes.")
    made.add_argument("scheduler", metavar="ADDRESS", help="of the Dask scheduler, as tcp://host:8786")
    made.add_argument("--gpus", nargs="*", metavar="GPU", help="indices of the GPUs to lend (default: all visible)")
    made.add_argument("--jobs", type=int, help="images compiled at a time; 0: none (default: one a core)")
    options = made.parse_args(arguments)
    gpus = visible_gpus() if options.gpus is None else options.gpus
    jobs = cpu_count() if options.jobs is None else options.jobs
    if not gpus and jobs <= 0:
        made.error("neither a GPU nor a compiler to lend")
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_all(options.scheduler, gpus, jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
