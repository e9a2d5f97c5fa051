"""What a benchmark's result is of: the commit, and fingerprints of what it depends on.

``images``: what chooses and runs on one product. The bits of images, the cells, the backends' choices, the models that
choose among them and what guards refuse are all that times on a GPU depend on, but for the runtime. ``runtime``: its
sources, for what is timed on the host. ``declarations``: of kernels that are not this library's. None of them needs a
GPU or a build.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).resolve().parent.parent))

from aotriton.codegen.costs import Models
from aotriton.codegen.plan import Plan, plan
from aotriton.codegen.read_database import models_in, products_in, read
from aotriton.rules.arch import ARCHS
from aotriton.rules.database import Decisions, Product
from aotriton.rules.family import IN_TREE, family, operator
from aotriton.rules.image import code_of
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Operator
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import is_served

ROOT = Path(__file__).resolve().parent.parent
DATABASE = ROOT / "rules" / "tuning_database.sqlite3"
DRAWS = 8  # shapes of each functional, on which the guards of all backends are asked
# A comment or white space changes no result; a text that looks like a comment is lost, too, in both states alike.
UNSAID = re.compile(r"//[^\n]*|/\*.*?\*/|\s+", re.DOTALL)


def commit(root: Path = ROOT) -> str:
    """The commit of the working tree, with "-dirty" where files differ from it; "unknown" where git knows of none."""
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def images(product: str, operators: Sequence[str], database: Path = DATABASE, plain: bool = True) -> str:
    """The fingerprint of what these operators choose and run on a product, by its full name, with default coverage.

    ``plain``: of plain calls alone, as images with features are others. ValueError if no arch has such a product.
    """
    lines: list[object] = []
    bits = _bits(database)
    for name in sorted(operators):
        one = operator(name)
        models, made = _plan(one.family, database)
        place, arch = _place(made, product)
        of = made.products[arch][place]
        lines += [name, *_chosen(one, made, models, of, place, bits, plain), *_refused(one, of, plain)]
    return _digest(lines)


def shipped(database: Path = DATABASE) -> str:
    """The fingerprint of all images of a default build, for all archs."""
    bits = _bits(database)
    images = {image for name in IN_TREE for table in _plan(name, database)[1].tables for image in table.images}
    return _digest(sorted(bits.get(image, image) for image in images))


def runtime(torch: bool = False, root: Path = ROOT) -> str:
    """The fingerprint of the sources that a call on a GPU runs through; ``torch``: of PyTorch's operators, too."""
    unused = {"python", "__pycache__", "reference.cc"} | (set() if torch else {"torch"})  # that is for tensors of a CPU
    lines = []
    for folder in ("v2src", "aotriton/torch") if torch else ("v2src",):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            if path.suffix in (".cc", ".h", ".py") and not unused & set(name.parts):
                text = path.read_text(encoding="utf-8")
                lines.append(f"{name} {code_of(ast.parse(text)) if path.suffix == '.py' else UNSAID.sub('', text)}")
    return _digest(lines)


def declarations(root: Path = ROOT) -> str:
    """The fingerprint of how kernels of public packages are declared."""
    paths = sorted((root / "bench" / "public").glob("*.py"))
    return _digest(f"{path.name} {code_of(ast.parse(path.read_text(encoding='utf-8')))}" for path in paths)


def _digest(lines: Iterable[object]) -> str:
    return hashlib.sha256("\n".join(map(str, lines)).encode()).hexdigest()[:8]


@cache
def _bits(database: Path) -> dict[str, str]:
    """The SHA-256 of each image that the database knows, by name: a name changes with the source, bits may not."""
    with Decisions(database) as opened:
        return opened.checksums()


@cache
def _plan(name: str, database: Path) -> tuple[Models, Plan]:
    """What a default build of the family plans."""
    of = family(name)
    with Decisions(database) as opened:
        products = products_in([opened], [target.arch for target in ARCHS])
        winners, timings, _, spills = read(opened, of.kernels, products)
        models = models_in(opened, products)
    return models, plan(of.operators, products, "default", winners, timings, spills, models)


def _place(made: Plan, product: str) -> tuple[int, str]:
    for arch, products in made.products.items():
        for place, one in enumerate(products):
            if one.name == product:
                return place, arch
    known = ", ".join(one.name for products in made.products.values() for one in products)
    raise ValueError(f"{product} is no product of the database: it has {known}")


def _leads(one: Operator, arch: str, plain: bool) -> list[Functional]:
    """The functionals of the operator's lead; ``plain``: those of plain calls."""
    return [lead for lead in one.lead.functionals(arch) if not (plain and lead.level)]


def _kernels(one: Operator, leads: Sequence[Functional]) -> list[KernelDescription]:
    """The timed kernels of the backends that serve calls of any of these, in the order of their names."""
    reached = _reached_by(leads)
    found = {
        kernel.name: kernel
        for backend in one.backends
        if all(any(map(reached, kernel.functionals(leads[0].arch))) for kernel in backend.kernels)
        for kernel in backend.kernels
        if kernel.timed
    }
    return [found[name] for name in sorted(found)]


def _reached_by(leads: Sequence[Functional]) -> Callable[[Functional], bool]:
    """Whether a call of any of these may reach a functional: they agree on all choices that do not round a size up. A
    choice that the lead does not have is of calls with features.
    """
    values: dict[tuple[str, ...], set[tuple[object, ...]]] = {}
    having = {choice.name for lead in leads for choice in lead.kernel.choices}
    plain = not any(lead.level for lead in leads)

    def reached(functional: Functional) -> bool:
        exact = [one for one in functional.kernel.choices if not (one.round_up and one.sizes)]
        if plain and any(one.name not in having and functional[one.name] != one.default for one in exact):
            return False
        names = tuple(one.name for one in exact if one.name in having)
        if names not in values:
            values[names] = {tuple(lead[name] for name in names) for lead in leads}
        return tuple(functional[name] for name in names) in values[names]

    return reached


def _chosen(
    one: Operator, made: Plan, models: Models, product: Product, place: int, bits: Mapping[str, str], plain: bool
) -> Iterator[object]:
    """Images by cell, and the models of images; and backends by cell, where there are images without a model: where all
    have one, predicted time chooses. An image without a model that is in no cell of the product is never chosen on it.
    """
    leads = _leads(one, product.arch, plain)
    own, reached = {kernel.name for kernel in _kernels(one, leads)}, _reached_by(leads)
    tables = [
        functional
        for table in made.tables
        if table.arch == product.arch and table.kernel.name in own
        for functional in table.functionals
        if reached(functional.functional)
    ]
    costs = {spec: models.cost(product, spec) for table in tables for spec in table.images.values()}
    unmodelled = [each.functional for each in tables if None in map(costs.get, each.images.values())]
    by_cell = [lead for lead in leads if any(map(_reached_by([lead]), unmodelled))]
    for chosen in made.operators:
        if (chosen.operator.name, chosen.arch, chosen.product) == (one.name, product.arch, product.name):
            for lead in by_cell:
                for cell in chosen.cells.get(lead.godel_number, ()):
                    times = zip(one.backends, cell.medians_us, strict=True)
                    compared = {backend.name: median for backend, median in times if median}
                    yield f"{lead} {cell.bin} {one.backends[cell.backend].name} {compared}"
    for functional in tables:
        yield functional.functional
        yield from (f"{cell.bin} {bits.get(cell.image, cell.image)}" for cell in functional.products[place])
        here = {cell.image for cell in functional.products[place]}
        yield from sorted(
            f"{bits.get(name, name)} {costs[spec]}"
            for name, spec in functional.images.items()
            if costs[spec] is not None or name in here
        )


def _refused(one: Operator, product: Product, plain: bool) -> Iterator[str]:
    """The kernels whose guards refuse random shapes. A guard that refuses none of them is one of sizes nobody times."""
    own = tuning(one.family)
    leads = _leads(one, product.arch, plain)
    kernels = _kernels(one, leads)
    for functional in leads:
        draw = Random(str(functional))
        for shape in (own.draw(functional, draw) for _ in range(DRAWS)):
            sizes = dict(shape)
            likes = [like for kernel in kernels if (like := kernel.like(functional, sizes))]
            refusing = [like.kernel.name for like in likes if not is_served(like, sizes, product.multiprocessors)]
            yield json.dumps([str(functional), sizes, refusing], sort_keys=True)
