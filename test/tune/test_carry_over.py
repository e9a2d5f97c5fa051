"""A kernel's source changes: what was measured of images whose bits did not goes to their new names, nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from toy_database import session_on

from aotriton.codegen.store import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.binning import bin_text
from aotriton.rules.database import Measurement, SequenceTiming, TuningDatabase
from aotriton.rules.database.rows import Winner
from aotriton.rules.flash.forward import ATTN_FWD as KERNEL
from aotriton.rules.flash.forward import OPERATOR
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.dataset import carry_over as module
from aotriton.tune.dataset.carry_over import carry_over

FUNCTIONAL = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor")
COMPILE_OPTIONS = {"num_warps": 4, "num_stages": 2}
TUNABLES = {name: {"BLOCK_M": m, "BLOCK_N": 64} for name, m in (("won", 128), ("timed", 64), ("swept", 32))}
SPECS = {name: ImageSpec.of(FUNCTIONAL, tunables, COMPILE_OPTIONS) for name, tunables in TUNABLES.items()}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TuningDatabase]:
    """Three images of an older source: one won its cell, one was timed on a random shape, one only took part."""
    with TuningDatabase(tmp_path / "tuning.sqlite3") as opened:
        session = session_on(opened)
        cell = bin_text(KERNEL.tuning_keys, (512, 512, 8))
        problem = opened.evidence.problem_id("sm_90", KERNEL.name, str(FUNCTIONAL), cell, {"batch": 1})
        for name, spec in SPECS.items():
            image = opened.evidence.image_id(f"old_{name}", spec.config, sha256(name), 128, 0, 1024)
            opened.evidence.record(Measurement(problem, image, session, "sweep", "ok", 10.0, [10.0]))
        opened.put_winners(
            [
                Winner(
                    arch="sm_90", product="d", kernel=KERNEL.name, functional=str(FUNCTIONAL), bin=cell,
                    image="old_won", config=SPECS["won"].config, provenance="measured", source="test",
                    median_us=10.0, runners_up=(),
                )
            ]
        )  # fmt: skip
        timings = [SequenceTiming("portable", (f"old_{name}",), 10.0, 0.1, 9) for name in ("timed", "won")]
        opened.evidence.add_sample(session, "attn_fwd", str(FUNCTIONAL), {"batch": 1, "head_dim": 64}, timings)
        yield opened


class Compiler:
    """A stand-in that makes the given bits of each image, by its name; ``also`` those of a name that are asked for."""

    def __init__(self, bits: Mapping[str, str | None], also: str) -> None:
        self.also = also
        self.bits, self.asked = bits, list[str]()

    def __call__(
        self,
        specs: Iterable[ImageSpec],
        store: ImageStore,
        jobs: int | None,
        *,
        checksums: Mapping[str, str],
        tries: int,
    ) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
        for spec in specs:
            self.asked.append(spec.name)
            bits = checksums[spec.name] if spec.name == self.also and tries > 1 else self.bits.get(spec.name)
            if bits is None:
                yield spec, CompileFailure(spec.name, "no")
            else:
                yield spec, CompiledImage(spec.name, {"sha256": bits}, store.path / spec.name)


def carried(
    database: TuningDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bits: Mapping[str, str | None],
    also: str = "",
    functionals: Sequence[Functional] = (FUNCTIONAL,),
) -> tuple[tuple[int, int], list[str]]:
    compiler = Compiler({SPECS[name].name: made for name, made in bits.items()}, also)
    monkeypatch.setattr(module, "compile_images", compiler)
    return carry_over(database, [OPERATOR], functionals, "sm_90", ImageStore(tmp_path / "store"), 1), compiler.asked


def names(database: TuningDatabase) -> dict[str, set[str]]:
    """The images of each kind of row."""
    (sample,) = database.evidence.samples("sm_90", "attn_fwd")
    return {
        "measured": {one.image for one in database.evidence.outcomes()},
        "won": {one.image for one in database.winners()},
        "timed": {image for timing in sample.timings for image in timing.images},
    }


def test_the_same_bits_keep_their_timings(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every table; an image that decides nothing is not compiled. A second run has nothing to do."""
    won, timed = SPECS["won"].name, SPECS["timed"].name
    bits = {name: sha256(name) for name in SPECS}
    assert carried(database, tmp_path, monkeypatch, bits) == ((2, 0), [won, timed])
    assert names(database) == {"measured": {won, timed, "old_swept"}, "won": {won}, "timed": {won, timed}}
    assert carried(database, tmp_path, monkeypatch, bits) == ((0, 0), [])


def test_what_was_not_asked_for_is_left(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of other functionals of the kernel are not compiled."""
    other = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=128, CAUSAL=False, ADDRESSING="descriptor")
    assert carried(database, tmp_path, monkeypatch, {}, functionals=[other]) == ((0, 0), [])


@pytest.mark.parametrize("bits", [sha256("other"), None])
def test_other_bits_are_left_to_be_measured(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: str | None
) -> None:
    """As is what does not compile any more."""
    before = names(database)
    count, _ = carried(database, tmp_path, monkeypatch, {"won": bits, "timed": sha256("timed")})
    assert count == (1, 1)
    assert names(database) == {kind: {SPECS["timed"].name if one == "old_timed" else one for one in found}
                               for kind, found in before.items()}  # fmt: skip


def test_the_measured_binary_is_asked_for(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an image of which the compiler makes this one or that."""
    won = SPECS["won"].name
    assert carried(database, tmp_path, monkeypatch, {"won": sha256("other")}, won) == (
        (1, 1),
        [SPECS["won"].name, SPECS["timed"].name],
    )
    assert names(database)["won"] == {won}


def test_the_right_one_of_several_sources_is_found(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same config was measured of a source before that, too: bits tell which is today's."""
    session = session_on(database)
    image = database.evidence.image_id("older_won", SPECS["won"].config, sha256("another"), 128, 0, 1024)
    problem = database.evidence.problem_id(
        "sm_90", KERNEL.name, str(FUNCTIONAL), database.evidence.outcomes()[0].bin, {"batch": 1}
    )
    database.evidence.record(Measurement(problem, image, session, "race", "ok", 10.0, [10.0]))
    count, _ = carried(database, tmp_path, monkeypatch, {"won": sha256("won"), "timed": None})
    assert count == (1, 1)
    assert {"older_won", SPECS["won"].name} <= names(database)["measured"]


def test_what_was_compiled_for_borrowed_winners_is_no_obstacle(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known images of today's source of which nothing was measured make room; one that was measured stays."""
    bits = {name: sha256(name) for name in SPECS}
    won, timed = SPECS["won"].name, SPECS["timed"].name
    database.evidence.image_id(won, SPECS["won"].config, bits["won"], 128, 0, 1024)
    swept = database.evidence.image_id(timed, SPECS["timed"].config, bits["timed"], 128, 0, 1024)
    session = session_on(database)
    problem = database.evidence.problem_id(
        "sm_90", KERNEL.name, str(FUNCTIONAL), database.evidence.outcomes()[0].bin, {"batch": 1}
    )
    database.evidence.record(Measurement(problem, swept, session, "sweep", "ok", 10.0, [10.0]))
    assert carried(database, tmp_path, monkeypatch, bits) == ((1, 0), [won])
    assert names(database) == {
        "measured": {won, timed, "old_timed", "old_swept"},
        "won": {won},
        "timed": {won, "old_timed"},
    }
