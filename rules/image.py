"""From a functional and a candidate to the exact request made of the compiler, and to the image's name."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aotriton.rules.kernel import Constexpr, Functional, Scalar, Stride, Tensor, Value

TRITON_VERSION = "3.6.0"  # the one compiler whose images are measured and shipped; requirements.txt pins the same

KERNEL_SOURCES = Path(__file__).resolve().parent.parent / "tritonsrc"


@cache
def source_digest(module: str) -> str:
    """SHA-256 of the code of ``tritonsrc/<module>.py`` and of every tritonsrc module that it imports.

    Comments, docstrings and layout do not count: they do not reach the image.
    """
    digest = hashlib.sha256()
    for name in sorted(_closure(module)):
        tree = ast.parse((KERNEL_SOURCES / f"{name}.py").read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and _is_docstring(body[0]):
                body[:1] = [] if len(body) > 1 else [ast.Pass()]
        digest.update(f"{name}\n{ast.unparse(tree)}\n".encode())
    return digest.hexdigest()


def _closure(module: str) -> set[str]:
    """``module`` and the tritonsrc modules it imports, directly or not."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(ast.parse((KERNEL_SOURCES / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("aotriton.tritonsrc"):
                tail = node.module.removeprefix("aotriton.tritonsrc")
                waiting += [tail[1:]] if tail else [alias.name for alias in node.names]
    return found


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@dataclass(frozen=True)
class ImageSpec:
    """A functional with psels and copts: everything that makes one image."""

    functional: Functional
    psels: tuple[tuple[str, int], ...]
    copts: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, functional: Functional, psels: Mapping[str, int], copts: Mapping[str, int]) -> ImageSpec:
        """The spec with psels and copts in the order of the kernel description; ValueError where a name is off."""
        kernel, vendor = functional.kernel, functional.target.vendor
        for given, known in ((psels, kernel.psels[vendor]), (copts, kernel.copts[vendor])):
            if set(given) != set(known):
                raise ValueError(f"{kernel.name} {functional.arch}: expected {list(known)}, got {list(given)}")
        return cls(
            functional,
            tuple((name, int(psels[name])) for name in kernel.psels[vendor]),
            tuple((name, int(copts[name])) for name in kernel.copts[vendor]),
        )

    @property
    def config(self) -> str:
        """The candidate as people read it: ``BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=2``."""
        return " ".join(f"{name}={value}" for name, value in self.psels + self.copts)

    @property
    def name(self) -> str:
        """Name of the image: cache key, database key and C++ symbol. Equal names mean equal images."""
        made_of = {
            "kernel": self.functional.kernel.name,
            "source": source_digest(self.functional.kernel.name),
            "triton": TRITON_VERSION,
            **self.compiler_request(),
        }
        digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
        return f"{self.functional.kernel.name}_{self.functional.arch}_{digest[:16]}"

    def compiler_request(self) -> dict[str, Any]:
        """Signature, constexprs, attributes and options for ``triton.compile``, as plain data.

        ``attrs`` maps an argument's name to a list of [attribute, value] pairs.
        """
        functional, kernel = self.functional, self.functional.kernel
        constexprs: dict[str, Value] = {**functional.as_dict(), **dict(self.psels)}
        addressing = functional["ADDRESSING"]
        aligned = addressing != "general"
        signature: dict[str, str] = {}
        attrs: dict[str, list[list[str | int]]] = {}
        for argument in kernel.arguments:
            name = argument.name
            if isinstance(argument, Tensor):
                dtype = str(functional["T"]) if argument.dtype == "T" else argument.dtype
                if addressing == "descriptor" and argument.block is not None:
                    tile = [int(constexprs.get(str(side), side)) for side in argument.block]
                    layout = f",{_shared_layout(tile, dtype)}" if kernel.gluon else ""
                    signature[name] = f"tensordesc<{dtype}[{','.join(map(str, tile))}]{layout}>"
                    continue
                signature[name] = f"*{dtype}"
                attrs[name] = [["tt.divisibility", 16]] if aligned or argument.dtype != "T" else []
                if addressing == "offset32":
                    attrs[name].append(["tt.pointer_range", 32])
            elif isinstance(argument, Stride):
                signature[name] = "i32" if addressing == "offset32" else "i64"
                attrs[name] = [["tt.divisibility", 8]] if aligned else []
            elif isinstance(argument, Scalar):
                signature[name] = argument.dtype
                attrs[name] = [["tt.divisibility", argument.multiple_of]] if argument.multiple_of > 1 else []
            elif isinstance(argument, Constexpr):
                signature[name] = "constexpr"
        return {
            "arch": functional.arch,
            "signature": signature,
            "constexprs": {a.name: constexprs[a.name] for a in kernel.arguments if isinstance(a, Constexpr)},
            "attrs": {name: pairs for name, pairs in attrs.items() if pairs},
            "options": {**dict(self.copts), "enable_fp_fusion": True},
        }


def _shared_layout(tile: Sequence[int], dtype: str) -> str:
    """How Gluon spells the layout of a tile in shared memory, swizzled as widely as its rows allow."""
    bits = 32 if dtype == "fp32" else 16
    return (
        f"NVMMASharedLayout(swizzle_byte_width={min(128, bits // 8 * tile[-1])}, element_bitwidth={bits},"
        f" rank={len(tile)}, transposed=False, fp4_padded=False, cga_layout=[])"
    )
