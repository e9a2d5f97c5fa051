"""What messages advise can be run by who reads them: in a source tree, in an installed one, and from a wheel."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES_COMMAND = """
from aotriton.codegen.missing_winners import Missing, report
from aotriton.rules.family import kernel
one = next(iter(kernel("attn_fwd").functionals("ARCH")))
print(report([], [Missing(one, tuple(one.kernel.cells()))], ()).splitlines()[-1].strip())
"""
GFX942 = ("--family", "gemm", "--arch", "gfx942")


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel lays it out: files, no links, and the headers inside."""
    site: Path = tmp_path_factory.mktemp("site")
    shutil.copytree(
        ROOT / "aotriton", site / "aotriton", ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3", "*.evidence")
    )
    (site / "aotriton" / "include").mkdir()
    return site


def program_of_wheel() -> str:
    """What pip makes of ``[project.scripts]`` for aotriton-tune."""
    (line,) = (one for one in (ROOT / "pyproject.toml").read_text().splitlines() if one.startswith("aotriton-tune = "))
    module, _, function = line.partition('"')[2].rstrip('"').partition(":")
    return f"import sys; from {module} import {function}; sys.exit({function}())"


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_a_build_that_lacks_winners_names_a_command_of_its_own_tree(prefix: Path, wheel: Path, arch: str) -> None:
    """It is run as it stands, but for --dry-run behind it: in the tree, with an installed package, and as the program
    that a wheel brings.
    """
    installed = prefix / "share" / "aotriton" / "python"
    for path, cwd, start in (
        (ROOT, ROOT, ["python3", "tune/tune.py"]),
        (installed, prefix, ["python3", "-m", "aotriton.tune.tune"]),
        (wheel, prefix, ["aotriton-tune"]),
    ):
        told = run(sys.executable, "-c", NAMES_COMMAND.replace("ARCH", arch), cwd=cwd, path=path)
        words = shlex.split(told.stdout)
        assert words[: len(start)] == start, told.stdout + told.stderr
        assert ("--predict" in words) == (arch == "gfx942")
        own = [word for word in words[len(start) :] if word != "--predict"]
        program = start[1:] or ["-c", program_of_wheel()]
        done = run(sys.executable, *program, *own, "--dry-run", cwd=cwd, path=path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "problems, " in done.stdout.splitlines()[-1]


def test_without_a_gpu_what_serves_the_arch_is_offered() -> None:
    """The static model where it describes the arch, and nowhere else."""
    for options, offered in ((GFX942, True), (("--family", "gemm", "--arch", "sm_90"), False), ((), False)):
        hidden = "import sys; sys.argv[0] = 'tune.py'; from aotriton.tune.cli import gpus, main; "
        hidden += "gpus.visible_gpus = lambda: []; sys.exit(main.main(prog='tune.py'))"
        done = run(sys.executable, "-c", hidden, *options, "--database", os.devnull + ".none", cwd=ROOT, path=ROOT)
        assert done.returncode == 2, done.stderr
        assert "no GPU here" in done.stderr
        assert ("--predict" in done.stderr) == offered, done.stderr


def test_adding_a_family_begins_without_gpu_and_triton(prefix: Path, tmp_path: Path) -> None:
    """docs/adding.md's first command lists the problems where Triton cannot be imported; and where sqlite-utils is
    missing, which it needs, one line says so.
    """
    page = (ROOT / "docs" / "adding.md").read_text()
    command = "python3 -m aotriton.tune.tune --family rms_norm --arch sm_90 --dry-run"
    assert f"\n{command}\n" in page
    assert "it needs neither a GPU nor Triton, only sqlite-utils (`pip install sqlite-utils`)" in page
    shutil.copytree(ROOT / "examples" / "rms_norm", tmp_path / "rms_norm")
    (tmp_path / "triton.py").write_text("raise ImportError('no Triton here')\n")
    paths = Path(f"{tmp_path}:{prefix / 'share' / 'aotriton' / 'python'}")
    words = command.split()[1:]
    done = run(sys.executable, *words, cwd=tmp_path, path=paths)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("12 problems, ")
    bare = run(sys.executable, "-S", *words, cwd=tmp_path, path=paths)
    assert (bare.returncode, bare.stdout) == (2, "")
    assert bare.stderr == "tune: sqlite_utils is missing: pip install sqlite-utils\n"


def test_programs_have_names_of_their_own() -> None:
    """Nothing that pip puts on a user's path has a name that another project may want."""
    lines = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) >= 3
    assert all(line.startswith("aotriton-") for line in lines), lines
