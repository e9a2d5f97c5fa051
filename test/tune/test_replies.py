"""Replies are fetched many at a time, and each job without one says why."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from aotriton.tune.coordinator.replies import Replies


@dataclass
class Done:
    """A future that is done."""

    key: str
    error: Exception | None = None

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        call(self)

    def exception(self, timeout: float) -> Exception | None:
        return self.error


class Client:
    """Fetches only once it may; what failed is None in the answer, as Dask's is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = SimpleNamespace(asyncio_loop=loop)
        self.asked: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self.may, self.lost = threading.Event(), False

    async def gather(self, batch: Mapping[str, Done], errors: str, asynchronous: bool) -> dict[str, str | None]:
        assert (errors, asynchronous) == ("skip", True)
        self.asked.put(list(batch))
        await asyncio.to_thread(self.may.wait, 10)
        if self.lost:
            raise OSError("no scheduler")
        return {key: None if one.error else f"reply of {key}" for key, one in batch.items()}


@pytest.fixture
def client() -> Iterator[Client]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Client(loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_what_is_done_meanwhile_is_fetched_together(client: Client) -> None:
    """While one reply is on its way three jobs end: they are one message, and the one that failed says how."""
    told: queue.SimpleQueue[tuple[str, Any, str | None]] = queue.SimpleQueue()
    replies = Replies(client, lambda *one: told.put(one))
    replies.expect(Done("a"))
    assert client.asked.get(timeout=10) == ["a"]
    for one in (Done("b"), Done("c", ValueError("odd")), Done("d")):
        replies.expect(one)
    client.may.set()
    assert client.asked.get(timeout=10) == ["b", "c", "d"]
    assert [told.get(timeout=10) for _ in "abcd"] == [
        ("a", "reply of a", None),
        ("b", "reply of b", None),
        ("c", None, "ValueError: odd"),
        ("d", "reply of d", None),
    ]
    replies.close()


def test_a_message_that_fails_is_told_of_each_job(client: Client) -> None:
    """Where the scheduler is gone, no job of the message has a reply, and the next one is tried again."""
    told: queue.SimpleQueue[tuple[str, Any, str | None]] = queue.SimpleQueue()
    replies = Replies(client, lambda *one: told.put(one))
    client.may.set()
    client.lost = True
    replies.expect(Done("a"))
    assert told.get(timeout=10) == ("a", None, "OSError: no scheduler")
    client.lost = False
    replies.expect(Done("b"))
    assert told.get(timeout=10) == ("b", "reply of b", None)
    replies.close()
