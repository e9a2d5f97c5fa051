"""One call of the program: its family and its options, and what must be there before it begins."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotriton.rules.arch import arch_spec
from aotriton.rules.database import TuningDatabaseError
from aotriton.rules.family import Family
from aotriton.rules.image import TRITON_VERSION
from aotriton.rules.kernel import Functional, KernelDescription, Value
from aotriton.rules.operators import Operator
from aotriton.tune.cli.options import DATABASE, choices_of, keys_of, wished
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Problem, Wish, problems


class CannotBegin(Exception):
    """Nothing was done; the message says what is missing."""


@dataclass(frozen=True)
class Invocation:
    """A command with its options; ``began`` is when, on time.monotonic's clock."""

    family: Family
    parser: argparse.ArgumentParser
    options: argparse.Namespace
    began: float

    @property
    def kernels(self) -> list[KernelDescription]:
        return [one for one in self.family.kernels if not self.options.kernel or one.name in self.options.kernel]

    @property
    def operators(self) -> list[Operator]:
        """The operators that have one of these kernels, and are timed."""
        timed = [kernel for kernel in self.kernels if kernel.timed]
        return [one for one in self.family.operators if any(kernel in timed for kernel in one.kernels)]

    @property
    def wish(self) -> Wish:
        def asked(name: str) -> Sequence[Value]:
            value: Any = wished(self.options, name)
            return () if value is None else (value,) if isinstance(value, bool) else value

        return Wish(
            choices={name: asked(name) for name in choices_of(self.family)},
            bins={name: asked(name) for name in keys_of(self.family)},  # type: ignore[misc] # a bin is an int
            sizes={
                name: value
                for name in tuning(self.family.name).shape_options
                if (value := getattr(self.options, name)) is not None
            },
        )

    def functionals(self, arch: str) -> list[Functional]:
        """The functionals of timed kernels that were asked for."""
        timed = [kernel for kernel in self.kernels if kernel.timed]
        return [one for kernel in timed for one in kernel.functionals(arch) if self.wish.has(one)]

    def problems(self, arch: str, multiprocessors: int) -> list[Problem]:
        """The problems that were asked for; exits with an error where there is none."""
        found = problems(self.kernels, arch, multiprocessors, self.wish)
        if not found:
            self.parser.error(
                f"these options leave no problem on {arch}: its addressings are"
                f" {', '.join(arch_spec(arch).addressing)},"
                " and the sizes that are given must reach the bins that are asked for"
            )
        return found

    def arch_without_gpu(self, default: str) -> str:
        if not self.options.arch:
            print(f"no --arch given: taking {default}", file=sys.stderr)
        return self.options.arch or default

    @property
    def spelled(self) -> str:
        """The options that are not the default, without this machine's paths; a campaign of --again has a name."""
        left_out = ("command", "database", "family", "again", "events")
        given = {
            name: value
            for name, value in vars(self.options).items()
            if value != self.parser.get_default(name) and name not in left_out
        }
        return " ".join([f"family={self.family.name}", *(f"{name}={value}" for name, value in given.items())])


def make_folder(database: Path) -> None:
    """Makes the folder of the default database where there is none; another folder is the caller's to make."""
    if database == DATABASE:
        try:
            database.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TuningDatabaseError(f"{database}: {database.parent} cannot be made: {error.strerror}") from error


def require_triton() -> None:
    """CannotBegin where Triton is not the one whose images are measured."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        version = "missing"
    if version != TRITON_VERSION:
        raise CannotBegin(
            f"Triton is {version}; measurements are tied to {TRITON_VERSION}: pip install triton=={TRITON_VERSION}"
        )


def require_scipy() -> None:
    """CannotBegin where what fits cost models is missing, before a GPU measures for them."""
    if importlib.util.find_spec("scipy") is None:
        raise CannotBegin("scipy is missing, which fits cost models: pip install 'scipy>=1.11'")
