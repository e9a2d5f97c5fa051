"""The rows of the tuning database as objects, what each of them must hold, and which of several timings counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from aotriton.rules import checked
from aotriton.rules.judge import of_today

PROVENANCES = ("measured", "borrowed", "predicted", "imported")
STATUSES = ("ok", "checked", "wrong", "compile_failed", "crashed", "timed_out", "pruned")
PHASES = ("sweep", "race")
BESIDE = "beside"  # begins the detail of what was timed while another process computed on the GPU

# How far an image's race may be from its own sweep of the same session, as a ratio, before the two contradict each
# other. They differ by 3.5 % at most from run to run.
CONTRADICTION = 1.25


@dataclass(frozen=True)
class Measurement:
    """One candidate tried on one problem. ``problem``, ``image`` and ``session`` are ids of this database.

    ``status`` is "ok" where the results are right and timed, "checked" where they are right and were not timed.
    ``samples`` are microseconds in the order taken. ``error`` is the relative error against the reference and
    ``tolerance`` what was allowed; None where the candidate never ran. ``sm_clock`` in MHz and ``temperature`` in °C
    are the GPU's when the samples were taken; None where it does not tell. ``detail`` says why the candidate is out; of
    one that is "ok", who else was on the GPU: if it begins with BESIDE, it decides nothing. ``judge`` is that of
    ``rules/judge.py``, None of what was measured before there were any. ``checks`` is the number of launches whose
    results were checked; where it is None and there is an error, it was one.
    """

    problem: int
    image: int
    session: int
    phase: str
    status: str
    median_us: float | None = None
    samples: Sequence[float] = ()
    error: float | None = None
    tolerance: float | None = None
    detail: str | None = None
    sm_clock: int | None = None
    temperature: int | None = None
    judge: str | None = None
    checks: int | None = None


# Nobody changes an outcome or a winner. They are not frozen because that makes them seven times as slow to make, and of
# these there are hundreds of thousands.
@dataclass(slots=True)
class Outcome:
    """A measurement with its ids replaced by what they stand for, without the samples.

    ``session`` is its session's place among all: signed ones, then one's own, each by when they ``started``, in ISO
    8601. ``judge``: "" where it names none.
    """

    id: int
    arch: str
    product: str
    kernel: str
    functional: str
    bin: str
    shape: str
    image: str
    config: str
    session: int
    phase: str
    status: str
    median_us: float | None
    started: str = ""
    judge: str = ""
    sm_clock: int | None = None


@dataclass(slots=True)
class Winner:
    """Who serves one bin of one functional on one product, and why. ``median_us`` is 0 where nothing was measured.

    ``low_us`` to ``high_us`` is an interval for the median, 0 where it is not known. ``shape`` is what was measured, as
    JSON, and ``measured`` the day on which it was, in ISO 8601.
    """

    arch: str
    product: str
    kernel: str
    functional: str
    bin: str
    image: str
    config: str
    provenance: str
    source: str = ""
    median_us: float = 0.0
    runners_up: tuple[tuple[str, float], ...] = ()
    low_us: float = 0.0
    high_us: float = 0.0
    shape: str = ""
    measured: str = ""

    def __post_init__(self) -> None:
        if self.provenance not in PROVENANCES:
            raise ValueError(f"provenance must be among {PROVENANCES}, not {self.provenance!r}")


WINNER_COLUMNS = tuple(field.name for field in fields(Winner))


@dataclass(slots=True)
class Borrowed(Winner):
    """A winner that is not in the database but follows from another one, its ``lender``; the source says how."""

    lender: Winner | None = None


@dataclass(frozen=True)
class Product:
    """A GPU as its driver names it. ``memory`` in bytes, None where it is not known."""

    name: str
    arch: str
    multiprocessors: int
    memory: int | None = None


@dataclass(frozen=True)
class Session:
    """A run of the tuner on one GPU, and how many rows there are of it. ``standing``: own, signed by whom, unknown, or
    retracted and why; the rows of the last two take part in no decision.
    """

    started: str
    product: str
    driver: str
    triton: str
    options: str
    strategy: str
    measurements: int
    samples: int
    uuid: str
    standing: str


@dataclass(frozen=True)
class Certificate:
    """What checks of an image's results on a product found: none was wrong.

    They are of so many ``problems``, and ``checks`` is the number of launches; the last one was on the ``day``, in ISO
    8601. ``error`` is the largest relative one against a high-precision reference, ``allowed`` what the check that
    found it allows.
    """

    image: str
    product: str
    day: str
    problems: int
    checks: int
    error: float
    allowed: float


@dataclass(slots=True)
class Median:
    """A timing that counts: the latest of an image in a cell, its median and on which ``day``, in ISO 8601."""

    functional: str
    bin: str
    config: str
    image: str
    median_us: float
    day: str


@dataclass(frozen=True)
class Searched:
    """A strategy's end on a problem, after so many trials. ``session`` and ``judge`` as of an ``Outcome``."""

    kernel: str
    functional: str
    bin: str
    shape: str
    session: int
    strategy: str
    trials: int
    judge: str


@dataclass(frozen=True)
class SequenceTiming:
    """One way to run an operator, its ``images`` in launch order, timed in ``rounds`` rounds. ``spread`` in µs."""

    backend: str
    images: tuple[str, ...]
    median_us: float
    spread: float
    rounds: int


@dataclass(frozen=True)
class Sample:
    """A shape of an operator, and how long each launch sequence took there. ``session`` as in ``Outcome``."""

    product: str
    operator: str
    functional: str
    shape: dict[str, object]
    session: int
    timings: tuple[SequenceTiming, ...] = ()


@dataclass(frozen=True)
class Model:
    """The time of one image as a function of the call: its ``form``, its ``coefficients``, and how far they are off on
    the ``samples`` that they were fitted to, relatively. ``saves``: how much longer calls would take without the image,
    in the mean and relatively.
    """

    arch: str
    product: str
    operator: str
    kernel: str
    functional: str
    image: str
    form: str
    occupancy: int
    coefficients: tuple[float, ...]
    error: float
    samples: int
    saves: float = 0.0
    source: str = ""


def timings_of(winner: Winner, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The timings that a measured winner may be: of its cell and product, image, shape, median and day."""
    cell = winner.arch, winner.product, winner.kernel, winner.functional, winner.bin
    return [
        one
        for one in outcomes
        if (one.image, one.shape, one.started[:10]) == (winner.image, winner.shape, winner.measured)
        and one.status == "ok"
        and (one.arch, one.product, one.kernel, one.functional, one.bin) == cell
        and abs((one.median_us or 0.0) - winner.median_us) <= 1e-4 * winner.median_us
    ]


def counting(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes of each problem that today's judge of its kernel gave; all of them where it gave none yet, as what
    was measured is not lost before it is measured again.
    """
    outcomes = list(outcomes)
    current = of_today(outcomes)
    if len(current) == len(outcomes):
        return outcomes
    judged = {_place(one) for one in current}
    valid = {id(one) for one in current}
    return [one for one in outcomes if id(one) in valid or _place(one) not in judged]


def _place(outcome: Outcome) -> tuple[str, ...]:
    return outcome.product, outcome.kernel, outcome.functional, outcome.bin, outcome.shape


def latest_medians(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """The outcomes by (functional, bin) that tell how fast each image is now, one for each image, fastest first.

    Of those that are ``counting``. Of one image the latest session counts, of one's own where there is one, and in it
    the race over the sweep; an image whose last outcome is not ok is left out. Where a bin was measured in several
    shapes, the shape measured last stands for it: medians of different shapes say nothing of each other. Nor do those
    of different products: ValueError. A race that contradicts its sweep counts if its clock is known; else no image's
    part in it does.
    """
    shape: dict[tuple[str, str], str] = {}
    places: dict[tuple[str, str, str], list[Outcome]] = {}
    products: set[str] = set()
    for outcome in sorted(counting(outcomes), key=lambda o: (o.session, o.phase == "race", o.id)):
        products.add(outcome.product)
        if outcome.status == "ok":
            shape[outcome.functional, outcome.bin] = outcome.shape
        places.setdefault((outcome.functional, outcome.bin, outcome.shape), []).append(outcome)
    if len(products) > 1:
        raise ValueError(f"timings of {' and '.join(sorted(products))} do not compare")
    found: dict[tuple[str, str], list[Outcome]] = {}
    for key, text in shape.items():
        latest = {outcome.image: outcome for outcome in _credible(places[key[0], key[1], text])}
        ok = [outcome for outcome in latest.values() if outcome.status == "ok"]
        if ok:
            found[key] = sorted(ok, key=lambda o: (o.median_us or 0, o.config))
    return found


def _credible(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes of one problem, without races that contradict a sweep of their session and whose clock is not known.

    Where it is known, a race is of rounds at one clock: its launches follow those of other images, as they do in a
    program, and those of a sweep follow their own.
    """
    dropped = {one.session for one in contradictions(outcomes) if one.sm_clock is None}
    return [o for o in outcomes if not (o.phase == "race" and o.status == "ok" and o.session in dropped)]


def contradictions(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The timings in races that contradict the sweep of their image in their session, all of one problem."""
    raced = [outcome for outcome in outcomes if outcome.phase == "race" and outcome.status == "ok"]
    if not raced:
        return []
    swept = {(o.session, o.image): o.median_us or 0.0 for o in outcomes if o.phase == "sweep" and o.status == "ok"}
    found = []
    for outcome in raced:
        ratio = (outcome.median_us or 0.0) / swept.get((outcome.session, outcome.image), outcome.median_us or 1.0)
        if not 1 / CONTRADICTION <= ratio <= CONTRADICTION:
            found.append(outcome)
    return found


def winner(row: Sequence[object]) -> Winner:
    """The winner that a row holds, its columns in the order of the fields; ValueError names what will not do."""
    arch, product, kernel, functional, bin, image, config, provenance, source, median_us, runners_up = row[:11]
    low_us, high_us, shape, measured = row[11:]
    return Winner(
        checked.text("arch", arch),
        checked.text("product", product),
        checked.text("kernel", kernel),
        checked.text("functional", functional),
        checked.text("bin", bin),
        checked.identifier("image", image),
        checked.config("config", config),
        checked.text("provenance", provenance),
        checked.text("source", source),
        checked.time_us("median_us", median_us),
        checked.runners_up("runners_up", runners_up),
        checked.time_us("low_us", low_us),
        checked.time_us("high_us", high_us),
        checked.text("shape", shape),
        checked.text("measured", measured),
    )


def problem(row: Sequence[object]) -> tuple[int, tuple[str, str, str, str, str]]:
    """A problem's id, and its arch, kernel, functional, bin and shape; as ``winner``."""
    number, arch, kernel, functional, bin, shape = row
    named = checked.text("arch", arch), checked.text("kernel", kernel), checked.text("functional", functional)
    return checked.count("id", number), (*named, checked.text("bin", bin), checked.text("shape", shape))


def image(row: Sequence[object]) -> tuple[int, tuple[str, str, bool]]:
    """An image's id, name and config, and whether it spills; as ``winner``."""
    return checked.count("id", row[0]), (checked.text("name", row[1]), checked.text("config", row[2]), bool(row[3]))


def session(row: Sequence[object]) -> tuple[int, tuple[str, int, str]]:
    """A session's id, its product, its place among all, and when it started; as ``winner``."""
    number, product, place, started = row
    told = checked.text("product", product), checked.count("place", place), checked.text("started", started)
    return checked.count("id", number), told


def outcomes(
    problems: Mapping[int, tuple[str, str, str, str, str]],
    images: Mapping[int, tuple[str, str, bool]],
    sessions: Mapping[int, tuple[str, int, str]],
) -> Callable[[Sequence[Any]], Outcome]:
    """What makes an outcome of a measurement's row, which has the ids of these; as ``winner``."""

    def made(row: Sequence[Any]) -> Outcome:
        id, problem, image, session, phase, status, median_us, judge, sm_clock = row
        arch, kernel, functional, bin, shape = problems[problem]
        name, config, spills = images[image]
        product, place, started = sessions[session]
        status = "pruned" if spills else status
        told = name, config, place, phase, status, median_us, started, judge or "", sm_clock
        found = Outcome(id, arch, product, kernel, functional, bin, shape, *told)
        _check_median(found)
        return found

    return made


def median(row: Sequence[object]) -> Median:
    """As ``winner``."""
    functional, bin, config, image, median_us, day = row
    if not checked.time_us("median_us", median_us):
        raise ValueError("median_us is 0")
    return Median(
        checked.text("functional", functional),
        checked.text("bin", bin),
        checked.text("config", config),
        checked.identifier("image", image),
        checked.time_us("median_us", median_us),
        checked.day("measured", day),
    )


def certificate(row: Sequence[object]) -> Certificate:
    """As ``winner``."""
    image, product, day, problems, checks, error, allowed = row
    return Certificate(
        checked.identifier("image", image),
        checked.text("product", product),
        checked.day("day", day),
        checked.count("problems", problems),
        checked.count("checks", checks),
        checked.relative("error", error),
        checked.relative("allowed", allowed),
    )


def product(row: Sequence[object]) -> Product:
    """As ``winner``."""
    name, arch, multiprocessors, memory = row
    return Product(
        checked.text("product", name),
        checked.text("arch", arch),
        checked.count("multiprocessors", multiprocessors),
        None if memory is None else checked.byte_count("memory", memory),
    )


def timing(row: Sequence[object]) -> SequenceTiming:
    """As ``winner``."""
    backend, images, median_us, spread, rounds = row
    return sound_timing(
        SequenceTiming(
            checked.identifier("backend", backend),
            checked.identifiers("images", images),
            checked.time_us("median_us", median_us),
            checked.time_us("spread", spread),
            checked.count("rounds", rounds),
        )
    )


def sample(row: Sequence[object], timings: Sequence[SequenceTiming] = ()) -> Sample:
    """As ``winner``."""
    product, operator, functional, shape, session = row
    return Sample(
        checked.text("product", product),
        checked.identifier("operator", operator),
        checked.text("functional", functional),
        dict(checked.sizes("shape", shape)),
        checked.count("session", session),
        tuple(timings),
    )


def model(row: Sequence[object]) -> Model:
    """As ``winner``."""
    arch, product, operator, kernel, functional, image, form, occupancy, coefficients, error, samples, saves, source = (
        row
    )
    return Model(
        checked.text("arch", arch),
        checked.text("product", product),
        checked.identifier("operator", operator),
        checked.identifier("kernel", kernel),
        checked.text("functional", functional),
        checked.identifier("image", image),
        checked.identifier("form", form),
        checked.count("occupancy", occupancy),
        checked.numbers("coefficients", coefficients),
        checked.number("error", error),
        checked.count("samples", samples),
        checked.number("saves", saves),
        checked.text("source", source),
    )


def times(row: Sequence[object]) -> tuple[float, ...]:
    """The samples of a measurement, which follow its id; as ``winner``."""
    return (
        () if row[1] is None else tuple(checked.time_us("samples", one) for one in checked.numbers("samples", row[1]))
    )


def spills(row: Sequence[object]) -> tuple[str, int]:
    """An image and what it spills; as ``winner``."""
    return checked.identifier("name", row[0]), checked.count("spills", row[1] or 0)


def facts(row: Sequence[object]) -> tuple[str, tuple[str, int, int]]:
    name, config, registers, shared = row
    numbers = checked.count("registers", registers or 0), checked.count("shared", shared or 0)
    return checked.identifier("name", name), (checked.text("config", config), *numbers)


def checksum(row: Sequence[object]) -> tuple[str, str]:
    """An image and its SHA-256; as ``winner``."""
    return checked.identifier("name", row[0]), checked.sha256("sha256", row[1])


@dataclass(slots=True)
class ImageCheck:
    """What a measurement says of whether an image is right, by how many ``checks``; ``problem`` is an id, ``day`` its
    session's.
    """

    image: str
    product: str
    kernel: str
    judge: str
    problem: int
    checks: int
    day: str
    status: str
    error: float
    allowed: float


def check(row: Sequence[object]) -> ImageCheck:
    """As ``winner``."""
    image, product, kernel, judge, problem, checks, started, status, error, tolerance = row
    return ImageCheck(
        checked.identifier("name", image),
        checked.text("product", product),
        checked.text("kernel", kernel),
        checked.text("judge", judge),
        checked.count("problem", problem),
        checked.count("checks", checks),
        checked.day("started", started),
        checked.text("status", status),
        checked.relative("error", error),
        checked.relative("tolerance", tolerance),
    )


def certificates(checks: Iterable[ImageCheck]) -> dict[str, list[Certificate]]:
    """By image, its certificate on each product where no check by today's judge was wrong."""
    found: dict[tuple[str, str], list[ImageCheck]] = {}
    for one in of_today(checks):
        found.setdefault((one.image, one.product), []).append(one)
    made: dict[str, list[Certificate]] = {}
    for (image, product), own in sorted(found.items()):
        if any(one.status == "wrong" for one in own):
            continue
        problems, day = len({one.problem for one in own}), max(one.day for one in own)
        error, allowed = max((one.error, one.allowed) for one in own)
        checks_made = sum(one.checks for one in own)
        made.setdefault(image, []).append(Certificate(image, product, day, problems, checks_made, error, allowed))
    return made


def sound(measurement: Measurement) -> Measurement:
    """The measurement; ValueError where it has a time that is none."""
    _check_median(measurement)
    for one in measurement.samples:
        checked.time_us("samples", one)
    return measurement


def sound_timing(timing: SequenceTiming) -> SequenceTiming:
    """The timing; ValueError where it is of nothing or took no time."""
    if not timing.images:
        raise ValueError("images is empty")
    if not checked.time_us("median_us", timing.median_us):
        raise ValueError("median_us is 0")
    checked.time_us("spread", timing.spread)
    return timing


def _check_median(of: Measurement | Outcome) -> None:
    """ValueError where what is ok has no time; a NaN comes back from SQLite as no value at all."""
    if of.status == "ok" and not checked.time_us("median_us", of.median_us):
        raise ValueError("median_us is 0, and its status ok")
