"""Signed databases and tables: who signed them is known, and a byte that was changed afterwards is noticed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aotriton.rules.database import archive
from aotriton.tune.dataset.signature import sign, verified
from aotriton.tune.problem.tuning_error import TuningError


def new_key(folder: Path, name: str) -> Path:
    """A private key, its public one beside it. Skips the test where there is no OpenSSH to make it."""
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen of OpenSSH, which makes and checks signatures, is not in PATH")
    key = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)], check=True)
    return key


def allow(folder: Path, **keys: Path) -> Path:
    """A file of allowed signers, by their names."""
    path = folder / "allowed_signers"
    path.write_text("".join(f"{name} {key.with_suffix('.pub').read_text()}" for name, key in keys.items()))
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return new_key(tmp_path, "alice")


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder of files that stands for tables, and beside it a database with its archive."""
    folder = tmp_path / "given"
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "measurement.csv").write_text("a,b\n")
    database = folder / "one.sqlite3"
    database.write_text("a database")
    archive.folder_of(database).mkdir()
    (archive.folder_of(database) / "2026-a.json.xz").write_text("what was measured")
    (archive.folder_of(database) / "evidence.sqlite3").write_text("unpacked")
    return folder


@pytest.mark.parametrize("name", ["tables", "tables/measurement.csv", "one.sqlite3"])
def test_what_was_signed_is_read_as_it_was(given: Path, key: Path, tmp_path: Path, name: str) -> None:
    """A copy has what was signed and no more: of a database not the unpacked file, which anybody may write to."""
    assert sign(given / name, key).name == f"{Path(name).name}.signed.sig"
    to = tmp_path / "copy"
    to.mkdir()
    copied, signer = verified(given / name, allow(tmp_path, alice=key), to)
    assert (signer, copied) == ("alice", to / Path(name).name)
    found = {one.relative_to(to).as_posix() for one in to.rglob("*") if one.is_file()} - {"signature"}
    assert (
        found
        == {
            "tables": {"tables/measurement.csv"},
            "tables/measurement.csv": {"measurement.csv"},
            "one.sqlite3": {"one.sqlite3", "one.evidence/2026-a.json.xz"},
        }[name]
    )


def test_what_nobody_signed_or_somebody_changed_is_refused(given: Path, key: Path, tmp_path: Path) -> None:
    """With the reason: no signature, another one's, another file, a list with more in it."""
    tables, signers = given / "tables", allow(tmp_path, alice=key)
    with pytest.raises(TuningError, match=r"tables\.signed"):
        verified(tables, signers, tmp_path)
    sign(tables, new_key(tmp_path, "mallory"))
    with pytest.raises(TuningError, match=r"tables is not signed by anybody in .*allowed_signers"):
        verified(tables, signers, tmp_path)
    sign(tables, key)
    (tables / "measurement.csv").write_text("a,c\n")
    with pytest.raises(TuningError, match=r"measurement\.csv: it was changed after alice signed it"):
        verified(tables, signers, tmp_path)
    listed = given / "tables.signed"
    listed.write_text(listed.read_text() + "0  ../secret\n")
    with pytest.raises(TuningError, match="tables is not signed by anybody"):
        verified(tables, signers, tmp_path)


def test_a_signature_of_something_else_is_none(given: Path, key: Path, tmp_path: Path) -> None:
    """Such as of a commit: it is made for another purpose."""
    sign(given / "tables", key)
    listed = given / "tables.signed"
    (given / "tables.signed.sig").unlink()
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git", str(listed)], check=True)
    with pytest.raises(TuningError, match="tables is not signed by anybody"):
        verified(given / "tables", allow(tmp_path, alice=key), tmp_path)


def test_a_list_names_only_files_of_what_is_signed(given: Path, key: Path, tmp_path: Path) -> None:
    """Even one that is signed."""
    sign(given / "tables", key)
    listed = given / "tables.signed"
    for name in ("../secret", "/etc/passwd", "one.sqlite3"):
        listed.write_text(f"{'0' * 64}  {name}\n")
        (given / "tables.signed.sig").unlink()
        subprocess.run(
            ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "aotriton-tuning", str(listed)], check=True
        )
        with pytest.raises(TuningError, match="is signed, which is no part of it"):
            verified(given / "tables", allow(tmp_path, alice=key), tmp_path)


def test_without_openssh_an_error_says_what_is_missing(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is taken for signed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TuningError, match=r"signatures need ssh-keygen of OpenSSH 8\.2 or later"):
        sign(given / "tables", tmp_path / "key")
    assert not list(given.glob("*.sig"))
