"""Jobs in child processes: what they make and what they raise comes back in order, and a child that dies is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from aotriton.codegen.fork import side_by_side


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ValueError("no such kernel")


def test_what_jobs_make_comes_in_their_order() -> None:
    """The first is done here, the others elsewhere; what they made may be large."""
    made = side_by_side([os.getpid, os.getpid, lambda: "x" * 1_000_000, os.getpid])
    assert made[0] == os.getpid()
    assert len({made[0], made[1], made[3]}) == 3
    assert made[2] == "x" * 1_000_000
    assert side_by_side([]) == []


def test_one_that_fails_does_not_keep_the_others() -> None:
    """What it raised stands in its place; of one that was killed, with which status."""
    first, second, third, fourth = side_by_side([fail, kill, fail, lambda: 4])
    assert isinstance(first, ValueError)
    assert str(second) == f"a process that worked beside this one ended with status {-signal.SIGKILL}"
    assert str(third) == "no such kernel"
    assert fourth == 4


def test_nobody_is_left_behind(tmp_path: Path) -> None:
    """When all is told, the children have ended."""
    pids = side_by_side([os.getpid] * 3)[1:]
    for pid in pids:
        assert isinstance(pid, int)
        assert not Path(f"/proc/{pid}").exists()
