"""How close to the best the choice comes: attention on random shapes, against every image that the library ships.

``python bench/regret.py --json OUT [--count N] [--seed S] [--build build/default]`` with torch, a CUDA GPU, the image
store of that build and its binding on PYTHONPATH. ``--json OUT --rows PRODUCT`` judges a product that is not
here by what was measured on it in the forward's cells; that needs no GPU.

On each shape every image of every backend is timed, in whole launch sequences, side by side; then the best ones race
what the library chose, and what its tables of measured cells would have chosen. Regret is how much longer than the best
of them the choice took. Shapes are no shapes of ``tune.py --sample``: another seed, and another distribution.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored

from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import TuningDatabase, latest_medians
from aotriton.rules.family import kernel as description
from aotriton.rules.family import operator as operator_named
from aotriton.rules.flash.common import HEAD_DIM
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, parse_functional
from aotriton.rules.operators import Backend, Operator
from aotriton.tune.costmodel.shortlist import has_level
from aotriton.tune.measure.launch_sequences import Sequences
from aotriton.tune.measure.requests import Draw, LaunchSequence, Request
from aotriton.tune.problem.problems import is_served, log_uniform

HEAD_DIMS = tuple(range(32, 257, 8))
WORK = (1e8, 2e13)  # floating-point operations of the forward: 5 µs to some 50 ms
MOST_BYTES = 6e9  # of q, k, v and out
DATABASE = Path(__file__).resolve().parent.parent / "rules" / "tuning_database.sqlite3"
NEAR = 1.03  # of the best of the first timing: what races
MOST_RACERS = 6

Images = tuple[str, ...]  # of a launch sequence
Times = Mapping[tuple[str, Images], float]


def problems(operator: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Head dims 32 to 256, both types; sequences of 16 to 16,384, different ones in a third of what is not causal;
    groups of 1 to 8, batches of 1 to 64; work spread evenly over its orders of magnitude.
    """
    draw = random.Random(f"regret {operator} {seed}")
    found: list[dict[str, Any]] = []
    while len(found) < count:
        causal = draw.random() < 0.5
        seqlen_q = seqlen_k = log_uniform(draw, 16, 16384)
        if not causal and draw.random() < 1 / 3:
            seqlen_k = log_uniform(draw, 16, 16384)
        group, heads_k = draw.choice((1, 2, 4, 8)), log_uniform(draw, 1, 32)
        head_dim = draw.choice((64, 128)) if draw.random() < 0.5 else draw.choice(HEAD_DIMS)
        one = 4 * group * heads_k * seqlen_q * seqlen_k * head_dim * (0.5 if causal else 1)
        batch = round(math.exp(draw.uniform(*map(math.log, WORK))) / one)
        size = 2 * batch * heads_k * head_dim * 2 * (group * seqlen_q + seqlen_k)
        if 1 <= batch <= 64 and WORK[0] <= batch * one <= WORK[1] and size <= MOST_BYTES:
            sizes = {"batch": batch, "heads_q": group * heads_k, "heads_k": heads_k}
            sizes |= {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "head_dim": head_dim}
            found.append({"dtype": draw.choice(("fp16", "bf16")), "causal": causal, "sizes": sizes})
    return found


class Shipped:
    """The images of a build, by functional, ready to be launched one by one."""

    def __init__(self, build: Path, arch: str) -> None:
        self._store = ImageStore()
        self._names: dict[tuple[str, str], list[tuple[str, ImageSpec]]] = {}
        for pack in json.loads((build / "generated" / "images.json").read_text())["packs"]:
            if pack["arch"] == arch:
                for image in pack["images"]:
                    kernel = description(pack["kernel"])
                    functional = kernel.functional(arch, **image["functional"])
                    spec = ImageSpec.of(functional, image["tunables"], image["compile_options"])
                    assert spec.name == image["name"], f"{image['name']}: the build is of another source"
                    self._names.setdefault((kernel.name, str(functional)), []).append((spec.name, spec))

    def of(self, functional: Functional) -> list[str]:
        return [name for name, _ in self._names.get((functional.kernel.name, str(functional)), ())]

    def request(self, functional: Functional, name: str) -> Request:
        spec = dict(self._names[functional.kernel.name, str(functional)])[name]
        metadata = json.loads((self._store.path / f"{name}.json").read_text())
        path = self._store.path / f"{name}.{functional.arch_spec.image_suffix}"
        return Request(name, functional.kernel.name, spec.config, path, metadata, dict(spec.tunables))


def serving(
    operator: Operator, functional: Functional, sizes: Mapping[str, int], multiprocessors: int
) -> tuple[list[Backend], list[str]]:
    """Of the backends of the call's level that are timed, those whose guards let it pass, and the names of those that
    refuse it.
    """
    found, refusing = [], []
    for backend in (one for one in operator.backends if one.timed_kernels):
        if None in [kernel.like(functional, sizes) for kernel in backend.timed_kernels]:
            continue
        own = [one for one in (kernel.like(functional, sizes) for kernel in backend.kernels) if one]
        if not all(has_level(one, functional) for one in own):
            continue
        if all(is_served(one, sizes, multiprocessors) for one in own):
            found.append(backend)
        else:
            refusing.append(backend.name)
    return found, refusing


def star(
    backends: Sequence[Backend], functional: Functional, sizes: Mapping[str, int], shipped: Shipped
) -> Iterator[tuple[str, Images]]:
    """Every image of every backend in one sequence at least: one kernel varies, the others have their first."""
    for backend in backends:
        own = [kernel.like(functional, sizes) for kernel in backend.timed_kernels]
        names = [shipped.of(one) if one else [] for one in own]
        if not all(names):
            continue
        first = tuple(row[0] for row in names)
        yield backend.name, first
        for place, row in enumerate(names):
            yield from ((backend.name, (*first[:place], name, *first[place + 1 :])) for name in row[1:])


def combined(times: Times) -> list[tuple[str, Images]]:
    """Of each backend the sequence of the images that took the least time, each in its place."""
    found = []
    for backend in dict.fromkeys(name for name, _ in times):
        mine = {images: time for (name, images), time in times.items() if name == backend}
        first = next(iter(mine))
        best = []
        for place in range(len(first)):
            varied = [one for one in mine if _without(one, place) == _without(first, place)]
            best.append(min(varied, key=lambda images: mine[images])[place])
        found.append((backend, tuple(best)))
    return found


def _without(images: Images, place: int) -> Images:
    return images[:place] + images[place + 1 :]


class Judge:
    """Times the choices of one operator on the current GPU."""

    def __init__(
        self, operator: str, arch: str, product: str, multiprocessors: int, shipped: Shipped, sequences: Sequences
    ) -> None:
        self._operator, self._arch, self._product = operator_named(operator), arch, product
        self._multiprocessors = multiprocessors
        self._shipped, self._sequences = shipped, sequences

    def measure(self, problem: Mapping[str, Any]) -> dict[str, Any] | None:
        """The problem with what the library chose, what its tables of cells would have, and what was best; None where
        one of the two launches fewer kernels than are timed, as a split in one part does, which has nothing to combine.
        """
        functional = self._functional(problem)
        told, of_cells = (self._choice(problem, by_cell) for by_cell in (False, True))
        chosen, by_cells = (self._sequence(functional, problem["sizes"], one) for one in (told, of_cells))
        backends, refusing = serving(self._operator, functional, problem["sizes"], self._multiprocessors)
        everything = list(
            dict.fromkeys([*star(backends, functional, problem["sizes"], self._shipped), chosen, by_cells])
        )
        first = self._time(functional, problem["sizes"], everything)
        if not {chosen, by_cells} <= first.keys():
            return None
        near = sorted((one for one in first if first[one] <= NEAR * min(first.values())), key=lambda one: first[one])
        racers = dict.fromkeys([chosen, by_cells, *combined(first), *near[:MOST_RACERS]])
        race = self._time(functional, problem["sizes"], list(racers))
        best = min(race, key=lambda one: race[one])
        return {
            **problem,
            "best_us": race[best],
            "best": best[0],
            "chosen_us": race[chosen],
            "chosen": chosen[0],
            "cells_us": race[by_cells],
            "predicted_us": told[0]["predicted_total_us"],
            "candidates": len(everything),
            "refusing": refusing,
        }

    def _functional(self, problem: Mapping[str, Any]) -> Functional:
        lead = self._operator.lead
        padded = next(one for one in HEAD_DIM.values if problem["sizes"]["head_dim"] <= int(one))
        values = {"T": problem["dtype"], "BLOCK_DMODEL": padded, "CAUSAL": problem["causal"]}
        return lead.functional(self._arch, **values, ADDRESSING="descriptor")

    def _choice(self, problem: Mapping[str, Any], by_cell: bool) -> list[dict[str, Any]]:
        import aotriton

        asked = {**problem["sizes"], "causal": problem["causal"], "sm_scale": 0.1}
        choices: list[dict[str, Any]] = aotriton.explain(
            self._operator.name, arch=self._product, dtype=problem["dtype"], by_cell=by_cell, **asked
        )
        return choices

    def _sequence(
        self, functional: Functional, sizes: Mapping[str, int], choice: Sequence[Mapping[str, Any]]
    ) -> tuple[str, Images]:
        """The backend and its images. A kernel that the call does not launch, as one that combines a single part, has
        its first image, as in ``star``.
        """
        backend = next(one for one in self._operator.backends if one.name == choice[0]["backend"])
        images = {one["kernel"]: one["image"] for one in choice}
        likes = [one for kernel in backend.timed_kernels if (one := kernel.like(functional, sizes))]
        return backend.name, tuple(images.get(one.kernel.name) or self._shipped.of(one)[0] for one in likes)

    def _time(
        self, functional: Functional, sizes: Mapping[str, int], wanted: Sequence[tuple[str, Images]]
    ) -> dict[tuple[str, Images], float]:
        backends = {one.name: one for one in self._operator.backends}
        launches = []
        for name, images in wanted:
            own = [one for kernel in backends[name].timed_kernels if (one := kernel.like(functional, sizes))]
            requests = tuple(self._shipped.request(one, image) for one, image in zip(own, images, strict=True))
            launches.append(LaunchSequence(name, requests))
        timings = self._sequences.time(Draw(functional, tuple(sizes.items()), tuple(launches)))
        return {(one.backend, one.images): one.median_us for one in timings}


def by_rows(database: Path, product: str, shipped: Shipped) -> list[dict[str, Any]]:
    """Of each measured cell of the forward: the time of the image that is chosen for the shape that was measured, and
    the best, of the shipped images of its kernel that were timed there.
    """
    import aotriton

    cells = []
    with TuningDatabase(database, readonly=True) as opened:
        for kernel in operator_named("attn_fwd").kernels:
            timed = latest_medians(opened.evidence.outcomes("sm_90", kernel.name, product=product))
            for (text, bin), outcomes in timed.items():
                functional = parse_functional(kernel, "sm_90", text)
                names = shipped.of(functional)
                times = {one.image: float(one.median_us or 0.0) for one in outcomes if one.image in names}
                if functional.level or "CAUSAL" not in functional.as_dict() or len(times) < 2:
                    continue
                shape = json.loads(outcomes[0].shape)
                sizes = {**shape, "heads_q": shape["heads"], "heads_k": shape["heads"]}
                del sizes["heads"]
                choices = aotriton.explain(
                    "attn_fwd", arch=product, dtype=functional["T"], causal=functional["CAUSAL"], **sizes
                )
                for told in choices:
                    if told["image"] in times:
                        cells.append(
                            {"kernel": kernel.name, "functional": text, "bin": bin, "best_us": min(times.values())}
                            | {
                                "chosen_us": times[told["image"]],
                                "predicted_us": told["predicted_us"],
                                "images": len(times),
                            }
                        )
    return cells


KINDS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "all": lambda cell: True,
    "different lengths": lambda cell: cell["sizes"]["seqlen_q"] != cell["sizes"]["seqlen_k"],
    "grouped heads": lambda cell: cell["sizes"]["heads_q"] != cell["sizes"]["heads_k"],
    "padded head dim": lambda cell: cell["sizes"]["head_dim"] not in HEAD_DIM.values,
    "below 20 µs": lambda cell: cell["best_us"] < 20,
    "20 to 200 µs": lambda cell: 20 <= cell["best_us"] < 200,
    "above 200 µs": lambda cell: cell["best_us"] >= 200,
}
STATISTICS = ("median", "p90", "p99", "max", "mean")


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """The table of both choices, by operator and kind of shape, and the worst shapes."""
    titles = [*(f"cells: {one}" for one in STATISTICS), *(f"chosen: {one}" for one in STATISTICS)]
    lines = [f"| operator | shapes | | {' | '.join(titles)} | predicted off by |", "|---" * 14 + "|"]
    for operator in dict.fromkeys(cell["operator"] for cell in cells):
        for kind, belongs in KINDS.items():
            mine = [cell for cell in cells if cell["operator"] == operator and belongs(cell)]
            if mine:
                both = " | ".join(regrets(mine, who) for who in ("cells_us", "chosen_us"))
                off = median(abs(cell["predicted_us"] / cell["chosen_us"] - 1) for cell in mine)
                lines.append(f"| {operator} | {kind} | {len(mine)} | {both} | {off:.1%} |")
    refused = Counter(name for cell in cells for name in cell.get("refusing", ()))
    lines += ["", *(f"{name} refuses {count} of the shapes by its guards." for name, count in refused.items())]
    worst = sorted(cells, key=lambda cell: cell["best_us"] / cell["chosen_us"])[:10]
    return "\n".join([*lines, "", "The worst:", "", *map(_line, worst)])


def _line(cell: Mapping[str, Any]) -> str:
    call = f"{cell['operator']} {cell['dtype']}{' causal' if cell['causal'] else ''} {cell['sizes']}"
    times = f"{cell['chosen_us']:.1f} µs with {cell['chosen']}, predicted {cell['predicted_us']:.1f}"
    return (
        f"- {cell['chosen_us'] / cell['best_us'] - 1:.0%}: {call}: {times}; {cell['best_us']:.1f} with {cell['best']}"
    )


def regrets(cells: Sequence[Mapping[str, Any]], who: str) -> str:
    """STATISTICS of how much longer than the best "chosen_us" or "cells_us" is."""
    order = sorted(cell[who] / cell["best_us"] - 1 for cell in cells)
    places = [
        order[len(order) // 2],
        order[len(order) * 9 // 10],
        order[len(order) * 99 // 100],
        order[-1],
        mean(order),
    ]
    return " | ".join(f"{100 * one:.1f} %" for one in places)


def _rounded(cell: dict[str, Any]) -> dict[str, Any]:
    """With six digits of each time, which is more than a clock can say."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in cell.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where the result goes, or comes from with --table")
    parser.add_argument("--rows", metavar="PRODUCT", help="judge by what was measured on this product")
    parser.add_argument("--table", action="store_true", help="print the table of a result; needs no GPU")
    parser.add_argument("--count", type=int, default=500, help="shapes of each operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build", type=Path, default=Path("build/default"))
    parser.add_argument("--time-budget", type=float, default=float("inf"), help="seconds of each operator")
    options = parser.parse_args()
    if options.table:
        print(summary(stored.load(options.json)["cells"]))
        return
    if options.rows:
        cells = by_rows(DATABASE, options.rows, Shipped(options.build, "sm_90"))
        options.json.write_text(json.dumps({"product": options.rows, "cells": list(map(_rounded, cells))}) + "\n")
        off = median(abs(cell["predicted_us"] / cell["chosen_us"] - 1) for cell in cells)
        print(f"{options.rows}: {len(cells)} cells, regret {regrets(cells, 'chosen_us')}, predicted off by {off:.1%}")
        return

    import torch
    from attention import machine

    import aotriton
    from aotriton.tune.measure.clock import GpuClock

    torch.zeros(1, device="cuda")  # makes the device current for the library
    arch, device = aotriton.arch(), torch.cuda.get_device_properties(0)
    shipped = Shipped(options.build, arch)
    sequences = Sequences(torch, aotriton, GpuClock(), device.multi_processor_count)
    result: dict[str, Any] = {"machine": machine(), "seed": options.seed, "cells": [], "left_out": []}
    for operator in ("attn_fwd", "attn_bwd"):
        judge, begun = (
            Judge(operator, arch, device.name, device.multi_processor_count, shipped, sequences),
            time.monotonic(),
        )
        for problem in problems(operator, options.count, options.seed):
            if time.monotonic() - begun > options.time_budget:
                break
            if cell := judge.measure(problem):
                result["cells"].append(_rounded({"operator": operator, **cell}))
            else:
                result["left_out"].append({"operator": operator, **problem})
            torch.cuda.empty_cache()
    options.json.write_text(json.dumps(result) + "\n")
    print(summary(result["cells"]))
    print(f"{len(result['left_out'])} shapes are left out: what is chosen there is not timed with all of its kernels")


if __name__ == "__main__":
    main()
