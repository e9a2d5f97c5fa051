"""The code generator: from the tuning database and the rules to the C++ tables, shims and image list of one build."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from aotriton.codegen import lut as luts
from aotriton.codegen import operator_source, stamp
from aotriton.codegen.backends import CellKey, OperatorPlan
from aotriton.codegen.plan import COVERAGES, Plan, PlanError, TablePlan, Timing, plan, without_measured
from aotriton.codegen.pool import request_of
from aotriton.codegen.render import Output, made_files, render
from aotriton.rules import target
from aotriton.rules.binning import bin_text
from aotriton.rules.database import TuningDatabase, TuningDatabaseError, Winner, latest_medians
from aotriton.rules.family import IN_TREE, add
from aotriton.rules.family import families as all_families
from aotriton.rules.kernel import KernelDescription
from aotriton.rules.operators import Operator


def write(
    made: Plan,
    operators: Sequence[Operator],
    out: Path,
    checksums: Mapping[str, str] | None = None,
    added: bool = False,
) -> list[str]:
    """Writes the files of a build and removes those of the one before; returns the names of those that changed.

    ``checksums`` has the SHA-256 of the images that were measured, for the compile step to compare with. ``added``: the
    families are not the library's own, and register with it. ValueError where a functional has more images than an
    index can name, or a description cannot be numbered; nothing is removed then.
    """
    output = Output(out)
    planned = [table for table in made.tables if table.functionals]
    output.write("archs.h", render("archs.h", addressing=target.ADDRESSING, targets=target.TARGETS))
    sources = []
    for table in planned:
        sources.append(f"{table.kernel.name}.{table.arch}.lut.cc")
        output.write(sources[-1], _lut_source(table))
    choices: dict[str, list[OperatorPlan]] = {}
    for chosen in made.operators:
        if chosen.cells:
            choices.setdefault(chosen.operator.name, []).append(chosen)
    tables = {f"{table.kernel.name}_{table.arch}_table" for table in planned}
    backend_tables = {f"{name}_{one.arch}_backends" for name, plans in choices.items() for one in plans}
    families: dict[str, list[Operator]] = {}
    for operator in operators:
        families.setdefault(operator.family, []).append(operator)
        values = operator_source.values(operator, tables, backend_tables)
        output.write(f"{operator.name}.operator.h", render("operator.h", **values))
        output.write(f"{operator.name}.operator.cc", render("operator.cc", **values))
        sources.append(f"{operator.name}.operator.cc")
        if operator.name in choices:
            output.write(f"{operator.name}.backends.cc", _backends_source(choices[operator.name]))
            sources.append(f"{operator.name}.backends.cc")
        if not operator.written:
            output.write(f"{operator.name}.h", render("call.h", **values))
            output.write(f"{operator.name}.call.cc", render("call.cc", **values))
            sources.append(f"{operator.name}.call.cc")
    listed = [{"name": name, "operators": members} for name, members in families.items()]
    output.write("families.cc", render("families.cc", families=listed, added=added))
    sources.append("families.cc")
    stems = sorted(f"{table.kernel.name}.{table.arch}.images" for table in planned)
    image_sources, image_binaries = ([f"{stem}.{suffix}" for stem in stems] for suffix in ("cc", "bin"))
    for name in (*image_sources, *image_binaries):
        output.reserve(name)
    output.write(
        "sources.cmake",
        render(
            "sources.cmake",
            sources=sorted(sources),
            families=[name for name in families if name in IN_TREE],
            image_sources=image_sources,
            image_binaries=image_binaries,
        ),
    )
    output.write("images.json", _image_list(planned, checksums or {}))
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
    texts = {cell: bin_text(operator.lead.tuning_keys, cell) for cell in operator.lead.cells()}
    tables = []
    for chosen in choices:
        luts = {number: [(cell, texts[cell.bin]) for cell in cells] for number, cells in sorted(chosen.cells.items())}
        places = [number if number in luts else None for number in range(operator.lead.functional_count)]
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
) -> tuple[list[Winner], dict[CellKey, dict[str, Timing]], dict[str, str], dict[str, int]]:
    """Every winner of these kernels and archs, each cell's timings by config, the checksums of measured images, and
    what each image that was compiled spills.

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
        return winners, timings, opened.checksums(), opened.spills()


def main(arguments: list[str] | None = None) -> int:
    """Generates; 1 where the database can not be read or does not fill the coverage."""
    parser = argparse.ArgumentParser(prog="aotriton.codegen.generate", description=__doc__)
    parser.add_argument("--database", type=Path, required=True, help="the tuning database of the families in the tree")
    archs = [row.arch for row in target.TARGETS]
    parser.add_argument("--arch", action="append", required=True, choices=archs, help="may be given more than once")
    parser.add_argument("--coverage", choices=COVERAGES, default="default", help="which functionals get images")
    parser.add_argument(
        "--family",
        type=Path,
        action="append",
        default=[],
        help="folder of a family outside; may be given more than once",
    )
    parser.add_argument("--alone", action="store_true", help="those families only, to be added to an installed library")
    parser.add_argument("--out", type=Path, required=True, help="folder of the generated files")
    parser.add_argument(
        "--rebuilt", type=Path, help="list of images that ship though other binaries of them were measured"
    )
    options = parser.parse_args(arguments)
    try:
        archs = sorted(set(options.arch))
        outside = [add(folder) for folder in options.family]
        families = outside if options.alone else all_families()
        # Without images there is nothing to look up: the tuner's own runtime is built before the first measurement.
        asked = families if options.coverage != "none" else ()
        databases = {
            family.name: options.database if family.in_tree else family.folder / "rules" / options.database.name
            for family in asked
        }
        rebuilt = options.rebuilt.read_text().split() if options.rebuilt and options.rebuilt.is_file() else []
        words = (archs, options.coverage, options.alone, [family.name for family in families], rebuilt)
        elsewhere = [family.folder for family in families if not family.in_tree]
        digest = stamp.digest(words, elsewhere, sorted(set(databases.values())))
        if summary := stamp.read(options.out, digest):
            print(f"{summary}, 0 files written")
            return 0
        winners: list[Winner] = []
        timings: dict[CellKey, dict[str, Timing]] = {}
        checksums: dict[str, str] = {}
        spills: dict[str, int] = {}
        for family in asked:
            found = read(databases[family.name], family.kernels, archs)
            winners += found[0]
            timings |= found[1]
            checksums |= found[2]
            spills |= found[3]
        operators = [operator for family in families for operator in family.operators]
        made = without_measured(plan(operators, archs, options.coverage, winners, timings, spills), set(rebuilt))
        for name in rebuilt:
            checksums.pop(name, None)
        written = write(made, operators, options.out, checksums, options.alone)
        functionals = sum(len(table.functionals) for table in made.tables)
        summary = f"{functionals} functionals, {sum(len(table.images) for table in made.tables)} images"
        stamp.write(options.out, digest, made_files(options.out), summary)
    except (PlanError, TuningDatabaseError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{summary}, {len(written)} files written")
    return 0


if __name__ == "__main__":
    gc.disable()  # what is made is kept, and the process ends soon
    sys.exit(main())
