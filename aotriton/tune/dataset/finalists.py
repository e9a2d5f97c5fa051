"""The best few candidates of each problem as one file, for another machine, which is not quite the same, to race again.

The file is a zip of ``finalists.json`` and the images by name, so that the other machine needs no compiler.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import Outcome, TuningDatabase, latest_medians
from aotriton.rules.family import kernel
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import parse_functional
from aotriton.tune.problem.candidates import spec_of
from aotriton.tune.problem.problems import Problem
from aotriton.tune.problem.tuning_error import TuningError

LIST = "finalists.json"


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


def read_finalists(path: Path, store: ImageStore) -> dict[Problem, list[ImageSpec]]:
    """The problems of the file and their candidates, whose images are put into the store.

    TuningError where the file has no finalists, or those of another state of the kernels.
    """
    try:
        with zipfile.ZipFile(path) as file:
            listed = json.loads(file.read(LIST))
            return {problem: specs for problem, specs in (_problem(file, one, store) for one in listed)}
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise TuningError(f"{path}: no finalists: {error}") from error


def _problem(file: zipfile.ZipFile, listed: Mapping[str, Any], store: ImageStore) -> tuple[Problem, list[ImageSpec]]:
    functional = parse_functional(kernel(listed["kernel"]), listed["arch"], listed["functional"])
    problem = Problem(functional, tuple(listed["cell"]), tuple(dict(listed["shape"]).items()))
    specs = []
    for one in listed["candidates"]:
        spec = ImageSpec.parse(functional, one["config"])
        if spec.name != one["image"]:
            raise ValueError(f"{problem}: {one['config']} is another image here, of another source")
        metadata = json.loads(file.read(f"{spec.name}.json"))
        binary = file.read(metadata["file"])
        own = {key: value for key, value in metadata.items() if key not in ("name", "file", "sha256")}
        store.put(spec.name, functional.arch_spec.image_suffix, binary, own, metadata["sha256"])
        specs.append(spec)
    return problem, specs
