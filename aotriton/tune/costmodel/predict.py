"""Winners and cost models without a GPU: a family's guess at the fastest candidate, from the compiler's facts of each.
All winners of gfx942 are such ones, and on an arch with measurements those of functionals that cannot borrow any.

Nothing is measured here, and winners and models say so. The models have the same terms as measured ones, so that a call
is dispatched by its own sizes: they are fitted to the times that the family's static model gives on random shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules.arch import STATIC, arch_spec
from aotriton.rules.borrow import siblings
from aotriton.rules.database import TuningDatabase, Winner
from aotriton.rules.database.rows import Model
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription, parse_functional
from aotriton.rules.operators import Backend, Operator, kernels_of
from aotriton.rules.work import WORTH_SHIPPING
from aotriton.tune.costmodel.fit import fit_apart
from aotriton.tune.costmodel.shortlist import WITHIN
from aotriton.tune.costmodel.timings import Apart
from aotriton.tune.costmodel.worth import with_savings
from aotriton.tune.problem.candidates import configs, ruled_out
from aotriton.tune.problem.compiler_facts import FACTS, unfit, untimed_winner
from aotriton.tune.problem.compute_unit import Candidate
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import keys_of
from aotriton.tune.problem.tuning_error import TuningError

SOURCE = "static model"
SOURCE_OF_TILES = "tiles and registers of the compiled image"  # where the static model does not describe the arch
MOST_IMAGES = 12  # of a functional that models are fitted to
SHAPES = 240  # random ones of each functional, which models are fitted to
WORTH_HAVING = 5e-2  # saved by an image, by a model that no GPU has confirmed: much more than if it had been timed
assert WORTH_HAVING >= WORTH_SHIPPING

Fitting = Sequence[tuple[ImageSpec, Candidate]]  # the images of a functional that compile, fit and do not spill
FunctionalKey = tuple[str, str]  # kernel and functional


def decide(functional: Functional, found: Fitting, *, alone: bool = False) -> list[Winner]:
    """The predicted winner of every cell of ``functional``, among the images ``found``.

    The cells of a group share one winner, so that there are few images; ``alone``: each cell has its own. A candidate
    that a restriction rules out in all cells of a group wins only if there is no other.
    """
    own = tuning(functional.kernel.family)
    winners = []
    groups = [[cell] for cell in functional.kernel.cells()] if alone else own.groups(functional)
    for cells in groups:
        keys = [keys_of(functional, cell) for cell in cells]
        likely = [one for one in found if not all(ruled_out(one[0], cell) for cell in keys)] or found
        best = own.guess(functional, cells, [candidate for _, candidate in likely])[0]
        spec = next(spec for spec, candidate in likely if candidate is best)
        source = SOURCE if functional.arch_spec.compute_unit else SOURCE_OF_TILES
        winners += [untimed_winner(spec, cell, "predicted", source) for cell in cells]
    return winners


def models(
    operator: Operator, arch: str, found: Mapping[FunctionalKey, Fitting], least: float = WORTH_HAVING
) -> list[Model]:
    """Models of the images that are the static model's choice on any of SHAPES random shapes, or near it, and that save
    at least so much there.

    They are of functionals that are measured for themselves, whatever their addressing, and whose first backend has
    images in ``found``. ``error`` is the difference from the static model; how far that is from a GPU has not been
    measured.
    """
    calls: list[Apart] = []
    for functional in operator.lead.functionals(arch):
        first = _own(operator.backends[0], functional)
        complete = first and all((one.kernel.name, str(one)) in found for one in first)
        if functional.measured != functional or not complete:
            continue
        random = Random(f"{operator.name} {functional}")
        drawn = [tuning(operator.family).draw(functional, random) for _ in range(SHAPES)]
        # What else a shape says of a call, such as a window, is for GPUs: static models were compared without.
        shapes = [{name: size for name, size in one if name in operator.sizes} for one in drawn]
        times: list[dict[str, tuple[Mapping[str, float], ...]]] = [{} for _ in shapes]
        for backend in operator.backends:
            serving: dict[tuple[Functional, ...], list[int]] = {}
            for number, shape in enumerate(shapes):
                serving.setdefault(_own(backend, functional, shape), []).append(number)
            for own, numbers in serving.items():
                fitting = [_likely(one, found.get((one.kernel.name, str(one)), ())) for one in own]
                if not own or not all(fitting):
                    continue
                served = [shapes[number] for number in numbers]
                kernels = [_times(one, of_kernel, served) for one, of_kernel in zip(own, fitting, strict=True)]
                for i, number in enumerate(numbers):
                    times[number][backend.name] = tuple(
                        {name: of[i] for name, of in images.items()} for images in kernels
                    )
        calls += [Apart(functional, shape, of_shape) for shape, of_shape in zip(shapes, times, strict=True)]
    if not calls:
        return []
    every = [pair for fitting in found.values() for pair in fitting]
    facts = {spec.name: (spec.config, candidate.registers, candidate.shared) for spec, candidate in every}
    device = arch_spec(arch)
    fitted = with_savings(
        [fit_apart(operator, arch, device.product, calls, facts, device.multiprocessors)], operator, arch
    )
    source = tuning(operator.family).model_source
    worth = [one for one in fitted if one.saves >= least]
    return [replace(one, source=source(found[one.kernel, one.functional][0][0].functional)) for one in worth]


def _own(backend: Backend, functional: Functional, shape: Mapping[str, int] | None = None) -> tuple[Functional, ...]:
    """The functionals of the backend's kernels for a call of the lead's; none where it does not serve the call, or a
    kernel does not describe its work.
    """
    own = [kernel.like(functional, shape) for kernel in backend.timed_kernels]
    complete = tuple(one for one in own if one is not None and one.kernel.work is not None)
    return complete if len(complete) == len(own) else ()


def _likely_of_groups(functional: Functional) -> list[set[ImageSpec]]:
    """For each group of cells that share a winner the configs among which it is looked for first: those that no
    restriction rules out in all cells, or all of them where there would be none.
    """
    every, found = configs(functional), []
    for cells in tuning(functional.kernel.family).groups(functional):
        keys = [keys_of(functional, cell) for cell in cells]
        likely = {one for one in every if not all(ruled_out(one, cell) for cell in keys)}
        found.append(likely or set(every))
    return found


def _likely(functional: Functional, found: Fitting) -> Fitting:
    """The candidates without those that restrictions rule out everywhere, if there are others."""
    cells = [keys_of(functional, cell) for cell in functional.kernel.cells()]
    return [one for one in found if not all(ruled_out(one[0], cell) for cell in cells)] or found


def _times(functional: Functional, fitting: Fitting, shapes: Sequence[Mapping[str, int]]) -> dict[str, list[float]]:
    """The times on the shapes of the images that are best or WITHIN reach of it, the best ones first."""
    call_time = tuning(functional.kernel.family).call_time
    times = {spec.name: [call_time(functional, shape, candidate) for shape in shapes] for spec, candidate in fitting}
    best, near = Counter[str](), Counter[str]()
    for number in range(len(shapes)):
        least = min(of_shapes[number] for of_shapes in times.values())
        best[next(image for image, of_shapes in times.items() if of_shapes[number] == least)] += 1
        near.update(image for image, of_shapes in times.items() if of_shapes[number] <= WITHIN * least)
    chosen = sorted(near, key=lambda image: (-best[image], -near[image], image))[:MOST_IMAGES]
    return {image: times[image] for image in chosen}


def predict(
    database: TuningDatabase,
    kernels: Sequence[KernelDescription],
    functionals: Iterable[Functional],
    store: ImageStore,
    jobs: int | None = None,
    operators: Collection[Operator] = (),
) -> list[Winner]:
    """Compiles all candidates of the functionals of ``kernels``, writes a winner for every cell and returns the
    winners.

    It also writes their models, of those ``operators`` of which nothing was timed and whose first backend has images of
    the call. What is not asked for keeps its models, and its images that have one count for what others save. Where
    there are models, cells go to images that are worth shipping. A functional with a sibling of which something was
    measured is left out, as it borrows. TuningError for an arch for which the family does not guess, and where every
    candidate fails or is pruned.
    """
    functionals = [one for one in functionals if one.kernel in kernels]
    lends = cache(lambda kernel, arch: {one.functional for one in database.winners(arch, kernel) if _is_measured(one)})
    found: dict[FunctionalKey, list[tuple[ImageSpec, Candidate]]] = {}
    asked: dict[FunctionalKey, Functional] = {}
    known: dict[str, dict[str, object]] = {}
    spilled: dict[str, int] = {}  # by image
    for functional in functionals:
        own = tuning(functional.kernel.family)
        if functional.arch not in (guessed := getattr(own, "guessed", STATIC)):
            raise TuningError(f"the static model describes {', '.join(guessed)}, not {functional.arch}: measure there")
        if lends(functional.kernel.name, functional.arch).isdisjoint(map(str, siblings(functional))):
            asked[functional.kernel.name, str(functional)] = functional
    archs = [one for one in dict.fromkeys(functional.arch for functional in asked.values()) if one in STATIC]
    operators = [one for one in operators if any(kernel in kernels for kernel in one.kernels)]
    likely = {key: _likely_of_groups(functional) for key, functional in asked.items()}

    def compile_all(specs: Iterable[ImageSpec]) -> None:
        for spec, image in compile_images(specs, store, jobs):
            if isinstance(image, CompiledImage) and not unfit(spec, image):
                key = spec.functional.kernel.name, str(spec.functional)
                found.setdefault(key, []).append((spec, Candidate.of(spec, image.metadata)))
                spilled[spec.name] = int(image.metadata["spills"])
                known[spec.name] = {fact: image.metadata[fact] for fact in FACTS}

    first = {spec for groups in likely.values() for group in groups for spec in group}
    every = [spec for functional in asked.values() for spec in configs(functional)]
    compile_all([one for one in every if one in first] + _modelled(database, operators, archs, asked))
    for key, groups in likely.items():  # what is ruled out wins where nothing else fits
        if any(group.isdisjoint(spec for spec, _ in found.get(key, ())) for group in groups):
            compile_all(one for one in configs(asked[key]) if one not in first)
    for key, functional in asked.items():
        if key not in found:
            raise TuningError(f"{' '.join(key)} {functional.arch}: no candidate compiles, fits and does not spill")
    for key, fitting in found.items():
        least = min(spilled[spec.name] for spec, _ in fitting)  # of all but what may spill it is none
        found[key] = fitting = [one for one in fitting if spilled[one[0].name] == least]
        # In the order of the description, not of compilation: ties are broken the same way each time.
        fitting.sort(key=lambda pair: pair[0].config)

    for operator, arch in product(operators, archs):
        if made := [one for one in _models(database, operator, arch, found) if (one.kernel, one.functional) in asked]:
            for model in made:
                name = model.image
                config = next(one.config for one, _ in found[model.kernel, model.functional] if one.name == name)
                database.evidence.image_id(name, config, **known[name])  # type: ignore[arg-type] # the store checks
            replaced = arch, made[0].product, operator.name
            kept = [one for one in database.models() if (one.arch, one.product, one.operator) == replaced]
            kept = [one for one in kept if (one.kernel, one.functional) not in asked]
            database.put_models([*kept, *made], replaced)
            print(f"{operator.name}: {len(made)} models", flush=True)
    facts, worth = database.evidence.facts(), set[tuple[str, str, str]]()
    for model in database.models():
        if model.saves >= WORTH_SHIPPING and model.image in facts:
            worth.add((model.kernel, model.functional, facts[model.image][0]))
    lending = {(kernel, functional) for kernel, functional, _ in worth}

    winners: list[Winner] = []
    for key, functional in asked.items():
        lender = functional.measured
        if (key[0], str(lender)) not in lending:
            lender = lender.plain
        shipped = [one for one in found[key] if (key[0], str(lender), one[0].config) in worth]
        decided = decide(functional, shipped or found[key], alone=bool(shipped))
        database.put_winners(decided)
        for name, config in {(one.image, one.config) for one in decided}:
            database.evidence.image_id(name, config, **known[name])  # type: ignore[arg-type] # the store checks
        winners += decided
        print(f"{' '.join(key)}: {len({winner.image for winner in decided})} images", flush=True)
    return winners


def refit(
    database: TuningDatabase, operators: Collection[Operator], arch: str, store: ImageStore, jobs: int | None = None
) -> dict[str, int]:
    """Fits the models that ``predict`` has made anew to the static model's times, for other terms. The images that have
    one stay the same, and what they save, as candidates that do not ship are not compiled again. Returns how many
    models each operator has. TuningError, and nothing of the operator is written, where an image would have none.
    """
    found = {}
    for operator in operators:
        before = [one for one in database.models(arch) if one.operator == operator.name]
        if not before or database.evidence.samples(arch, operator.name):
            continue
        fitting: dict[FunctionalKey, list[tuple[ImageSpec, Candidate]]] = {}
        for spec, image in compile_images(_modelled(database, [operator], [arch], ()), store, jobs):
            if isinstance(image, CompiledImage):
                key = spec.functional.kernel.name, str(spec.functional)
                fitting.setdefault(key, []).append((spec, Candidate.of(spec, image.metadata)))
        for of_functional in fitting.values():
            of_functional.sort(key=lambda pair: pair[0].config)
        made = {(one.kernel, one.functional, one.image): one for one in models(operator, arch, fitting, least=0.0)}
        earlier = {(one.kernel, one.functional, one.image): one for one in before}
        if missing := sorted(earlier.keys() - made.keys()):
            raise TuningError(f"{operator.name}: {' '.join(missing[0])} would have no model: --predict makes all anew")
        fitted = [replace(made[key], saves=one.saves) for key, one in earlier.items()]
        database.put_models(fitted, (arch, before[0].product, operator.name))
        found[operator.name] = len(fitted)
    return found


def _is_measured(winner: Winner) -> bool:
    return winner.provenance == "measured"


def _modelled(
    database: TuningDatabase, operators: Collection[Operator], archs: Collection[str], asked: Collection[FunctionalKey]
) -> list[ImageSpec]:
    """The images of these operators that have models, of functionals that are not ``asked`` for."""
    kernels = {kernel.name: kernel for kernel in kernels_of(operators)}
    facts, specs = database.evidence.facts(), []
    for model in database.models():
        kernel = kernels.get(model.kernel)
        if kernel and model.arch in archs and model.image in facts and (model.kernel, model.functional) not in asked:
            specs.append(ImageSpec.parse(parse_functional(kernel, model.arch, model.functional), facts[model.image][0]))
    return specs


def _models(
    database: TuningDatabase, operator: Operator, arch: str, found: Mapping[FunctionalKey, Fitting]
) -> list[Model]:
    """The models of an operator; none where those are of timings."""
    if arch not in operator.lead.archs or database.evidence.samples(arch, operator.name):
        return []
    return models(operator, arch, found)
