"""Which keys a query sees: the interval of keys of a block of rows, and the mask inside of it.

For Triton and for Gluon: positions are tensors of any layout, or numbers.
"""

import triton
import triton.language as tl


@triton.jit
def visible(keys, queries, seqlen_k, CAUSAL: tl.constexpr):
    """The mask: whether the key at a position is seen by the query at another. Callers apply it to their scores.

    Causal, queries see no key behind their own position. As max_seqlen_q is max_seqlen_k then, this hides keys beyond
    the end, too, from all rows that are stored.
    """
    if CAUSAL:  # noqa: SIM108 (known when compiled)
        seen = keys <= queries
    else:
        seen = keys < seqlen_k
    return seen


@triton.jit
def key_interval(row, row_end, seqlen_k, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """Of query rows from `row` to before `row_end`: the key, a multiple of BLOCK_N, before which they see all keys, and
    the one from which on they see none. Tiles of keys from the first one on need a mask.
    """
    if CAUSAL:
        full = row // BLOCK_N * BLOCK_N
        end = tl.minimum(row_end, seqlen_k)
    else:
        full = seqlen_k // BLOCK_N * BLOCK_N
        end = seqlen_k
    return full, end


@triton.jit
def first_query(key, CAUSAL: tl.constexpr, STEP: tl.constexpr = 1):
    """The first query row, a multiple of STEP, that sees a key from `key` on. All rows behind it do, too."""
    first = 0
    if CAUSAL:
        first = key
        if STEP > 1:
            first = key // STEP * STEP
    return first
