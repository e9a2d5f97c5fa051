"""A tuning database as one HTML page: what was measured, who won where, how certain that is, and what has changed.

The page is one file: it needs no script, no other file and no network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from aotriton.codegen.store import write_atomically
from aotriton.rules.borrow import filled
from aotriton.rules.database import Decisions, TuningDatabase, decisions
from aotriton.rules.database.derive import ImagesOfToday
from aotriton.rules.database.rows import Model, Outcome, Product, Winner
from aotriton.rules.kernel import KernelDescription
from aotriton.rules.operators import Operator, kernels_of
from aotriton.rules.work import WORTH_SHIPPING
from aotriton.tune.dataset.changes import Key, changed
from aotriton.tune.dataset.curves import Curve, curves, regrets
from aotriton.tune.dataset.heat_map import Functionals, functional_maps

TEMPLATE = Path(__file__).parent.parent / "template"
ORIGINS = ("measured", "predicted", "imported", "borrowed", "from another product", "none")
MOST_CHANGES = 200  # rows of the table of changes


@dataclass(frozen=True)
class KernelReport:
    """What is known of a kernel on a product."""

    kernel: str
    unit: str
    keys: tuple[str, ...]
    counts: Counter[str]  # cells, by the provenance of their winners
    cells: int
    days: str
    noise: tuple[float, float] | None  # half of an interval over its median: the median, and the ninetieth percentile
    close: int  # winners whose runner-up lies within their interval
    stale: int  # winners that were measured, of whose config today's source makes another image
    clocks: tuple[int, int] | None  # SM clock of what was timed, in MHz: the lowest, and the median
    regret: tuple[float, float] | None  # how much longer winners took than the best of a sweep: as noise
    functionals: tuple[Functionals, ...]


@dataclass
class ProductReport:
    """What is known of a product. ``provenance`` counts the cells of all kernels by where their winners come from."""

    product: Product
    provenance: Counter[str] = field(default_factory=Counter)
    kernels: list[KernelReport] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[tuple[str, Counter[str]]] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)


def report(path: Path, operators: Sequence[Operator], out: Path, since: Path | None = None) -> None:
    """Writes the page about all that the database knows of these operators; ``since`` is an earlier state of the
    database.

    TuningDatabaseError where one of the two is not a database.
    """
    with TuningDatabase(path, readonly=True) as database:
        products = database.products()
        today = ImagesOfToday()
        found = [_product(database, operators, product, products, today) for product in products]
        sessions = database.evidence.sessions()
        winners = _measured(database)
    before = {}
    if since:
        with decisions(since) as database:
            before = _measured(database)
    changes = changed(before, winners) if since else []
    values = {
        "database": path.name,
        "since": since.name if since else "",
        "products": sorted(
            (one for one in found if one.kernels), key=lambda one: -sum(k.counts["measured"] for k in one.kernels)
        ),
        "origins": ORIGINS,
        "sessions": sessions,
        "changes": changes[:MOST_CHANGES],
        "changes_in_all": len(changes),
        "added": len(winners.keys() - before.keys()) if since else 0,
        "gone": len(before.keys() - winners.keys()),
    }
    write_atomically(out, _render("report.html", values).encode())


def _render(template: str, values: Mapping[str, object]) -> str:
    from jinja2 import Environment as Templates
    from jinja2 import FileSystemLoader, StrictUndefined

    made = Templates(
        loader=FileSystemLoader(TEMPLATE), undefined=StrictUndefined, autoescape=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters.update(colour=colour, percent=lambda value: f"{100 * value:.1f} %")
    return made.get_template(f"{template}.j2").render(values)


def colour(share: float | None) -> str:
    """The CSS colour of a heat map's cell, from pale to strong; grey where nothing was measured."""
    if share is None:
        return "#eee"
    return f"hsl(210 70% {94 - 44 * max(0.0, min(share, 1.0)):.0f}%)"


def _measured(database: Decisions) -> dict[Key, Winner]:
    found = (one for one in database.winners() if one.provenance == "measured")
    return {(one.arch, one.product, one.kernel, one.functional, one.bin): one for one in found}


def _product(
    database: TuningDatabase,
    operators: Sequence[Operator],
    product: Product,
    products: Sequence[Product],
    today: ImagesOfToday,
) -> ProductReport:
    made = ProductReport(product)
    models = [one for one in database.models(product.arch) if one.product == product.name]
    for kernel in kernels_of(operators):
        of_arch = database.winners(product.arch, kernel.name)
        winners = [one for one in of_arch if one.product == product.name]
        made.provenance += _provenance(kernel, product, of_arch, products)
        outcomes = database.evidence.outcomes(product.arch, kernel.name, product=product.name)
        if winners:
            operator = next(one for one in operators if kernel in one.kernels)
            made.kernels.append(_kernel(operator, kernel, product, winners, outcomes, today))
        if outcomes:
            made.verdicts.append((kernel.name, Counter(one.status for one in outcomes if one.phase == "sweep")))
            made.curves += curves(outcomes)
    made.models = [_model(operator, models) for operator in operators if _of(operator, models)]
    return made


def _provenance(
    kernel: KernelDescription, product: Product, winners: Sequence[Winner], products: Sequence[Product]
) -> Counter[str]:
    """The number of cells of a kernel's functionals on the product by where their winners come from."""
    cells = filled(kernel, product.arch, product.name, winners, products)
    found = Counter("from another product" if one.source.startswith("product=") else one.provenance for one in cells)
    found["none"] = sum(1 for _ in kernel.functionals(product.arch)) * kernel.cell_count - found.total()
    return found


def _of(operator: Operator, models: Iterable[Model]) -> list[Model]:
    return [one for one in models if one.operator == operator.name]


def _model(operator: Operator, models: Iterable[Model]) -> dict[str, Any]:
    own = _of(operator, models)
    return {
        "operator": operator.name,
        "models": len(own),
        "error": median(one.error for one in own),
        "samples": max(one.samples for one in own),
        "ship": sum(one.saves >= WORTH_SHIPPING for one in own),
        "source": ", ".join(sorted({one.source for one in own if one.source})),
    }


def _kernel(
    operator: Operator,
    kernel: KernelDescription,
    product: Product,
    winners: Sequence[Winner],
    outcomes: Sequence[Outcome],
    today: ImagesOfToday,
) -> KernelReport:
    by_functional: dict[str, dict[str, Winner]] = {}
    for winner in winners:
        by_functional.setdefault(winner.functional, {})[winner.bin] = winner
    counted = operator.flops is not None and _alone(operator, kernel)
    known = [one for one in kernel.functionals(product.arch) if str(one) in by_functional]  # not those of another time
    known.sort(key=lambda one: -sum(row.provenance == "measured" for row in by_functional[str(one)].values()))
    functionals = [functional_maps(operator if counted else None, one, by_functional[str(one)]) for one in known]
    sure = [one for one in winners if one.low_us > 0]
    halves = [(one.high_us - one.low_us) / 2 / one.median_us for one in sure]
    days = sorted({one.measured for one in winners if one.measured})
    measured = [one for one in winners if one.provenance == "measured"]
    clocks = [one.sm_clock for one in outcomes if one.status == "ok" and one.sm_clock]
    return KernelReport(
        kernel=kernel.name,
        unit="TFLOP/s" if counted else "µs",
        keys=tuple(key.name for key in kernel.tuning_keys),
        counts=Counter(one.provenance for one in winners),
        cells=len(by_functional) * kernel.cell_count,
        days=" to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        noise=_spread(halves),
        close=sum(any(time <= one.high_us for _, time in one.runners_up) for one in sure),
        stale=sum(today.of(one) not in (None, one.image) for one in measured),
        clocks=(min(clocks), round(median(clocks))) if clocks else None,
        regret=_spread(regrets(outcomes, {(one.functional, one.bin): one.image for one in measured})),
        functionals=tuple(functionals),
    )


def _spread(values: Sequence[float]) -> tuple[float, float] | None:
    """The median and the ninetieth percentile; None of fewer than two."""
    return (median(values), quantiles(values, n=10)[-1]) if len(values) > 1 else None


def _alone(operator: Operator, kernel: KernelDescription) -> bool:
    """Whether the kernel computes all products of a call by itself, so that their number over its time is a rate."""
    backend = next(one for one in operator.backends if kernel in one.kernels)
    return [one for one in backend.kernels if one.work is not None] == [kernel]
