"""The replies of Dask futures that have ended; those that end at the same time come in one message."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client, Future

MOST = 256  # replies in a message
LIMIT = 60.0  # seconds for it


class Replies:
    """Fetches replies in a thread of its own, and calls ``deliver(key, reply, error)`` there. ``error`` says why there
    is no reply, or is None.
    """

    def __init__(self, client: Client, deliver: Callable[[str, Any, str | None], None]) -> None:
        self._client, self._deliver = client, deliver
        self._done: queue.SimpleQueue[Future | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="replies", daemon=True).start()

    def expect(self, future: Future) -> None:
        future.add_done_callback(self._done.put)

    def close(self) -> None:
        self._done.put(None)

    def _run(self) -> None:
        while (first := self._done.get()) is not None:
            batch = {first.key: first}
            while len(batch) < MOST and not self._done.empty():
                if (more := self._done.get()) is None:
                    return
                batch[more.key] = more
            found, why = self._fetched(batch)
            for key, future in batch.items():
                reply = found.get(key)
                self._deliver(key, reply, None if reply is not None else why or _fault(future))

    def _fetched(self, batch: dict[str, Future]) -> tuple[dict[str, Any], str | None]:
        """The replies, or the reason why there are none."""
        try:
            asked = self._client.gather(batch, errors="skip", asynchronous=True)
            loop: Any = self._client.loop
            return asyncio.run_coroutine_threadsafe(asked, loop.asyncio_loop).result(LIMIT), None
        except Exception as error:  # whatever Dask says of a scheduler or a worker that died with them
            return {}, f"{type(error).__name__}: {error}"


def _fault(future: Future) -> str:
    """Why a job has no reply: what it raised, or what Dask says of a worker that died with it."""
    try:
        error = future.exception(timeout=LIMIT)
    except Exception as failed:
        error = failed
    return f"{type(error).__name__}: {error}" if error else "its reply is lost"
