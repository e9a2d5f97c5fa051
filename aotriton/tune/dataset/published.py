"""Winners from what another project has published of its tuning, where our descriptions can express it.

They are ``imported``: the config won with another kernel, and was never timed with ours. So they have no time, and hold
only where there is no winner of our own.
"""

from __future__ import annotations

import hashlib
import importlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules.database import TuningDatabase, TuningDatabaseError, foreign_tables
from aotriton.rules.database.rows import Winner
from aotriton.rules.family import Family
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription, Value
from aotriton.tune.problem.compiler_facts import FACTS, unfit, untimed_winner
from aotriton.tune.problem.problems import keys_of


@dataclass(frozen=True)
class Published:
    """A config that won elsewhere, in our terms: for a kernel on an arch, where a call pins ``choices`` and falls in
    the bins with the representatives ``keys``. It won for all values of choices and keys that are not named.
    """

    kernel: KernelDescription
    arch: str
    choices: Mapping[str, Value]
    keys: Mapping[str, int]
    tunables: Mapping[str, int]
    compile_options: Mapping[str, int]


Translate = Callable[[str, Mapping[str, object]], Published | str]  # of a table and a row of it


@dataclass
class Imported:
    """The winners of a file; and the number of rows and of winners that are not used, by the reason."""

    winners: list[tuple[Winner, ImageSpec]] = field(default_factory=list)
    rows: int = 0  # that are said in our words
    left: Counter[str] = field(default_factory=Counter)  # rows
    dropped: Counter[str] = field(default_factory=Counter)  # winners


def read(path: Path, of: Family, functionals: Collection[Functional]) -> Imported:
    """The winners of the functionals' cells that the tables of the SQLite file give.

    TuningDatabaseError where the family knows none of its tables, and where one is damaged, with row and column.
    """
    try:
        module = importlib.import_module(f"{of.module('tune')}.aotriton_tables")
    except ModuleNotFoundError:
        raise TuningDatabaseError(f"{path}: the family {of.name} knows no other project's tables") from None
    known = {*module.TABLES, *module.OTHERS}
    translate: Translate = module.translate
    tables = {name: rows for name, rows in foreign_tables(path).items() if name in known}
    if not tables:
        raise TuningDatabaseError(
            f"{path}: a SQLite file, but without a table of AOTriton's; another tuning database is for --merge"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    found, cells = Imported(), set[tuple[str, ...]]()
    for table, rows in tables.items():
        for number, row in enumerate(rows, 1):
            try:
                said = translate(table, row)
                if isinstance(said, str):
                    found.left[said] += 1
                    continue
                for winner, spec in _winners(said, functionals, f"AOTriton's {path.name}, sha256 {digest}"):
                    cell = winner.arch, winner.kernel, winner.functional, winner.bin
                    if cell in cells:
                        raise ValueError("an earlier row has the same inputs")
                    cells.add(cell)
                    found.winners.append((winner, spec))
            except ValueError as error:
                raise TuningDatabaseError(f"{path}: table {table}, row {number}: {error}") from None
            found.rows += 1
    return found


def _winners(said: Published, functionals: Collection[Functional], source: str) -> Iterator[tuple[Winner, ImageSpec]]:
    for functional in functionals:
        if functional.kernel != said.kernel or functional.arch != said.arch:
            continue
        if any(functional.get(name, value) != value for name, value in said.choices.items()):
            continue
        spec = ImageSpec.of(functional, said.tunables, said.compile_options)
        for cell in functional.kernel.cells():
            keys = keys_of(functional, cell)
            if all(keys[name] == value for name, value in said.keys.items()):
                yield untimed_winner(spec, cell, "imported", source), spec


def put(database: TuningDatabase, found: Imported, store: ImageStore, jobs: int | None, over: Collection[str]) -> int:
    """Writes the winners of cells that have none yet, or one of a provenance in ``over``. Returns how many.

    Their images are compiled: an image that does not compile, spills or needs too much shared memory serves no cell.
    """
    standing = {(w.arch, w.product, w.kernel, w.functional, w.bin): w.provenance for w in database.winners()}
    translated: list[tuple[Winner, ImageSpec]] = []
    for winner, spec in found.winners:
        cell = winner.arch, winner.product, winner.kernel, winner.functional, winner.bin
        if standing.get(cell, "imported") in ("imported", *over):
            translated.append((winner, spec))
        else:
            hint = ", which --over-predicted replaces" if standing[cell] == "predicted" else ""
            found.dropped[f"the cell has a {standing[cell]} winner{hint}"] += 1
    fit: set[str] = set()
    unusable: dict[str, str] = {}
    for spec, image in compile_images({spec.name: spec for _, spec in translated}.values(), store, jobs):
        if not isinstance(image, CompiledImage):
            unusable[spec.name] = "the image does not compile"
        elif why := unfit(spec, image):
            unusable[spec.name] = f"the image is pruned, {why.partition(':')[0]}"
        else:
            database.evidence.image_id(spec.name, spec.config, **{fact: image.metadata[fact] for fact in FACTS})
            fit.add(spec.name)
    found.dropped.update(unusable[winner.image] for winner, _ in translated if winner.image in unusable)
    written = [winner for winner, _ in translated if winner.image in fit]
    database.put_winners(written)
    return len(written)
