"""Attention's features by direction, arch, type and head dim: which backends of a default build serve them.

``python3 -m aotriton.feature_table`` prints the table; with ``--write docs/compatibility.md`` it writes that page's
parts anew. The table follows from the features (``rules/flash/features.py``), from the descriptions of backends, and
from which of their kernels have winners in the tuning database. Needs neither a GPU nor the library.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from aotriton.codegen import read_database
from aotriton.codegen.plan import plan
from aotriton.rules.arch import ADDRESSING, ARCHS, DTYPES, arch_spec
from aotriton.rules.database import Decisions
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import family
from aotriton.rules.flash import common as c
from aotriton.rules.flash import features as f
from aotriton.rules.flash.checks import band
from aotriton.rules.kernel import Choice, Functional, KernelDescription, Tensor, Value
from aotriton.rules.operators import Backend, Operator

DATABASE = Path(__file__).parent / "rules" / "tuning_database.sqlite3"
OPERATORS = family("flash").operators[:2]  # forward and backward
TYPES = tuple(map(str, c.T_PORTABLE.values))
# The largest head dim of each value that some kernel rounds up to: those between are served alike.
WIDTHS = sorted(int(one) for one in {*c.HEAD_DIM_PORTABLE.values, *c.HEAD_DIM_SLIM.values})
# Batch, heads of q and of k, queries and keys: backends are for many calls or for few.
SHAPES = (
    (2, 32, 32, 512, 512),
    (8, 64, 64, 256, 256),
    (4, 16, 2, 1, 8192),
    (4, 16, 2, 64, 8192),
    (1, 2, 2, 2048, 4096),
    (2, 64, 2, 4096, 4096),
)
PAGE = {"page_size": 64, "pages": 4096}


Row = tuple[str, str, str]  # what is asked for, operator and arch


@dataclass(frozen=True)
class Asked:
    """What calls ask for. ``fields``: as documents spell them. ``masks``: scalars, of which each makes a call. ``odd``:
    a head dim that is no multiple of 8. ``other_width``: a head dim of their own for values. ``latent``: values that
    are the first columns of the keys.
    """

    says: str
    fields: str
    features: tuple[f.Feature, ...] = ()
    masks: tuple[Mapping[str, Any], ...] = ({},)
    odd: bool = False
    other_width: bool = False
    latent: bool = False

    @property
    def widths(self) -> Sequence[int]:
        """The head dims of q that are looked at."""
        return f.LATENT_DIMS[:1] if self.latent else WIDTHS


def every() -> list[Asked]:
    """Plain calls, each feature by what the documents call it, and what is of head dims alone."""
    window = {"causal": True, "causal_variant": "bottom_right", "window_left": 100}
    plain: tuple[Mapping[str, Any], ...] = {}, {"causal": True}
    masks = {f.WINDOW: (window,), f.FP8_Q: plain}
    made = [Asked("full, or causal with equal lengths", "`causal`", masks=plain)]
    for says in dict.fromkeys(one.says for one in f.FEATURES if one.fields):
        members = tuple(one for one in f.FEATURES if one.says == says)
        fields = ", ".join(f"`{name}`" for one in members for name in one.fields)
        made.append(Asked(says, fields, members, masks.get(members[0], ({},))))
    of_v = "values with a head dim of their own (192 and 128 of DeepSeek, for instance)"
    return [
        *made,
        Asked(of_v, "sizes of `v`, `out`", other_width=True),
        Asked("head dims that are no multiples of 8", "sizes of `q`, `k`, `v`", odd=True),
        Asked("values that are columns of the keys (a latent cache of DeepSeek)", "`v` at `k`", latent=True),
    ]


@dataclass(frozen=True)
class Table:
    """The types and head dims, of WIDTHS, of each backend that serves some call with what a row asks for."""

    served: Mapping[Row, Mapping[str, frozenset[tuple[str, int]]]]


def read(database: Path) -> Table:
    """The table of the default build that this database makes."""
    flash = family("flash")
    with Decisions(database) as opened:
        products = read_database.products_in([opened], [one.arch for one in ARCHS])
        winners, timings, _, spills = read_database.read(opened, flash.kernels, products)
        models = read_database.models_in(opened, products)
    made = plan(flash.operators, products, "default", winners, timings, spills, models)
    built = {(one.kernel.name, one.arch): {each.functional for each in one.functionals} for one in made.tables}
    served: dict[Row, dict[str, frozenset[tuple[str, int]]]] = {}
    for asked, operator, arch in product(every(), OPERATORS, [one.arch for one in ARCHS]):
        found: dict[str, set[tuple[str, int]]] = {}
        for dtype, width, mask, shape, lies_well in product(TYPES, asked.widths, asked.masks, SHAPES, (True, False)):
            call = _Call(operator, arch, asked, dtype, width, mask, shape, lies_well)
            for backend in operator.backends if call.possible else ():
                if (dtype, width) not in found.get(backend.name, ()) and _serves(backend, call, built):
                    found.setdefault(backend.name, set()).add((dtype, width))
        in_order = [one.name for one in operator.backends if one.name in found]
        served[asked.says, operator.name, arch] = {name: frozenset(found[name]) for name in in_order}
    return Table(served)


def _serves(backend: Backend, call: _Call, built: Mapping[tuple[str, str], Collection[Functional]]) -> bool:
    """Whether all kernels of the backend have images for the call, and no guard against it."""
    return all(
        call.functional(kernel) in built[kernel.name, call.arch]
        and all(evaluate(guard.condition, call.environment) for guard in kernel.all_guards(()))
        for kernel in backend.kernels
    )


@dataclass(frozen=True)
class _Call:
    """A call as it is after the library's checks. ``lies_well``: its tensors suit descriptors, or 32-bit offsets."""

    operator: Operator
    arch: str
    asked: Asked
    dtype: str
    width: int
    mask: Mapping[str, Any]
    shape: tuple[int, int, int, int, int]
    lies_well: bool

    @property
    def features(self) -> tuple[f.Feature, ...]:
        """Those that the direction has."""
        names = _names_of(self.operator)
        return tuple(one for one in self.asked.features if names & {*one.fields})

    @property
    def possible(self) -> bool:
        """Whether the direction has what is asked for; and a plain causal call has as many queries as keys."""
        *_, rows, keys = self.shape
        if f.FP8_Q in self.features and arch_spec(self.arch).fp8 not in c.FORWARD_Q.other_dtypes:
            return False
        if self.asked.features and (not self.features or f.WINDOW in self.features):
            return bool(self.features)
        return "causal" not in self.mask or rows == keys

    @cached_property
    def sizes(self) -> dict[str, int]:
        batch, heads_q, heads_k, rows, keys = self.shape
        width = self.width - 3 * self.asked.odd
        of_v = max(self.width // 2, 8) if self.asked.other_width else width
        of_v = f.LATENT_DIMS[1] if self.asked.latent else of_v
        made = {"batch": batch, "heads_q": heads_q, "heads_k": heads_k, "seqlen_q": rows, "seqlen_k": keys}
        return made | PAGE | {"head_dim": width, "head_dim_v": of_v}

    @cached_property
    def environment(self) -> Environment:
        scalars = {one.name: int(one.default or 0) for one in self.operator.scalars if one.dtype != "fp32"}
        given = f.bits(self.features) | (f.USED_K.bit if f.PAGES in self.features else 0)
        given |= f.FP8_KEYS.bit if f.FP8_Q in self.features else 0
        scalars |= band(self.mask, self.sizes, given, self.dtype)
        scalars |= {f"longest_{side}": self.sizes[f"seqlen_{side}"] for side in "qk"} | {c.SEQUENCES.name: 1}
        present = {one.name for one in self.operator.operands if not one.optional}
        present |= {name for one in self.features for name in one.fields}
        spec = arch_spec(self.arch)
        narrow = [c.FORWARD_K] if {f.FP8_KEYS, f.FP8_Q} & {*self.features} else []
        narrow += [c.FORWARD_Q] if f.FP8_Q in self.features else []
        typed = {one.name: DTYPES.index(spec.fp8) for one in narrow}
        return Environment(self.sizes, scalars, {}, present, spec.multiprocessors, typed)

    def functional(self, kernel: KernelDescription) -> Functional | None:
        """The kernel's for this call; None if it does not serve it."""
        addressing = self._addressing(kernel)
        lead = self.operator.lead
        found_by = [(one, self._value(one, addressing)) for one in lead.choices]
        values = tuple(one.values[-1] if value is None else value for one, value in found_by)
        found = kernel.like(Functional(lead, self.arch, values), self.sizes)
        if not found:
            return None
        of_lead = {one.name for one in lead.choices}
        own = [
            value if choice.name in of_lead else self._value(choice, addressing)
            for choice, value in zip(kernel.choices, found.values, strict=True)
        ]
        served = tuple(value for value in own if value is not None)
        return Functional(kernel, self.arch, served) if len(served) == len(own) else None

    def _value(self, choice: Choice, addressing: str) -> Value | None:
        """What the call has; None where the choice has no such value."""
        of_tensors = {"dtype": self.dtype, "addressing": addressing}.get(choice.source.code)
        if of_tensors is not None:
            return of_tensors
        wanted = evaluate(choice.source, self.environment)
        fitting = [one for one in choice.values if choice.number(one) >= wanted]
        return fitting[0] if fitting and (choice.round_up or choice.number(fitting[0]) == wanted) else None

    def _addressing(self, kernel: KernelDescription) -> str:
        """How it reaches the call's tensors. Level FULL and wide tiles have no descriptors of sequences, and the widest
        ones none at level FULL.
        """
        scalars = self.environment.scalars
        by_kernel = scalars["features"] & f.OF_LENGTHS
        wide = scalars["level"] == c.FULL or (scalars["level"] != c.PAGED and self.width > 128)
        wide = (by_kernel and wide) or (scalars["level"] == c.FULL and self.width > c.MOST_PLAIN)
        q = any(
            isinstance(one, Tensor) and one.operand.name == c.Q.name and not one.general for one in kernel.arguments
        )
        if not self.lies_well or self.dtype == "fp32" or self.asked.odd or (wide and q):
            return ADDRESSING[0]
        return arch_spec(self.arch).addressing[-1]


# ---- as text ---------------------------------------------------------------------------------------------------------


def of_types(served: frozenset[tuple[str, int]]) -> str:
    """Types, and head dims as intervals: "fp16, bf16, head dim 72 to 96 and 136 to 192"."""
    types = [one for one in TYPES if any(dtype == one for dtype, _ in served)]
    intervals: list[list[int]] = []
    for below, width in zip([0, *WIDTHS], WIDTHS, strict=False):
        if any(one == width for _, one in served):
            if intervals and intervals[-1][1] == below:
                intervals[-1][1] = width
            else:
                intervals.append([below + 8 if below else 0, width])
    spelled = [f"{least} to {most}" if least else f"up to {most}" for least, most in intervals]
    dim, dim_v = f.LATENT_DIMS
    spelled += [f"{dim} with values of {dim_v}"] if any(one == dim for _, one in served) else []
    return f"{', '.join(types)}, head dim {' and '.join(spelled)}"


def features_of_page(table: Table) -> str:
    """The backends that serve each feature, by arch and direction."""
    columns = [(arch.arch, operator) for arch in ARCHS for operator in OPERATORS]
    of_columns = [f"{arch}, {'forward' if operator.name.endswith('fwd') else 'backward'}" for arch, operator in columns]
    lines = _heading("call", "fields of `c.h`", *of_columns)
    for asked in every():
        cells = [_names(table.served[asked.says, operator.name, arch]) for arch, operator in columns]
        lines.append(_line(asked.says, asked.fields, *cells))
    return "\n".join(lines)


def backends_of_page(table: Table) -> str:
    """The types and head dims of each backend, whatever else a call asks for."""
    lines = _heading("operator", "backend", "arch", "types and head dims")
    for operator, arch in product(OPERATORS, [one.arch for one in ARCHS]):
        for backend in operator.backends:
            of_rows = [table.served[one.says, operator.name, arch].get(backend.name, frozenset()) for one in every()]
            if found := frozenset[tuple[str, int]]().union(*of_rows):
                lines.append(_line(f"`{operator.name}`", f"`{backend.name}`", arch, of_types(found)))
    return "\n".join(lines)


def refusals_of_page() -> str:
    """Pairs of features that no kernel has, and features that no kernel of an operator has."""
    lines = _heading("call", "error", "message")
    for pair in f.NOT_TOGETHER:
        call = " together with ".join(f"`{one.asked}`" for one in pair)
        lines.append(_line(call, "`not_supported`", str(f.refusal(f.bits(pair)))))
    for feature in (one for one in f.FEATURES if one.fields and one != f.DBIAS):  # a field of the backward alone
        without = [one.name for one in OPERATORS if not _names_of(one) & {*feature.fields}]
        of_operator = f" of `{without[0]}`" if without and len(without) < len(OPERATORS) else ""
        names = (feature.asked,) if feature.asked in feature.fields else feature.fields
        for name in names if without else ():
            message = f"no kernel has {name} yet; served without it"
            lines.append(_line(f"`{name}`{of_operator}", "`not_supported`", message))
    return "\n".join(lines)


def _names_of(operator: Operator) -> set[str]:
    return {one.name for one in operator.operands} | {one.name for one in operator.scalars}


def rewritten(page: str, table: Table) -> str:
    """The page with its parts written anew; ValueError if it lacks one."""
    parts = {
        "features": features_of_page(table),
        "backends": backends_of_page(table),
        "refusals": refusals_of_page(),
    }
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        pieces = re.split(f"(?s){begin}.*?{end}", page)
        if len(pieces) != 2:
            raise ValueError(f"the page has {len(pieces) - 1} parts {name}, which must be one")
        page = f"{begin}{text}\n{end}".join(pieces)
    return page


def _heading(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _names(served: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in served) or "none"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: prints the table, or writes a page's parts."""
    parser = argparse.ArgumentParser(prog="aotriton.feature_table", description=__doc__)
    parser.add_argument("--database", type=Path, default=DATABASE, help="the tuning database of the build")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page whose parts are written anew")
    options = parser.parse_args(argv)
    table = read(options.database)
    if options.write:
        options.write.write_text(rewritten(options.write.read_text(), table))
        return 0
    for (says, operator, arch), backends in table.served.items():
        print(f"{operator} {arch}, {says}:{'' if backends else ' none'}")
        for name, served in backends.items():
            print(f"    {name}: {of_types(served)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
