"""The parser of the command line: each choice, tuning key and size of a shape of a family has an option."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from aotriton.codegen.store import data_folder
from aotriton.rules.arch import ARCHS
from aotriton.rules.family import IN_TREE as FAMILIES
from aotriton.rules.family import Family
from aotriton.rules.kernel import Value
from aotriton.tune.coordinator.cluster import SILENCE
from aotriton.tune.problem.family import tuning
from aotriton.tune.search.strategies import BUDGETS, DEFAULT, STRATEGIES

ROOT = Path(__file__).resolve().parents[3]
# An installed package must not be written to, and the caller's folder has nothing to do with it.
DATABASE = (ROOT / "rules" if (ROOT / "CMakeLists.txt").exists() else data_folder()) / "tuning_database.sqlite3"
WISHED = "wished "  # before a name that the value of another option has
LAUNCHER = "aotriton.tune.measure.launcher:GpuLauncher"


def common(of: Family) -> argparse.ArgumentParser:
    """The options that all commands take: one command line lists, compiles, measures and decides the same problems."""
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--family", help=f"{', '.join(FAMILIES)}, or the folder of another family (default: {of.name})")
    database = DATABASE if of.in_tree else of.folder / "rules" / DATABASE.name
    made.add_argument("--database", type=Path, default=database, help="the tuning database (default: %(default)s)")
    made.add_argument("--jobs", type=int, help="compiler processes (default: one a core)")
    made.add_argument("--again", action="store_true", help="measure anew; goes on where a killed one was")
    made.add_argument("--time-budget", type=float, metavar="SECONDS", help="begin no further problem after this time")
    made.add_argument("--gpus", nargs="+", metavar="GPU", help="indices of the GPUs to use (default: all visible)")
    made.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a Dask cluster that tunes, as tls://host:8786 (default: this machine does)",
    )
    made.add_argument(
        "--product", metavar="NAME", help="of the GPUs to use, or a part of it, as h200 (default: the only one)"
    )
    made.add_argument(
        "--silence",
        type=float,
        default=SILENCE,
        metavar="SECONDS",
        help="without a sign of life of a worker, after which others get its jobs (default: %(default)g)",
    )
    made.add_argument(
        "--events", type=Path, metavar="FILE", help="append what happens in a run, each event as a line of JSON"
    )
    made.add_argument(
        "--launcher",
        default=LAUNCHER,
        metavar="MODULE:CLASS",
        help="what launches candidates in the child processes; tests put a stand-in or a faulty one here",
    )
    made.add_argument("--seed", type=int, default=0, help="of a strategy, or of sampled shapes (default: %(default)s)")
    how = made.add_argument_group("how to search", "without any of these, all that the descriptions list is measured")
    how.add_argument("--strategy", choices=[*STRATEGIES], help=f"default with one of the others: {DEFAULT}")
    how.add_argument("--effort", choices=[*BUDGETS], help="how many trials a strategy has (default: full)")
    how.add_argument("--budget", help="of trials a problem (64), seconds (60s) or dollars (0.80usd) of the run")
    how.add_argument("--price", type=float, metavar="USD", help="of a GPU an hour, where its machine says no other")
    how.add_argument(
        "--top",
        type=int,
        metavar="COUNT",
        help="write this many of the best of each problem, with images, beside the database, as .finalists.zip",
    )
    how.add_argument("--finalists", type=Path, metavar="FILE", help="measure and race here what --top wrote elsewhere")
    how.add_argument(
        "--confirm", action="store_true",
        help="measure and race here the best of what was merged or imported from unknown origin",
    )  # fmt: skip
    what = made.add_argument_group("what to tune", "each takes several values, and leaves all others out")
    what.add_argument("--arch", choices=[row.arch for row in ARCHS], help="default: the GPU's")
    _several(what, "kernel", [kernel.name for kernel in of.kernels], str)
    for name, (option, values) in choices_of(of).items():
        if set(values) == {False, True}:
            dest = _dest(made, name)
            what.add_argument(f"--{option}", dest=dest, action=argparse.BooleanOptionalAction, help="default: both")
        else:
            default = "one that stands for the others" if name in _shared(of) else "all that are worth it"
            _several(what, option, values, _reader(values), _dest(made, name), default)
    for name, (option, representatives) in keys_of(of).items():
        _several(what, option, representatives, int, _dest(made, name), "the family's own selection")
    for size in tuning(of.name).shape_options:
        what.add_argument(f"--{size}", type=int, help="of the shape that is measured (default: what fills the bin)")
    return made


def _dest(made: argparse.ArgumentParser, name: str) -> str:
    """The name of the value of a choice or key, that no other option's value has: kernels name sizes as they like."""
    return WISHED + name if name in {action.dest for action in made._actions} else name  # argparse tells no other way


def wished(options: argparse.Namespace, name: str) -> object:
    """The value of the option of a choice or key; None where it was not given."""
    return getattr(options, WISHED + name if hasattr(options, WISHED + name) else name)


def choices_of(of: Family) -> dict[str, tuple[str, list[Value]]]:
    """The option and the values of each choice of the family's kernels."""
    found: dict[str, tuple[str, list[Value]]] = {}
    for choice in (choice for kernel in of.kernels for choice in kernel.choices):
        _, values = found.setdefault(choice.name, (choice.option, []))
        values += [value for value in choice.values if value not in values]
    return found


def keys_of(of: Family) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The option and the representatives of each tuning key of the family's timed kernels."""
    timed = (kernel for kernel in of.kernels if kernel.timed)
    return {key.name: (key.option, key.representatives) for kernel in timed for key in kernel.tuning_keys}


def check_positive(parser: argparse.ArgumentParser, options: argparse.Namespace, names: Iterable[str]) -> None:
    """Exits with an error where an option of these names has a value that is not positive."""
    for name in names:
        value = getattr(options, name, None)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be positive, not {value}")


def _reader(values: Sequence[Value]) -> Callable[[str], Value]:
    """From text to a value: the one of these that it spells, where they have names; the text, if it spells none."""
    kind = type(values[0])
    spelled = {str(value): value for value in values}
    return kind if kind in (int, str) else lambda text: spelled.get(text, text)


def _shared(of: Family) -> set[str]:
    """The choices of which one value is measured."""
    return {choice.name for kernel in of.kernels for choice in kernel.choices if choice.measured_as is not None}


def _several(
    group: argparse._ArgumentGroup,
    option: str,
    choices: Sequence[object],
    kind: Callable[[str], object],
    name: str = "",
    default: str = "all",
) -> None:
    group.add_argument(
        f"--{option}",
        dest=name or option,
        nargs="+",
        action="extend",
        type=kind,
        choices=choices,
        metavar=option.upper(),
        help=f"{', '.join(map(str, choices))} (default: {default})",
    )
