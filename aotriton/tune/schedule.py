"""The scheduler of a cluster that tunes, which workers and clients meet at; it passes jobs and replies on as bytes.

``python tune/schedule.py --new-key`` makes the cluster's key, once. ``python tune/schedule.py tls://0.0.0.0:8786``
listens for other machines that have the key; without an address, for this machine alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.key import VARIABLE, key_file, new_key, security, stays_here

PORT = 8786
HERE = f"tls://127.0.0.1:{PORT}"


async def schedule(address: str) -> None:
    """A scheduler that listens at ``address``, for as long as this runs."""
    from distributed import Scheduler

    secured, there = security(address), urlsplit(address)
    options = {"security": secured} if secured else {}
    about = f"key {key_file()}" if secured else "no key: who reaches it can run any code on its workers"
    try:
        made = Scheduler(
            host=there.hostname,
            port=PORT if there.port is None else there.port,
            protocol=f"{there.scheme}://",
            dashboard_address="127.0.0.1:8787",  # it asks for no key
            **options,
        )
        async with made as scheduler:
            print(f"the scheduler listens at {scheduler.address}; {about}", file=sys.stderr, flush=True)
            await scheduler.finished()
    except OSError as error:
        raise TuningError(f"nothing can listen at {address}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    made = argparse.ArgumentParser(prog="schedule.py", description="The scheduler of a Dask cluster that tunes.")
    made.add_argument(
        "address", nargs="?", default=HERE,
        help="where to listen, as tls://0.0.0.0:8786 for all who reach this machine (default: %(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--new-key", action="store_true", help=f"make the key that tls:// needs, at {key_file()} or ${VARIABLE}"
    )
    made.add_argument(
        "--trusted-network", action="store_true", help="let tcp://, without a key, listen for other machines"
    )
    options = made.parse_args(arguments)
    try:
        there = urlsplit(options.address)
        known = there.scheme in ("tls", "tcp") and there.hostname and there.port != 0
    except ValueError:
        known = False
    if not known:
        made.error(f"an address is tls://HOST:PORT or tcp://HOST:PORT, not {options.address}")
    if there.scheme == "tcp" and not stays_here(options.address) and not options.trusted_network:
        made.error(
            f"{options.address}: without a key, who reaches it can run any code on its workers. Take tls://, or say"
            " --trusted-network"
        )
    try:
        if options.new_key:
            path = new_key()
            print(f"made {path}: copy it to the same place of each machine's user, and show it to nobody else")
            return 0
        asyncio.run(schedule(options.address))
    except KeyboardInterrupt:
        pass
    except TuningError as error:
        print(f"schedule: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
