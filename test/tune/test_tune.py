"""tune.py for any family: its options come from descriptions, and a family outside is tuned like one in the tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_database import FOLDER

from aotriton.rules.database import TuningDatabase
from aotriton.rules.family import IN_TREE, family
from aotriton.rules.flash.invariant import INVARIANT
from aotriton.rules.flash.latent import HOPPER_LATENT, LATENT
from aotriton.rules.image import config_values
from aotriton.tune.cli.invocation import Invocation
from aotriton.tune.cli.options import common
from aotriton.tune.problem.family import tuning

ROOT = Path(__file__).resolve().parents[2]

TUNING = '''
"""How the made-up family is tuned: in one shape for each bin."""

from aotriton.tune.problem.problems import keys_of, shape_of


class ToyTuning:
    shape_options = ("batch",)

    def selects(self, functional, cell, wish):
        return True

    def shape(self, functional, cell, multiprocessors, wish):
        keys = keys_of(functional, cell)
        rows = keys.get("rows", 64)
        full = max(1, keys.get("waves", 1) * multiprocessors // -(-rows // 128))
        if wish.sizes.get("batch", full) != full:
            return None
        return shape_of(batch=full, heads=1, rows=rows, width=functional["BLOCK_DMODEL"], taps=8)

    def rank(self, problem):
        return -problem.sizes["rows"], problem.kernel.name, str(problem.functional), problem.cell

    def data_key(self, problem):
        return problem.shape

    def groups(self, functional):
        return [list(functional.kernel.cells())]

    def guess(self, functional, cells, candidates):
        return sorted(candidates, key=lambda one: sorted(one.config.items()))


TUNING = ToyTuning()
'''
WIDE = ("--width", "64", "--addressing", "descriptor")


class Project:
    """A folder with a copy of the made-up family, which is tuned there, and programs that run beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.family, self.out = folder, folder / "toy", folder / "out"
        shutil.copytree(FOLDER, self.family, ignore=shutil.ignore_patterns("__pycache__"))
        rules = self.family / "rules" / "__init__.py"
        rules.write_text(rules.read_text().replace('"BLOCK_M": (32, 64, 128)', '"BLOCK_M": (32, 64)'))  # fewer images
        (self.family / "tune").mkdir()
        (self.family / "tune" / "__init__.py").write_text(TUNING)
        (folder / "launchers").mkdir()
        shutil.copy(ROOT / "test" / "standin_launcher.py", folder / "launchers")
        self.database = self.family / "rules" / "tuning_database.sqlite3"

    def run(self, *command: str, **orders: object) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "AOTRITON_FAMILIES"}
        environment |= {"AOTRITON_IMAGE_STORE": str(self.folder / "store"), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"AOTRITON_STANDIN": json.dumps(orders), "PYTHONPATH": str(self.folder / "launchers")}
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=self.folder, env=environment
        )

    def tune(self, *arguments: str, **orders: object) -> subprocess.CompletedProcess[str]:
        standin = ("--launcher", "standin_launcher:StandinLauncher")
        return self.run(str(ROOT / "tune" / "tune.py"), "--family", str(self.family), *standin, *arguments, **orders)

    def generate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from aotriton.codegen.generate import main"
        given = ("--database", str(self.folder / self.database.name), "--out", str(self.out), "--arch", "sm_90")
        return self.run(
            "-c", f"{program}; sys.exit(main())", str(ROOT), "--family", str(self.family), *given, *arguments
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("name", IN_TREE)
def test_options_follow_from_the_descriptions(name: str) -> None:
    """Each choice and tuning key of a family in the tree has an option, which takes the values that some kernel has; so
    has each size that a wish may fix.
    """
    of = family(name)
    actions = {action.dest: action for action in common(of)._actions}
    for kernel in of.kernels:
        assert kernel.name in (actions["kernel"].choices or ())
        for choice in kernel.choices:
            action = actions[choice.name]
            assert f"--{choice.option}" in action.option_strings
            if all(isinstance(value, bool) for value in choice.values):
                assert f"--no-{choice.option}" in action.option_strings
            else:
                assert set(choice.values) <= set(action.choices or ())
        for key in kernel.tuning_keys if kernel.timed else ():
            assert actions[key.name].option_strings == [f"--{key.option}"]
            assert list(actions[key.name].choices or ()) == list(key.representatives)
    for size in tuning(name).shape_options:
        assert f"--{size}" in actions[size].option_strings


def test_a_family_outside_has_options_of_its_own(project: Project) -> None:
    """Those of its own descriptions, and its own place for the database; attention has no part in them."""
    told = project.tune("--help").stdout
    for option in ("--width WIDTH", "--bias, --no-bias", "--addressing ADDRESSING", "--rows ROWS", "--waves WAVES"):
        assert option in told, option
    assert "--batch BATCH" in told
    assert "scale_rows, scale_rows_fast" in re.sub(r"\s+", " ", told)
    assert str(project.database) in re.sub(r"\s+", "", told)
    assert "seqlen" not in told
    assert "attn" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width", "48"], "--width: invalid choice: 48"),
        (["--kernel", "attn_fwd"], "--kernel: invalid choice: 'attn_fwd'"),
        (["--seqlen-q", "64"], "unrecognized arguments: --seqlen-q 64"),
        (["--batch", "0", "--dry-run"], "--batch must be positive"),
        (["--batch", "1", "--waves", "8", "--dry-run"], "must reach the bins"),
    ],
)
def test_wrong_options_are_named(project: Project, arguments: list[str], message: str) -> None:
    """Status 2, the option and what it may be; no database is made."""
    done = project.tune(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not project.database.exists()


def test_a_dry_run_lists_a_family_outside(project: Project) -> None:
    """Its problems in its own order, with its own sizes, and how many images there are; nothing is written."""
    done = project.tune("--dry-run", "--arch", "sm_90", "--width", "32", "--no-bias", "--batch", "132")
    assert done.returncode == 0, done.stderr
    *listed, total = done.stdout.splitlines()
    assert listed[0] == (
        "scale_rows T=bf16 BLOCK_DMODEL=32 ADDRESSING=descriptor rows=64 waves=1:"
        " batch 132, heads 1, rows 64, width 32, taps 8; 8 candidates"
    )
    assert {line.split()[0] for line in listed} == {
        "scale_rows",
        "scale_rows_fast",
        "scale_rows_weigh",
        "scale_rows_apply",
    }
    counted = sum(int(line.rpartition(" candidates")[0].rpartition(" ")[2]) for line in listed)
    assert re.fullmatch(rf"{len(listed)} problems, {counted} candidates, \d+ images, 0 skipped", total)
    assert not project.database.exists()
    assert not (project.folder / "store").exists()


def test_a_family_outside_is_tuned_and_built(project: Project) -> None:
    """From its folder: every candidate is compiled and measured, winners are decided, the generator takes them, and
    what is missing is named with the command that fills it.
    """
    done = project.tune(*WIDE)
    assert done.returncode == 0, done.stderr
    with TuningDatabase(project.database, readonly=True) as database:
        outcomes, winners, compiled = database.evidence.outcomes(), database.winners(), set(database.spills())
        (options,) = database._file.execute("SELECT options FROM evidence.session").fetchone()
    assert {outcome.status for outcome in outcomes} <= {"ok", "pruned"}
    assert {outcome.kernel for outcome in outcomes if outcome.status == "ok"} == {winner.kernel for winner in winners}
    assert {winner.kernel for winner in winners} == {"scale_rows", "scale_rows_weigh", "scale_rows_apply"}
    best = [winner for winner in winners if winner.kernel == "scale_rows"]
    # Twice the rows are twice as fast, says the stand-in; UNROLL makes no difference, and is not spelled where it is 1.
    assert len(best) == 2 * 4
    assert {config_values(winner.config)["BLOCK_M"] for winner in best} == {64}
    assert {tuple(config_values(winner.config))[:-1] for winner in best} <= {("BLOCK_M",), ("BLOCK_M", "UNROLL")}
    assert {outcome.config for outcome in outcomes if outcome.kernel == "scale_rows_weigh"} == {"num_warps=4"}
    # General addressing was not measured, and borrows: the choice allows it. What is borrowed is compiled, not stored.
    assert {(w.product, w.provenance) for w in winners} == {("stand-in", "measured")}
    assert not [w for w in winners if "ADDRESSING=general" in w.functional]
    assert compiled > {outcome.image for outcome in outcomes}
    assert options == "family=toy launcher=standin_launcher:StandinLauncher BLOCK_DMODEL=[64] ADDRESSING=['descriptor']"

    again = project.tune(*WIDE)
    assert again.returncode == 0, again.stderr
    assert re.search(r"(\d+) problems, \1 of them measured before", again.stderr)
    done = project.tune("--decide", "--arch", "sm_90", *WIDE)
    assert done.stdout == f"{len(winners)} winners stand, 0 images that were not known were compiled\n"
    with TuningDatabase(project.database, readonly=True) as database:
        assert database.evidence.outcomes() == outcomes
        assert database.winners() == winners

    done = project.generate("--alone", "--coverage", "small")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 functionals, ")
    assert {"scale.h", "scale.call.cc", "scale_rows.sm_90.lut.cc"} <= {path.name for path in project.out.iterdir()}
    packs = json.loads((project.out / "images.json").read_text())["packs"]
    assert {pack["kernel"] for pack in packs} == {"scale_rows"}, "the split backend takes two kernels' time"
    listed = {image["name"] for pack in packs for image in pack["images"]}
    assert listed <= compiled
    text = (project.out / "scale_rows.sm_90.lut.cc").read_text()
    assert "Provenance::measured" in text
    assert "Provenance::borrowed" in text

    done = project.generate("--alone", "--coverage", "default")
    assert done.returncode == 1
    wanted = f"python3 tune/tune.py --family {project.family} --arch sm_90 --kernel scale_rows --dtype bf16 --width 32"
    assert wanted in done.stderr


def test_what_was_measured_stays_when_a_description_grows(project: Project) -> None:
    """A choice and a compile option with defaults are added: no old candidate is measured again, and the old winners
    stand in the functionals of the default value. Only what is new is measured.
    """
    weigh = ("--kernel", "scale_rows_weigh", "--width", "64")
    assert project.tune(*weigh).returncode == 0
    with TuningDatabase(project.database, readonly=True) as database:
        before, winners = database.evidence.outcomes(), database.winners()
    assert {winner.functional for winner in winners} == {"T=bf16 BLOCK_DMODEL=64"}

    rules = project.family / "rules" / "__init__.py"
    stages = "    compile_options=by_vendor({'num_stages': 3}, cuda={'num_stages': (2, 3)}) + by_vendor("
    grown = (
        (
            "choices=(T, WIDTH),\n    tunables=(),\n    compile_options=by_vendor(",
            f"choices=(T, WIDTH, OFTEN),\n    tunables=(),\n{stages}",
        ),
        ("ROWS = TuningKey", "OFTEN = Choice('OFTEN', (0, 1), scalar('times') >= 2, default=0)\n\nROWS = TuningKey"),
    )
    for old, new in grown:
        assert rules.read_text().count(old) == 1
        rules.write_text(rules.read_text().replace(old, new))
    assert project.tune("--decide", "--arch", "sm_90", *weigh).returncode == 0
    with TuningDatabase(project.database, readonly=True) as database:
        assert database.winners() == winners
    done = project.tune(*weigh)
    assert done.returncode == 0, done.stderr
    with TuningDatabase(project.database, readonly=True) as database:
        after, now = database.evidence.outcomes(), database.winners()
    assert after[: len(before)] == before
    added = after[len(before) :]
    swept = {(one.functional, one.config) for one in added if one.phase == "sweep"}
    old, other = "T=bf16 BLOCK_DMODEL=64", "T=bf16 BLOCK_DMODEL=64 OFTEN=1"
    both = {"num_warps=4", "num_stages=2 num_warps=4"}
    assert swept == {(old, "num_stages=2 num_warps=4"), *((other, config) for config in both)}
    assert {(one.functional, one.bin) for one in now} == {(text, one.bin) for one in winners for text in (old, other)}


def test_a_family_outside_is_predicted(project: Project) -> None:
    """Where no GPU is, the family's own guess chooses among the images that fit."""
    done = project.tune("--predict", "--kernel", "scale_rows_apply", "--width", "64", "--no-bias", "--arch", "gfx942")
    assert done.returncode == 0, done.stderr
    with TuningDatabase(project.database, readonly=True) as database:
        winners = database.winners("gfx942", "scale_rows_apply")
    assert len(winners) == 2 * 2
    assert {(w.provenance, w.config) for w in winners} == {("predicted", "BLOCK_M=32 MOST_SPLITS=4 num_warps=4")}


def test_two_options_of_one_name_are_told(project: Project) -> None:
    """Status 2, and the option, where two choices of a description are spelled alike."""
    rules = project.family / "rules" / "__init__.py"
    rules.write_text(rules.read_text().replace('option="bias"', 'option="width"'))
    done = project.tune("--dry-run")
    assert done.returncode == 2
    assert "conflicting option string" in done.stderr
    assert "--width" in done.stderr
    assert "Traceback" not in done.stderr


def test_only_gfx942_is_predicted(project: Project) -> None:
    """Status 1 for another arch, and what to do about it; no winner is written."""
    done = project.tune("--predict", "--arch", "sm_90")
    assert done.returncode == 1
    assert done.stderr == "tune: the static model describes gfx942, not sm_90: measure there\n"
    with TuningDatabase(project.database, readonly=True) as database:
        assert database.winners() == []


def test_a_folder_without_a_tuning_module_says_so(project: Project) -> None:
    """Status 2, and the module that is missing."""
    shutil.rmtree(project.family / "tune")
    done = project.tune("--dry-run")
    assert done.returncode == 2
    assert "toy.tune" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_databases_become_one(project: Project) -> None:
    """What two machines measured stands in one database, whose winners are decided from both; again changes nothing."""
    one, two = (project.folder / f"{name}.sqlite3" for name in ("one", "two"))
    for database, rows in ((one, "64"), (two, "512")):
        done = project.tune("--kernel", "scale_rows", *WIDE, "--no-bias", "--rows", rows, "--database", str(database))
        assert done.returncode == 0, done.stderr

    def measured() -> set[str]:
        with TuningDatabase(one, readonly=True) as database:
            return {row.bin.split()[0] for row in database.winners() if row.provenance == "measured"}

    assert measured() == {"rows=64"}
    for taken in (True, False):
        done = project.tune("--database", str(one), "--merge", str(two), "--own")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("0 timings") != taken, done.stdout
        assert measured() == {"rows=64", "rows=512"}
    done = project.tune("--database", str(one), "--merge", str(project.folder / "none.sqlite3"))
    assert done.returncode == 1
    assert "none.sqlite3: there is no such file" in done.stderr


@pytest.mark.parametrize(
    ("kernels", "operators"),
    [
        ([], ["attn_fwd", "attn_bwd"]),
        (["attn_fwd_hopper"], ["attn_fwd"]),
        (["attn_bwd_dq", "attn_fwd"], ["attn_fwd", "attn_bwd"]),
    ],
)
def test_a_kernel_stands_for_its_operator_on_random_shapes(kernels: list[str], operators: list[str]) -> None:
    """Whole operators are timed there: those that have one of the kernels that were asked for."""
    flash = family("flash")
    options = common(flash).parse_args(["--kernel", *kernels] if kernels else [])
    assert [one.name for one in Invocation(flash, common(flash), options, 0.0).operators] == operators


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_functionals_are_of_timed_kernels(arch: str) -> None:
    """All of them where no kernel was asked for: what is not timed is neither predicted nor decided."""
    flash = family("flash")
    found = Invocation(flash, common(flash), common(flash).parse_args([]), 0.0).functionals(arch)
    served = {kernel.name for kernel in flash.kernels if arch in kernel.archs}
    assert {one.kernel.name for one in found} == served - {"attn_bwd_dsinks", "kv_append", "attn_fwd_turn"} - {
        one.name for one in (*INVARIANT.kernels, *LATENT.kernels, *HOPPER_LATENT.kernels)
    }
