"""Ctrl-C is looked at where nothing is lost by it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from aotriton.tune.coordinator.interrupt import Interrupt


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_one_waits_and_the_second_does_not() -> None:
    """The first Ctrl-C wakes the loop and is raised where it asks; the second is raised where it comes; afterwards all
    is as before.
    """
    woken: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lambda: woken.append(True)) as waiting:
        waiting.check()
        interrupt()
        assert woken == [True]
        with pytest.raises(KeyboardInterrupt):
            waiting.check()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_signals_alone() -> None:
    """Python tells signals to the main thread alone, and lets no other one handle them."""
    before, within = signal.getsignal(signal.SIGINT), []

    def other() -> None:
        with Interrupt(lambda: None) as waiting:
            within.append(signal.getsignal(signal.SIGINT))
            waiting.check()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert within == [before]
