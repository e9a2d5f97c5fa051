"""The archive of the evidence: it has everything that was measured, and the rest can be made again from it."""

from __future__ import annotations

import json
import lzma
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from test_database import BIN, begin, problem, winner, write_rows

from aotriton.rules.database import (
    Decisions,
    Measurement,
    SequenceTiming,
    TuningDatabase,
    TuningDatabaseError,
    archive,
    local,
    schema,
    ticks,
)
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.image import ImageSpec

Tables = dict[str, list[tuple[object, ...]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of two sessions: of the second are a search, a sample, and a measurement that went wrong."""
    made = tmp_path / "tuning.sqlite3"
    write_rows(made, 0, 3)
    with TuningDatabase(made) as database:
        database.put_winners([winner(image="image_0_0", config="BLOCK_M=0")])
        session, row = begin(database, "another"), problem(database)
        image = database.evidence.image_id("bad", "BLOCK_M=9", "f" * 64, 255, 8, 1024)
        database.evidence.record(Measurement(row, image, session, "sweep", "wrong", None, (), float("inf"), 0.1, "ä"))
        database.evidence.end_search(row, session, 7)
        timings = [SequenceTiming("portable", ("image_0_0", "image_0_1"), 10.0, 0.5, 20)]
        database.evidence.add_sample(session, "attn_fwd", "T=bf16", {"batch": 2}, timings, 1980, 41)
    return made


def rows(path: Path) -> Tables:
    """Every flat row of a database: all that it says, except its ids."""
    with TuningDatabase(path, readonly=True) as database:
        found = {table: list(rows) for table, rows in database.exchange.flat_rows(*database.exchange.tables())}
    return {table: sorted(rows, key=repr) for table, rows in found.items()}  # sessions of one second have no order


def sessions(path: Path) -> list[Path]:
    folder = archive.folder_of(path)
    return [folder / name for name in archive.files(folder)]


def of_version(version: int, file: bytes) -> bytes:
    """A file as an earlier version wrote it: times are numbers with a point, samples are text, and of version 1 there
    is no judge.
    """
    lines = map(json.loads, lzma.decompress(file).decode().splitlines()[1:])
    columns = {name: values for line in lines for name, values in line.items()}
    medians = [one * 0.032 if type(one) is int else one for one in columns["measurement.median_us"]]
    for number, samples in enumerate(columns["measurement.samples"]):
        if isinstance(samples, list):
            times = [(round((medians[number] or 0.0) / 0.032) + above) * 0.032 for above in samples]
            columns["measurement.samples"][number] = f"[{','.join(f'{time:.5g}' for time in times)}]"
    for name in ("measurement.median_us", "timing.median_us", "timing.spread"):
        columns[name] = [float(f"{one * 0.032:.5g}") if type(one) is int else one for one in columns[name]]
    if version == 1:
        for table, column in schema.SINCE_2:
            del columns[f"{table}.{column}"]
    made = [{"aotriton evidence": version}, *({name: values} for name, values in columns.items())]
    return packed("".join(json.dumps(line) + "\n" for line in made))


def test_a_lost_local_file_is_made_again(path: Path) -> None:
    """From the files of the sessions, one each: every row is what it was."""
    before = rows(path)
    assert len(sessions(path)) == 2
    assert len(before["measurement"]) == 4
    (archive.folder_of(path) / local.NAME).unlink()
    assert rows(path) == before


def test_files_never_change(path: Path) -> None:
    """Opening, deciding and measuring more leaves them as they are; a new session is a new file."""
    before = {one.name: one.read_bytes() for one in sessions(path)}
    write_rows(path, 1, 1)
    after = {one.name: one.read_bytes() for one in sessions(path)}
    assert len(after) == 3
    assert {name: after[name] for name in before} == before


def test_what_a_killed_process_measured_is_packed_by_the_next(path: Path) -> None:
    """It is in the local file from the moment on when it was recorded."""
    killed = TuningDatabase(path)
    session, row = begin(killed), problem(killed)
    image = killed.evidence.image_id("late", "BLOCK_M=7")
    killed.evidence.record(Measurement(row, image, session, "sweep", "ok", 10.0, [10.0]))
    killed._file.close()  # without what closing does
    assert len(sessions(path)) == 2
    with TuningDatabase(path):
        pass
    assert len(sessions(path)) == 3
    (archive.folder_of(path) / local.NAME).unlink()
    assert "late" in {row[5] for row in rows(path)["measurement"]}


TIMES: tuple[tuple[float | None, list[float], object, object], ...] = (  # the last two: as the file has them
    (56.864, [194.34, 55.424, 56.864], 1777, [4296, -45, 0]),
    (646.99, [646.98, 647.01], 646.99, [0, 1]),
    (2228.8, [2228.9, 2228.7], 69650, [3, -3]),
    (4.1, [4.1, 4.1], 4.1, "[4.1,4.1]"),
    (10.016, [10.016, 10.0], 313, "[10.016,10]"),
    (400000.0, [400000.0], 12500000, [0]),
    (None, [3.2, 0.032], None, [100, 1]),
    (None, [], None, None),
)


def test_times_are_ticks_where_those_say_them_exactly(tmp_path: Path) -> None:
    """In the file; in a local file that is made again from it, every time is what it was."""
    path = tmp_path / "timed.sqlite3"
    spreads = {0.0: 0, 0.352: 11, 0.79989: 0.79989, 0.096023: 0.096023}
    with TuningDatabase(path) as database:
        session, row = begin(database), problem(database)
        for number, (median, samples, _, _) in enumerate(TIMES):
            image = database.evidence.image_id(f"image_{number}", f"BLOCK_M={number}")
            status = "ok" if median else "wrong"
            database.evidence.record(Measurement(row, image, session, "sweep", status, median, samples))
        for number, spread in enumerate(spreads):
            timing = SequenceTiming("portable", ("image_0",), 2406.8 + number, spread, 20)
            database.evidence.add_sample(session, "attn_fwd", "T=bf16", {"batch": number + 1}, [timing], 1980, 41)
    before = rows(path)
    columns = dict[str, object]()
    for line in lzma.decompress(sessions(path)[0].read_bytes()).decode().splitlines():
        columns |= json.loads(line)
    assert columns["measurement.median_us"] == [one for _, _, one, _ in TIMES]
    assert columns["measurement.samples"] == [one for _, _, _, one in TIMES]
    assert columns["timing.median_us"] == [75212, 75244, 75275, 75306]
    assert columns["timing.spread"] == list(spreads.values())
    (archive.folder_of(path) / local.NAME).unlink()
    assert rows(path) == before


ODD = [
    (float("inf"), "[3.2]"),
    (float("nan"), "[3.2]"),
    (1.7e308, "[3.2]"),
    (123.456, "[123.456]"),
    (3.2, "[]"),
    (3.2, "[3.20]"),
    (3.2, "[3.2, 3.2]"),
    (3.2, "no list"),
    (3.2, "[nan,1e999]"),
    (3.2, "[true,null]"),
]


@pytest.mark.parametrize(("median", "samples"), ODD)
def test_what_ticks_cannot_say_is_written_as_it_is(median: float, samples: str) -> None:
    """Whatever came from elsewhere, and a file holds it without loss."""
    made = ticks.written({"median_us": [median], "samples": [samples]})
    assert made["samples"] == [samples]
    assert repr(ticks.read("median_us", made["median_us"], {})) == repr([median])
    assert ticks.read("samples", made["samples"], {"median_us": [median]}) == [samples]


def test_a_local_file_knows_rows_whose_files_were_written_anew(path: Path) -> None:
    """In another format, and so under other names: nothing is doubled, and what was not packed yet is not lost."""
    new = {one: one.read_bytes() for one in sessions(path)}
    old = {one.with_name(f"{one.name[: archive.TIME]}-{number}{archive.SUFFIX}"): one for number, one in enumerate(new)}
    for then, now in old.items():
        now.unlink()
        then.write_bytes(of_version(2, new[now]))
    (archive.folder_of(path) / local.NAME).unlink()
    killed = TuningDatabase(path)
    session, row = begin(killed), problem(killed)
    image = killed.evidence.image_id("late", "BLOCK_M=7")
    killed.evidence.record(Measurement(row, image, session, "sweep", "ok", 10.0, [10.0]))
    killed._file.close()  # without what closing does
    for then, now in old.items():
        then.unlink()
        now.write_bytes(new[now])
    after = rows(path)
    assert {len(after[table]) for table in ("session", "sample", "search")} == {3, 1}
    assert sorted(str(one[5]) for one in after["measurement"]) == ["bad", "image_0_0", "image_0_1", "image_0_2", "late"]
    assert len(sessions(path)) == 3
    for then, now in old.items():  # both are there, as where two branches meet
        then.write_bytes(of_version(2, new[now]))
    assert rows(path) == after


def test_files_and_local_files_from_before_there_were_judges_are_read(path: Path) -> None:
    """Nothing of them is lost, and what is measured later names its judge."""
    before = rows(path)
    for file in sessions(path):
        file.write_bytes(of_version(1, file.read_bytes()))
    with sqlite3.connect(archive.folder_of(path) / local.NAME) as file_of_then:
        for table, column in schema.SINCE_2:
            file_of_then.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        file_of_then.execute("PRAGMA user_version = 1")
    file_of_then.close()
    for _ in range(2):
        assert rows(path) == before
        (archive.folder_of(path) / local.NAME).unlink()
    with TuningDatabase(path) as database:
        session, row = begin(database), problem(database)
        image = database.evidence.image_id("judged", "BLOCK_M=7")
        database.evidence.record(Measurement(row, image, session, "sweep", "ok", 10.0, [10.0], judge="a judge"))
        database.evidence.end_search(row, session, 3, "a judge")
    (archive.folder_of(path) / local.NAME).unlink()
    with TuningDatabase(path, readonly=True) as database:
        judges = [one.judge for one in database.evidence.outcomes()]  # sessions of one second have no order
        assert sorted(judges) == ["", "", "", "", "a judge"]
        ends = database.evidence.searched("sm_90", "attn_fwd", "stand-in")
    assert [one.judge for one in ends] == ["a judge"]


def test_a_local_file_of_an_earlier_version_is_made_again(path: Path) -> None:
    """With what it had that was not packed yet; then it takes images that were checked and not timed."""
    before = rows(path)
    killed = TuningDatabase(path)
    session, row = begin(killed), problem(killed)
    image = killed.evidence.image_id("late", "BLOCK_M=7", "a" * 64)
    killed.evidence.record(Measurement(row, image, session, "sweep", "ok", 10.0, [10.0]))
    killed._file.close()  # without what closing does
    with sqlite3.connect(archive.folder_of(path) / local.NAME) as file_of_then:
        (text,) = file_of_then.execute("SELECT sql FROM sqlite_schema WHERE name = 'measurement'").fetchone()
        assert "'checked', " in text
        file_of_then.execute("PRAGMA writable_schema = ON")
        changed = text.replace("'checked', ", "")
        file_of_then.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'measurement'", [changed])
        file_of_then.execute("PRAGMA user_version = 2")
    file_of_then.close()
    with TuningDatabase(path) as database:
        assert len(database.evidence.outcomes()) == len(before["measurement"]) + 1
        row, image = problem(database), database.evidence.image_id("right", "BLOCK_M=8", "b" * 64)
        checked = Measurement(row, image, begin(database), "sweep", "checked", error=0.001, tolerance=0.002, checks=22)
        database.evidence.record(checked)
    assert len(sessions(path)) == 4
    assert len(rows(path)["measurement"]) == len(before["measurement"]) + 2


def test_another_checkout_has_its_own_evidence(path: Path, tmp_path: Path) -> None:
    """Files that come are added, with files that go their rows go too; what was not packed yet is packed first."""
    older, before = path.read_bytes(), rows(path)
    write_rows(path, 1, 2)
    newer, after = path.read_bytes(), rows(path)
    assert len(after["session"]) == len(before["session"]) + 1
    newest = max(sessions(path), key=lambda one: one.stat().st_mtime_ns)
    shutil.move(newest, tmp_path)
    path.write_bytes(older)
    assert rows(path) == before
    shutil.move(tmp_path / newest.name, newest)
    path.write_bytes(newer)
    assert rows(path) == after


def test_small_files_are_joined(path: Path) -> None:
    """One file takes the place of all but the large ones and those of names; each row stays, and is there once."""
    write_rows(path, 1, 2)
    with TuningDatabase(path) as database:
        database.rename_images({"image_0_0": "image_new"})
    folder, before = archive.folder_of(path), rows(path)
    small = {one.name for one in sessions(path) if not one.name.endswith(archive.RENAMED)}
    assert len(small) > 1
    with TuningDatabase(path) as database:
        assert database.repack() == len(small)
        assert database.repack() == 0
    assert len(sessions(path)) == 2
    assert not {one.name for one in sessions(path)} & small
    assert rows(path) == before
    (folder / local.NAME).unlink()
    assert rows(path) == before


def test_a_small_file_that_has_all_of_the_others_stays(tmp_path: Path) -> None:
    """A session that went on after it was packed: its second file is what joining both makes, to the last byte."""
    path = tmp_path / "grown.sqlite3"
    with TuningDatabase(path) as database:
        session, row = begin(database), problem(database)
        for number in range(2):
            image = database.evidence.image_id(f"image_{number}", f"BLOCK_M={number}", f"{number}" * 64)
            database.evidence.record(Measurement(row, image, session, "sweep", "ok", 10.0, [10.0]))
            database.conclude()
    assert len(sessions(path)) == 2
    before = rows(path)
    with TuningDatabase(path) as database:
        assert database.repack() == 2
    assert len(sessions(path)) == 1
    (archive.folder_of(path) / local.NAME).unlink()
    assert rows(path) == before
    assert len(before["measurement"]) == 2


def test_decisions_need_no_evidence(path: Path, tmp_path: Path) -> None:
    """Code generation reads the one file, and leaves nothing beside it; who measures is told what is missing."""
    alone = tmp_path / "alone" / path.name
    alone.parent.mkdir()
    shutil.copy(path, alone)
    with Decisions(alone) as decisions, TuningDatabase(path, readonly=True) as whole:
        assert decisions.winners() == whole.winners()
        assert decisions.certificates() == whole.certificates()
        assert decisions.products() == whole.products()
    assert list(alone.parent.iterdir()) == [alone]
    with pytest.raises(TuningDatabaseError, match=r"2 sessions of measurements that it rests on are not in .*evidence"):
        TuningDatabase(alone, readonly=True)


def test_facts_of_an_image_that_was_only_compiled_stay_until_it_is_stale(path: Path) -> None:
    """Decisions have what it spills; of an image that the source of today does not make, only the evidence has."""
    functional = ATTN_FWD.functional("sm_90", LEVEL=0, T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor")
    spec = ImageSpec.parse(functional, "BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=3")
    with TuningDatabase(path) as database:
        for name in (spec.name, "attn_fwd_sm_90_0123456789abcdef"):
            database.evidence.image_id(name, spec.config, "f" * 64, 128, 4, 1024)
        database.put_winners([winner(image="image_0_0", config="BLOCK_M=0")])
    with Decisions(path) as decisions, TuningDatabase(path, readonly=True) as whole:
        assert decisions.spills()[spec.name] == 4
        assert "attn_fwd_sm_90_0123456789abcdef" not in decisions.spills()
        assert whole.evidence.spills()["attn_fwd_sm_90_0123456789abcdef"] == 4


def test_the_evidence_can_be_read_where_nothing_can_be_written(path: Path) -> None:
    """It is unpacked elsewhere, and nothing beside the database changes."""
    folder, before = archive.folder_of(path), rows(path)
    (folder / local.NAME).unlink()
    folder.chmod(0o555)
    try:
        assert rows(path) == before
        assert not (folder / local.NAME).exists()
        with pytest.raises(TuningDatabaseError, match="read-only, and what is measured is written there"):
            TuningDatabase(path)
    finally:
        folder.chmod(0o755)


def test_renamed_images_are_renamed_everywhere(path: Path) -> None:
    """Among decisions and evidence, in a local file that is made again, and where a session comes from another machine
    that measured under the old name.
    """
    elsewhere = path.with_name("elsewhere.sqlite3")
    write_rows(elsewhere, 0, 2)  # images of the same names
    with TuningDatabase(path) as database:
        database.rename_images({"image_0_0": "image_new"})
        assert [one.image for one in database.winners()] == ["image_new"]
    (come,) = sessions(elsewhere)
    shutil.copy(come, archive.folder_of(path))
    for _ in range(2):
        found = rows(path)
        assert sorted(str(row[5]) for row in found["measurement"] if row[6] == "BLOCK_M=0") == ["image_new"] * 2
        assert "image_0_0" not in {row[0] for row in found["image"]}
        assert [json.loads(str(row[2])) for row in found["sequence"]] == [["image_new", "image_0_1"]]
        (archive.folder_of(path) / local.NAME).unlink()


def test_the_name_today_of_an_image_that_was_renamed_more_than_once(tmp_path: Path) -> None:
    """An image may get back a name that it had, as its source may."""
    for hour, names in enumerate(({"a": "b", "d": "e"}, {"b": "c"}, {"c": "a"})):
        lines = [json.dumps({"aotriton evidence": 3}), json.dumps({"renamed": names})]
        file = tmp_path / f"2026-01-01T{hour:02}0000-0{archive.RENAMED}"
        file.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))
    assert archive.names_today(tmp_path) == {"a": "a", "b": "a", "c": "a", "d": "e"}


def test_a_local_file_follows_sessions_and_new_names_that_come_together(path: Path) -> None:
    """As a checkout that is updated: images were timed once more, and then renamed. All timings have the new names."""
    local_file = archive.folder_of(path) / local.NAME
    older = local_file.read_bytes()
    with TuningDatabase(path) as database:
        session = begin(database, "one more")
        timings = [SequenceTiming("portable", ("image_0_0", "image_0_1"), 11.0, 0.5, 20)]
        database.evidence.add_sample(session, "attn_fwd", "T=bf16", {"batch": 3}, timings, 1980, 41)
    with TuningDatabase(path) as database:
        database.rename_images({"image_0_0": "image_new"})
    local_file.write_bytes(older)
    found = rows(path)
    assert [json.loads(str(row[2])) for row in found["sequence"]] == [["image_new", "image_0_1"]]
    assert len(found["timing"]) == 2
    local_file.unlink()
    assert rows(path) == found


BAD: dict[str, tuple[Callable[[str], bytes], str]] = {
    "no xz": (lambda text: b"text", "line 1: "),
    "cut off": (lambda text: lzma.compress(text.encode())[:-20], "Compressed file ended"),
    "another format": (
        lambda text: packed(text.replace('evidence":3', 'evidence":9', 1)),
        "a newer version",
    ),
    "no JSON": (lambda text: packed(text.replace('{"device.product":', "{device.product:", 1)), "line 2: "),
    "a column less": (lambda text: packed("\n".join(text.splitlines()[:-1])), "it has [0-9]+ lines, not "),
    "another column": (
        lambda text: packed(text.replace("device.uuid", "device.name", 1)),
        "device.name stands",
    ),
    "a value less": (lambda text: packed(text.replace('"device.arch":["sm_90"]', '"device.arch":[]', 1)), "line 4: "),
    "another type": (
        lambda text: packed(text.replace('"device.arch":["sm_90"]', '"device.arch":[9]', 1)),
        "not str",
    ),
    "half a tick": (
        lambda text: packed(text.replace('"measurement.samples":[null]', '"measurement.samples":[[1,0.5]]', 1)),
        "0.5 is not a whole number of ticks",
    ),
    "ticks beyond numbers": (
        lambda text: packed(text.replace('"timing.spread":[0.5]', f'"timing.spread":[{10**400}]', 1)),
        "so many ticks are no time",
    ),
    "a row that is not there": (
        lambda text: packed(text.replace('"measurement.image":[0]', '"measurement.image":[5]', 1)),
        "refers to a row of image that is not there",
    ),
}


def packed(text: str) -> bytes:
    return lzma.compress(text.encode())


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_not_valid_is_named(path: Path, name: str) -> None:
    """With its line; nothing of it, nor of any other new file, is taken over."""
    damage, message = BAD[name]
    (archive.folder_of(path) / local.NAME).unlink()
    (file,) = (one for one in sessions(path) if '"another"' in lzma.decompress(one.read_bytes()).decode())
    good = file.read_bytes()
    file.write_bytes(damage(lzma.decompress(good).decode()))
    with pytest.raises(TuningDatabaseError, match=f"{file.name}: .*{message}"):
        rows(path)
    file.write_bytes(good)
    assert len(rows(path)["measurement"]) == 4


def test_another_binary_of_a_name_is_named(path: Path, tmp_path: Path) -> None:
    """Timings of two binaries never mix, also where one comes as a file of the archive."""
    other = tmp_path / "other.sqlite3"
    with TuningDatabase(other) as database:
        session, row = begin(database), problem(database, BIN)
        image = database.evidence.image_id("bad", "BLOCK_M=9", "e" * 64, 255, 8, 1024)
        database.evidence.record(Measurement(row, image, session, "sweep", "ok", 10.0, [10.0]))
    (file,) = sessions(other)
    shutil.copy(file, archive.folder_of(path))
    with pytest.raises(TuningDatabaseError, match=f"{file.name}: bad has checksum e+, but f+ in "):
        rows(path)
