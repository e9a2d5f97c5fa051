"""Winners without a GPU, for gfx942: from what the compiler says of each candidate to a family's guess at the fastest.

Nothing here was measured, and the winners say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules.binning import bin_text
from aotriton.rules.database import TuningDatabase, Winner
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.tune.compute_unit import Candidate
from aotriton.tune.family import tuning
from aotriton.tune.incident import TuningError
from aotriton.tune.problems import keys_of
from aotriton.tune.session import prune
from aotriton.tune.space import configs, ruled_out

SOURCE = "static model of tune/predict.py"


def decide(functional: Functional, found: Sequence[tuple[ImageSpec, Candidate]]) -> list[Winner]:
    """The predicted winner of every cell of ``functional``, among the images ``found``.

    Of those that a restriction rules out in all cells of a group none wins, if there is another.
    """
    own = tuning(functional.kernel.family)
    winners = []
    for cells in own.groups(functional):
        keys = [keys_of(functional, cell) for cell in cells]
        likely = [one for one in found if not all(ruled_out(one[0], cell) for cell in keys)] or found
        best = own.guess(functional, cells, [candidate for _, candidate in likely])[0]
        spec = next(spec for spec, candidate in likely if candidate is best)
        psels, copts = spec.canonical()
        for cell in cells:
            winners.append(
                Winner(
                    arch=functional.arch,
                    kernel=functional.kernel.name,
                    functional=str(functional),
                    bin=bin_text(functional.kernel.tuning_keys, cell),
                    image=spec.name,
                    psels=psels,
                    copts=copts,
                    provenance="predicted",
                    source=SOURCE,
                )
            )
    return winners


def predict(
    database: TuningDatabase,
    kernels: Sequence[KernelDescription],
    functionals: Iterable[Functional],
    store: ImageStore,
    jobs: int | None = None,
) -> list[Winner]:
    """Compiles all candidates of the functionals of ``kernels``, writes a winner for every cell and returns them.

    TuningError for an arch that the model does not describe, and where every candidate fails or is pruned.
    """
    waiting: dict[tuple[str, str], set[str]] = {}
    found: dict[tuple[str, str], list[tuple[ImageSpec, Candidate]]] = {}
    specs: list[ImageSpec] = []
    for functional in functionals:
        if functional.arch != "gfx942":
            raise TuningError(f"the static model describes gfx942, not {functional.arch}: measure there")
        if functional.kernel in kernels:
            made = list(configs(functional))
            waiting[functional.kernel.name, str(functional)] = {spec.name for spec in made}
            found[functional.kernel.name, str(functional)] = []
            specs += made

    winners: list[Winner] = []
    for spec, image in compile_images(specs, store, jobs):
        functional = spec.functional
        place = functional.kernel.name, str(functional)
        if isinstance(image, CompiledImage) and not prune({image.name: spec}, {image.name: image}):
            found[place].append((spec, Candidate.of(spec, image.metadata)))
        waiting[place].discard(spec.name)
        if waiting[place]:
            continue
        if not found[place]:
            raise TuningError(f"{' '.join(place)} {functional.arch}: no candidate compiles, fits and does not spill")
        # In the order of the description, not of compilation: equal candidates are told apart the same way each time.
        decided = decide(functional, sorted(found[place], key=lambda pair: pair[0].config))
        database.put_winners(decided)
        winners += decided
        print(f"{' '.join(place)}: {len({winner.image for winner in decided})} images", flush=True)
    return winners
