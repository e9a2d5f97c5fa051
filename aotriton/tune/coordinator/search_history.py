"""What the database knows of a problem before it is searched: the space that a strategy chooses from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from aotriton.rules.database import Outcome, TuningDatabase, counting, latest_medians
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, parse_functional
from aotriton.tune.coordinator.expected import expected
from aotriton.tune.problem.candidates import spec_of
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Problem
from aotriton.tune.search.portfolio import closeness
from aotriton.tune.search.space import Config, Past, SearchSpace

MOST_PAST = 12  # problems of the history: those beyond are less like this one, and cost a model's time
ELSEWHERE = "elsewhere"  # the feature of a problem that another product measured
AWAY = {ELSEWHERE: 8.0}  # three doublings: as far as a problem of eight times the size
HERE = {ELSEWHERE: 1.0}


def config_of(spec: ImageSpec) -> Config:
    return spec.tunables + spec.compile_options


def features_of(functional: Functional, sizes: Mapping[str, int], bin: str) -> dict[str, float]:
    """Numbers that distinguish a problem from others of its kernel: choices, keys of its bin, sizes of its shape."""
    numbers = {name: float(value) for name, value in functional.as_dict().items() if isinstance(value, int)}
    keys = {name: float(value) for name, value in (part.split("=") for part in bin.split())}
    return {**numbers, **{name: float(size) for name, size in sizes.items()}, **keys}


def search_space(problem: Problem, specs: Sequence[ImageSpec], database: TuningDatabase, product: str) -> SearchSpace:
    """The space of the problem's ``specs``, with what the product measured of the kernel's other problems, and what
    other products of its arch did of all: how configs compare differs little from one product to the next.
    """
    configs = tuple(config_of(spec) for spec in specs)
    kernel, vendor = problem.kernel, problem.functional.arch_spec.vendor
    defaults = {
        one.name: one.default
        for one in (*kernel.tunables, *kernel.compile_options)
        if one.default is not None and vendor in one.values
    }
    features = features_of(problem.functional, problem.sizes, problem.bin)
    history = tuple(_history(problem, features, configs, database, product))
    if any(past.features[ELSEWHERE] != HERE[ELSEWHERE] for past in history):
        features |= HERE  # models are told the difference
    facts = _expected(problem.functional, problem.sizes, configs)
    return SearchSpace(configs, values_of(specs), defaults, features, facts, history)


def values_of(specs: Iterable[ImageSpec]) -> dict[str, tuple[int, ...]]:
    """The values of each tunable and compile option that there are, in order."""
    found: dict[str, set[int]] = {}
    for spec in specs:
        for name, value in config_of(spec):
            found.setdefault(name, set()).add(value)
    return {name: tuple(sorted(values)) for name, values in found.items()}


def _expected(
    functional: Functional, shape: Mapping[str, int], configs: Iterable[Config]
) -> Mapping[Config, Mapping[str, float]]:
    if functional.kernel.work is None:
        return {}
    return expected(functional, tuning(functional.kernel.family).sizes(shape), configs)


def _history(
    problem: Problem,
    features: Mapping[str, float],
    configs: Iterable[Config],
    database: TuningDatabase,
    product: str,
) -> Iterable[Past]:
    """The kernel's problems that are most like this one."""
    space, kernel, arch = set(configs), problem.kernel, problem.functional.arch
    by_problem: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for outcome in counting(database.evidence.outcomes(arch, kernel.name)):
        by_problem.setdefault((outcome.product, outcome.functional, outcome.bin, outcome.shape), []).append(outcome)
    by_problem.pop((product, str(problem.functional), problem.bin, problem.shape_text), None)
    found = []
    for (measured_on, functional_text, bin, shape), outcomes in by_problem.items():
        try:
            functional = parse_functional(kernel, arch, functional_text)
        except ValueError:
            continue  # the description has changed since
        parsed = {one.config: spec_of(functional, one.config) for one in outcomes}
        by_config = {text: config_of(spec) for text, spec in parsed.items() if spec and config_of(spec) in space}
        medians = {
            by_config[one.config]: one.median_us
            for latest in latest_medians(outcomes).values()
            for one in latest
            if one.config in by_config and one.median_us
        }
        failed = {by_config[one.config] for one in outcomes if one.config in by_config} - set(medians)
        if medians:
            sizes = json.loads(shape)
            facts = _expected(functional, sizes, (*medians, *failed))
            about = features_of(functional, sizes, bin) | (HERE if measured_on == product else AWAY)
            found.append(Past(about, medians, frozenset(failed), facts))
    near = closeness({**features, **HERE}, found)
    return [found[index] for index in sorted(range(len(found)), key=lambda index: -near[index])[:MOST_PAST]]
