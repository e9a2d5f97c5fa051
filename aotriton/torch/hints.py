"""Hints for a region of a program: from a ``with`` statement to every call inside of it, through torch's compilers too.

A hint travels as an argument of the operators, which no pass over a graph can lose, and as metadata of the nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.fx.traceback import annotate

from aotriton.torch import library  # noqa: F401 (defines the operators)

META = "aotriton.hints"  # in what torch calls a node's custom metadata


class _Here(threading.local):
    def __init__(self) -> None:  # not the class's: torch.compile would see that one
        self.text = ""


_HERE = _Here()


def text_of(wishes: Mapping[str, Any]) -> str:
    """Hints as the operators and aotriton_parse_hints take them: {"schedule": "dfs", "exclude": ["hopper"]} becomes
    "schedule=dfs exclude=hopper". ValueError for a name or a value that a word cannot hold.
    """
    words = []
    for name, value in wishes.items():
        if isinstance(value, list | tuple):
            value = ",".join(value)
        word = f"{name}={int(value) if isinstance(value, bool) else value}"
        if not name.isidentifier() or any(map(str.isspace, word)):
            raise ValueError(f"hints: {name}={value!r} is no word: names are identifiers, values have no spaces")
        words.append(word)
    return " ".join(words)


def within(own: str = "") -> str:
    """What a call here is told: the hints of all regions around it, then its own, which count where both speak."""
    here = _HERE.text
    return own if own.startswith(here) else f"{here} {own}".strip()


@contextmanager
def _region(text: str) -> Iterator[None]:
    before = _HERE.text
    _enter(text)
    try:
        with annotate({META: text}):
            yield
    finally:
        _enter(before)


def _enter(text: str) -> None:
    _HERE.text = text
    if not torch.compiler.is_compiling():  # a graph has its hints as arguments
        torch.ops.aotriton._enter_region(text)


def hints(**wishes: Any) -> AbstractContextManager[None]:
    """A region whose calls of this library are told the wishes: ``with aotriton.hints(schedule="dfs"):``.

    Regions nest; the inner one counts where both speak. A backward is told what its forward was. Known names are those
    of aotriton_hints in c.h; others are ignored. A known hint's value that it cannot have makes a call a RuntimeError.
    """
    return _region(within(text_of(wishes)))


def keep_hints() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For ``torch.utils.checkpoint.checkpoint(..., context_fn=keep_hints)``: what is computed again is told what it was
    told at first.
    """
    return nullcontext(), _region(within())


def give_hints(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Gives each operator of the graph, in place, the hints that stand elsewhere: in the metadata of its node, where it
    has none of its own, and in a ``hints_wrapper`` around it, whose body takes the wrapper's place.
    """
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.higher_order.hints_wrapper:
            _unwrap(graph, node)
        elif _takes_hints(node) and not node.kwargs.get("hints"):
            _tell(node, node.meta.get("custom", {}).get(META, ""))
    graph.graph.lint()
    graph.recompile()
    return graph


def _takes_hints(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and str(node.target).startswith("aotriton.")


def _tell(node: torch.fx.Node, text: str) -> None:
    own = node.kwargs.get("hints", "")
    if text:
        node.kwargs = {**node.kwargs, "hints": f"{text} {own}".strip()}


def _unwrap(graph: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    body_node, args, _ = node.args
    body = give_hints(graph.get_submodule(body_node.target))
    text = text_of(node.kwargs["hints"])
    for inner in body.graph.nodes:
        if _takes_hints(inner):
            _tell(inner, text)
    given = dict(zip(body.graph.find_nodes(op="placeholder"), args, strict=True))
    with graph.graph.inserting_before(node):
        results = graph.graph.graph_copy(body.graph, given)
    for use in list(node.users):  # each takes one of the results
        use.replace_all_uses_with(results[use.args[1]])
        graph.graph.erase_node(use)
    graph.graph.erase_node(node)
    graph.graph.erase_node(body_node)


def hinted(backend: str = "inductor") -> Callable[..., Any]:
    """A backend of ``torch.compile`` that gives the graph its hints (see give_hints) and hands it on to ``backend``."""

    def compile_hinted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return torch._dynamo.lookup_backend(backend)(give_hints(graph), inputs)

    return compile_hinted
