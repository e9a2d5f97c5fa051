"""A made-up kernel with a made-up database, so that tests of codegen do not move when the real kernels do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from aotriton.codegen.plan import CellKey, Timing
from aotriton.rules import image
from aotriton.rules.binning import TuningKey, bin_text
from aotriton.rules.database import Winner
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import (
    Backend,
    Choice,
    Constexpr,
    Functional,
    KernelDescription,
    Operator,
    Scalar,
    Stride,
    Tensor,
)
from aotriton.rules.target import ADDRESSING

KERNEL = KernelDescription(
    name="scale_rows",
    family="toy",
    arguments=(
        Tensor("X", 4, block=(1, 1, "BLOCK_M", "BLOCK_DMODEL")),
        Tensor("Y", 4),
        Scalar("factor", "fp32"),
        *(Stride(tensor, dim) for tensor in ("X", "Y") for dim in ("b", "h", "s")),
        Scalar("rows", "i32"),
        *map(Constexpr, ("BLOCK_M", "BLOCK_DMODEL", "ADDRESSING")),
    ),
    choices=(
        Choice("T", "type", ("bf16",)),
        Choice("BLOCK_DMODEL", "feature", (32, 64)),
        Choice("ADDRESSING", "feature", ADDRESSING),
    ),
    psels={"cuda": {"BLOCK_M": (32, 64, 128)}, "hip": {"BLOCK_M": (32, 64)}},
    copts={"cuda": {"num_warps": (4, 8)}, "hip": {"num_warps": (4,), "waves_per_eu": (0, 2)}},
    tuning_keys=(TuningKey("rows", (64, 512)), TuningKey("waves", (1, 8))),
    tiled_axis="q",
)

FAST = replace(
    KERNEL,
    name="scale_rows_fast",
    choices=(
        Choice("T", "type", ("bf16",)),
        Choice("BLOCK_DMODEL", "feature", (32,)),
        Choice("ADDRESSING", "feature", ("descriptor",)),
    ),
    psels={"cuda": KERNEL.psels["cuda"]},
    copts={"cuda": KERNEL.copts["cuda"]},
    archs=("sm_90",),
    gluon=True,
)

PORTABLE = Operator("scale", "toy", (Backend("portable", (KERNEL,)),))
OPERATOR = Operator("scale", "toy", (Backend("portable", (KERNEL,)), Backend("fast", (FAST,))))

SOURCE = """
def scale_rows(X, Y, factor, rows):
    return X
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelDescription:
    """The kernel, with a source and a compiler version that make its image names constant."""
    sources = tmp_path / "kernels"
    sources.mkdir()
    for name in (KERNEL.name, FAST.name):
        (sources / f"{name}.py").write_text(SOURCE.replace(KERNEL.name, name))
    monkeypatch.setattr(image, "KERNEL_SOURCES", sources)
    monkeypatch.setattr(image, "TRITON_VERSION", "0.0.0")
    image.source_digest.cache_clear()
    yield KERNEL
    image.source_digest.cache_clear()


def cells(functional: Functional) -> list[str]:
    keys = functional.kernel.tuning_keys
    return [bin_text(keys, cell) for cell in functional.kernel.cells()]


def spec(functional: Functional, block_m: int, last: int = 4) -> ImageSpec:
    """``last`` is num_warps on cuda and waves_per_eu on hip."""
    copts = {"num_warps": last} if functional.target.vendor == "cuda" else {"num_warps": 4, "waves_per_eu": last}
    return ImageSpec.of(functional, {"BLOCK_M": block_m}, copts)


def winner(given: ImageSpec, cell: str, provenance: str = "measured", median: float = 10.0, **more: object) -> Winner:
    functional = given.functional
    return Winner(
        arch=functional.arch,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=cell,
        image=given.name,
        psels=dict(given.psels),
        copts=dict(given.copts),
        provenance=provenance,
        median_us=median if provenance == "measured" else 0.0,
        **more,  # type: ignore[arg-type]
    )


def timed(
    functional: Functional, cell: str, medians: Mapping[tuple[int, int], float]
) -> tuple[CellKey, dict[str, Timing]]:
    """An entry for ``timings``: what each (BLOCK_M, num_warps) took in the cell."""
    specs = [(spec(functional, *block), median) for block, median in medians.items()]
    key = (functional.arch, functional.kernel.name, f"{functional} {cell}")
    return key, {s.config: Timing(s.name, median) for s, median in specs}


def database(kernel: KernelDescription) -> tuple[list[Winner], dict[CellKey, dict[str, Timing]]]:
    """Measured, merged, stale, borrowed, imported and predicted winners for sm_90 and gfx942."""
    winners: list[Winner] = []
    timings: dict[CellKey, dict[str, Timing]] = {}
    sm_90, gfx942 = list(kernel.functionals("sm_90")), list(kernel.functionals("gfx942"))
    measured = sm_90[0]
    for place, cell in enumerate(cells(measured)):
        # 64 rows and 8 warps is best in one cell and 0.5 % off the best in the others.
        best = (64, 8) if place == 0 else (128, 8)
        key, times = timed(measured, cell, {(64, 8): 20.1, (128, 8): 20.0 if place else 25.0, (32, 4): 30.0})
        timings[key] = times
        others = tuple(
            sorted(
                ((c, t.median_us) for c, t in times.items() if c != spec(measured, *best).config), key=lambda p: p[1]
            )
        )
        winners.append(winner(spec(measured, *best), cell, median=20.1 if place == 0 else 20.0, runners_up=others))
    for functional in sm_90[1:]:
        for place, cell in enumerate(cells(functional)):
            row = winner(spec(functional, 32 << place % 3), cell, "borrowed", source=f"{measured} {cell}")
            if place == 1:
                row = winner(spec(functional, 64), cell, "imported", source='a "quoted" list\\of\nwinners?')
            winners.append(row)
    winners[-1] = Winner(
        **{**vars(winner(spec(sm_90[-1], 64), winners[-1].bin)), "image": "scale_rows_sm_90_0000000000000000"}
    )
    for functional in gfx942:
        winners += [
            winner(spec(functional, 64, 2), cell, "predicted", source="static model") for cell in cells(functional)
        ]
    return winners, timings


def with_fast(rows: list[Winner]) -> list[Winner]:
    """The rows with one functional of sm_90 measured: the fast backend takes 15, 25 and 16 us to the portable one's 20,
    and has nothing in the fourth cell.
    """
    served = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=32, ADDRESSING="descriptor")
    fast = FAST.like(served)
    assert fast
    rows = [row for row in rows if (row.arch, row.functional) != ("sm_90", str(served))]
    rows += [winner(spec(served, 64), cell, median=20.0) for cell in cells(served)]
    medians = dict(zip(cells(fast), ((32, 15.0), (64, 25.0), (128, 16.0)), strict=False))
    return rows + [winner(spec(fast, block), cell, median=median) for cell, (block, median) in medians.items()]
