"""Whether the calls of a result run the images in this build that they ran when they were timed; needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aotriton

KINDS = {"forward": "attn_fwd", "backward": "attn_bwd"}


def tells(record: Mapping[str, Any]) -> bool:
    """Whether the result has calls of plain attention with the images that each ran."""
    return all("images" in cell and cell.get("direction") in KINDS for cell in record.get("cells", [{}]))


def others(record: Mapping[str, Any]) -> list[str]:
    """The calls of a result that ``tells`` that run other images in the build whose binding is imported."""
    machine = record["machine"]
    return [
        f"{cell['direction']}, {cell['batch']} × {cell['heads']} heads, {cell['seqlen']} rows, D {cell['head_dim']}"
        for cell in record["cells"]
        if _images(cell) != _chosen(machine["gpu"], int(machine["multiprocessors"]), cell)
    ]


def _images(cell: Mapping[str, Any]) -> list[str]:
    """They are alone, or each with its provenance."""
    return [one if isinstance(one, str) else one[0] for one in cell["images"]]


def _chosen(product: str, multiprocessors: int, cell: Mapping[str, Any]) -> Sequence[str]:
    sizes = {name: cell[name] for name in ("batch", "head_dim", "causal")} | dict.fromkeys(
        ("seqlen_q", "seqlen_k"), cell["seqlen"]
    )
    heads = {"heads_q": cell["heads"], "heads_k": cell.get("heads_k", cell["heads"])}
    place = {"arch": "sm_90", "product": product, "multiprocessors": multiprocessors, "dtype": "bf16"}
    return [choice["image"] for choice in aotriton.explain(KINDS[cell["direction"]], **place, **sizes, **heads)]
