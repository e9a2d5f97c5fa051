"""How often and in what order candidates are timed: pure functions of something that can be timed."""

from __future__ import annotations

from collections import Counter

from aotriton.tune import measure


class Clock:
    """Every repetition takes the same time; counts how many there were."""

    def __init__(self, microseconds: float) -> None:
        self.microseconds, self.repetitions = microseconds, 0

    def __call__(self, count: int) -> list[float]:
        self.repetitions += count
        return [self.microseconds] * count


def test_repetitions_follow_the_time_budget() -> None:
    """Fast candidates are repeated more often, within bounds; what is returned is every sample."""
    counts = []
    for microseconds in (5.0, 1000.0, 3000.0, 50_000.0):
        clock = Clock(microseconds)
        assert len(measure.sweep(clock, None)) == clock.repetitions
        counts.append(clock.repetitions)
    assert counts == [measure.MOST, 13, measure.FEWEST, measure.FEWEST]


def test_a_candidate_that_cannot_win_is_given_up() -> None:
    """More than 1.5 times the best so far: three repetitions and no more. A better one is measured in full."""
    slow, near = Clock(151.0), Clock(149.0)
    assert measure.sweep(slow, 100.0) == [151.0] * 3
    measure.sweep(near, 100.0)
    assert (slow.repetitions, near.repetitions) == (3, measure.MOST)


def test_a_race_takes_turns() -> None:
    """After each round all have run equally often, the order changes between rounds, and a race can be repeated."""
    order: list[str] = []
    samples = measure.race(lambda name: (order.append(name), 1.0)[1], ["a", "b", "c"])
    rounds = [tuple(order[start : start + 3]) for start in range(0, len(order), 3)]
    assert all(Counter(one) == Counter("abc") for one in rounds)
    assert len(rounds) == measure.ROUNDS >= 15
    assert len(set(rounds)) > 2
    assert {name: len(taken) for name, taken in samples.items()} == dict.fromkeys("abc", measure.ROUNDS)
    first = order.copy()
    order.clear()
    measure.race(lambda name: (order.append(name), 1.0)[1], ["a", "b", "c"])
    assert order == first
