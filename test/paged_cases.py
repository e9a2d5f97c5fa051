"""Keys and values of a case in pages: a pool in which they lie in any order, between rows that are no numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from attention_cases import VALUES, Case

from aotriton.rules.flash.features import PAGES, bits, refusal

NO_PAGE = 1 << 30  # in the place of a page that must not be read


def of_pages(case: Case) -> Case:
    """The case with the number of keys of each sequence in device memory, as calls with a block table have it, and
    without what no kernel has together with one.
    """
    without: dict[str, Any] = {one.name: values[0] for one, values in VALUES.items() if refusal(bits((one, PAGES)))}
    return replace(case, used_k=case.lengths_k if case.used_k is None else case.used_k, **without)


@dataclass(frozen=True)
class Pool:
    """k and v [pages, heads_k, page_size, head_dim], the table [sequences, pages_of_sequence]; no pages that no row
    sees.
    """

    k: np.ndarray
    v: np.ndarray
    table: np.ndarray

    @property
    def seqlen_k(self) -> int:
        """The most keys that a sequence has room for."""
        return int(self.table.shape[1] * self.k.shape[2])


def in_pages(case: Case, k: Any, v: Any, page_size: int) -> Pool:
    """The pool of keys and values that are [batch, heads_k, seqlen_k, head_dim], or packed, of a case of `of_pages`."""
    assert case.used_k is not None
    draw = random.Random(case.number)
    begin, spans = 0, []
    for number, (rows, keys, used) in enumerate(zip(case.lengths_q, case.lengths_k, case.used_k, strict=True)):
        count = min(used, keys)
        queries = rows if case.used_q is None else min(rows, case.used_q[number])
        own = count - queries if case.causal_variant == "bottom_right" else 0
        first = max(own - case.window[0], 0) if case.window[0] >= 0 else 0
        spans.append((0 if case.packed else number, begin if case.packed else 0, first // page_size, count))
        begin += keys
    width = max(-(-count // page_size) for *_, count in spans) + draw.randint(0, 2)
    table = np.full((len(spans), max(width, 1)), NO_PAGE, np.int32)
    needed = [(i, page) for i, (*_, first, count) in enumerate(spans) for page in range(first, -(-count // page_size))]
    order = draw.sample(range(len(needed) + 3), len(needed))
    shapes = [(len(needed) + 3, x.shape[1], page_size, x.shape[3]) for x in (k, v)]
    pools = [np.full(shape, np.nan, np.float64) for shape in shapes]
    for (i, page), place in zip(needed, order, strict=True):
        batch, start, _, count = spans[i]
        table[i, page] = place
        held, at = min(page_size, count - page * page_size), start + page * page_size
        for pool, x in zip(pools, (k, v), strict=True):
            pool[place, :, :held] = x[batch, :, at : at + held]
    return Pool(pools[0], pools[1], table)
