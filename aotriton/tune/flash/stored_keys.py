"""Keys and values as caches hold them: of 8 bits with scales, in pages, or both, as the levels of split kernels say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aotriton.rules.flash import checks
from aotriton.rules.flash.features import FP8_KEYS, PAGES, USED_K, bits
from aotriton.rules.flash.fp8 import GROUP
from aotriton.rules.flash.split import KEYS, OF_8_BITS, OF_PAGES, Keys
from aotriton.rules.kernel import Functional
from aotriton.tune.problem.dtypes import torch_dtype

if TYPE_CHECKING:
    import torch

PAGE = 64  # rows of a page
# Scales are from the first of these to the second: normal numbers divided by them are below the largest one of every
# type of 8 bits, and few are below its smallest normal one. They are no powers of two, and each head has its own.
SCALES = 1 / 32, 1 / 4
OF_TABLE, OF_SCALES = 20, 21  # added to a seed


def stored_as(functional: Functional) -> Keys:
    """How measured calls of the functional hold keys and values."""
    levels = functional.kernel.level_choice == KEYS.name
    return Keys(functional.level) if levels else Keys.rows


def given(keys: Keys) -> frozenset[str]:
    """The optional operands of a call."""
    of_pages = {"block_table", "seqused_k"} if keys in OF_PAGES else set()
    return frozenset(of_pages | {f"{name}_descale" for name in narrow(keys)})


def narrow(keys: Keys) -> str:
    """The operands of 8 bits."""
    return "kvq" if keys == Keys.q_fp8e4nv else "kv" if keys in OF_8_BITS else ""


def scalars(keys: Keys, sizes: Mapping[str, int], causal: bool = False) -> dict[str, int]:
    """What the operator's checks set in a call of these sizes, which hides no key, or is causal."""
    features = [USED_K, PAGES] if keys in OF_PAGES else []
    features += [FP8_KEYS] if keys in OF_8_BITS else []
    own = checks.band({"causal": causal}, sizes, bits(features), "bf16")  # of fp16 it is the same
    return {**own, "longest_q": sizes["seqlen_q"], "longest_k": sizes["seqlen_k"], "packed_sequences": 1}


def narrowed(x: torch.Tensor, keys: Keys, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[batch, heads, rows, columns] as numbers of 8 bits, and the fp32 [batch, heads] that multiply them."""
    import torch

    generator = torch.Generator(device=x.device).manual_seed(seed + OF_SCALES)
    scale = torch.empty(x.shape[:2], device=x.device).uniform_(*SCALES, generator=generator)
    return (x / scale[:, :, None, None]).to(torch_dtype(OF_8_BITS[keys])), scale


def in_pages(tensors: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Tensors [batch, heads, rows, columns] as pools [pages, heads, PAGE, columns] whose rows lie next to those of
    other heads, with the table of a random order of pages, and the rows that are used: all of them.
    """
    import torch

    some = next(iter(tensors.values()))
    batch, heads, rows, _ = some.shape
    if rows % PAGE:
        raise ValueError(f"{rows} rows do not fill pages of {PAGE}")
    count = batch * rows // PAGE
    generator = torch.Generator(device=some.device).manual_seed(seed + OF_TABLE)
    order = torch.randperm(count, generator=generator, device=some.device)
    made = {}
    for name, one in tensors.items():
        words = one.view(torch.uint8) if one.element_size() == 1 else one
        pool = words.new_empty(count, PAGE, heads, one.shape[-1])
        pool[order] = words.view(batch, heads, -1, PAGE, one.shape[-1]).permute(0, 2, 3, 1, 4).flatten(0, 1)
        made[name] = pool.view(one.dtype).transpose(1, 2)
    used = torch.full((batch,), rows, dtype=torch.int32, device=some.device)
    return {**made, "block_table": order.to(torch.int32).view(batch, -1), "seqused_k": used}


def stored(
    rows: Mapping[str, torch.Tensor], scales: Mapping[str, torch.Tensor], keys: Keys, seed: int
) -> dict[str, torch.Tensor]:
    """The operands of a call with these ``rows`` of k and v, and maybe q, of 8 bits where there are ``scales``."""
    kept = in_pages(rows, seed) if keys in OF_PAGES else dict(rows)
    return {**kept, **{f"{name}_descale": one for name, one in scales.items()}}


def turned(v: torch.Tensor) -> torch.Tensor:
    """[batch, heads, keys, columns] of 8 bits as products take them: [batch, heads, columns, keys], these in another
    order, and rounded up to a multiple of GROUP.
    """
    import torch

    keys = v.shape[2]
    words = torch.nn.functional.pad(v.view(torch.uint8), (0, 0, 0, -keys % GROUP)).transpose(2, 3)
    groups = words.unflatten(3, (-1, 2, 4, 2)).transpose(4, 5)
    return groups.flatten(3).contiguous().view(v.dtype)
