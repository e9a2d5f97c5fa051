"""Families: from a name or a folder to the operators described there, and to the modules beside them.

A family in this tree has a folder of its name in rules/, tritonsrc/, tune/ and v2src/. Its device code has two folders:
kernels/ with a file for each kernel, and lib/ with shared code. A family outside of the tree is a folder of the
family's name with these four inside, and its kernels are in tritonsrc/ itself. AOTRITON_FAMILIES lists such folders, so
that child processes know them too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from aotriton.rules.kernel import KernelDescription
from aotriton.rules.operators import Operator, kernels_of

IN_TREE = ("flash", "gemm")
VARIABLE = "AOTRITON_FAMILIES"

Shared = Mapping[str, int | Mapping[int, str]]
Named = TypeVar("Named", bound="Family | Operator | KernelDescription")


@dataclass(frozen=True)
class Family:
    """Operators that share descriptions, device code, inputs and checks. ``rules`` is the descriptions' module."""

    name: str
    operators: tuple[Operator, ...]
    rules: str

    @cached_property
    def kernels(self) -> tuple[KernelDescription, ...]:
        return kernels_of(self.operators)

    def earlier_judges(self, kernel: str) -> tuple[str, ...]:
        """The judges of the kernel whose verdicts count although the reference has changed since: EARLIER_JUDGES of the
        descriptions' module, where it has that.
        """
        listed: Mapping[str, tuple[str, ...]] = getattr(sys.modules[self.rules], "EARLIER_JUDGES", {})
        return listed.get(kernel, ())

    @property
    def shared(self) -> Shared:
        """What the family's own C++ takes from its descriptions, as ``<family>.shared.h``: SHARED of the descriptions'
        module, where it has that. A whole number is a constant of this name, and texts by whole numbers are a table.
        """
        found: Shared = getattr(sys.modules[self.rules], "SHARED", {})
        return found

    @property
    def in_tree(self) -> bool:
        return self.name in IN_TREE

    def module(self, stop: str) -> str:
        """The family's module at another stop, "tritonsrc" or "tune"."""
        package, _, last = self.rules.rpartition(".")
        return f"{package.rpartition('.')[0]}.{stop}.{last}" if self.in_tree else f"{package}.{stop}"

    @property
    def place(self) -> str:
        """The family's name, or for a family outside of the tree its folder, as commands take it."""
        return self.name if self.in_tree else str(self.folder)

    @property
    def folder(self) -> Path:
        """The folder of a family outside of the tree."""
        return Path(str(sys.modules[self.rules].__file__)).resolve().parent.parent


def families() -> tuple[Family, ...]:
    """The families of this tree, then those in AOTRITON_FAMILIES; ValueError says what is wrong with one."""
    return _together((*IN_TREE, *_listed()))


@cache
def _together(names: tuple[str, ...]) -> tuple[Family, ...]:
    found = tuple(_load(name) for name in names)
    operators = [one.name for family in found for one in family.operators]
    kernels = [one.name for family in found for one in family.kernels]
    for given in ([family.name for family in found], operators, kernels):
        twice = {name for name in given if given.count(name) > 1}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))}: a family, operator or kernel of this name is there twice")
    return found


def add(folder: str | os.PathLike[str]) -> Family:
    """The family in ``folder``, from now on known to this process and its children; ValueError says what is wrong."""
    path = str(Path(folder).resolve())
    found = _load(path)
    listed = tuple(dict.fromkeys([*_listed(), path]))
    _together((*IN_TREE, *listed))
    os.environ[VARIABLE] = os.pathsep.join(listed)
    return found


def family(name: str) -> Family:
    """The family called ``name``; ValueError names those that exist."""
    return _find("family", name, families())


def operator(name: str) -> Operator:
    """The operator called ``name``; ValueError names those that exist."""
    return _find("operator", name, tuple(one for family in families() for one in family.operators))


def kernel(name: str) -> KernelDescription:
    """The kernel called ``name``; ValueError names those that exist."""
    return _find("kernel", name, tuple(one for family in families() for one in family.kernels))


def operator_of(kernel: KernelDescription) -> Operator:
    """The operator that runs ``kernel``."""
    return next(one for one in family(kernel.family).operators if kernel in one.kernels)


@cache  # follows from the name, and is asked for each image
def source_package(name: str) -> str:
    """The package with the device code of the family called ``name``."""
    return family(name).module("tritonsrc")


def source_module(kernel: KernelDescription, function: str = "") -> str:
    """The module with the kernel's device code, that of level 0 or of this ``function``."""
    room = f"{source_package(kernel.family)}.kernels" if kernel.family in IN_TREE else source_package(kernel.family)
    return f"{room}.{function or kernel.function}"


def _listed() -> list[str]:
    return [str(Path(folder).resolve()) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]


def _find(what: str, name: str, among: tuple[Named, ...]) -> Named:
    for one in among:
        if one.name == name:
            return one
    raise ValueError(f"unknown {what} {name!r}: choose from {', '.join(one.name for one in among)}")


@cache
def _load(name: str) -> Family:
    """The family of this tree called ``name``, or the one in the folder of this name."""
    if name in IN_TREE:
        module = importlib.import_module(f"aotriton.rules.{name}")
    else:
        folder = Path(name)
        if not (folder / "rules" / "__init__.py").is_file():
            raise ValueError(f"{folder}: no family, it has no rules/__init__.py")
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))
        package = importlib.import_module(folder.name)
        found = [str(place) for place in getattr(package, "__path__", [])]
        if folder.resolve() not in [Path(place).resolve() for place in found]:
            raise ValueError(f"{folder}: another package is called {folder.name}, {' '.join(found)}")
        # Without __init__.py the package has all folders of its name on Python's path, for example one of a build.
        package.__path__ = [str(folder)]
        module = importlib.import_module(f"{folder.name}.rules")
    operators: tuple[Operator, ...] | None = getattr(module, "OPERATORS", None)
    if operators is None:
        raise ValueError(f"{name}: rules/__init__.py has no OPERATORS")
    names = {one.family for one in operators} | {one.family for one in kernels_of(operators)}
    wanted = name if name in IN_TREE else Path(name).name
    if names != {wanted}:
        raise ValueError(f"{name}: its operators and kernels must be of family {wanted!r}, not {sorted(names)}")
    return Family(wanted, operators, module.__name__)
