"""Image specs: from a functional and a candidate to the exact request to the compiler, and to the image's name."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from aotriton.rules.arch import DTYPE_BYTES, arch_spec
from aotriton.rules.constants import computed, looks
from aotriton.rules.family import source_module, source_package
from aotriton.rules.kernel import (
    Constexpr,
    Functional,
    KernelDescription,
    Number,
    Parameter,
    Stride,
    Tensor,
    Value,
    block_of,
)

TRITON_VERSION = "3.6.0"  # the one compiler whose images are measured and shipped; requirements.txt pins the same


@cache
def source_digest(package: str, module: str) -> str:
    """The SHA-256 of the code of a module and of the modules that it imports from its package.

    ``module`` is aotriton.tritonsrc.<family>.kernels.<kernel>, ``package`` aotriton.tritonsrc.<family>. Comments,
    docstrings, layout and the package's own name do not count, because they do not reach the image. Outside of this
    tree constants may be computed, of the environment for instance: then their values count, for which the module is
    imported.
    """
    digest = hashlib.sha256()
    for own in sorted(_closure(package, module.removeprefix(f"{package}."))):
        tree = _syntax(package, own)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and _siblings(package, node):
                node.module, node.level = (node.module or "").removeprefix(package).lstrip(".") or None, 1
        digest.update(f"{own}\n{code_of(tree)}\n".encode())
        if not package.startswith("aotriton.") and (names := computed(tree)):
            values = vars(importlib.import_module(f"{package}.{own}"))
            digest.update("\n".join(looks({name: values[name] for name in names & values.keys()})).encode())
    return digest.hexdigest()


def code_of(tree: ast.Module) -> str:
    """The code of a module as text: equal where only comments, docstrings or layout differ."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            body[:1] = [] if len(body) > 1 else [ast.Pass()]
    return json.dumps(_plain(tree), sort_keys=True)


def _plain(node: object) -> object:
    """A syntax tree as JSON, the same in every version of Python.

    Absent and empty fields are left out, and so is empty text of f-strings, which only some versions have.
    """
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", [_plain(one) for one in node.values if getattr(one, "value", None) != ""]]
    if isinstance(node, ast.AST):
        there = {name: value for name, value in ast.iter_fields(node) if name not in ("ctx", "kind")}
        return [type(node).__name__, {name: _plain(one) for name, one in there.items() if one not in (None, [])}]
    if isinstance(node, list):
        return [_plain(one) for one in node]
    return ascii(node)


def _closure(package: str, name: str) -> set[str]:
    """``name`` and the modules of the package that it imports, directly or not: "lib.mask", a name inside of it."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        own = waiting.pop()
        if own in found:
            continue
        found.add(own)
        for node in ast.walk(_syntax(package, own)):
            if isinstance(node, ast.ImportFrom):
                waiting += _siblings(package, node)
    return found


def _siblings(package: str, node: ast.ImportFrom) -> list[str]:
    """The modules of ``package`` that the statement imports or imports from."""
    module = f"{node.module}."
    if not module.startswith(f"{package}."):
        return []
    inside = module.removeprefix(f"{package}.")
    if (_folder(package) / inside.replace(".", "/")).is_dir():
        return [f"{inside}{alias.name}" for alias in node.names]
    return [inside.rstrip(".")]


def _syntax(package: str, name: str) -> ast.Module:
    return ast.parse(_file(package, name, "py").read_text())


@cache
def _folder(package: str) -> Path:
    """The folder with the package's files; importing it runs no more than its ``__init__``."""
    return Path(str(importlib.import_module(package).__file__)).parent


def _file(package: str, name: str, suffix: str) -> Path:
    """The file of a module that has this name inside of the package."""
    return _folder(package) / f"{name.replace('.', '/')}.{suffix}"


def source_file(functional: Functional) -> Path:
    """The file with the functional's device code."""
    kernel = functional.kernel
    package = source_package(kernel.family)
    name = source_module(kernel, functional.function).removeprefix(f"{package}.")
    return _file(package, name, kernel.provider.suffix if kernel.provider else "py")


@cache
def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _source_digest(functional: Functional) -> str:
    """The SHA-256 of a source: of the code in Python, of all characters in any other language."""
    kernel = functional.kernel
    if kernel.provider is None or kernel.provider.suffix == "py":
        return source_digest(source_package(kernel.family), source_module(kernel, functional.function))
    return _file_digest(source_file(functional))


def _compiler(kernel: KernelDescription) -> str:
    """The compiler of the kernel, and its version."""
    return f"{kernel.provider.module} {kernel.provider.version}" if kernel.provider else TRITON_VERSION


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@dataclass(frozen=True)
class ImageSpec:
    """A functional with tunables and compile options: everything that makes one image."""

    functional: Functional
    tunables: tuple[tuple[str, int], ...]
    compile_options: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, functional: Functional, tunables: Mapping[str, int], compile_options: Mapping[str, int]) -> ImageSpec:
        """The spec with tunables and compile options in the order of the description; missing ones have their defaults.

        ValueError if a name is unknown, or if one without a default is missing.
        """
        return cls(
            functional, *_whole(functional.kernel, functional.arch, (*tunables.items(),), (*compile_options.items(),))
        )

    @classmethod
    def parse(cls, functional: Functional, config: str) -> ImageSpec:
        """The spec with this ``config``; ValueError if the rules do not know its tunables and compile options."""
        tunables, compile_options = _parsed(functional.kernel, config)
        return cls(functional, *_whole(functional.kernel, functional.arch, tunables, compile_options))

    @cached_property
    def config(self) -> str:
        """The candidate as text, for people and the database: ``BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=2``.

        Tunables and compile options at their defaults are left out.
        """
        return _config(self.functional.kernel, self.tunables, self.compile_options)

    @cached_property
    def name(self) -> str:
        """The image's name: cache key, database key and C++ symbol. Equal names mean equal images."""
        return _name(self, _source_digest(self.functional), _compiler(self.functional.kernel))

    @cached_property
    def plain_names(self) -> tuple[str, ...]:
        """The names of the images of level 0 with this config.

        If an image of another level was never compiled, facts about these say whether it is fit.
        """
        return tuple(ImageSpec(one, self.tunables, self.compile_options).name for one in self.functional.plain_ones)

    @property
    def suffix(self) -> str:
        """The suffix of the image's file: "cubin" or "hsaco", or "py" for a Python function."""
        return "py" if self.functional.kernel.called else self.functional.arch_spec.image_suffix

    def compiler_request(self) -> dict[str, Any]:
        """The signature, constexprs, attributes and options for ``triton.compile``, as plain data.

        ``attrs`` maps an argument's name to a list of [attribute, value] pairs. A constexpr is a choice's or tunable's
        value, or {"spelled": text} of one that the description spells.
        """
        functional, given = self.functional, _arguments(self.functional)
        numbers: dict[str, Value] = {**functional.as_dict(), **dict(self.tunables), **given.strides}
        signature = dict(given.signature)
        for argument in given.descriptors:
            tile, dtype = block_of(argument.block or (), numbers), signature[argument.name]
            layout = f",{_shared_layout(tile, dtype, argument.swizzled)}" if functional.kernel.gluon else ""
            signature[argument.name] = f"tensordesc<{dtype}[{','.join(map(str, tile))}]{layout}>"
        constexprs: dict[str, object] = dict(numbers)
        for name, values in given.values.items():
            constexprs[name] = {"spelled": values[int(numbers.get(name, 0))]}
        if functional.kernel.provider is None:  # else its source may have them all
            constexprs = {name: constexprs[name] for name, kind in signature.items() if kind == "constexpr"}
        return {
            "arch": functional.arch,
            "signature": signature,
            "constexprs": constexprs,
            "attrs": {name: [[*pair] for pair in pairs] for name, pairs in given.attrs.items()},
            "options": {**dict(self.compile_options), "enable_fp_fusion": True},
        }


@dataclass(frozen=True)
class _Arguments:
    """The part of a compiler request about arguments that does not depend on tunables.

    ``signature`` has the element type in place of a descriptor, ``strides`` has the strides inside of descriptors.
    """

    signature: Mapping[str, str]
    attrs: Mapping[str, Sequence[tuple[str, int]]]
    descriptors: Sequence[Tensor]
    strides: Mapping[str, int]
    values: Mapping[str, tuple[str, ...]]  # of constexprs that spell them


@cache
def _arguments(functional: Functional) -> _Arguments:
    addressing = functional.addressing
    aligned = addressing != "general"
    signature: dict[str, str] = {}
    attrs: dict[str, list[tuple[str, int]]] = {}
    elements: dict[str, int] = {}  # bytes of one, by tensor
    descriptors: dict[str, Tensor] = {}
    strides: dict[str, int] = {}
    values: dict[str, tuple[str, ...]] = {}
    general: set[str] = set()
    for argument in filter(functional.takes, functional.kernel.arguments):
        name = argument.name
        if isinstance(argument, Tensor) and argument.general:
            general.add(name)
            signature[name] = f"*{functional.dtype_of(argument)}"
        elif isinstance(argument, Stride) and argument.tensor in general:
            signature[name] = "i64"
        elif isinstance(argument, Tensor):
            dtype = functional.dtype_of(argument)
            elements[name] = DTYPE_BYTES[dtype]
            if addressing == "descriptor" and argument.block_at(functional.level) is not None:
                signature[name], descriptors[name] = dtype, argument
                continue
            signature[name] = f"*{dtype}"
            attrs[name] = [("tt.divisibility", 16)] if aligned or argument.operand.alignment >= 16 else []
            if addressing == "offset32":
                attrs[name].append(("tt.pointer_range", 32))
        elif isinstance(argument, Stride) and argument.tensor in descriptors:
            signature[name], strides[name] = "constexpr", 0
        elif isinstance(argument, Stride):
            signature[name] = "i32" if addressing == "offset32" else "i64"
            multiple = 16 // elements[argument.tensor]
            attrs[name] = [("tt.divisibility", multiple)] if aligned else []
        elif isinstance(argument, Number):
            signature[name] = argument.dtype
            multiple = argument.multiple_of if aligned or not argument.if_aligned else 1
            attrs[name] = [("tt.divisibility", multiple)] if multiple > 1 else []
        elif isinstance(argument, Constexpr):
            signature[name] = "constexpr"
            if argument.values:
                values[name] = argument.values
    given = {name: pairs for name, pairs in attrs.items() if pairs}
    return _Arguments(signature, given, tuple(descriptors.values()), strides, values)


_SORTED = json.JSONEncoder(sort_keys=True)


@cache  # two products, and functionals that borrow, ask for the same images
def _name(spec: ImageSpec, source: str, triton: str) -> str:
    kernel, request = spec.functional.kernel, spec.compiler_request()
    tunables, compile_options = (dict(pairs) for pairs in _canonical(kernel, spec.tunables, spec.compile_options))
    at_default = {name for name, _ in spec.tunables if name not in tunables}
    at_default |= {c.name for c, v in zip(kernel.choices, spec.functional.values, strict=True) if v == c.default}
    at_default -= _arguments(spec.functional).values.keys()  # the number says nothing of the value
    for part in ("signature", "constexprs"):
        request[part] = {name: value for name, value in request[part].items() if name not in at_default}
    request["options"] = {**compile_options, "enable_fp_fusion": True}
    made_of = {"kernel": kernel.name, "source": source, "triton": triton, **request}
    # A config says the places of spelled values: where they are listed in another order, it is of another image.
    if places := {name: place for name, place in spec.tunables if name in kernel.places_of}:
        made_of["places"] = places
    digest = hashlib.sha256(_SORTED.encode(made_of).encode()).hexdigest()
    return f"{kernel.name}_{spec.functional.arch}_{digest[:16]}"


_Pairs = tuple[tuple[str, int], ...]


# What follows from tunables and compile options alone is the same in all functionals of a kernel, which are many.
@cache
def _whole(kernel: KernelDescription, arch: str, tunables: _Pairs, compile_options: _Pairs) -> tuple[_Pairs, _Pairs]:
    """Tunables and compile options in the order of the description, as ``ImageSpec.of``."""
    vendor = arch_spec(arch).vendor
    made = []
    for pairs, parameters in (
        (tunables, kernel.tunables),
        (compile_options, tuple(parameter for parameter in kernel.compile_options if vendor in parameter.values)),
    ):
        given = dict(pairs)
        names = {parameter.name for parameter in parameters}
        required = {parameter.name for parameter in parameters if parameter.default is None}
        if not required <= set(given) <= names:
            known = [parameter.name for parameter in parameters]
            raise ValueError(f"{kernel.name} {arch}: expected {known}, got {list(given)}")
        for name, number in given.items():
            if number not in range(kernel.places_of.get(name, number + 1)):
                raise ValueError(f"{kernel.name} {arch}: {name} has no value at place {number}")
        made.append(tuple((one.name, int(given.get(one.name, one.default or 0))) for one in parameters))
    return made[0], made[1]


def config_values(config: str) -> dict[str, int]:
    """The parameters that a config names; ValueError if it is not one."""
    try:
        return {name: int(value) for name, value in (part.split("=") for part in config.split())}
    except ValueError:
        raise ValueError(f"{config!r} is not a config") from None


@cache
def _parsed(kernel: KernelDescription, config: str) -> tuple[_Pairs, _Pairs]:
    """The tunables and compile options of a config, as ``ImageSpec.parse``."""
    try:
        values = config_values(config)
    except ValueError as error:
        raise ValueError(f"{kernel.name}: {error}") from None
    tunables = tuple((name, value) for name, value in values.items() if name in kernel.tunable_names)
    return tunables, tuple((name, value) for name, value in values.items() if name not in kernel.tunable_names)


@cache
def _canonical(kernel: KernelDescription, tunables: _Pairs, compile_options: _Pairs) -> tuple[_Pairs, _Pairs]:
    return _without_defaults(tunables, kernel.tunables), _without_defaults(compile_options, kernel.compile_options)


@cache
def _config(kernel: KernelDescription, tunables: _Pairs, compile_options: _Pairs) -> str:
    return " ".join(
        f"{name}={value}" for pairs in _canonical(kernel, tunables, compile_options) for name, value in pairs
    )


def _without_defaults(pairs: _Pairs, parameters: Sequence[Parameter]) -> _Pairs:
    defaults = {parameter.name: parameter.default for parameter in parameters}
    return tuple((name, value) for name, value in pairs if value != defaults[name])


def _shared_layout(tile: Sequence[int], dtype: str, swizzled: bool) -> str:
    """Gluon's text of the layout of a tile in shared memory; if swizzled, as widely as its rows allow."""
    width = DTYPE_BYTES[dtype]
    swizzle = min(128, width * tile[-1]) if swizzled else 0
    return (
        f"NVMMASharedLayout(swizzle_byte_width={swizzle}, element_bitwidth={8 * width},"
        f" rank={len(tile)}, transposed=False, fp4_padded=False, cga_layout=[])"
    )
