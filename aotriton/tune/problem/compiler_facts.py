"""What follows from a compiled image: the reason not to launch it, or a winner that was not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.binning import bin_text
from aotriton.rules.database.rows import Winner
from aotriton.rules.image import ImageSpec
from aotriton.tune.problem.problems import Cell

# Compiles images into the store, with the given number of processes: codegen.compile.compile_images, or a stand-in.
Compile = Callable[
    [Iterable[ImageSpec], ImageStore, int | None], Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]
]

FACTS = ("sha256", "registers", "spills", "shared")  # the metadata that the database keeps


def unfit(spec: ImageSpec, image: CompiledImage) -> str | None:
    """Why the image is not worth a GPU's time, by what the compiler said of it."""
    limit = spec.functional.arch_spec.shared_limit
    if image.metadata["shared"] > limit:
        return f"shared memory: {image.metadata['shared']} bytes, the limit is {limit}"
    if image.spills and not spec.functional.may_spill:
        return f"spills: {image.metadata['spills']}, stack: {image.metadata['stack']} bytes"
    if image.serialised:
        return f"serialised products: ptxas says {', '.join(image.serialised)}"
    return None


def untimed_winner(spec: ImageSpec, cell: Cell, provenance: str, source: str) -> Winner:
    """A winner of a cell on the arch's usual product that was not measured; ``source`` says where it comes from."""
    functional = spec.functional
    return Winner(
        arch=functional.arch,
        product=functional.arch_spec.product,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=bin_text(functional.kernel.tuning_keys, cell),
        image=spec.name,
        config=spec.config,
        provenance=provenance,
        source=source,
    )
