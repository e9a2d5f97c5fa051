"""Borrowed winners are images that nobody has compiled yet: compiles them, and has those that spill chosen anew."""

from __future__ import annotations

from collections.abc import Iterable

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules.database import TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.decide import siblings
from aotriton.tune.session import decide_siblings

FACTS = ("sha256", "registers", "spills", "shared")


def settle(database: TuningDatabase, functionals: Iterable[Functional], store: ImageStore, jobs: int | None) -> int:
    """Decides the winners of the functionals and their siblings, until none that is borrowed is known to spill.

    Returns the number of images that had to be compiled. An image that does not compile is left to the build to report.
    """
    groups = {f"{one.kernel.name} {siblings(one)[0]}": siblings(one) for one in functionals}
    compiled, failed = 0, set[str]()
    while True:
        known = database.spills()
        specs: dict[str, ImageSpec] = {}
        for group in groups.values():
            named = {str(one): one for one in group}
            for winner in decide_siblings(database, group[0]):
                if winner.provenance == "borrowed" and winner.image not in known and winner.image not in failed:
                    specs[winner.image] = ImageSpec.of(named[winner.functional], winner.psels, winner.copts)
        if not specs:
            return compiled
        for spec, image in compile_images(specs.values(), store, jobs):
            if isinstance(image, CompiledImage):
                database.image_id(spec.name, spec.config, **{fact: image.metadata[fact] for fact in FACTS})
                compiled += 1
            else:
                failed.add(spec.name)
