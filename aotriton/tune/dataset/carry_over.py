"""After a kernel's source has changed: an image keeps its measurements if the compiler makes the same bits of the new
source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules.database import TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription, parse_functional
from aotriton.rules.operators import Operator

TRIES = 4  # for the bits that are measured, of a compiler that may make one of two


def carry_over(
    database: TuningDatabase,
    operators: Iterable[Operator],
    functionals: Sequence[Functional],
    arch: str,
    store: ImageStore,
    jobs: int | None,
) -> tuple[int, int]:
    """Compiles the images of these functionals that won, raced, were timed on random shapes or checked because they
    ship, from the current source. Returns how many of those from another source have the same bits, and now go by their
    new names, and how many do not, and wait to be measured again.
    """
    checksums, known = database.evidence.checksums(), database.evidence.facts()
    names = {(one.kernel, str(one)) for one in functionals}
    kernels = list(dict.fromkeys(one.kernel for one in functionals))
    deciding = [one for one in _deciding(database, operators, kernels, arch) if one[:2] in names]
    # Some were compiled of the source as it is now, as stand-ins of borrowed winners, and nothing is known of them.
    free = database.evidence.unmeasured_images() - {image for _, _, image in deciding}
    earlier: dict[str, dict[str, str]] = {}  # by new name: checksum → name under an older source
    specs: dict[str, ImageSpec] = {}
    for kernel, functional, image in deciding:
        if image not in checksums:
            continue
        try:
            spec = ImageSpec.parse(parse_functional(kernel, arch, functional), known[image][0])
        except ValueError:
            continue  # the description has changed since
        if spec.name not in known or spec.name in free:
            specs[spec.name] = spec
            earlier.setdefault(spec.name, {})[checksums[image]] = image
    same = {}
    ages = {name: age for age, name in enumerate(checksums)}
    latest = {name: max(of, key=lambda checksum: ages[of[checksum]]) for name, of in earlier.items()}
    for spec, result in compile_images(specs.values(), store, jobs, checksums=latest, tries=TRIES):
        if isinstance(result, CompiledImage) and (old := earlier[spec.name].get(result.metadata["sha256"])):
            same[old] = spec.name
    database.rename_images(same)
    return len(same), len(specs) - len(same)


def _deciding(
    database: TuningDatabase, operators: Iterable[Operator], kernels: Sequence[KernelDescription], arch: str
) -> Iterable[tuple[KernelDescription, str, str]]:
    """Kernel, functional and name of each image, some of them more than once."""
    for kernel in kernels:
        yield from ((kernel, one.functional, one.image) for one in database.winners(arch, kernel.name))
        for outcome in database.evidence.outcomes(arch, kernel.name):
            if outcome.phase == "race":
                yield kernel, outcome.functional, outcome.image
        yield from ((kernel, *one) for one in database.evidence.checked_images(arch, kernel.name))
    for operator in operators:
        backends = {one.name: one for one in operator.backends}
        for sample in database.evidence.samples(arch, operator.name):
            functional = operator.sampled_functional(arch, sample.functional)
            sizes = {name: int(str(value)) for name, value in sample.shape.items()}
            for timing in sample.timings:
                of = backends[timing.backend].timed_kernels if timing.backend in backends else ()
                for kernel, image in zip(of, timing.images, strict=False):
                    own = kernel.like(functional, sizes)
                    if kernel in kernels and own:
                        yield kernel, str(own), image
