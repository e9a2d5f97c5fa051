"""Recordings of tuning problems, with a stand-in for the GPU: what is told of each config, drift, failures, the end."""

from __future__ import annotations

import json
import lzma
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from standin_launcher import StandinLauncher, time_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import record
from recording import Recording, load, noise, save

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.flash.common import BF16_PRODUCTS
from aotriton.rules.image import ImageSpec
from aotriton.tune.measure.requests import Request
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.problems import Problem

LAUNCHER = "standin_launcher:StandinLauncher"
NAME, OTHER = "attn_bwd_dk_dv-512", "attn_bwd_dk_dv-2048"
GOOD = "BLOCK_M=64 BLOCK_N=64 num_warps=8 num_stages={}"

Compiled = Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]


def cubin(code: int) -> bytes:
    """An ELF file with so many bytes of code in two functions, and 64 bytes that are none."""
    names = b"\0.text.one\0.text.two\0.data\0"
    rows = [(0, 0, 0), (1, 0, code - 32), (11, 0, 32), (21, 0, 64), (0, 64, len(names))]
    table = b"".join(struct.pack("<IIQQQQ24x", name, 1, 0, 0, at, size) for name, at, size in rows)
    head = b"\x7fELF".ljust(40, b"\0") + struct.pack("<Q10xHHH", 64 + len(names), 64, len(rows), len(rows) - 1)
    return head + names + table


def fake_compile(specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None) -> Compiled:
    """Images without a compiler: tiles of 16 keys spill, sixteen warps do not compile."""
    path = store.path / "any.cubin"
    path.write_bytes(cubin(4096))
    for spec in specs:
        values = dict(spec.tunables + spec.compile_options)
        spills = 8 if values.get("BLOCK_N") == 16 else 0
        facts = {"sha256": "0" * 64, "registers": 128, "spills": spills, "stack": spills, "shared": 1024}
        if values["num_warps"] == 16:
            yield spec, CompileFailure(spec.name, "error: too many warps", 0.25)
        else:
            yield spec, CompiledImage(spec.name, facts, path, 1.5)


class DriftingLauncher(StandinLauncher):
    """Every launch takes 0.03 % longer than the one before."""

    _launches = 0

    def round(self, opened: Sequence[Request]) -> list[float | None]:
        self._launches += len(opened)
        return [time_of(one.config) * (1 + 3e-4 * self._launches) for one in opened]


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, object]:
    """What the stand-in is told: ``tell`` of it before a child starts."""
    given: dict[str, object] = {"log": str(tmp_path / "log")}
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps(given))
    return given


def recorded(tmp_path: Path, *options: str, launcher: str = LAUNCHER, names: tuple[str, ...] = (NAME,)) -> int:
    """Runs the program on two GPUs, for few configs."""
    told = ["--problems", *names, "--out", str(tmp_path / "out"), "--launcher", launcher, "--gpus", "0", "1"]
    return record.main([*told, "--most", "60", *options], fake_compile)


def told_of(recording: Recording) -> dict[str, int]:
    """The place of each config, by its text, which leaves a default out."""
    texts = (" ".join(f"{n}={v}" for n, v in one if (n, v) != (BF16_PRODUCTS, 0)) for one in recording.configs)
    return {text: place for place, text in enumerate(texts)}


def test_a_problem_is_recorded_twice_whole(
    tmp_path: Path, orders: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each config has its status, its facts and what the compiler took; those that run have both passes' medians, by
    both GPUs, and the others none.
    """
    assert recorded(tmp_path) == 0
    (made,) = load(tmp_path / "out")
    task = record.tasks([NAME], 60, 0)[0]
    assert made.configs == [spec.tunables + spec.compile_options for spec in task.specs]
    for place, config in enumerate(told_of(made)):
        values = dict(made.configs[place])
        expected = "compile_failed" if values["num_warps"] == 16 else "pruned" if values["BLOCK_N"] == 16 else "ok"
        assert made.statuses[place] == expected, config
        facts = {"registers": 128, "shared": 1024, "spills": 8 * (values["BLOCK_N"] == 16), "instructions": 256}
        assert made.facts[place] == ({} if expected == "compile_failed" else facts)
        assert made.compile_s[place] == (0.25 if expected == "compile_failed" else 1.5)
        for times, seconds in zip(made.passes, made.measure_s, strict=True):
            assert times[place] == (pytest.approx(time_of(config), rel=1e-4) if expected == "ok" else None)
            assert (seconds[place] > 0) == (expected == "ok")
    assert set(made.statuses) == {"ok", "pruned", "compile_failed"}
    assert made.noise == 0
    assert made.features == {**made.shape, "max_seqlen_q": 512, "max_seqlen_k": 512, "waves": 8}
    assert made.parameters["num_warps"] == [1, 2, 4, 8, 16]
    assert (made.product, made.kernel, made.arch) == ("stand-in", "attn_bwd_dk_dv", "sm_90")
    assert "saved" in capsys.readouterr().err
    opened = [line.split(maxsplit=1) for line in (tmp_path / "log").read_text().splitlines()]
    orders_of = {gpu: [config for by, config in opened if by == gpu] for gpu in "01"}
    assert {len(set(configs)) for configs in orders_of.values()} == {made.statuses.count("ok")}
    assert orders_of["0"] != orders_of["1"]


def test_a_third_pass_is_for_the_race(
    tmp_path: Path, orders: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is asked for, there is one more time of each config, by a GPU that may have had another pass; a problem
    is saved when it has all three.
    """
    assert recorded(tmp_path, "--race") == 0
    (made,) = load(tmp_path / "out")
    assert len(made.passes) == len(made.measure_s) == 3
    assert len({tuple(us is None for us in times) for times in made.passes}) == 1
    said = capsys.readouterr().err
    assert [f"pass {name} on GPU" in said for name in "ABC"] == [True] * 3
    assert said.rindex("timed in") < said.index("saved")


def test_problems_share_images(tmp_path: Path, orders: dict[str, object]) -> None:
    """An image of two problems is compiled once, and both are recorded."""
    asked: list[str] = []

    def compiler(specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None) -> Compiled:
        for spec, image in fake_compile(specs, store, jobs):
            asked.append(spec.name)
            yield spec, image

    told = ["--problems", NAME, OTHER, "--out", str(tmp_path / "out"), "--launcher", LAUNCHER, "--gpus", "0", "1"]
    assert record.main([*told, "--most", "40"], compiler) == 0
    assert [one.name for one in load(tmp_path / "out")] == [OTHER, NAME]
    assert len(asked) == len(set(asked)) < 80


def test_what_fails_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: dict[str, object]
) -> None:
    """A crash, a hang, an exception and a wrong answer are those configs' statuses, without times; all others have
    times.
    """
    specs = [spec.config for spec in record.tasks([NAME], 60, 0)[0].specs]
    runs = [one for one in specs if "num_warps=16" not in one and "BLOCK_N=16" not in one]
    today = {spec.config for spec in space(record.problem_of(*record.PROBLEMS[NAME])).candidates}
    crash, hang, raises, lie = [one for one in runs if one not in today][:4]
    told = {"crash": [crash], "hang": [hang], "raise": [raises], "lie": [lie]}
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps({**orders, **told}))
    monkeypatch.setattr(record, "CANDIDATE_LIMIT", 1.0)
    assert recorded(tmp_path) == 0
    (made,) = load(tmp_path / "out")
    places = told_of(made)
    expected = {crash: "crashed", hang: "timed_out", raises: "crashed", lie: "wrong"}
    assert {config: made.statuses[places[config]] for config in expected} == expected
    for config, place in places.items():
        runs_well = config in runs and config not in expected
        assert [times[place] is not None for times in made.passes] == [runs_well, runs_well], config
    assert all(seconds[places[hang]] >= 2 for seconds in made.measure_s)


def test_drift_is_divided_out(tmp_path: Path, orders: dict[str, object]) -> None:
    """On a GPU that slows down all the time, times are those of the pass's middle: what they differ by between configs
    is the configs' own.
    """
    assert recorded(tmp_path, launcher="test_record:DriftingLauncher") == 0
    (made,) = load(tmp_path / "out")
    for times in made.passes:
        ratios = [us / time_of(config) for config, us in zip(told_of(made), times, strict=True) if us is not None]
        assert max(ratios) / min(ratios) < 1.03
        assert min(ratios) > 1.02  # so that there was something to divide out


def test_drift_between_and_beyond_anchors() -> None:
    """Between two anchors drift follows a straight line, beyond the last one it stays; usual is their median."""
    anchors = [(0, 90.0), (20, 100.0), (40, 120.0)]
    assert record.drift_at(0, anchors) == pytest.approx(0.9)
    assert record.drift_at(10, anchors) == pytest.approx(0.95)
    assert record.drift_at(25, anchors) == pytest.approx(1.05)
    assert record.drift_at(55, anchors) == pytest.approx(1.2)
    assert record.drift_at(7, [(0, 80.0)]) == 1


def test_time_runs_out(tmp_path: Path, orders: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    """At the end of its time the program ends; of a problem without two whole passes there is a line, and no file."""
    assert recorded(tmp_path, "--time-budget", "0.01") == 1
    assert f"{NAME}: dropped: pass A and B is not whole" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there are no recordings"):
        load(tmp_path / "out")


def test_a_lost_gpu_ends_its_own_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU on which everything fails from some request on is left, its pass is dropped and said to be, and the other
    GPU goes on to its end.
    """
    counters = tmp_path / "counters"
    counters.mkdir()
    lost = {"lost": [8, 10**6], "lost_gpu": "1", "counters": str(counters)}
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps({**orders, **lost}))
    assert recorded(tmp_path) == 1
    said = capsys.readouterr().err
    assert re.search(r"GPU 1 stops: Crashed: ", said)
    assert re.search(r"pass [AB] on GPU 0: \d+ of 60 timed", said)
    assert "dropped" in said


def test_the_dry_run_counts_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Every default problem has configs; at least 12 problems are offered; images that were counted are not again."""
    assert record.main(["--dry-run"]) == 0
    lines = {line.split()[0]: line.split()[1:3] for line in capsys.readouterr().out.splitlines()}
    assert len(record.PROBLEMS) >= 12
    assert all(int(lines[name][0]) > 20 for name in record.PROBLEMS)
    assert lines["gemm-1024x6144x4096"][1] == "0"
    assert int(lines["all"][0]) == sum(int(lines[name][0]) for name in record.PROBLEMS)


def test_a_shape_is_recorded_in_its_bin() -> None:
    """The problem of a shape has the bin that dispatch would send it to, and what it is measured on is the shape."""
    problem = record.problem_of(*record.PROBLEMS["attn_fwd-64x8192"])
    assert isinstance(problem, Problem)
    assert problem.keys == {"max_seqlen_q": 64, "max_seqlen_k": 8192, "waves": 1}
    assert problem.sizes["seqlen_k"] == 8192


EXAMPLE = Recording(
    name="example",
    kernel="scale",
    arch="sm_90",
    functional="T=bf16",
    bin="rows=512",
    shape={"rows": 500},
    features={"rows": 500.0},
    product="stand-in",
    driver="1",
    triton="3",
    torch="2",
    date="2026-01-01T00:00:00+00:00",
    parameters={"BLOCK": [16, 32], "num_warps": [4]},
    defaults={"BLOCK": 16},
    configs=[(("BLOCK", 16), ("num_warps", 4)), (("BLOCK", 32), ("num_warps", 4))],
    statuses=["ok", "compile_failed"],
    facts=[{"registers": 12, "shared": 0, "spills": 0, "instructions": 99}, {}],
    compile_s=[0.5, 1.25],
    measure_s=[[0.1, 0.0], [0.2, 0.0]],
    passes=[[10.5, None], [10.75, None]],
    noise=0.0,
)


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Nothing is lost or changed between save and load, and recordings come by name."""
    other = replace(EXAMPLE, name="another", passes=[*EXAMPLE.passes, [10.25, None]], measure_s=[[0.1, 0.0]] * 3)
    assert save(EXAMPLE, tmp_path / "deep" / "er").name == "example.json.xz"
    save(other, tmp_path / "deep" / "er")
    assert load(tmp_path / "deep" / "er") == [other, EXAMPLE]


@pytest.mark.parametrize(
    "content",
    [b"no archive", lzma.compress(b"[1]"), lzma.compress(b'{"parameters": {}}'), lzma.compress(b"{")],
)
def test_what_is_no_recording_is_named(tmp_path: Path, content: bytes) -> None:
    """A file that is damaged, or holds something else, is an error with its path."""
    save(EXAMPLE, tmp_path)
    (tmp_path / "bad.json.xz").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.json\.xz: not a recording"):
        load(tmp_path)


def test_a_recording_tells_of_every_config() -> None:
    """Columns of other lengths, a third pass without its seconds and a config of other parameters are refused."""
    with pytest.raises(ValueError, match="of 2 configs it tells of"):
        replace(EXAMPLE, statuses=["ok"])
    with pytest.raises(ValueError, match="two passes"):
        replace(EXAMPLE, passes=[[1.0, None]] * 3)
    with pytest.raises(ValueError, match="other parameters than"):
        replace(EXAMPLE, configs=[EXAMPLE.configs[0], (("num_warps", 4), ("BLOCK", 32))])


def test_noise_is_of_the_good_ones_and_of_one_gpu() -> None:
    """The median difference of what is near the best, after what one pass is slower by as a whole; far and failed ones
    do not count.
    """
    first = [100.0, 100.0, 100.0, 400.0, None]
    assert noise([first, [200.0, 210.0, 190.0, 9000.0, None]]) == pytest.approx(0.05)
    assert noise([first, [None] * 5]) == 0
    assert noise([first, first, [100.0, 150.0, 50.0, 400.0, None]]) == 0  # a race's pass does not count
