"""What decisions keep of the evidence: the timings that code generation may ask for, and facts of images.

An image is stale if the source of today makes another one of its config, or if its kernel has the config no more. Of a
cell are kept the timings of images that are not stale, and if its winner is stale, those of stale images too. Facts of
an image that was only compiled are kept until it is stale. The evidence keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aotriton.rules.database.decisions import (
    Decisions,
    config_id,
    functional_id,
    named,
    named_product_id,
    product_id,
    provenance_id,
)
from aotriton.rules.database.evidence import Evidence
from aotriton.rules.database.rows import Certificate, Outcome, Winner, latest_medians
from aotriton.rules.database.schema import MEASURED, counts
from aotriton.rules.database.sqlite_file import File
from aotriton.rules.family import families
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, parse_functional


class Kept(NamedTuple):
    """What is kept of the measurements of a kernel: timings by product, and names of images; and what is not kept."""

    medians: Mapping[str, list[Outcome]]
    images: set[str]
    dropped: set[str]


def derive(file: File, decisions: Decisions, evidence: Evidence, kernels: Iterable[tuple[str, str]]) -> bool:
    """Brings up to date what decisions keep of these kernels, by arch and name, and of compiled images.

    Returns whether anything changed. Within a transaction.
    """
    before = file.value("SELECT total_changes()")
    file.execute(
        "INSERT INTO main.session SELECT uuid FROM evidence.session WHERE uuid NOT IN (SELECT uuid FROM main.session)"
    )
    today = ImagesOfToday()
    kept = {
        (arch, kernel): _kept(evidence.outcomes(arch, kernel), decisions.winners(arch, kernel), today)
        for arch, kernel in sorted(set(kernels))
    }
    made, stale = _unmeasured(file, kept, today)
    _add_images(file, made.union(*(one.images for one in kept.values())))
    for (arch, kernel), of_kernel in kept.items():
        _put_medians(file, arch, kernel, of_kernel.medians)
    if kept:
        _drop_images(file, stale.union(*(one.dropped for one in kept.values())))
        _put_products(file, evidence)
        _put_certificates(file, evidence)
    return file.value("SELECT total_changes()") != before


def _kept(outcomes: Sequence[Outcome], winners: Sequence[Winner], today: ImagesOfToday) -> Kept:
    products: dict[str, list[Outcome]] = {}
    for one in outcomes:
        products.setdefault(one.product, []).append(one)
    stale = {one.image for one in outcomes if today.of(one) not in (None, one.image)}
    stale_cells = {(one.product, one.functional, one.bin) for one in winners if one.image in stale}
    medians, images = {}, {one.image for one in outcomes} - stale
    for product, of_product in products.items():
        medians[product] = [
            one
            for (functional, bin), timed in latest_medians(of_product).items()
            for one in sorted(timed, key=lambda one: one.id)
            if one.image not in stale or (today.of(one) and (product, functional, bin) in stale_cells)
        ]
        images |= {one.image for one in medians[product]}
    return Kept(medians, images, stale - images)


def _unmeasured(file: File, kernels: Iterable[tuple[str, str]], today: ImagesOfToday) -> tuple[set[str], set[str]]:
    """The images of these kernels, by arch and name, that were compiled and not measured: those that the source of
    today makes, and those that are stale.
    """
    found = file.execute(f"SELECT name, config FROM evidence.image WHERE id NOT IN ({MEASURED})").fetchall()
    made, stale = set[str](), set[str]()
    for name, config in found:
        known = today.makes(name, config, kernels)
        if known is not None:
            (made if known else stale).add(name)
    return made, stale


class ImagesOfToday:
    """The images that the source of today makes; each is computed once."""

    def __init__(self) -> None:
        self._kernels = {one.name: one for family in families() for one in family.kernels}
        self._names: dict[tuple[str, ...], str] = {}
        self._made: dict[tuple[str, str, str], set[str]] = {}  # by arch, kernel and config

    def of(self, outcome: Outcome | Winner) -> str | None:
        """The name of the image of today with this config, "" if there is none; None if its kernel is not known."""
        if outcome.kernel not in self._kernels:
            return None
        key = outcome.arch, outcome.kernel, outcome.functional, outcome.config
        if key not in self._names:
            try:
                functional = parse_functional(self._kernels[outcome.kernel], outcome.arch, outcome.functional)
            except ValueError:
                self._names[key] = ""
            else:
                self._names[key] = _name(functional, outcome.config)
        return self._names[key]

    def makes(self, name: str, config: str, kernels: Iterable[tuple[str, str]]) -> bool | None:
        """Whether an image with this name and config is made. None if it is of no kernel among these, by arch and name,
        or of one that is not known.
        """
        for arch, kernel in kernels:
            if name.rpartition("_")[0] == f"{kernel}_{arch}" and kernel in self._kernels:
                key = arch, kernel, config
                if key not in self._made:
                    self._made[key] = {_name(one, config) for one in self._kernels[kernel].functionals(arch)}
                return name in self._made[key]
        return None


def _name(functional: Functional, config: str) -> str:
    """The name of the image with this config, "" if there is none."""
    try:
        return ImageSpec.parse(functional, config).name
    except ValueError:
        return ""


def _add_images(file: File, names: set[str]) -> None:
    """These and those that models name, with their facts; of those that are known, the facts of today."""
    known = _image_ids(file)
    wanted = names | {str(name) for (name,) in file.execute("SELECT image FROM main.model")}
    found = file.execute(
        "SELECT e.name, e.config, unhex(e.sha256), e.registers, e.spills, e.shared, t.timed FROM evidence.image e"
        " LEFT JOIN (SELECT m.image, max(m.status IN ('ok', 'checked')) AS timed FROM evidence.measurement m"
        f" JOIN evidence.session s ON s.id = m.session WHERE {counts('s')} GROUP BY m.image) t"
        " ON t.image = e.id ORDER BY e.id"
    ).fetchall()
    for name, config, *facts, timed in found:
        if name in known:
            file.execute(
                "UPDATE main.image_row SET (sha256, registers, spills, shared, timed) = (?1, ?2, ?3, ?4, ?5)"
                " WHERE id = ?6 AND (sha256, registers, spills, shared, timed) IS NOT (?1, ?2, ?3, ?4, ?5)",
                [*facts, timed or 0, known[name]],
            )
        elif name in wanted:
            row = dict(zip(("sha256", "registers", "spills", "shared"), facts, strict=True))
            row |= {**named(file, name), "config": config_id(file, config), "timed": timed or 0}
            file.insert("main.image_row", row)


def _drop_images(file: File, names: set[str]) -> None:
    """These, except those that winners and models name."""
    found = file.execute("SELECT image FROM main.winner UNION SELECT image FROM main.model")
    dropped = names - {str(name) for (name,) in found}
    for name, id in _image_ids(file).items():
        if name in dropped:
            for table in ("certificate_row", "median_row"):
                file.execute(f"DELETE FROM main.{table} WHERE image = ?", [id])
            file.execute("DELETE FROM main.image_row WHERE id = ?", [id])


def _put_medians(file: File, arch: str, kernel: str, medians: Mapping[str, list[Outcome]]) -> None:
    images = _image_ids(file)
    functionals = {one.functional for outcomes in medians.values() for one in outcomes}
    numbers = {one: functional_id(file, arch, kernel, one) for one in sorted(functionals)}
    bins = {one.bin for outcomes in medians.values() for one in outcomes}
    places = {one: file.id_of("main.bin", {"bin": one}) for one in sorted(bins)}
    days = {one.started[:10] for outcomes in medians.values() for one in outcomes}
    measured = {day: provenance_id(file, "measured", "", day) for day in sorted(days)}
    rows = []
    for name, outcomes in sorted(medians.items()):
        product = product_id(file, arch, name)
        for one in outcomes:
            cell = numbers[one.functional], product, places[one.bin]
            rows.append((*cell, images[one.image], float(one.median_us or 0), measured[one.started[:10]]))
    own = "functional IN (SELECT id FROM functional WHERE (arch, kernel) = (?, ?))"
    columns = "functional, product, bin, image, median_us, provenance"
    if (
        rows
        != file.execute(f"SELECT {columns} FROM main.median_row WHERE {own} ORDER BY id", [arch, kernel]).fetchall()
    ):
        file.execute(f"DELETE FROM main.median_row WHERE {own}", [arch, kernel])
        file.many(f"INSERT INTO main.median_row ({columns}) VALUES (?, ?, ?, ?, ?, ?)", rows)


def _put_products(file: File, evidence: Evidence) -> None:
    """With what the sessions say of them."""
    for one in evidence.products():
        about = [one.multiprocessors, one.memory]
        file.execute(
            "UPDATE main.product SET (multiprocessors, memory) = (?1, ?2)"
            " WHERE id = ?3 AND (multiprocessors, memory) IS NOT (?1, ?2)",
            [*about, product_id(file, one.arch, one.name)],
        )


def _put_certificates(file: File, evidence: Evidence) -> None:
    """Where products of several archs have one name, the certificate is of the arch in the image's name."""
    images, archs = _image_ids(file), dict[str, list[str]]()
    for product, arch in file.execute("SELECT DISTINCT product, arch FROM evidence.device ORDER BY product, arch"):
        archs.setdefault(str(product), []).append(str(arch))

    def product_of(one: Certificate) -> int:
        own = archs[one.product]
        arch = next((arch for arch in own if f"_{arch}_" in one.image), own[0])
        return named_product_id(file, arch, one.product)

    rows = [
        (images[one.image], product_of(one), one.day, one.problems, one.checks, one.error, one.allowed)
        for own in evidence.certificates().values()
        for one in own
        if one.image in images
    ]
    if sorted(rows) != sorted(file.execute("SELECT * FROM main.certificate_row")):
        file.execute("DELETE FROM main.certificate_row")
        file.many("INSERT INTO main.certificate_row VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _image_ids(file: File) -> dict[str, int]:
    return {str(name): id for id, name in file.execute("SELECT id, name FROM main.image")}
