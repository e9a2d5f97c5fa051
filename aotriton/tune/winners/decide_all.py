"""Decides the winners of whole functionals, and compiles what they borrow: nothing compiled it before, and it may
spill.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules.borrow import filled, siblings
from aotriton.rules.database import Outcome, TuningDatabase, Winner, timings_of
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.tune.problem.compiler_facts import FACTS, Compile, unfit
from aotriton.tune.problem.problems import is_measurable
from aotriton.tune.winners.siblings import decide_siblings


def decide_all(
    database: TuningDatabase,
    functionals: Iterable[Functional],
    store: ImageStore,
    jobs: int | None,
    compiler: Compile | None = None,
) -> int:
    """Decides the winners of the functionals and their siblings, on every product. Then compiles what is borrowed, here
    or by another ``compiler``, until none of it is known to spill. Returns the number of images that had to be
    compiled.

    A winner whose parameters its kernel no longer has wins nothing, nor does a measured one without its measurement,
    which was retracted, nor one of an older source where another product has measured today's, or where today's kernel
    refuses the shape that was measured: its bin borrows until it is measured again. An image that does not compile is
    left to the build to report.
    """
    groups = {f"{one.arch} {one.kernel.name} {siblings(one)[0]}": siblings(one) for one in functionals}
    asked: dict[tuple[str, KernelDescription], dict[str, Functional]] = {}
    for group in groups.values():
        asked.setdefault((group[0].arch, group[0].kernel), {}).update({str(one): one for one in group})
        for product in database.products(group[0].arch):
            decide_siblings(database, group[0], product.name)
    for (arch, kernel), named in asked.items():
        mine = [one for one in database.winners(arch, kernel.name) if one.functional in named]
        multiprocessors = {one.name: one.multiprocessors for one in database.products(arch)}
        outcomes: dict[tuple[str, str, str], list[Outcome]] = {}
        for outcome in database.evidence.outcomes(arch, kernel.name):
            outcomes.setdefault((outcome.product, outcome.functional, outcome.bin), []).append(outcome)
        valid = [one for one in mine if is_valid(named[one.functional], one.config)]
        measured = [one for one in valid if one.provenance == "measured"]
        today = [one for one in measured if ImageSpec.parse(named[one.functional], one.config).name == one.image]
        of_today = {(one.functional, one.bin) for one in today}
        retracted = (
            one for one in measured if not timings_of(one, outcomes.get((one.product, one.functional, one.bin), ()))
        )
        stale = [one for one in measured if one not in today]
        older = (one for one in stale if (one.functional, one.bin) in of_today)
        refused = (
            one
            for one in stale
            if not is_measurable(named[one.functional], json.loads(one.shape), multiprocessors[one.product])
        )
        database.forget_winners([*(one for one in mine if one not in valid), *retracted, *older, *refused])
    compiled, failed = _refresh(database, asked, store, jobs, compiler or compile_images), set[str]()
    while True:
        known = database.evidence.spills()
        spilling = {name for name, spills in known.items() if spills}
        specs: dict[str, ImageSpec] = {}
        for (arch, kernel), named in asked.items():
            winners, products = database.winners(arch, kernel.name), database.products(arch)
            for winner in (
                one for product in products for one in filled(kernel, arch, product.name, winners, products, spilling)
            ):
                waits = winner.provenance == "borrowed" and winner.image not in known and winner.image not in failed
                if waits and winner.functional in named:
                    specs[winner.image] = ImageSpec.parse(named[winner.functional], winner.config)
        if not specs:
            return compiled
        for spec, image in (compiler or compile_images)(specs.values(), store, jobs):
            if isinstance(image, CompiledImage):
                database.evidence.image_id(spec.name, spec.config, **{fact: image.metadata[fact] for fact in FACTS})
                compiled += 1
            else:
                failed.add(spec.name)


def _refresh(
    database: TuningDatabase,
    asked: Mapping[tuple[str, KernelDescription], Mapping[str, Functional]],
    store: ImageStore,
    jobs: int | None,
    compiler: Compile,
) -> int:
    """Compiles the images of today of winners of which nothing is known, and gives winners that were never timed their
    names, unless they turn out to be unfit. Returns the number of images.
    """
    known = database.evidence.spills()
    fit = {name for name, spills in known.items() if not spills}
    unknown = {}
    untimed: list[tuple[Winner, ImageSpec]] = []
    for (arch, kernel), named in asked.items():
        for winner in database.winners(arch, kernel.name):
            if winner.functional in named:
                spec = ImageSpec.parse(named[winner.functional], winner.config)
                if spec.name not in known:
                    unknown[spec.name] = spec
                if winner.provenance != "measured" and winner.image != spec.name:
                    untimed.append((winner, spec))
    compiled = 0
    for spec, image in compiler(unknown.values(), store, jobs):
        if isinstance(image, CompiledImage) and not unfit(spec, image):
            database.evidence.image_id(spec.name, spec.config, **{fact: image.metadata[fact] for fact in FACTS})
            fit.add(spec.name)
            compiled += 1
    database.put_winners(replace(winner, image=spec.name) for winner, spec in untimed if spec.name in fit)
    return compiled


def is_valid(functional: Functional, config: str) -> bool:
    """Whether the functional's kernel still has the parameters of a config."""
    try:
        ImageSpec.parse(functional, config)
    except ValueError:
        return False
    return True
