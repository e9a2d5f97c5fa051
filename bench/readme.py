"""The figures of the documents, written from the results: each between two comments with its name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import page_attention, page_decoding, page_others, summary
from figures.comparison import also
from figures.results import Results

DOCUMENTS = ("README.md", "docs/performance.md", "docs/pytorch.md", "docs/autotune.md")
PLACE = re.compile(r"<!-- figures: (?P<name>[a-z-]+) -->(?P<text>.*?)<!-- end of (?P=name) -->", re.DOTALL)

Figure = Callable[[Results], str]
ELSEWHERE: Mapping[str, Figure] = {
    "build-size": summary.build_size,
    "warm-call": summary.warm_call,
    "summary": summary.table,
    "choice-summary": summary.choice,
    "pytorch-host": page_others.pytorch_host,
    "pytorch-tokens": page_others.pytorch_tokens,
    "pytorch-packed": page_others.pytorch_packed,
    "public-kernels": page_others.public_kernels,
}
# Those of docs/performance.md, and whose results they are: other GPUs' results follow a figure there.
PAGE: Mapping[str, tuple[Figure, tuple[str, ...]]] = {
    "unseen": (page_attention.unseen_problems, ("bf16-unseen",)),
    "grid": (page_attention.grid, ("bf16",)),
    "one-call": (page_attention.one_call, ("latency",)),
    "decoding": (page_decoding.decoding, ("decode",)),
    "paged": (page_decoding.paged, ("pages",)),
    "narrow-keys": (page_decoding.keys_of_8_bits, ("fp8-keys",)),
    "narrow-queries": (page_decoding.queries_of_8_bits, ("fp8-queries",)),
    "latent": (page_decoding.latent_caches, ("latent",)),
    "features": (page_attention.with_features, ("features", "band")),
    "batch-invariant": (page_decoding.batch_invariant, ("invariant",)),
    "pytorch": (page_others.in_pytorch, ("pytorch", "pytorch-train", "pytorch-packed")),
    "gemm": (page_others.products, ("gemm",)),
    "new-shape": (page_others.new_shape, ("new-shape",)),
    "first-call": (page_others.first_call, ("first-call",)),
    "launch": (page_others.launches, ("launch",)),
    "choice": (page_attention.choice, ("regret", "regret-rows")),
    "choice-of-lengths": (page_attention.choice_of_lengths, ("lengths",)),
}


def written(text: str, results: Results) -> str:
    """The document with its figures anew. ValueError where a name is none of them, or a comment has no other end."""
    opened = re.findall(r"<!-- figures: ([^ ]*) -->", text)
    closed = [match["name"] for match in PLACE.finditer(text)]
    if opened != closed or set(opened) - {*PAGE, *ELSEWHERE}:
        wrong = [name for name in opened if name not in closed or name not in {*PAGE, *ELSEWHERE}]
        raise ValueError(f"figures {', '.join(wrong)}: of no such name, or without their end")
    return PLACE.sub(partial(_written, results), text)


def _written(results: Results, place: re.Match[str]) -> str:
    name = place["name"]
    found = ELSEWHERE[name](results) if name in ELSEWHERE else _of_page(name, results)
    # A part of a sentence stays in its line; all else has lines of its own.
    between = "\n" if place["text"].startswith("\n") or not place["text"] else ""
    return f"<!-- figures: {name} -->{between}{found}{between}<!-- end of {name} -->"


def _of_page(name: str, results: Results) -> str:
    figure, files = PAGE[name]
    return "\n\n".join([figure(results), *(line for file in files for line in also(results, file))])
