"""The calls that the models of a file make, as the coverage of a build: ``-DAOTRITON_COVERAGE=models.json``.

The file says which models, what for, in which types, batches and contexts. Calls are drawn from these ranges, and
checked as the library's own checks do (``rules/flash/checks.py``), so that the code generator knows which images they
can reach. ``codegen/demand.py`` makes a build of them. Needs neither a GPU nor the library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from aotriton.model_calls import DTYPES, Call, ConfigError, calls_of, layers_of, read
from aotriton.rules.arch import ARCHS
from aotriton.rules.flash import common as c
from aotriton.rules.flash.checks import band, refusal, self_attention
from aotriton.rules.flash.features import FEATURES, bits

DRAWN = 24  # pairs of batch and context of each entry, beside the ends of the ranges
TOP = ("models", "archs", "megabytes")
ENTRY = ("config", "for", "dtypes", "batch", "context")
PURPOSES = {"generating": (False,), "training": (True,), "both": (False, True)}


class ModelsError(ValueError):
    """A file of models that cannot be used; the message names the file, the entry and what is wrong."""


@dataclass(frozen=True)
class WantedCall:
    """A call of a ``model``, as a build sees it after the checks. ``given``: the operands that it has.

    ``aligned``: the rows of its tensors are, and begin where tensors do. ``reason``: why the checks refuse it, or why
    the library has no such call; None for a call that they let pass.
    """

    model: str
    call: Call
    dtype: str
    sizes: Mapping[str, int]
    scalars: Mapping[str, int]
    given: frozenset[str]
    aligned: bool
    reason: str | None = None

    def __str__(self) -> str:
        own = self.call.arguments
        sizes = " ".join(f"{name}={own[name]}" for name in ("batch", "seqlen_q", "seqlen_k"))
        return f"{self.model}: {self.call.step}, {self.dtype} {sizes}"


@dataclass(frozen=True)
class ModelsFile:
    """What a file asks for. ``archs`` and ``budget``, in bytes, are None where it does not say.

    ``configs``: the files that it names, as it spells them. ``texts``: all that the calls follow from.
    """

    path: Path
    models: int
    calls: tuple[WantedCall, ...]
    archs: tuple[str, ...] | None
    budget: int | None
    configs: tuple[str, ...]
    texts: tuple[str, ...]


def read_models(path: Path) -> ModelsFile:
    """The calls of a file of models; ModelsError if it cannot be read, or asks for what no build can have."""
    try:
        text = path.read_text()
        top = json.loads(text)
    except (OSError, ValueError) as error:
        raise ModelsError(f"{path}: {error}") from None
    try:
        _known(top, TOP, "a file of models")
        entries = top.get("models")
        if not isinstance(entries, list) or not entries:
            raise ModelsError("models must be a list with an entry for each model")
        archs, budget = _archs(top.get("archs")), _budget(top.get("megabytes"))
    except ModelsError as error:
        raise ModelsError(f"{path}: {error}") from None
    calls: list[WantedCall] = []
    configs: list[str] = []
    texts = [text]
    for place, entry in enumerate(entries):
        try:
            _known(entry, ENTRY, "an entry")
            config = _config(entry.get("config"), path.parent)
            calls += _calls(place, entry, config)
        except (ModelsError, ConfigError) as error:
            raise ModelsError(f"{path}: models[{place}]: {error}") from None
        if isinstance(named := entry["config"], str):
            configs.append(f"{named}/config.json" if (path.parent / named).is_dir() else named)
        texts.append(json.dumps(config, sort_keys=True))
    return ModelsFile(path, len(entries), tuple(calls), archs, budget, tuple(configs), tuple(texts))


def checked(model: str, call: Call, dtype: str) -> WantedCall:
    """The call after the library's checks: its level, its band and its features as scalars."""
    own = call.arguments
    sizes = {name: value for name, value in own.items() if type(value) is int and name in _SIZES}
    sizes.setdefault("head_dim_v", sizes["head_dim"])
    given = {name for name, value in own.items() if value is True} - {"causal"}
    features = bits(one for one in FEATURES if own.get(one.asked))
    widths = sizes["head_dim"], sizes["head_dim_v"]
    aligned = dtype != "fp32" and not any(width % c.WIDTH.multiple_of for width in widths)
    scalars = band(own, sizes, features, dtype)
    aligned = aligned and not (scalars["level"] == c.FULL and max(widths) > c.MOST_PLAIN)
    longest = {"longest_q": sizes["seqlen_q"], "longest_k": sizes["seqlen_k"], c.SEQUENCES.name: 1}
    longest[c.SELF.name] = self_attention(call.operator, sizes, features)
    made = WantedCall(model, call, dtype, sizes, scalars | longest, frozenset(given), aligned)
    return replace(made, reason=call.reason or refusal(call.operator, sizes, features))


_SIZES = ("batch", "heads_q", "heads_k", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v")


def _calls(place: int, entry: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[WantedCall]:
    """The calls of an entry: those of each step, type and drawn pair of batch and context."""
    purpose = entry.get("for")
    if not isinstance(purpose, str) or purpose not in PURPOSES:
        raise ModelsError(f"for must be {', '.join(PURPOSES)}, not {purpose!r}")
    dtypes = entry.get("dtypes", [DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), "bf16")])
    if not isinstance(dtypes, list) or not dtypes or not all(one in DTYPES.values() for one in dtypes):
        raise ModelsError(f"dtypes must be a list of {', '.join(DTYPES.values())}, not {dtypes!r}")
    batches, contexts = _range(entry, "batch"), _range(entry, "context")
    model = f"models[{place}] ({config.get('model_type') or 'without model_type'})"
    windows = [layer.window for layer in layers_of(config) if layer.window]
    for batch, context in _drawn(place, batches, contexts, windows):
        for training in PURPOSES[purpose]:
            for call in calls_of(config, batch, context, training):
                for dtype in dict.fromkeys(dtypes):
                    yield checked(model, call, dtype)


def _drawn(
    place: int, batches: tuple[int, int], contexts: tuple[int, int], windows: list[int]
) -> dict[tuple[int, int], None]:
    """Pairs of batch and context: the ends of both ranges, contexts on both sides of a window's length, and DRAWN
    random ones, as many in each octave, which follow from the entry alone.
    """
    random = Random(f"models {place} {batches} {contexts}")
    edges = [*contexts, *(one for window in windows for one in (window, window + 1))]
    pairs = [(batch, one) for batch in batches for one in edges if contexts[0] <= one <= contexts[1]]
    pairs += [(_log_uniform(random, *batches), _log_uniform(random, *contexts)) for _ in range(DRAWN)]
    return dict.fromkeys(pairs)


def _log_uniform(random: Random, least: int, most: int) -> int:
    return min(most, int(math.exp(random.uniform(math.log(least), math.log(most + 1)))))


def _known(found: object, names: tuple[str, ...], what: str) -> None:
    if not isinstance(found, dict):
        raise ModelsError(f"{what} must be an object of JSON, not {type(found).__name__}")
    if unknown := sorted(found.keys() - set(names)):
        raise ModelsError(f"unknown key {', '.join(map(repr, unknown))}: {what} has {', '.join(names)}")


def _config(given: object, folder: Path) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    if isinstance(given, str):
        return read(folder / given)
    raise ModelsError("config must be the path of a config.json, from the folder of this file, or the config itself")


def _range(entry: Mapping[str, Any], name: str) -> tuple[int, int]:
    """A number, or the least and the most of a range."""
    given = entry.get(name)
    ends = given if isinstance(given, list) else [given, given]
    least, most = ends if len(ends) == 2 else (0, 0)
    if type(least) is int and type(most) is int and 0 < least <= most:
        return least, most
    raise ModelsError(f"{name} must be a positive number, or a list of the least and the most, not {given!r}")


def _archs(given: object) -> tuple[str, ...] | None:
    names = [one.arch for one in ARCHS]
    if given is None:
        return None
    if not isinstance(given, list) or not given or not all(one in names for one in given):
        raise ModelsError(f"archs must be a list of {', '.join(names)}, not {given!r}")
    return tuple(given)


def _budget(given: object) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise ModelsError(f"megabytes must be a positive number, not {given!r}")
    return int(given * 1e6)
