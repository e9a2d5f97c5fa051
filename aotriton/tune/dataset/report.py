"""From a tuning database to one HTML page: what was measured, who won where, how sure that is, and what has changed.

The page needs nothing beside itself: no script, no other file, no network.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product as combinations
from math import exp, log
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from aotriton.codegen.store import write_atomically
from aotriton.rules.binning import bin_text
from aotriton.rules.borrow import filled
from aotriton.rules.database import TuningDatabase
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Operator, kernels_of
from aotriton.rules.rows import Model, Outcome, Product, Winner
from aotriton.rules.work import WORTH_SHIPPING
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import scalars_of

TEMPLATE = Path(__file__).parent.parent / "template"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ORIGINS = ("measured", "predicted", "imported", "borrowed", "from another product", "none")
MOST_CHANGES = 200  # rows of the table of changes
FEWEST_CURVE = 4  # candidates of a problem, for it to say anything of a search


@dataclass(frozen=True)
class Square:
    """A cell of a heat map; ``share`` is its value over the map's best, None where nothing was measured."""

    text: str
    title: str
    share: float | None = None


@dataclass(frozen=True)
class Map:
    """The winners of a functional over two tuning keys, the others held at ``fixed``."""

    fixed: str
    columns: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Square, ...]], ...]


@dataclass(frozen=True)
class Functionals:
    """The maps of one functional on one product, and the configs that its letters stand for, with their cells."""

    name: str
    maps: tuple[Map, ...]
    configs: tuple[tuple[str, str, int], ...]


@dataclass
class Curve:
    """How far the best candidate so far is from the best of all, after so many: the geometric mean over problems."""

    kernel: str
    session: str
    problems: int
    loss: list[float]

    def points(self, width: float, height: float, most: int, worst: float) -> str:
        """As an SVG polyline has them."""
        step = width / max(most - 1, 1)
        return " ".join(f"{i * step:.1f},{height * (1 - loss / worst):.1f}" for i, loss in enumerate(self.loss))


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
    """Writes the page about what the database knows of these operators; ``since`` is an earlier state of the database.

    TuningDatabaseError where one of the two is none.
    """
    with TuningDatabase(path, readonly=True) as database:
        products = database.products()
        found = [_product(database, operators, product, products) for product in products]
        sessions = database.sessions()
        winners = _measured(database)
    before = {}
    if since:
        with TuningDatabase(since, readonly=True) as database:
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
    """Of a heat map: from pale to strong, as a CSS colour; grey where nothing was measured."""
    if share is None:
        return "#eee"
    return f"hsl(210 70% {94 - 44 * max(0.0, min(share, 1.0)):.0f}%)"


Key = tuple[str, str, str, str, str]  # arch, product, kernel, functional and bin of a winner


def _measured(database: TuningDatabase) -> dict[Key, Winner]:
    found = (one for one in database.winners() if one.provenance == "measured")
    return {(one.arch, one.product, one.kernel, one.functional, one.bin): one for one in found}


@dataclass(frozen=True)
class Change:
    """A cell whose winner is another one; ``ratio`` is the new one's time over that of the old one."""

    cell: str
    differs: str  # what the two configs differ in
    ratio: float


def changed(before: Mapping[Key, Winner], now: Mapping[Key, Winner]) -> list[Change]:
    """The cells of both with another config each, those first whose time changed most."""
    found = []
    for key in before.keys() & now.keys():
        old, new = (one.psels | one.copts for one in (before[key], now[key]))
        if old != new:
            values = {name: (old.get(name, ""), new.get(name, "")) for name in {**old, **new}}
            differs = ", ".join(f"{name} {was} → {value}" for name, (was, value) in values.items() if was != value)
            found.append(Change(" ".join(key[1:]), differs, now[key].median_us / before[key].median_us))
    return sorted(found, key=lambda one: (-abs(log(one.ratio)), one.cell))


def _product(
    database: TuningDatabase, operators: Sequence[Operator], product: Product, products: Sequence[Product]
) -> ProductReport:
    made = ProductReport(product)
    models = [one for one in database.models(product.arch) if one.product == product.name]
    for kernel in kernels_of(operators):
        of_arch = database.winners(product.arch, kernel.name)
        winners = [one for one in of_arch if one.product == product.name]
        made.provenance += _provenance(kernel, product, of_arch, products)
        outcomes = database.outcomes(product.arch, kernel.name, product=product.name)
        if winners:
            operator = next(one for one in operators if kernel in one.kernels)
            made.kernels.append(_kernel(operator, kernel, product, winners))
        if outcomes:
            made.verdicts.append((kernel.name, Counter(one.status for one in outcomes if one.phase == "sweep")))
            made.curves += curves(outcomes)
    made.models = [_model(operator, models) for operator in operators if _of(operator, models)]
    return made


def _provenance(
    kernel: KernelDescription, product: Product, winners: Sequence[Winner], products: Sequence[Product]
) -> Counter[str]:
    """The cells of all of a kernel's functionals on the product, by where their winners come from."""
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


def _kernel(operator: Operator, kernel: KernelDescription, product: Product, winners: Sequence[Winner]) -> KernelReport:
    by_functional: dict[str, dict[str, Winner]] = {}
    for winner in winners:
        by_functional.setdefault(winner.functional, {})[winner.bin] = winner
    counted = operator.flops is not None and _alone(operator, kernel)
    known = [one for one in kernel.functionals(product.arch) if str(one) in by_functional]  # not those of another time
    known.sort(key=lambda one: -sum(row.provenance == "measured" for row in by_functional[str(one)].values()))
    functionals = [_functional(operator if counted else None, one, by_functional[str(one)]) for one in known]
    sure = [one for one in winners if one.low_us > 0]
    halves = [(one.high_us - one.low_us) / 2 / one.median_us for one in sure]
    days = sorted({one.measured for one in winners if one.measured})
    return KernelReport(
        kernel=kernel.name,
        unit="TFLOP/s" if counted else "µs",
        keys=tuple(key.name for key in kernel.tuning_keys),
        counts=Counter(one.provenance for one in winners),
        cells=len(by_functional) * kernel.cell_count,
        days=" to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        noise=(median(halves), quantiles(halves, n=10)[-1]) if len(halves) > 1 else None,
        close=sum(any(time <= one.high_us for _, time in one.runners_up) for one in sure),
        functionals=tuple(functionals),
    )


def _alone(operator: Operator, kernel: KernelDescription) -> bool:
    """Whether the kernel does all of the products of a call, so that their number over its time means something."""
    backend = next(one for one in operator.backends if kernel in one.kernels)
    return [one for one in backend.kernels if one.work is not None] == [kernel]


def _functional(operator: Operator | None, functional: Functional, winners: Mapping[str, Winner]) -> Functionals:
    kernel = functional.kernel
    specs = {bin: ImageSpec.of(functional, one.psels, one.copts).config for bin, one in _fitting(functional, winners)}
    counts = Counter(specs.values())
    letters = {config: _letter(place) for place, (config, _) in enumerate(counts.most_common())}
    values = {bin: _value(operator, functional, winners[bin]) for bin in specs}
    known = [value for value in values.values() if value is not None]
    best = max(known, default=1.0) if operator else min(known, default=1.0)
    keys = kernel.tuning_keys
    # Rows and columns are the first two keys; a kernel with fewer has one row, or one column, too.
    row_key, column_key = (keys[0] if keys else None), (keys[1] if len(keys) > 1 else None)
    maps = []
    for fixed in combinations(*(key.representatives for key in keys[2:])):
        rows = []
        for row in row_key.representatives if row_key else (0,):
            squares = []
            for column in column_key.representatives if column_key else (0,):
                bin = bin_text(keys, (row, column, *fixed)[: len(keys)])
                if bin not in specs:
                    squares.append(Square("", f"{bin}: borrowed from another bin"))
                    continue
                winner, value = winners[bin], values[bin]
                title = f"{bin}: {specs[bin]}" + (f", {winner.median_us:.4g} µs" if winner.median_us else "")
                title += f" ({winner.low_us:.4g} to {winner.high_us:.4g})" if winner.low_us else ""
                title += f", {winner.provenance}" + (f" on {winner.measured}" if winner.measured else "")
                title += f", of {_readable(winner.shape)}" if winner.shape else ""
                letter = letters[specs[bin]]
                if value is None:
                    squares.append(Square(letter, title))
                else:
                    share = value / best if operator else best / value
                    squares.append(Square(f"{letter} {value:.3g}", title, share))
            rows.append((row, tuple(squares)))
        named = " ".join(f"{key.name}={value}" for key, value in zip(keys[2:], fixed, strict=True))
        maps.append(Map(named, column_key.representatives if column_key else (0,), tuple(rows)))
    legend = tuple((letters[config], config, count) for config, count in counts.most_common())
    return Functionals(str(functional), tuple(maps), legend)


def _letter(place: int) -> str:
    """A, B, ... z, A1, B1, ..."""
    again, letter = divmod(place, len(LETTERS))
    return LETTERS[letter] + (str(again) if again else "")


def _fitting(functional: Functional, winners: Mapping[str, Winner]) -> Iterable[tuple[str, Winner]]:
    """Without those whose config the kernel's description no longer has."""
    for bin, winner in winners.items():
        try:
            ImageSpec.of(functional, winner.psels, winner.copts)
        except ValueError:
            continue
        yield bin, winner


def _value(operator: Operator | None, functional: Functional, winner: Winner) -> float | None:
    """TFLOP/s where the operator's operations are given, else microseconds; None where neither is known."""
    if winner.provenance != "measured" or not winner.median_us:
        return None
    if operator is None or operator.flops is None:
        return winner.median_us
    if not winner.shape:
        return None
    sizes = tuning(operator.family).sizes(json.loads(winner.shape))
    return evaluate(operator.flops, Environment(sizes, scalars=scalars_of(functional, sizes))) / winner.median_us / 1e6


def _readable(shape: str) -> str:
    return " ".join(f"{name} {value}" for name, value in json.loads(shape).items())


def curves(outcomes: Iterable[Outcome]) -> list[Curve]:
    """A curve for each kernel and session that swept at least FEWEST_CURVE candidates of a problem, in their order.

    Candidates that no GPU has seen do not count.
    """
    swept: dict[tuple[str, int, str], dict[tuple[str, str], list[float]]] = {}
    for one in outcomes:
        if one.phase == "sweep" and one.status not in ("pruned", "compile_failed"):
            of_session = swept.setdefault((one.kernel, one.session, one.started[:10]), {})
            time = float(one.median_us) if one.status == "ok" and one.median_us else float("inf")
            of_session.setdefault((one.functional, one.bin), []).append(time)
    found = []
    for (kernel, _, day), problems in swept.items():
        timed = [times for times in problems.values() if len(times) >= FEWEST_CURVE and min(times) < float("inf")]
        if timed:
            found.append(Curve(kernel, day, len(timed), _losses(timed)))
    return found


def _losses(problems: Sequence[Sequence[float]]) -> list[float]:
    """After 1, 2, ... candidates: what the best so far takes longer than the best, relatively, in geometric mean.

    A problem counts from its first candidate that ran, and stays at its end when others go on.
    """
    losses = []
    for place in range(max(map(len, problems))):
        ratios = []
        for times in problems:
            best = min(times[: place + 1])
            if best < float("inf"):
                ratios.append(log(best / min(times)))
        losses.append(exp(sum(ratios) / len(ratios)) - 1 if ratios else 0.0)
    return losses
