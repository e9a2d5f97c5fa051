"""The program: from a command line to one command and its exit status."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aotriton.rules.database import TuningDatabaseError
from aotriton.rules.family import IN_TREE as FAMILIES
from aotriton.rules.family import Family, add, family
from aotriton.tune.cli import certify, decisions, models, origin, plan, run, tables
from aotriton.tune.cli.invocation import CannotBegin, Invocation
from aotriton.tune.cli.options import check_positive, common
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.gpu_process import WorkerError


@dataclass(frozen=True)
class Command:
    """A command: the option that stands for it where no command is named, and its ``value``, if it takes one: name,
    type and what it is.
    """

    act: Callable[[Invocation], int]
    option: str
    help: str
    value: tuple[str, type, str] | None = None


COMMANDS = {
    "run": Command(run.run, "", "measure what is not measured yet, and choose winners: the default"),
    "list": Command(
        plan.list_problems, "--dry-run", "list the problems and count the candidates; needs no GPU"
    ),
    "compile": Command(plan.compile_candidates, "--compile-only", "fill the image store; needs no GPU"),
    "decide": Command(
        decisions.decide, "--decide", "choose winners anew from what is measured; needs no GPU"
    ),
    "merge": Command(
        decisions.merge, "--merge", "take over what another database has, and decide; needs no GPU",
        ("merge", Path, "the other database"),
    ),
    "retract": Command(
        decisions.retract, "--retract", "take a session out of all decisions, and decide anew; needs no GPU",
        ("session", str, "the beginning of its uuid"),
    ),
    "sign": Command(
        tables.sign_database, "--sign-database", "sign the database for others, with a key of OpenSSH; needs no GPU",
        ("key", Path, "the private key"),
    ),
    "export": Command(
        tables.export_tables, "--export",
        "write all tables into a folder, as Parquet, or one to a file of its name, measurement.csv; needs no GPU",
        ("export", Path, "the folder or the file"),
    ),
    "import": Command(
        tables.import_tables, "--import",
        "take over what export wrote, or winners of a database that AOTriton publishes; needs no GPU",
        ("take_in", Path, "a folder of tables, one table, or AOTriton's database"),
    ),
    "sample": Command(
        models.sample_shapes, "--sample", "time launch sequences on random shapes, and fit cost models",
        ("sample", int, "shapes of each functional"),
    ),
    "certify": Command(
        certify.certify_images, "--certify", "check images that ship and have no certificate here, without timing them"
    ),
    "fit": Command(models.fit, "--fit", "fit cost models anew from what is timed; needs no GPU"),
    "carry-over": Command(
        decisions.carry_over, "--carry",
        "after a kernel's source has changed: what its images of unchanged bits took stands; needs no GPU",
    ),
    "predict": Command(models.predict_all, "--predict", "winners and models by a static model; needs no GPU"),
    "audit": Command(
        tables.audit_database, "--audit", "name each winner and model that is not as it should be; needs no GPU"
    ),
    "repack": Command(
        tables.repack, "--repack", "join the small files of the evidence, so that git carries less; needs no GPU"
    ),
    "report": Command(
        tables.write_report, "--report", "write what the database knows as one HTML page; needs no GPU",
        ("report", Path, "the page"),
    ),
}  # fmt: skip


def with_command(arguments: Sequence[str], prog: str) -> list[str]:
    """The arguments with the command first: the one that an option stands for, as --report, or else run."""
    if arguments and arguments[0] in COMMANDS:
        return list(arguments)
    options = argparse.ArgumentParser(prog=prog, usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    group = options.add_mutually_exclusive_group()
    for name, command in COMMANDS.items():
        if command.option:
            group.add_argument(command.option, dest=name, action="store" if command.value else "store_true")
    found, rest = options.parse_known_args(arguments)
    for name, value in vars(found).items():
        if value not in (None, False):
            return [name, value, *rest] if COMMANDS[name].value else [name, *rest]
    return ["run", *rest]


def parsers(of: Family, prog: str) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The program's parser, and those of its commands."""
    made = argparse.ArgumentParser(prog=prog, description=f"Tunes the kernels of {of.name} on this machine's GPUs.")
    group = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    found = {}
    for name, command in COMMANDS.items():
        one = found[name] = group.add_parser(name, description=command.help, parents=[common(of)])
        if command.value:
            value, kind, text = command.value
            metavar = {int: "COUNT", str: value.upper()}.get(kind, "PATH")
            one.add_argument(value, type=kind, metavar=metavar, help=text)
    found["run"].formatter_class = argparse.RawDescriptionHelpFormatter
    found["run"].epilog = "\n".join(["other commands, each with its own --help:", *map(_line, list(COMMANDS)[1:])])
    found["import"].add_argument(
        "--over-predicted", action="store_true", help="cells of predicted winners take what is imported"
    )
    for name in ("run", "merge", "import"):
        origin.add_options(found[name])
    found["sample"].add_argument("--shipped", action="store_true", help="time only images that a build has")
    found["sample"].add_argument(
        "--backend", nargs="+", metavar="BACKEND", help="time only these, which serve shapes of their own"
    )
    found["sample"].add_argument("--no-fit", action="store_true", help="leave the models to fit, which needs no GPU")
    found["export"].add_argument("--sign", type=Path, metavar="KEY", help="sign what is written, with a key of OpenSSH")
    found["retract"].add_argument("--why", default="", help="the reason, which the evidence keeps")
    found["report"].add_argument(
        "--since", type=Path, metavar="DATABASE", help="an earlier state, whose changes the page shows"
    )
    return made, found


def _line(name: str) -> str:
    """A command, the option that stands for it, and what it does."""
    return f"  {name:10} {COMMANDS[name].option:14} {COMMANDS[name].help}"


def family_of(arguments: Sequence[str], default: str) -> Family:
    """The family that ``--family`` names, in this tree or by its folder; ValueError where there is none."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--family", default=default)
    name = first.parse_known_args(arguments)[0].family
    return family(name) if name in FAMILIES else add(name)


def main(arguments: Sequence[str] | None = None, default: str = "flash", prog: str = "tune.py") -> int:
    """The program; returns its exit status: 2 where it cannot begin, 1 where it cannot finish, 130 after Ctrl-C."""
    began = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        of = family_of(given, default)
        parser, commands = parsers(of, prog)
    except (ValueError, argparse.ArgumentError) as error:  # of two choices with one option, for instance
        return _fail(str(error), 2)
    options = parser.parse_args(with_command(given, prog))
    own = commands[options.command]
    names = ("time_budget", "jobs", "silence", "sample", "top", "price", *tuning(of.name).shape_options)
    check_positive(own, options, names)
    try:
        return COMMANDS[options.command].act(Invocation(of, own, options, began))
    except CannotBegin as error:
        return _fail(str(error), 2)
    except (TuningDatabaseError, TuningError, WorkerError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from here", 130)


def _fail(message: str, status: int) -> int:
    print(f"tune: {message}", file=sys.stderr)
    return status
