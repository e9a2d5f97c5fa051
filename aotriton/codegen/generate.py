"""The code generator: from the tuning database and the rules to the C++ tables, shims and image list of one build."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from aotriton import model_calls, model_coverage
from aotriton.codegen import demand, operator_source, read_database, stamp, store, stub
from aotriton.codegen import lut as luts
from aotriton.codegen.backends import CellKey, OperatorPlan
from aotriton.codegen.compile_pool import request_of
from aotriton.codegen.costs import Models
from aotriton.codegen.fork import side_by_side
from aotriton.codegen.formulas import form_sources
from aotriton.codegen.plan import COVERAGES, Plan, PlanError, TablePlan, Timing, plan, without_measured
from aotriton.codegen.program import LIMITS
from aotriton.codegen.render import Output, made_files, render
from aotriton.rules.arch import ADDRESSING, ARCHS
from aotriton.rules.binning import bin_text
from aotriton.rules.database import Certificate, Decisions, Product, TuningDatabaseError, Winner
from aotriton.rules.family import IN_TREE, Family, Shared, add
from aotriton.rules.family import families as all_families
from aotriton.rules.operators import Operator
from aotriton.rules.work import TERMS

REPORT = "coverage.txt"  # what a build for models is


@dataclass(frozen=True)
class Part:
    """The files of some operators by name, and the entries of the image list that are theirs."""

    files: dict[str, str]
    packs: list[dict[str, object]]
    functionals: int
    images: int


def write(
    made: Plan,
    operators: Sequence[Operator],
    out: Path,
    checksums: Mapping[str, str] | None = None,
    added: bool = False,
    models: Models | None = None,
    certificates: Mapping[str, Sequence[Certificate]] | None = None,
    shared: Mapping[str, Shared] | None = None,
) -> list[str]:
    """The names of the files that changed, after the files of a build are written to ``out`` and old ones are removed.

    ``checksums`` has the SHA-256 of each measured image, which the compile step compares. ``certificates`` has, for
    each image, the results of its checks. ``shared`` has what the families' own C++ takes from their descriptions.
    ``added``: the families are not the library's own, and register with it.
    ValueError if a functional has more images than an index can number, or if a description cannot be numbered;
    then no file is removed.
    """
    parts = [part(made, operators, checksums or {}, models, certificates or {})]
    return write_parts(parts, operators, made.products, out, added, shared=shared or {})


def part(
    made: Plan,
    operators: Sequence[Operator],
    checksums: Mapping[str, str],
    models: Models | None,
    certificates: Mapping[str, Sequence[Certificate]],
    refusing: Collection[str] = (),
) -> Part:
    """The files of these operators alone; ValueError as in ``write``.

    On archs that are ``refusing`` a kernel without functionals has an empty table: a call is outside of the coverage,
    and not of the archs.
    """
    files: dict[str, str] = {}

    def add(name: str, content: str) -> None:
        if name in files:
            raise ValueError(f"{name} would be written twice")
        files[name] = content

    planned = [table for table in made.tables if table.functionals or table.arch in {*refusing} & {*table.kernel.archs}]
    for table in planned:
        add(f"{table.kernel.name}.{table.arch}.lut.cc", _lut_source(table, made.products[table.arch], models))
    choices: dict[str, dict[str, list[OperatorPlan]]] = {}  # by operator and arch, for each product
    for chosen in made.operators:
        choices.setdefault(chosen.operator.name, {}).setdefault(chosen.arch, []).append(chosen)
    for name, archs in choices.items():
        choices[name] = {arch: plans for arch, plans in archs.items() if any(one.cells for one in plans)}
    tables = {f"{table.kernel.name}_{table.arch}_table" for table in planned}
    backend_tables = {f"{name}_{arch}_backends" for name, archs in choices.items() for arch in archs}
    for operator in operators:
        values = operator_source.values(operator, tables, backend_tables)
        add(f"{operator.name}.operator.h", render("operator.h", **values))
        add(f"{operator.name}.operator.cc", render("operator.cc", **values))
        if choices.get(operator.name):
            add(f"{operator.name}.backends.cc", _backends_source(operator, choices[operator.name]))
        if not operator.written:
            add(f"{operator.name}.h", render("call.h", **values))
            add(f"{operator.name}.call.cc", render("call.cc", **values))
    functionals = sum(len(table.functionals) for table in made.tables)
    images = sum(len(table.images) for table in made.tables)
    full = [table for table in planned if table.functionals]
    return Part(files, _packs(full, checksums, certificates, made.products), functionals, images)


def write_parts(
    parts: Sequence[Part],
    operators: Iterable[Operator],
    products: Mapping[str, Sequence[Product]],
    out: Path,
    added: bool = False,
    configs: Sequence[str] = (),
    *,
    shared: Mapping[str, Shared],
) -> list[str]:
    """The names of the files that changed, as for ``write``; ``parts`` has the operators' own files, ``configs`` are
    those of the build's models.
    """
    output = Output(out)
    output.write("archs.h", render("archs.h", addressing=ADDRESSING, archs=ARCHS))
    output.write("program_limits.h", render("program_limits.h", limits=LIMITS))
    for one in parts:
        for name, content in one.files.items():
            output.write(name, content)
    for name, values in shared.items():
        if values:
            output.write(f"{name}.shared.h", render("shared.h", family=name, shared=values))
    families: dict[str, list[Operator]] = {}
    for operator in operators:
        families.setdefault(operator.family, []).append(operator)
    listed = [{"name": name, "operators": members} for name, members in families.items()]
    output.write("families.cc", render("families.cc", families=listed, added=added))
    listed_products = {
        row.arch: list(products.get(row.arch, ())) or [read_database.usual_product(row)] for row in ARCHS
    }
    if not added:  # else they are those of the library
        output.write("cost_formulas.h", render("cost_formulas.h", terms=TERMS, forms=form_sources()))
        output.write("products.cc", render("products.cc", archs=ARCHS, products=listed_products))
        signatures = [stub.values(operator) for members in families.values() for operator in members]
        output.write("aotriton.pyi", render("aotriton.pyi", operators=signatures))
    sources = [name for name in output.contents if name.endswith(".cc")]
    stems = sorted(f"{pack['kernel']}.{pack['arch']}.images" for one in parts for pack in one.packs)
    image_sources, image_binaries = ([f"{stem}.{suffix}" for stem in stems] for suffix in ("cc", "bin"))
    for name in (*image_sources, *image_binaries):
        output.reserve(name)
    output.write(
        "sources.cmake",
        render(
            "sources.cmake",
            sources=sorted(sources),
            families=[name for name in families if name in IN_TREE],
            products=[_word(one) for of_arch in listed_products.values() for one in of_arch],
            image_sources=image_sources,
            image_binaries=image_binaries,
            configs=configs,
        ),
    )
    output.write("images.json", _image_list(parts))
    output.finish()
    return output.written


def _lut_source(table: TablePlan, products: Sequence[Product], models: Models | None) -> str:
    kernel = table.kernel
    planned_numbers = {planned.functional.godel_number for planned in table.functionals}
    return render(
        "lut.cc",
        family=kernel.family,
        kernel=kernel.name,
        arch=table.arch,
        products=[product.name for product in products],
        images=list(table.images),
        luts=[luts.lut(planned, products, models) for planned in table.functionals],
        numbers=[number if number in planned_numbers else None for number in range(kernel.functional_count)],
    )


def _backends_source(operator: Operator, archs: Mapping[str, Sequence[OperatorPlan]]) -> str:
    texts = {cell: bin_text(operator.lead.tuning_keys, cell) for cell in operator.lead.cells()}

    def values(chosen: OperatorPlan) -> dict[str, object]:
        luts = {number: [(cell, texts[cell.bin]) for cell in cells] for number, cells in sorted(chosen.cells.items())}
        numbers = [number if number in luts else None for number in range(operator.lead.functional_count)]
        return {"name": chosen.product, "luts": luts, "numbers": numbers}

    tables = [{"arch": arch, "products": [values(chosen) for chosen in plans]} for arch, plans in archs.items()]
    return render("backends.cc", operator=operator, tables=tables)


def _packs(
    tables: Sequence[TablePlan],
    checksums: Mapping[str, str],
    certificates: Mapping[str, Sequence[Certificate]],
    products: Mapping[str, Sequence[Product]],
) -> list[dict[str, object]]:
    """The input of the compile step: for each kernel and arch the request of every image, and its facts."""

    def known(name: str, arch: str) -> dict[str, object]:
        facts: dict[str, object] = {"measured_sha256": checksums[name]} if name in checksums else {}
        if rows := certificate_rows(certificates.get(name, ()), products[arch]):
            facts["certificates"] = rows
        return facts

    return [
        {
            "family": table.kernel.family,
            "kernel": table.kernel.name,
            "arch": table.arch,
            "images": [
                {"name": name, **request_of(spec)} | known(name, table.arch) for name, spec in table.images.items()
            ],
        }
        for table in tables
    ]


def certificate_rows(certificates: Sequence[Certificate], products: Sequence[Product]) -> list[dict[str, float]]:
    """The fields of ``Certificate`` of v2src/program/image.h, as numbers, for each certificate on these products."""
    numbers = {product.name: number for number, product in enumerate(products)}
    return [
        {
            "product": numbers[one.product],
            "day": int(one.day.replace("-", "")),
            "problems": one.problems,
            "checks": one.checks,
            "error": one.error,
            "allowed": one.allowed,
        }
        for one in certificates
        if one.product in numbers
    ]


def _image_list(parts: Sequence[Part]) -> str:
    packs = sorted((pack for one in parts for pack in one.packs), key=lambda pack: str(pack["arch"]))
    return json.dumps({"packs": packs}, indent=1) + "\n"


def _word(product: Product) -> str:
    """The product in the form that ``--product`` takes."""
    return f"{product.arch}/{product.name}/{product.multiprocessors}/{product.memory or 0}"


def _product(word: str) -> Product:
    try:
        arch, rest = word.split("/", 1)
        name, multiprocessors, memory = rest.rsplit("/", 2)
        return Product(name, arch, int(multiprocessors), int(memory) or None)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not ARCH/NAME/MULTIPROCESSORS/MEMORY") from None


def _coverage(word: str) -> str | Path:
    """A coverage by its name, or a file of models."""
    if word in COVERAGES:
        return word
    if Path(word).is_file():
        return Path(word)
    raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(COVERAGES)}, and no file of models")


@dataclass(frozen=True)
class Wanted:
    """What a build is to have: a coverage by its name, or models. ``size_of`` makes of the checksums of measured images
    what says the size of an image in the archive.
    """

    coverage: str
    models: model_coverage.ModelsFile | None
    size_of: Callable[[Mapping[str, str]], Callable[[str], int | None]]


def _made(
    family: Family,
    database: Path | None,
    products: Mapping[str, Sequence[Product]],
    wanted: Wanted,
    rebuilt: Collection[str],
) -> Part:
    """The part of a family in a build. Without a database nothing is looked up."""
    winners: list[Winner] = []
    timings: dict[CellKey, dict[str, Timing]] = {}
    checksums: dict[str, str] = {}
    spills: dict[str, int] = {}
    certificates: dict[str, list[Certificate]] = {}
    models = Models()
    if database:
        with Decisions(database) as opened:
            winners, timings, checksums, spills = read_database.read(opened, family.kernels, products)
            models = read_database.models_in(opened, products)
            certificates = opened.certificates()
    report = ""
    if not family.in_tree or not wanted.models:
        planned = plan(family.operators, products, wanted.coverage, winners, timings, spills, models)
    else:
        asked = {arch: products[arch] for arch in wanted.models.archs or products}
        if {call.call.operator for call in wanted.models.calls} & {one.name for one in family.operators}:
            size_of = wanted.size_of(checksums)
            found = demand.decide(family.operators, asked, wanted.models, winners, timings, spills, models, size_of)
            planned, report = found.plan, found.report
        else:
            planned = plan(family.operators, asked, "none", (), {})
    for name in rebuilt:
        checksums.pop(name, None)
        certificates.pop(name, None)
    refusing = planned.products if family.in_tree and wanted.models else ()
    planned = without_measured(planned, set(rebuilt))
    made = part(planned, family.operators, checksums, models, certificates, refusing)
    return replace(made, files={**made.files, REPORT: report}) if report else made


def _parts(outcomes: Sequence[Part | Exception]) -> list[Part]:
    """The parts; PlanError lists the gaps of all families, or an exception of one of them is raised."""
    errors = [one for one in outcomes if isinstance(one, Exception)]
    for error in errors:
        if not isinstance(error, PlanError):
            raise error
    if errors:
        raise PlanError("\n".join(map(str, errors)))
    return [one for one in outcomes if isinstance(one, Part)]


def main(arguments: list[str] | None = None) -> int:
    """Generates the files; returns 1 if the database cannot be read or does not fill the coverage, else 0."""
    parser = argparse.ArgumentParser(prog="aotriton.codegen.generate", description=__doc__)
    parser.add_argument("--database", type=Path, required=True, help="the tuning database of the families in the tree")
    archs = [row.arch for row in ARCHS]
    parser.add_argument("--arch", action="append", required=True, choices=archs, help="may be given more than once")
    parser.add_argument(
        "--coverage",
        type=_coverage,
        default="default",
        metavar=f"{{{','.join(COVERAGES)},FILE}}",
        help="which functionals get images; a file: those that the calls of its models need (docs/packaging.md)",
    )
    parser.add_argument(
        "--family",
        type=Path,
        action="append",
        default=[],
        help="folder of a family outside; may be given more than once",
    )
    parser.add_argument("--alone", action="store_true", help="those families only, to be added to an installed library")
    parser.add_argument(
        "--product",
        type=_product,
        action="append",
        default=[],
        metavar="ARCH/NAME/MULTIPROCESSORS/MEMORY",
        help="a product of the library that the families are added to, in its order",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the generated files")
    parser.add_argument("--store", type=Path, help="folder of compiled images, whose sizes count for a budget")
    parser.add_argument("--compress", choices=("zlib", "none"), default="zlib", help="how the archive has images")
    parser.add_argument(
        "--rebuilt", type=Path, help="list of images that ship though other binaries of them were measured"
    )
    options = parser.parse_args(arguments)
    try:
        archs = sorted(set(options.arch))
        outside = [add(folder) for folder in options.family]
        families = outside if options.alone else all_families()

        def path_of(family: Family) -> Path:
            own: Path = options.database
            return own if family.in_tree else family.folder / "rules" / own.name

        wanted = _wanted(options, archs)
        # Without images there is nothing to look up: the tuner's own runtime is built before the first measurement.
        asked = families if wanted.coverage != "none" else ()
        databases = sorted({path_of(family) for family in asked})
        rebuilt = options.rebuilt.read_text().split() if options.rebuilt and options.rebuilt.is_file() else []
        for kernel in (kernel for family in families for kernel in family.kernels):
            if kernel.called:
                raise ValueError(f"{kernel.name} is a Python function: it can be tuned, but a build can not have it")
        words = [archs, options.coverage, options.alone, [family.name for family in families], rebuilt, options.product]
        words += _read_by(wanted.models) if wanted.models else []
        elsewhere = [family.folder for family in families if not family.in_tree]
        digest = stamp.digest(words, elsewhere, databases)
        if summary := stamp.read(options.out, digest):
            print(_told(options.out), f"{summary}, 0 files written", sep="")
            return 0
        with ExitStack() as stack:
            opened = [stack.enter_context(Decisions(path)) for path in databases]
            products = read_database.products_in(opened, archs)
        for arch in archs:
            products[arch] = [one for one in options.product if one.arch == arch] or products[arch]
        jobs = [partial(_made, one, path_of(one) if asked else None, products, wanted, rebuilt) for one in families]
        parts = _parts(side_by_side(jobs))
        operators = [operator for family in families for operator in family.operators]
        configs = wanted.models.configs if wanted.models else ()
        shared = {family.name: family.shared for family in families}
        written = write_parts(parts, operators, products, options.out, options.alone, configs, shared=shared)
        functionals, images = sum(one.functionals for one in parts), sum(one.images for one in parts)
        summary = f"{functionals} functionals, {images} images"
        stamp.write(options.out, digest, made_files(options.out), summary)
    except (PlanError, TuningDatabaseError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(_told(options.out), f"{summary}, {len(written)} files written", sep="")
    return 0


def _wanted(options: argparse.Namespace, archs: Sequence[str]) -> Wanted:
    """ValueError for a file of models that cannot be used for this build."""
    place: Path = options.store or store.default_store()
    size_of = partial(demand.sizes_in, place.expanduser(), compress=options.compress == "zlib")
    if isinstance(options.coverage, str):
        return Wanted(options.coverage, None, size_of)
    if options.alone:
        raise ValueError(f"{options.coverage}: a family of your own has a coverage by name, models call none of it")
    models = model_coverage.read_models(options.coverage)
    if missing := sorted(set(models.archs or ()) - set(archs)):
        raise ValueError(f"{models.path}: archs has {', '.join(missing)}, and the build is for {', '.join(archs)}")
    return Wanted("default", models, size_of)


def _read_by(models: model_coverage.ModelsFile) -> list[str]:
    """What the calls of models follow from: the file, configs, and the modules that read them."""
    modules = [Path(str(one.__file__)).read_text() for one in (model_calls, model_coverage)]
    return [*models.texts, *modules]


def _told(out: Path) -> str:
    """What the folder's build for models reports; empty of another build."""
    path = out / REPORT
    return path.read_text() if path.is_file() else ""


if __name__ == "__main__":
    gc.disable()  # what is made is kept, and the process ends soon
    sys.exit(main())
