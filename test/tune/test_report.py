"""The report: what a page says of winners, searches, sessions and changes, and that it needs nothing beside itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules.binning import bin_text
from aotriton.rules.database import Measurement, Outcome, TuningDatabase, Winner
from aotriton.rules.gemm.operator import GEMM, OPERATOR
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import KernelDescription
from aotriton.tune.cli.main import main
from aotriton.tune.dataset.changes import changed
from aotriton.tune.dataset.curves import curves, regrets
from aotriton.tune.dataset.report import report

PRODUCT = "NVIDIA H200"
FUNCTIONAL = GEMM.functional("sm_90", T="bf16", TRANS_A=False, TRANS_B=True, ADDRESSING="descriptor")
VOID = {"meta", "line"}


class Page(HTMLParser):
    """The page's texts and titles; an element that is not closed, or closed twice, is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())

    @property
    def squares(self) -> dict[str, tuple[str, str]]:
        """Colour and title of each cell of a heat map, by its bin."""
        found = {}
        for tag, attributes in self.tags:
            if tag == "td" and (title := attributes.get("title")):
                found[title.partition(":")[0]] = str(attributes["style"]), title
        return found


def specs() -> list[ImageSpec]:
    """Two candidates."""
    values = GEMM.tunable_values("cuda")
    first = {name: options[0] for name, options in values.items()}
    second = {**first, **{name: options[-1] for name, options in values.items()}}
    compile_options = {name: options[0] for name, options in GEMM.compile_option_values("cuda").items()}
    return [ImageSpec.of(FUNCTIONAL, one, compile_options) for one in (first, second)]


def cell(m: int, columns: int, k: int) -> str:
    return bin_text(GEMM.tuning_keys, (m, columns, k))


def winner(bin: str, spec: ImageSpec, median: float, provenance: str = "measured", **more: Any) -> Winner:
    return Winner(
        "sm_90", PRODUCT, GEMM.name, str(FUNCTIONAL), bin, spec.name, spec.config, provenance,
        median_us=median, **more,
    )  # fmt: skip


def filled(path: Path, winners: list[Winner], options: str = "") -> Path:
    """A database of a session that measured one candidate, and of these winners."""
    with TuningDatabase(path) as database:
        session = database.evidence.begin_session(
            device=PRODUCT, driver="1", triton="3.6.0", torch="2", arch="sm_90", multiprocessors=132, options=options
        )
        problem = database.evidence.problem_id("sm_90", GEMM.name, str(FUNCTIONAL), cell(4096, 4096, 4096), {"m": 4096})
        image = database.evidence.image_id(
            specs()[0].name, specs()[0].config, sha256="0" * 64, registers=1, spills=0, shared=0
        )
        database.evidence.record(Measurement(problem, image, session, "sweep", "ok", 200.0, [200.0]))
        database.put_winners(winners)
    return path


def page(path: Path, since: Path | None = None) -> Page:
    out = path.with_suffix(".html")
    report(path, [OPERATOR], out, since)
    return Page(out.read_text())


def test_a_cell_has_its_throughput_and_where_it_comes_from(tmp_path: Path) -> None:
    """TFLOP/s of the shape that was measured, the config's letter, and, pointed at, time, interval and day."""
    one, other = specs()
    best_of = winner(cell(4096, 4096, 4096), one, 200.0, low_us=199.0, high_us=202.0, measured="2026-01-02")
    shape = json.dumps({"batch": 1, "m": 4096, "n": 4096, "k": 4096})
    small = json.dumps({"batch": 1, "m": 2048, "n": 2048, "k": 4096})
    made = page(
        filled(
            tmp_path / "a.sqlite3",
            [
                replace(best_of, shape=shape),
                winner(cell(2048, 2048, 4096), other, 200.0, shape=small),
                winner(cell(1024, 2048, 4096), other, 0.0, "predicted"),
            ],
        )
    )  # fmt: skip
    squares = made.squares
    best, slower, guess = (squares[cell(*at)] for at in ((4096, 4096, 4096), (2048, 2048, 4096), (1024, 2048, 4096)))
    assert {"B 687", "A 172", "A"} <= set(made.texts)  # 2 * 4096**3 operations in 200 µs, and a quarter of it
    assert one.config in best[1]
    assert "200 µs (199 to 202), measured on 2026-01-02, of batch 1 m 4096 n 4096 k 4096" in best[1]
    assert best[0] != slower[0]
    assert guess[0] == "background: #eee"
    assert guess[1] == f"{cell(1024, 2048, 4096)}: {other.config}, predicted"
    assert squares[cell(512, 2048, 4096)][1].endswith("borrowed from another bin")


def test_every_cell_of_a_product_is_counted_by_provenance(tmp_path: Path) -> None:
    """Whatever has no winner of its own borrows, from the product or from another one; what no image serves is told."""
    spec, place = specs()[0], cell(4096, 4096, 4096)
    rows = [
        winner(place, spec, 200.0),
        winner(cell(2048, 2048, 4096), spec, 0.0, "predicted"),
        winner(cell(1024, 2048, 4096), spec, 0.0, "imported"),
    ]
    hopper = next(kernel for kernel in OPERATOR.kernels if kernel.name == "gemm_hopper")
    functional = next(hopper.functionals("sm_90"))
    tunables, compile_options = (
        {one.name: one.values["cuda"][0] for one in given} for given in (hopper.tunables, hopper.compile_options)
    )
    other = ImageSpec.of(functional, tunables, compile_options)
    bin = bin_text(hopper.tuning_keys, next(hopper.cells()))
    elsewhere = ("sm_90", "Other", hopper.name, str(functional), bin, other.name, other.config, "measured")
    made = page(filled(tmp_path / "a.sqlite3", [*rows, Winner(*elsewhere, median_us=1.0)]))

    def cells(*kernels: KernelDescription) -> int:
        return sum(one.cell_count for one in kernels for _ in one.functionals("sm_90"))

    none = cells(*OPERATOR.kernels) - cells(GEMM, hopper)
    text = " ".join(made.texts)
    assert "product measured predicted imported borrowed from another product none" in text
    assert f" {PRODUCT} 1 1 1 {cells(GEMM) - 3} {cells(hopper)} {none} " in text
    assert f" Other 1 {cells(hopper) - 1} {cells(GEMM)} {none} " in text


def test_a_page_stands_alone_and_holds_nothing_but_text_of_the_database(tmp_path: Path) -> None:
    """No script, no link, no picture from elsewhere, and what a user wrote is not taken for markup."""
    made = page(filled(tmp_path / "a.sqlite3", [winner(cell(4096, 4096, 4096), specs()[0], 1.0)], "<script>x</script>"))
    assert "<script>x</script>" in made.texts
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in made.tags}
    assert not [a for _, attributes in made.tags for a in attributes if a in ("src", "href") or a.startswith("on")]


def test_changes_are_told(tmp_path: Path) -> None:
    """Which cells have another config, in what, and how their time compares; what is new, and what is gone."""
    one, other = specs()
    common, gone, new = cell(4096, 4096, 4096), cell(2048, 4096, 4096), cell(1024, 4096, 4096)
    before = filled(tmp_path / "a.sqlite3", [winner(common, one, 200.0), winner(gone, one, 100.0)])
    now = filled(tmp_path / "b.sqlite3", [winner(common, other, 150.0), winner(new, one, 50.0)])
    made = page(now, before)
    text = " ".join(made.texts)
    assert "1 cells are measured now that were not, 1 no longer; 1 have another winner" in text
    name = next(name for name, value in one.tunables if dict(other.tunables)[name] != value)
    assert f"{name} {dict(one.tunables)[name]} → {dict(other.tunables)[name]}" in text
    assert "0.750" in made.texts
    assert "Changes" not in " ".join(page(now).texts)


def test_changes_are_sorted_by_how_much_the_time_changed() -> None:
    """Twice as fast and twice as slow alike; cells that kept their config are no change, however their time moved."""
    one, other = specs()
    before = {("", "", "", "", str(n)): winner(str(n), one, 100.0) for n in range(4)}
    times = {"0": (other, 99.0), "1": (other, 300.0), "2": (one, 1.0), "3": (other, 20.0)}
    now = {key: replace(winner(key[4], *times[key[4]])) for key in before}
    assert [one.ratio for one in changed(before, now)] == pytest.approx([0.2, 3.0, 0.99])


def swept(times: dict[str, list[float | None]]) -> list[Outcome]:
    """Candidates of problems in their order; one that was pruned takes no time."""
    return [
        Outcome(0, "sm_90", PRODUCT, "k", "", problem, "", "", "", 1, "sweep", "ok" if time else "pruned", time)
        for problem, taken in times.items()
        for time in taken
    ]


def test_a_curve_is_of_what_a_gpu_saw() -> None:
    """The median over searches of the best so far over the best of all, and a band; pruned candidates are none."""
    (found,) = curves(swept({"a": [None, 4.0, 2.0, 3.0, 1.0], "b": [1.0, None, 2.0, 3.0, 4.0]}))
    assert found.searches == 2
    assert found.loss == pytest.approx([1.5, 0.5, 0.5, 0.0])
    assert found.low == pytest.approx([0.3, 0.1, 0.1, 0.0])
    assert found.high == pytest.approx([2.7, 0.9, 0.9, 0.0])
    assert found.points(30, 10, 4, 3.0) == "0.0,5.0 10.0,8.3 20.0,8.3 30.0,10.0"
    assert found.band(30, 10, 4, 3.0).split()[::7] == ["0.0,1.0", "0.0,9.0"]
    assert curves(swept({"a": [1.0, 2.0]})) == []


def test_regret_is_of_one_sweep() -> None:
    """The winner's time over the best of the same session; a sweep without the winner, or of few, tells nothing."""
    times = {"x": 4.0, "y": 2.0, "z": 5.0, "best": 1.0}
    first = [replace(swept({"a": [us]})[0], image=name, median_us=us) for name, us in times.items()]
    second = [replace(one, session=2, median_us=(one.median_us or 0) * 10) for one in first]
    assert regrets([*first, *second], {("", "a"): "y"}) == [1.0, 1.0]
    assert regrets([*first, *second[1:]], {("", "a"): "best"}) == [0.0]
    assert regrets(first, {("", "a"): "another", ("", "b"): "y"}) == []


def test_clocks_stale_winners_and_regret_are_told(tmp_path: Path) -> None:
    """A kernel's line says how many of its winners today's source makes otherwise, how much longer winners took than
    the best, and at which SM clock candidates were timed.
    """
    one, other = specs()
    places = [cell(m, 4096, 4096) for m in (4096, 2048)]
    old = replace(winner(places[1], other, 150.0), image=other.name[:-8] + "0" * 8)
    path = filled(tmp_path / "a.sqlite3", [winner(places[0], one, 200.0), old])
    with TuningDatabase(path) as database:
        images = {
            name: database.evidence.image_id(name, config, sha256="0" * 64, registers=1, spills=0, shared=0)
            for name, config in (
                (one.name, one.config), (old.image, old.config), ("third", "c=3"), ("fourth", "c=4")
            )
        }  # fmt: skip
        for place, clock in zip(places, (1755, 1980), strict=True):
            problem = database.evidence.problem_id("sm_90", GEMM.name, str(FUNCTIONAL), place, {"m": 1})
            for name, us in ((one.name, 200.0), (old.image, 150.0), ("third", 300.0), ("fourth", 100.0)):
                if (place, name) != (places[0], one.name):
                    measured = Measurement(problem, images[name], 1, "sweep", "ok", us, [us], sm_clock=clock)
                    database.evidence.record(measured)
    text = " ".join(page(path).texts)
    assert "close runners-up stale regret p90 MHz lowest" in text
    assert re.search(r" 0 1 75\.0 % \d+\.\d % 1980 1755 ", text)


@pytest.mark.parametrize("what", ["since", "out"])
def test_what_can_not_be_read_or_written_is_named(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 1, and no page is left behind."""
    path = filled(tmp_path / "a.sqlite3", [])
    (tmp_path / "text").write_text("no database")
    out = tmp_path / ("none/page.html" if what == "out" else "page.html")
    since = ["--since", str(tmp_path / "text")] if what == "since" else []
    assert main(["--database", str(path), "--report", str(out), *since]) == 1
    told = capsys.readouterr().err
    assert re.search(re.escape(str(out if what == "out" else tmp_path / "text")), told)
    assert not out.exists()


def test_the_shipped_database_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With all of its products, kernels and sessions."""
    out = tmp_path / "page.html"
    assert main(["--report", str(out)]) == 0
    made = Page(out.read_text())
    assert {"NVIDIA H200", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"} <= set(made.texts)
    assert {"attn_fwd_hopper", "attn_bwd_dq", "gemm_hopper"} <= set(made.texts)
    assert len(made.squares) > 100
