"""Kernels that are not timed, so that no cell of theirs is measured: on which problem their images are checked."""

from __future__ import annotations

from collections.abc import Mapping

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import operator_of
from aotriton.rules.flash.append import KV_APPEND
from aotriton.rules.flash.backward import ATTN_BWD_DSINKS
from aotriton.rules.flash.features import LATENT_DIMS
from aotriton.rules.flash.fp8 import ATTN_FWD_TURN
from aotriton.rules.flash.invariant import ATTN_FWD_INVARIANT, ATTN_FWD_INVARIANT_COMBINE
from aotriton.rules.flash.latent import ATTN_FWD_HOPPER_LATENT, ATTN_FWD_LATENT, ATTN_FWD_LATENT_COMBINE
from aotriton.rules.flash.split import SPLIT
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Backend

_LATENT = {"batch": 2, "heads": 2, "head_dim": LATENT_DIMS[0], "head_dim_v": LATENT_DIMS[1]}
_FEW_QUERIES = {"seqlen_q": 64, "seqlen_k": 2048}
# Sizes of each kernel, but for the head dim where images differ in it. Of those that split keys several splits.
SIZES: Mapping[KernelDescription, Mapping[str, int]] = {
    ATTN_FWD_INVARIANT: {"batch": 2, "heads": 4, **_FEW_QUERIES},
    ATTN_FWD_INVARIANT_COMBINE: {"batch": 2, "heads": 4, **_FEW_QUERIES},
    ATTN_FWD_LATENT: {**_LATENT, **_FEW_QUERIES},
    ATTN_FWD_HOPPER_LATENT: {**_LATENT, **_FEW_QUERIES},
    ATTN_FWD_LATENT_COMBINE: {**_LATENT, **_FEW_QUERIES},
    # No multiple of what a program turns, nor of what rows of the copy are multiples of.
    ATTN_FWD_TURN: {"batch": 2, "heads": 4, "seqlen_q": 64, "seqlen_k": 1000},
    ATTN_BWD_DSINKS: {"batch": 3, "heads": 20, "seqlen_q": 5000},
    KV_APPEND: {
        "batch": 8, "heads_q": 8, "heads_k": 4, "seqlen_new": 5, "seqlen_k": 256, "head_dim": 128, "head_dim_v": 96,
    },
}  # fmt: skip
# Causal calls with too many rows, or too few keys, to split these: a program leaves Out, and no part of it.
WHOLE: Mapping[KernelDescription, Mapping[str, int]] = {
    ATTN_FWD_INVARIANT: {"seqlen_q": 1088, "seqlen_k": 1088},
    ATTN_FWD_LATENT: {"seqlen_q": 192, "seqlen_k": 192},
    ATTN_FWD_HOPPER_LATENT: {"seqlen_q": 192, "seqlen_k": 192},
}


def sizes_of(functional: Functional) -> dict[str, int]:
    """The sizes of the problem of a functional."""
    own = dict(SIZES[functional.kernel])
    width = functional.get("BLOCK_DMODEL", 0)
    return {**own, "head_dim": int(width)} if width else own


def is_in(functional: Functional, keys: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Whether a problem of these sizes is in the cell of these keys."""
    reached = {key: evaluate(key.quantity, Environment(sizes)) for key in functional.kernel.tuning_keys}
    return all(keys[key.name] == key.representatives[key.bin_of(value)] for key, value in reached.items())


def splitting(kernel: KernelDescription) -> Backend:
    """The backend whose parts of the keys a kernel reads or leaves; that of all others where it has none."""
    if kernel not in SIZES:
        return SPLIT
    backends = (one for one in operator_of(kernel).backends if kernel in one.kernels)
    return next((one for one in backends if "partial_splits" in {size.name for size in one.sizes}), SPLIT)


def scalars(functional: Functional) -> dict[str, int]:
    """What calls that the kernel serves ask for."""
    return {"batch_invariant": 1} if functional.kernel is ATTN_FWD_INVARIANT else {}
