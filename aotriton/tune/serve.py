"""A machine's part in a cluster: its GPUs and its compilers as Dask workers, for as long as this runs.

Run it as ``python tune/serve.py tls://host:8786`` on each machine that has the cluster's key. When the scheduler goes
away, it waits for its return.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers import station
from aotriton.tune.workers.gpu_station import GpuStation
from aotriton.tune.workers.jobs import CPU, GPU, PRICE
from aotriton.tune.workers.key import check, security, stays_here

AGAIN = 1.0  # seconds between two looks for a scheduler
PATIENCE = 30.0  # seconds for a worker to be taken by a scheduler that was there


async def serve(address: str, name: str, resource: str, count: int, price: float | None = None) -> None:
    """One Dask worker that runs ``count`` jobs at a time, for ``price`` dollars an hour, made anew whenever it loses
    its scheduler. KeyFault where the scheduler has another key.
    """
    from distributed import Worker

    secured = security(address)
    options: dict[str, Any] = {"security": secured} if secured else {}
    if stays_here(address):
        options["host"] = "127.0.0.1"
    while True:
        while not await asyncio.to_thread(check, address, secured):  # Dask would try another key for ever
            await asyncio.sleep(AGAIN)
        with suppress(OSError, asyncio.TimeoutError):
            worker = Worker(
                address,
                nthreads=count,
                name=f"{socket.gethostname()}-{uuid4().hex[:8]}-{name}",  # Dask refuses a name that it still has
                resources={resource: count} | ({} if price is None else {PRICE: price}),
                memory_limit=0,
                death_timeout=PATIENCE,
                dashboard=False,
                dashboard_address="127.0.0.1:0",
                **options,
            )
            try:
                if resource == GPU:
                    station.seat(worker, GpuStation(*station.gpu_of(name), ahead=True))
                async with worker:
                    print(f"{name} serves {address}", file=sys.stderr, flush=True)
                    await worker.finished()
            finally:
                await asyncio.to_thread(station.close, worker)
            print(f"{name}: {address} went away, waiting for it", file=sys.stderr, flush=True)
        await asyncio.sleep(AGAIN)


async def _serve_all(address: str, gpus: Sequence[str], jobs: int, price: float | None) -> None:
    """``price`` is the machine's: its GPUs share it, and its compilers cost nothing beside them."""
    each = price / len(gpus) if price is not None and gpus else None
    own = [serve(address, f"gpu-{gpu}", GPU, 1, each) for gpu in gpus]
    await asyncio.gather(*own, *([serve(address, "compile", CPU, jobs, None if gpus else price)] if jobs else []))


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    made = argparse.ArgumentParser(prog="serve.py", description="Lends this machine to a Dask cluster that tunes.")
    made.add_argument("scheduler", metavar="ADDRESS", help="of the Dask scheduler, as tls://host:8786")
    made.add_argument("--gpus", nargs="*", metavar="GPU", help="indices of the GPUs to lend (default: all visible)")
    made.add_argument("--jobs", type=int, help="images compiled at a time; 0: none (default: one a core)")
    made.add_argument(
        "--price", type=float, metavar="USD",
        help="of what this machine lends, an hour, where --price of a run is not its GPUs'; also without a GPU",
    )  # fmt: skip
    options = made.parse_args(arguments)
    if options.price is not None and options.price < 0:
        made.error(f"--price must not be negative, as {options.price} is")
    gpus = visible_gpus() if options.gpus is None else options.gpus
    jobs = cpu_count() if options.jobs is None else options.jobs
    if not gpus and jobs <= 0:
        made.error("neither a GPU nor a compiler to lend")
    try:
        asyncio.run(_serve_all(options.scheduler, gpus, jobs, options.price))
    except KeyboardInterrupt:
        pass
    except TuningError as error:
        print(f"serve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
