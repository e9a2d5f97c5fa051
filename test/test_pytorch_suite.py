"""Claims about test/gpu/pytorch_suite.py that need neither a GPU nor PyTorch's tests: made-up ones stand for them."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from gpu.pytorch_suite import DROPPED, ENDED, FILES, SERVED, WITH, Backend, Journal, Report, Stats, draw, run

# They ask a library for calls, as PyTorch's tests ask torch, and see through ``counts.open`` whether it is there.
SDPA = """
    import unittest
    import warnings

    import counts


    class Shared(unittest.TestCase):
        def test_of_one_call(self):
            counts.call("forward")
            counts.call("backward")

        def test_that_calls_nothing(self):
            pass

        def test_that_calls_before_it_skips_itself(self):
            counts.call("forward", "head dim 513")
            self.skipTest("not on this device")

        def test_with_a_wrong_result(self):
            counts.call("forward")
            self.assertTrue(not counts.open, "far off\\n\\nGreatest difference: 3")

        def test_that_is_wrong_anyway(self):
            self.assertEqual(1, 2)

        def test_that_is_wrong_without_the_library(self):
            self.assertTrue(counts.open)

        def test_that_expects_a_refusal(self):
            with self.assertRaisesRegex(RuntimeError, "No available kernel"):
                counts.call("forward")
                if not counts.open:
                    raise RuntimeError("No available kernel")

        def test_that_expects_a_warning(self):
            with self.assertWarns(UserWarning):
                counts.call("backward")
                if not counts.open:
                    warnings.warn("it differs from run to run")

        def test_that_expects_a_refusal_by_others(self):
            with self.assertRaises(RuntimeError):
                if not counts.open:
                    raise RuntimeError("of the library's absence")

        def test_with_dropout_p_0_22_cuda(self):
            counts.call("forward")
            self.assertEqual(counts.open, "torch._fill_mem_eff_dropout_mask_()" == 0)

        def test_without_dropout_p_0_0_cuda(self):
            counts.call("forward")
            self.assertEqual(counts.open, "torch._fill_mem_eff_dropout_mask_()" == 0)

        def test_that_expects_a_difference(self):
            counts.call("forward")
            with self.assertRaises(AssertionError):
                self.assertEqual(1, 1 if counts.open else 2)


    class TestSharedCUDA(Shared):
        pass


    class TestSharedCPU(Shared):
        pass


    del Shared
"""
VARLEN = """
    import functools
    import unittest

    import counts


    class TestVarlenCUDA(unittest.TestCase):
        pass


    def test_window(self):
        counts.call("forward")


    for number in range(100):  # each is a wrapper of the same function, as PyTorch's are
        one = functools.wraps(test_window)(lambda self: test_window(self))
        setattr(TestVarlenCUDA, f"test_window_{number}_cuda", one)
"""
COUNTS = """
    open = False
    stats = {way: {"aotriton": 0, "torch": {}} for way in ("forward", "backward")}


    def call(way, why=None):
        if open and why is None:
            stats[way]["aotriton"] += 1
        elif open:
            stats[way]["torch"][why] = stats[way]["torch"].get(why, 0) + 1
"""


class Counted:
    """A door to the made-up library, whose calls are counted only while it is open."""

    def __init__(self, library: dict[str, Any]) -> None:
        self.library = library

    def open(self) -> None:
        self.library["open"] = True

    def close(self) -> None:
        self.library["open"] = False

    def stats(self) -> Stats:
        return deepcopy(self.library["stats"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """PyTorch's files, made up, and the library beside them."""
    for name, text in zip((*FILES, "counts.py"), (SDPA, VARLEN, COUNTS), strict=True):
        (tmp_path / name).write_text(dedent(text))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    modules = [Path(name).stem for name in (*FILES, "counts.py")]
    yield tmp_path
    for name in modules:
        sys.modules.pop(name, None)


@pytest.fixture
def door(folder: Path) -> Counted:
    return Counted(vars(importlib.import_module("counts")))


def short(names: list[str]) -> list[str]:
    return [name.rpartition("::test_")[2] for name in names]


@pytest.fixture
def report(folder: Path, door: Counted) -> Report:
    return run(folder, expression="Shared", baseline="failed", door=door)


def test_tests_of_the_device_run_and_their_calls_are_counted(report: Report) -> None:
    """And no others; of each test what was called here, and what was passed on for which reason."""
    assert len(report.outcomes) == 12
    assert all("TestSharedCUDA" in name for name in report.outcomes)
    found = {short([name])[0]: one for name, one in report.outcomes.items()}
    assert found["of_one_call"].calls == {("forward", "here"): 1, ("backward", "here"): 1}
    assert found["of_one_call"].result == "passed"
    assert not found["that_calls_nothing"].calls
    skipped = found["that_calls_before_it_skips_itself"]
    assert (skipped.result, skipped.why) == ("skipped", "not on this device")
    assert skipped.calls == {("forward", "head dim 513"): 1}
    lines = str(report).splitlines()
    assert "         1  forward: head dim 513" in lines
    assert "         1  not on this device" in lines
    assert "calls that ran here: 6 forward, 2 backward" in lines


def test_a_failing_test_is_told_with_the_last_line_of_its_error(report: Report) -> None:
    """One that expects a refusal that no call of this library is behind, or that two results differ, among them."""
    names = ["that_expects_a_difference", "that_expects_a_refusal_by_others", "with_a_wrong_result"]
    assert sorted(short(report.failed)) == [*names, "without_dropout_p_0_0_cuda"]
    line = next(line for line in str(report).splitlines() if "with_a_wrong_result" in line)
    assert line.endswith("with_a_wrong_result: Greatest difference: 3")


def test_what_is_served_where_it_should_be_refused_is_told_apart(report: Report) -> None:
    assert sorted(short(report.excused(SERVED))) == ["that_expects_a_refusal", "that_expects_a_warning"]
    text = str(report)
    assert "served where torch's kernel refuses or warns: 2" in text
    assert "that_expects_a_refusal: AssertionError: RuntimeError not raised" in text


def test_what_is_compared_with_the_weights_that_torch_drops_is_told_apart(report: Report) -> None:
    """If weights are dropped."""
    assert short(report.excused(DROPPED)) == ["with_dropout_p_0_22_cuda"]


def test_what_fails_without_the_library_too_is_told_apart(report: Report) -> None:
    """Only the tests that failed are run again."""
    assert short(report.fail_anyway) == ["that_is_wrong_anyway"]
    assert len(report.without) == 8


def test_a_whole_baseline_shows_what_fails_only_without_the_library(folder: Path, door: Counted) -> None:
    report = run(folder, expression="Shared", baseline="all", door=door)
    assert short(report.repaired) == ["that_is_wrong_without_the_library"]
    assert report.without.keys() == report.outcomes.keys()


def test_the_same_seed_draws_the_same_tests(folder: Path, door: Counted) -> None:
    """Of the functions in turn: those of one test each are all there beside few of a hundred."""
    first, again, other = (run(folder, 20, seed, door=door).outcomes for seed in (3, 3, 4))
    assert list(first) == list(again)
    assert first.keys() != other.keys()
    assert sum("TestSharedCUDA" in name for name in first) == 12
    assert sum("TestVarlenCUDA" in name for name in first) == 8


def test_a_draw_has_no_test_twice_and_ends_with_all_of_them() -> None:
    """In whatever order they are found."""
    functions = {f"{name}{number}": name for name, many in (("a", 5), ("b", 1), ("c", 2)) for number in range(many)}
    drawn = draw(functions, 6, 1)
    assert sorted(name[0] for name in drawn) == ["a", "a", "a", "b", "c", "c"]
    assert sorted(draw(functions, 99, 1)) == sorted(functions)
    assert draw(dict(reversed(functions.items())), 6, 1) == drawn


def test_no_test_begins_when_no_time_is_left(folder: Path, door: Counted) -> None:
    report = run(folder, expression="window", seconds=0, door=door)
    assert (len(report.outcomes), report.not_run) == (1, 99)
    assert "not run, for lack of time: 99" in str(report)


def test_a_file_that_cannot_be_imported_is_an_error(folder: Path, door: Counted) -> None:
    (folder / FILES[1]).write_text("import nothing_of_this_name")
    with pytest.raises(SystemExit, match="nothing_of_this_name"):
        run(folder, door=door)


def test_the_door_of_this_library_is_torchs_switch() -> None:
    pytest.importorskip("aotriton.torch", reason="torch's operators are not built", exc_type=ImportError)
    from torch.nn.attention import current_flash_attention_impl

    backend = Backend()
    backend.open()
    try:
        assert current_flash_attention_impl() == "aotriton"
        assert backend.stats().keys() >= {"forward", "backward"}
    finally:
        backend.close()
    assert current_flash_attention_impl() is None


def test_a_test_that_ended_the_process_has_failed_and_the_rest_runs(
    folder: Path, door: Counted, tmp_path: Path
) -> None:
    """What a process before wrote down is not run again; it may be run again without the library."""
    path = tmp_path / "journal"
    ending = "test_varlen_attention.py::TestVarlenCUDA::test_window_3_cuda"
    Journal(path).add(WITH, ending)
    report = run(folder, expression="window", baseline="failed", door=door, journal=path)
    assert report.outcomes[ending].why == ENDED
    assert Counter(one.result for one in report.outcomes.values()) == {"passed": 99, "failed": 1}
    assert report.failed == [ending]
    assert report.without[ending].result == "passed"
    calls = door.stats()["forward"]["aotriton"]
    again = run(folder, expression="window", baseline="failed", door=door, journal=path)
    assert door.stats()["forward"]["aotriton"] == calls == 99
    assert (again.outcomes, again.without) == (report.outcomes, report.without)
