"""The best few candidates of each problem as one file, for another machine, which is not quite the same, to race again.

The file is a zip of ``finalists.json`` and the images by name, so that the other machine needs no compiler.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aotriton.codegen.compile import ImageStore
from aotriton.rules import checked
from aotriton.rules.binning import bin_text
from aotriton.rules.database import Outcome, TuningDatabase, latest_medians
from aotriton.rules.family import kernel
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import KernelDescription, parse_functional
from aotriton.tune.problem.candidates import spec_of
from aotriton.tune.problem.problems import Problem, Shape
from aotriton.tune.problem.tuning_error import TuningError

LIST = "finalists.json"
CONFIRMED = 4  # of a problem's fastest candidates of unknown origin: as many as race


def write_finalists(
    path: Path, database: TuningDatabase, problems: Sequence[Problem], product: str, store: ImageStore, count: int
) -> int:
    """Writes the ``count`` fastest candidates of each problem that the product has measured. Returns how many there
    are.
    """
    checksums, listed, images = database.evidence.checksums(), list[dict[str, Any]](), dict[str, bytes]()
    by_place: dict[tuple[str, ...], list[Outcome]] = {}
    for arch, name in {(problem.functional.arch, problem.kernel.name) for problem in problems}:
        for one in database.evidence.outcomes(arch, name, product=product):
            by_place.setdefault((name, one.functional, one.bin, one.shape), []).append(one)
    for problem in problems:
        functional, candidates = problem.functional, list[dict[str, Any]]()
        outcomes = by_place.get((problem.kernel.name, str(functional), problem.bin, problem.shape_text), [])
        for outcome in (one for medians in latest_medians(outcomes).values() for one in medians):
            spec = spec_of(functional, outcome.config)
            current = spec is not None and spec.name == outcome.image
            image = store.get(outcome.image, checksums.get(outcome.image)) if current else None
            if image and len(candidates) < count:
                candidates.append({"image": image.name, "config": outcome.config, "median_us": outcome.median_us})
                images[f"{image.name}.json"] = json.dumps(image.metadata).encode()
                images[str(image.metadata["file"])] = image.binary
        if candidates:
            listed.append(
                {"kernel": problem.kernel.name, "arch": functional.arch, "functional": str(functional)}
                | {"cell": problem.cell, "shape": problem.sizes, "product": product, "candidates": candidates}
            )
    partial = path.with_name(f".{path.name}.part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(LIST, json.dumps(listed, indent=1))
        for name, content in images.items():
            file.writestr(name, content)
    partial.replace(path)
    return sum(len(one["candidates"]) for one in listed)


def read_finalists(path: Path, store: ImageStore | None) -> dict[Problem, list[ImageSpec]]:
    """The problems of the file and their candidates, whose images are put into the store. Without a store, since nobody
    trusted vouches for them, they are left, and the run compiles them itself.

    TuningError where the file has no finalists, or those of another state of the kernels.
    """
    try:
        with zipfile.ZipFile(path) as file:
            listed = json.loads(file.read(LIST))
            found = dict(map(_problem, listed))
            images = [_image(file, spec) for spec in {one.name: one for own in found.values() for one in own}.values()
                      if store]  # fmt: skip
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, AttributeError, ValueError) as error:
        raise TuningError(f"{path}: no finalists: {error}") from error
    for spec, binary, metadata, sha256 in images:
        assert store
        store.put(spec.name, spec.functional.arch_spec.image_suffix, binary, metadata, sha256)
    return found


def _problem(listed: Mapping[str, Any]) -> tuple[Problem, list[ImageSpec]]:
    functional = parse_functional(kernel(listed["kernel"]), listed["arch"], listed["functional"])
    problem = Problem(functional, tuple(listed["cell"]), _shape(json.dumps(listed["shape"])))
    if problem.cell not in functional.kernel.cells():
        raise ValueError(f"{functional.kernel.name} has no cell {problem.cell}")
    specs = []
    for one in listed["candidates"]:
        spec = ImageSpec.parse(functional, one["config"])
        if spec.name != one["image"]:
            raise ValueError(f"{problem}: {one['config']} is another image here, of another source")
        specs.append(spec)
    return problem, specs


def _shape(text: str) -> Shape:
    """The sizes in a text; ValueError where it has others than positive numbers."""
    return tuple(
        (name, checked.positive(f"{name} of the shape", one)) for name, one in checked.sizes("shape", text).items()
    )


def _image(file: zipfile.ZipFile, spec: ImageSpec) -> tuple[ImageSpec, bytes, dict[str, Any], str]:
    """The binary of an image, its metadata and its checksum; ValueError if the binary has another one."""
    metadata = json.loads(file.read(f"{spec.name}.json"))
    binary, sha256 = file.read(metadata["file"]), metadata["sha256"]
    if metadata["name"] != spec.name or hashlib.sha256(binary).hexdigest() != sha256:
        raise ValueError(f"{spec.name}: the file has another binary than it says")
    own = {key: value for key, value in metadata.items() if key not in ("name", "file", "sha256")}
    return spec, binary, own, sha256


def unconfirmed(
    database: TuningDatabase, kernels: Sequence[KernelDescription], arch: str, product: str, count: int = CONFIRMED
) -> dict[Problem, list[ImageSpec]]:
    """The ``count`` fastest candidates of each problem that somebody unknown measured on the product, and that were not
    measured here yet.
    """
    found: dict[Problem, list[ImageSpec]] = {}
    for one in kernels:
        cells = {bin_text(one.tuning_keys, cell): cell for cell in one.cells()}
        here = {
            (o.functional, o.bin, o.shape, o.image) for o in database.evidence.outcomes(arch, one.name, product=product)
        }
        theirs = database.evidence.outcomes(arch, one.name, product=product, unknown=True)
        for (text, bin), medians in latest_medians(theirs).items():
            with suppress(ValueError):  # a functional or a shape that this source does not have
                functional = parse_functional(one, arch, text)
                problem = Problem(functional, cells[bin], _shape(medians[0].shape)) if bin in cells else None
                specs = [(spec_of(functional, outcome.config), outcome) for outcome in medians]
                best = [spec for spec, outcome in specs if spec and spec.name == outcome.image][:count]
                due = [spec for spec in best if (text, bin, medians[0].shape, spec.name) not in here]
                if problem and due:
                    found[problem] = due
    return found
