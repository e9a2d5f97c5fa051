"""Parallel jobs: each job but the first runs in a forked child process, which has all the data of its parent."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

Made = TypeVar("Made")


def side_by_side(jobs: Sequence[Callable[[], Made]]) -> list[Made | Exception]:
    """The result or exception of each job, in order. Results of child processes are pickled."""
    context = multiprocessing.get_context("fork")
    children = []
    for job in jobs[1:]:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_send, args=(job, sender), daemon=True)
        child.start()
        sender.close()  # so that the end of the child is the end of what it sends
        children.append((child, receiver))
    found = [_outcome(job) for job in jobs[:1]]
    for child, receiver in children:
        try:
            found.append(receiver.recv())
        except EOFError:
            child.join()
            found.append(ValueError(f"a process that worked beside this one ended with status {child.exitcode}"))
        else:
            child.join()
    return found


def _send(job: Callable[[], Made], sender: Connection) -> None:
    sender.send(_outcome(job))


def _outcome(job: Callable[[], Made]) -> Made | Exception:
    try:
        return job()
    except Exception as error:
        return error
