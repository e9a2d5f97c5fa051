"""The benchmark of searches: what it charges, what it calls regret, and that its random search is one. No GPU."""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import landscape
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import recording  # noqa: E402 - they are no package
import search as bench  # noqa: E402

PARAMETERS = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "BLOCK_K": (64,), "GROUP": (1, 8), "num_warps": (4, 8)}
PARAMETERS |= {"num_stages": (2, 3)}


def problem(name: str = "one", kernel: str = "toy", seed: int = 0, **more: Any) -> bench.Problem:
    """32 configs of the stand-in kernel; both passes see the true times."""
    sizes = landscape.problem(random.Random(seed))
    configs = landscape.configs(PARAMETERS)
    times = [landscape.time_us(config, sizes, kernel) for config in configs]
    made = recording.Recording(
        name=name, kernel=kernel, arch="sm_90", functional="T=bf16 WIDTH=64 CLOSED=True", bin="rows=64",
        shape={"rows": 64}, features=sizes, product="NVIDIA H200", driver="1", triton="3.6.0", torch="2",
        date="2026-01-01",
        parameters=PARAMETERS, defaults={}, configs=configs, statuses=["ok" if time else "pruned" for time in times],
        facts=[{}] * len(configs), compile_s=[1.0] * len(configs), measure_s=[[0.125] * len(configs)] * 2,
        passes=[times, times], noise=0.01,
    )  # fmt: skip
    return bench.Problem(replace(made, **more))


def test_regret_is_of_the_other_pass_and_above_noise() -> None:
    """What was fastest on A is judged by its time on B, over B's least; what is below the recording's noise is none.
    A config that one of the passes has no time of is a failure in both.
    """
    rest = [200.0] * 28
    first, second = [100.0, 101.0, 90.0, 102.0, *rest], [104.0, 100.5, None, 100.0, *rest]
    one = problem(statuses=["ok"] * 32, passes=[first, second])
    run = bench.Run((2, 0, 1, 3), (1.0, 2.0, 3.0, 4.0), 0.0)
    assert one.trial(2).status == "crashed"
    judged = bench.judged(one, run)
    assert (judged["regret"], judged["trials"], judged["needed"]) == (0.04, 4, 2)
    assert one.regret(1) == 0.0 < one.true[1] / one.true[3] - 1


def test_leaders_race_where_there_is_a_third_pass() -> None:
    """The fastest on C among those that A does not tell apart is the winner, however they fare on B; what A tells apart
    does not race. The race's seconds are added, and it is no trial. Without that pass the fastest on A wins.
    """
    rest = [200.0] * 28
    seen, true = [100.0, 101.0, 102.0, 120.0, *rest], [108.0, 104.0, 100.0, 90.0, *rest]
    third = [103.0, 101.0, 102.0, 50.0, *rest]
    seconds = [[0.5] * 32, [7.0] * 32, [0.25] * 32]
    one = problem(statuses=["ok"] * 32, passes=[seen, true, third], measure_s=seconds)
    run = bench.Run((3, 0, 2, 1), (1.0, 2.0, 3.0, 4.0), 0.0)
    judged = bench.judged(one, run)
    assert judged["regret"] == round(104 / 90 - 1, 5)
    assert (judged["trials"], judged["needed"], judged["seconds"]) == (4, 4, round(4 + 3 * 0.25, 1))
    assert judged["regrets"] == [0.0, round(108 / 90 - 1, 5), round(104 / 90 - 1, 5)]
    without = bench.judged(problem(statuses=["ok"] * 32, passes=[seen, true]), run)
    assert (without["regret"], without["seconds"]) == (round(108 / 90 - 1, 5), 4.0)
    broken = problem(statuses=["ok"] * 32, passes=[seen, true, [103.0, None, *third[2:]]], measure_s=seconds)
    assert broken.trial(1).status == "crashed"
    assert bench.judged(broken, run)["needed"] == 3


def test_random_search_in_closed_form_is_random_search() -> None:
    """The expected regret after each number of trials is the mean of many random searches, up to the last config."""
    one, draws = problem(), 4000
    expected = bench.at_random(one)["regrets"]
    draw, seen = random.Random(0), [[0.0] * draws for _ in expected]
    for number in range(draws):
        order = draw.sample(range(len(one.seen)), len(one.seen))
        for at, count in enumerate(bench.GRID[: len(expected)]):
            ok = [place for place in order[:count] if one.seen[place] < math.inf]
            worst = max(one.regret(place) for place in range(len(one.seen)) if one.true[place] < math.inf)
            seen[at][number] = one.regret(min(ok, key=one.seen.__getitem__)) if ok else worst
    assert expected == pytest.approx([fmean(values) for values in seen], abs=0.02)
    assert len(expected) == sum(count <= len(one.seen) for count in bench.GRID)
    assert expected[-1] == 0.0 < expected[0]


def test_compiling_overlaps_measuring_and_does_not_for_batches() -> None:
    """The GPU waits for the first config, then measures while 16 workers compile; a batch is compiled as a whole."""
    one = problem()
    run = bench.replay(one, "exhaustive", 0)
    assert run.tried == tuple(range(32))
    assert run.told[0] == 1.125
    assert run.told[-1] == 1 + 32 * 0.125
    assert bench.batched(one, [range(16), range(16, 32)]).told[-1] == 2 * (1 + 16 * 0.125)


def test_transfer_learns_from_what_was_tuned_before_and_from_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's problems come one after the other, the first one without a history; each of the others has those of
    its kernel that came before it, with the configs that they tried, and no other kernel's.
    """
    problems = [problem(f"{kernel}-{seed}", kernel, seed) for kernel in ("toy", "other") for seed in range(3)]
    seen = {}

    def noted(one: bench.Problem, name: str, seed: int, history: list[Any]) -> bench.Run:
        seen[one.recording.name] = list(history)
        return bench.Run((0, 1), (1.0, 2.0), 0.0)

    monkeypatch.setattr(bench, "replay", noted)
    runs = bench.one_by_one(problems, 0)
    assert set(runs) == {one.recording.name for one in problems}
    for kernel in ("toy", "other"):
        own = [one for one in problems if one.recording.kernel == kernel]
        assert sorted(len(seen[one.recording.name]) for one in own) == [0, 1, 2]
        for past in (past for one in own for past in seen[one.recording.name]):
            assert past.features in [one.features for one in own]
            assert {*past.medians, *past.failed} == set(own[0].recording.configs[:2])
    assert list(bench.one_by_one(problems, 1)) != list(runs)


def test_numbers_of_a_functional() -> None:
    """Choices that are numbers, or yes and no, tell problems apart; names do not."""
    assert problem().features.items() >= {"WIDTH": 64.0, "CLOSED": 1.0}.items()
    assert "T" not in problem().features


STAND_IN = """#!{python}
import json, sys
asked = json.load(sys.stdin)
if asked["algorithm"] == "LFBOTreeSearch":
    sys.exit("no trees here")
known = [place for place, time in enumerate(asked["problem"]["times"]) if time is not None]
json.dump([[known[:4], [known[4 + seed]]] for seed in asked["seeds"]], sys.stdout)
"""


def test_a_peer_is_asked_with_pass_a_and_charged_by_batch(tmp_path: Path) -> None:
    """Helion's Python gets values and pass A, and says for each seed what it tried in which batches; what it says where
    it fails is the error.
    """
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable))
    python.chmod(0o755)
    runs = bench.helion(str(python), "LFBOPatternSearch", problem(), [0, 1])
    assert [len(run.tried) for run in runs] == [5, 5]
    assert runs[0].tried[:4] == runs[1].tried[:4]
    assert runs[0].told == (1.125, 1.25, 1.375, 1.5, 2.625)
    with pytest.raises(RuntimeError, match="LFBOTreeSearch on one: no trees here"):
        bench.helion(str(python), "LFBOTreeSearch", problem(), [0])


def test_a_result_is_made_joined_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run makes a result, a later one adds an arm to it, and prints an arm a line and the figures of the default;
    results of other problems are not joined.
    """
    for seed in range(2):
        recording.save(problem(f"toy-{seed}", seed=seed).recording, tmp_path)
    paths = [tmp_path / name for name in ("first.json", "both.json", "less.json")]
    common = ["search.py", "--recordings", str(tmp_path), "--jobs", "1", "--seeds"]

    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", [*common, *more])
        bench.main()
        return str(capsys.readouterr().out)

    run("2", "--arms", "transfer", "--json", str(paths[0]))
    out = run("2", "--arms", "pattern", "--from", str(paths[0]), "--json", str(paths[1]), "--table")
    assert [line.split(" | ")[0] for line in out.splitlines()[2:5]] == ["| random", "| transfer", "| pattern"]
    assert out.splitlines()[-1].startswith("transfer: regret ")
    both = json.loads(paths[1].read_text())
    assert all(len(runs) == 2 for runs in both["arms"]["transfer"].values())
    assert both["arms"]["transfer"] == json.loads(paths[0].read_text())["arms"]["transfer"]
    with pytest.raises(SystemExit, match="not of the same problems"):
        run("1", "--arms", "pattern", "--from", str(paths[0]), "--json", str(paths[2]))
    assert not paths[2].exists()
