"""How a run's use of its GPUs is told: by a clock of the test's own."""

from __future__ import annotations

import pytest

from aotriton.tune.coordinator import usage
from aotriton.tune.coordinator.usage import Usage, Why


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(usage, "time", made)
    return made


def test_all_of_the_time_is_told(clock: Clock) -> None:
    """Two GPUs for twenty seconds: what they measured, what they waited for, and the rest, are all of it."""
    use = Usage(100.0)
    use.came("a")
    use.came("b")
    clock.now = 102.0
    use.waits("a", None)  # has a job
    use.waits("b", Why.IMAGES)
    use.waits("b", Why.IMAGES)  # told again: nothing new
    clock.now = 110.0
    use.measured("a", 6.0, 2.0)
    use.waits("b", None)
    clock.now = 120.0
    use.measured("b", 10.0, 0.0)
    use.waits("a", Why.END)
    clock.now = 120.0
    use.trials = 10
    use.end()
    assert use.busy() == pytest.approx(0.5)  # after ten seconds: one of two
    assert use.busy(late=False) == pytest.approx(0.4)
    first, second = use.summary().split("\n")
    assert first == "10 trials in 20.0 s, 900 for a GPU and hour: 2 GPUs measured 50% of the time after the first 10 s"
    assert second == (
        "all of their time: 35.0% measuring, 5.0% making tensors; waiting for:"
        " 10.0% the start, 20.0% images, 30.0% jobs under way"
    )


def test_a_gpu_that_goes_keeps_what_it_measured(clock: Clock) -> None:
    """Its time is paid until it went, its measuring counts in the share."""
    use = Usage(100.0, price=720.0)
    use.came("a")
    clock.now = 105.0
    use.waits("a", None)
    use.measured("a", 3.0, 0.0)
    use.left("a")
    clock.now = 110.0
    assert use.dollars == pytest.approx(1.0)
    assert use.busy(late=False) == pytest.approx(0.3)


def test_what_is_rented_is_paid_whether_it_works_or_not(clock: Clock) -> None:
    """A GPU without a job by the run's price, another by its own, a machine of compilers by its own; of one that comes
    once something was measured the time from then on; nothing after the end.
    """
    use = Usage(100.0, price=36.0)
    use.came("idle")
    use.came("dear", price=360.0)
    use.rented("compilers", 3.6)
    clock.now = 110.0
    use.left("compilers")
    use.trials = 1
    use.came("late")
    clock.now = 120.0
    use.end()
    clock.now = 1000.0
    assert use.dollars == pytest.approx(0.2 + 2.0 + 0.01 + 0.1)
    assert ", 2.31 dollars\n" in use.summary()
