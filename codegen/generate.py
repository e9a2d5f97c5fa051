"""The code generator: from the tuning database and the rules to the C++ tables, shims and image list of one build."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from aotriton.codegen import lut as luts
from aotriton.codegen.backends import CellKey, OperatorPlan
from aotriton.codegen.plan import COVERAGES, Plan, PlanError, TablePlan, Timing, plan
from aotriton.codegen.pool import request_of
from aotriton.codegen.render import Output, render
from aotriton.codegen.shim import shim
from aotriton.rules import flash, target
from aotriton.rules.binning import bin_text
from aotriton.rules.database import TuningDatabase, TuningDatabaseError, Winner, latest_medians
from aotriton.rules.kernel import KernelDescription


def write(made: Plan, out: Path, checksums: Mapping[str, str] | None = None) -> list[str]:
    """Writes the files of a build and removes those of the one before; returns the names of those that changed.

    ``checksums`` has the SHA-256 of the images that were measured, for the compile step to compare with.
    ValueError where a functional has more images than an index can name; nothing is removed then.
    """
    output = Output(out)
    output.write("archs.h", render("archs.h", addressing=target.ADDRESSING, targets=target.TARGETS))
    tables = made.tables
    kernels: dict[str, list[TablePlan]] = {}
    for table in tables:
        kernels.setdefault(table.kernel.name, []).append(table)
    sources = []
    for name, of_archs in sorted(kernels.items()):
        kernel = of_archs[0].kernel
        sizes = [{"arch": t.arch, "luts": kernel.functional_count, "images": len(t.images)} for t in of_archs]
        output.write(f"{name}.shim.h", render("shim.h", shim=shim(kernel)))
        output.write(f"{name}.shim.cc", render("shim.cc", shim=shim(kernel), tables=sizes))
        sources.append(f"{name}.shim.cc")
        for table in of_archs:
            output.write(f"{name}.{table.arch}.lut.cc", _lut_source(table))
            sources.append(f"{name}.{table.arch}.lut.cc")
    operators: dict[str, list[OperatorPlan]] = {}
    for chosen in made.operators:
        operators.setdefault(chosen.operator.name, []).append(chosen)
    for name, choices in sorted(operators.items()):
        output.write(f"{name}.backends.cc", _backends_source(choices))
        sources.append(f"{name}.backends.cc")
    stems = [
        f"{table.kernel.name}.{table.arch}.images" for table in sorted(tables, key=lambda t: (t.kernel.name, t.arch))
    ]
    image_sources, image_binaries = ([f"{stem}.{suffix}" for stem in stems] for suffix in ("cc", "bin"))
    for name in (*image_sources, *image_binaries):
        output.reserve(name)
    output.write(
        "sources.cmake",
        render("sources.cmake", sources=sources, image_sources=image_sources, image_binaries=image_binaries),
    )
    output.write("images.json", _image_list(tables, checksums or {}))
    output.finish()
    return output.written


def _lut_source(table: TablePlan) -> str:
    kernel = table.kernel
    numbers = {planned.functional.godel_number for planned in table.functionals}
    return render(
        "lut.cc",
        family=kernel.family,
        kernel=kernel.name,
        arch=table.arch,
        images=list(table.images),
        luts=[luts.lut(planned) for planned in table.functionals],
        places=[number if number in numbers else None for number in range(kernel.functional_count)],
    )


def _backends_source(choices: Sequence[OperatorPlan]) -> str:
    operator = choices[0].operator
    keys = operator.lead.tuning_keys
    tables = []
    for chosen in choices:
        luts = {
            number: [(cell, bin_text(keys, cell.bin)) for cell in cells]
            for number, cells in sorted(chosen.cells.items())
        }
        places = [number if number in luts else None for number in range(operator.lead.functional_count)]
        if luts:
            tables.append({"arch": chosen.arch, "luts": luts, "places": places})
    return render("backends.cc", operator=operator, tables=tables)


def _image_list(tables: Sequence[TablePlan], checksums: Mapping[str, str]) -> str:
    """What the compile step must make: for each kernel and arch, the request of every image."""
    packs = [
        {
            "family": table.kernel.family,
            "kernel": table.kernel.name,
            "arch": table.arch,
            "images": [
                {"name": name, **request_of(spec)} | ({"measured_sha256": checksums[name]} if name in checksums else {})
                for name, spec in table.images.items()
            ],
        }
        for table in tables
    ]
    return json.dumps({"packs": packs}, indent=1) + "\n"


def read(
    database: Path, kernels: Sequence[KernelDescription], archs: Sequence[str]
) -> tuple[list[Winner], dict[CellKey, dict[str, Timing]], dict[str, str]]:
    """Every winner of these kernels and archs, each cell's timings by config, and the checksums of measured images.

    TuningDatabaseError as it says.
    """
    winners: list[Winner] = []
    timings: dict[CellKey, dict[str, Timing]] = {}
    with TuningDatabase(database, readonly=True) as opened:
        for arch in archs:
            for kernel in kernels:
                winners += opened.winners(arch, kernel.name)
                for (functional, cell), outcomes in latest_medians(opened.outcomes(arch, kernel.name)).items():
                    timings[arch, kernel.name, f"{functional} {cell}"] = {
                        outcome.config: Timing(outcome.image, float(outcome.median_us or 0))
                        for outcome in sorted(
                            outcomes, key=lambda o: o.id
                        )  # of two images of one config the newer counts
                    }
        return winners, timings, opened.checksums()


def main(arguments: list[str] | None = None) -> int:
    """Generates; 1 where the database can not be read or does not fill the coverage."""
    parser = argparse.ArgumentParser(prog="aotriton.codegen.generate", description=__doc__)
    parser.add_argument("--database", type=Path, required=True, help="rules/tuning_database.sqlite3")
    archs = [row.arch for row in target.TARGETS]
    parser.add_argument("--arch", action="append", required=True, choices=archs, help="may be given more than once")
    parser.add_argument("--coverage", choices=COVERAGES, default="default", help="which functionals get images")
    parser.add_argument("--out", type=Path, required=True, help="folder of the generated files")
    options = parser.parse_args(arguments)
    try:
        archs = sorted(set(options.arch))
        # Without images there is nothing to look up: the tuner's own runtime is built before the first measurement.
        winners, timings, checksums = (
            read(options.database, flash.KERNELS, archs) if options.coverage != "none" else ([], {}, {})
        )
        made = plan(flash.OPERATORS, archs, options.coverage, winners, timings)
        written = write(made, options.out, checksums)
    except (PlanError, TuningDatabaseError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    functionals = sum(len(table.functionals) for table in made.tables)
    images = sum(len(table.images) for table in made.tables)
    print(f"{functionals} functionals, {images} images, {len(written)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
