"""What code generation reads of tuning databases: products, winners, timings and models of a build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aotriton.codegen.backends import CellKey
from aotriton.codegen.costs import Models
from aotriton.codegen.plan import Timing
from aotriton.rules.arch import ArchSpec, arch_spec
from aotriton.rules.borrow import filled
from aotriton.rules.database import Decisions, Product, Winner
from aotriton.rules.kernel import KernelDescription


def usual_product(row: ArchSpec) -> Product:
    return Product(row.product, row.arch, row.multiprocessors)


def products_in(databases: Iterable[Decisions], archs: Iterable[str]) -> dict[str, list[Product]]:
    """The products of each arch in any of the databases: the usual product first, the others by name.

    An arch without any has its usual product alone. TuningDatabaseError if a database cannot be read.
    """
    known: dict[tuple[str, str], Product] = {}
    for one in (one for database in databases for one in database.products()):
        other = known.get((one.arch, one.name), one)
        memory = max(one.memory or 0, other.memory or 0) or None
        most = max(one.multiprocessors, other.multiprocessors)
        known[one.arch, one.name] = Product(one.name, one.arch, most, memory)
    found = {}
    for arch in archs:
        usual = usual_product(arch_spec(arch))
        of_arch = [one for one in known.values() if one.arch == arch]
        found[arch] = sorted(of_arch, key=lambda one: (one.name != usual.name, one.name)) or [usual]
    return found


def read(
    database: Decisions, kernels: Sequence[KernelDescription], products: Mapping[str, Sequence[Product]]
) -> tuple[list[Winner], dict[CellKey, dict[str, Timing]], dict[str, str], dict[str, int]]:
    """The database's rows of these kernels on the products of each arch, as four tables.

    The tables are a winner for each cell, its own or a borrowed one; the timings of each cell by config; the checksums
    of measured images; and the bytes that each compiled image spills. TuningDatabaseError if the database cannot be
    read.
    """
    winners: list[Winner] = []
    timings: dict[CellKey, dict[str, Timing]] = {}
    spills = database.spills()
    unfit = {name for name, count in spills.items() if count}
    for arch, of_arch in products.items():
        names = [one.name for one in of_arch]
        lenders = [*of_arch, *(one for one in database.products(arch) if one.name not in names)]
        for kernel in kernels:
            own = database.winners(arch, kernel.name)
            for product in lenders:
                if product in of_arch:
                    winners += filled(kernel, arch, product.name, own, lenders, unfit)
                else:
                    winners += [row for row in own if row.product == product.name]
                for one in database.medians(arch, kernel.name, product.name):  # of two images of one config the newer
                    cell = arch, product.name, kernel.name, one.functional, one.bin
                    timings.setdefault(cell, {})[one.config] = Timing(one.image, one.median_us, one.day)
    return winners, timings, database.checksums(), spills


def models_in(database: Decisions, products: Mapping[str, Sequence[Product]]) -> Models:
    """The database's models on these products. TuningDatabaseError if the database cannot be read."""
    models = [model for arch in products for model in database.models(arch)]
    configs = {name: config for name, (config, _, _) in database.facts().items()}
    return Models(models, configs, products)
