"""Whether the calls of a result run the images in this build that they ran when they were timed; needs no GPU.

python bench/same_images.py bench/results/h100-bf16.json     # exits with 1 where a call runs others

It is for results of plain attention that have the images of each call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored

import aotriton
from aotriton.rules.database.archive import folder_of, names_today

DATABASE = Path(__file__).resolve().parent.parent / "rules" / "tuning_database.sqlite3"
KINDS = {"forward": "attn_fwd", "backward": "attn_bwd"}


def others(record: Mapping[str, Any]) -> list[str]:
    """The calls of a result that run other images in the build whose binding is imported; an image of another name with
    the same bits is no other one.
    """
    machine, today = record["machine"], names_today(folder_of(DATABASE))
    return [
        f"{cell['direction']}, {cell['batch']} × {cell['heads']} heads, {cell['seqlen']} rows, D {cell['head_dim']}"
        for cell in record["cells"]
        if [today.get(one, one) for one in _images(cell)]
        != _chosen(machine["gpu"], int(machine["multiprocessors"]), cell)
    ]


def _images(cell: Mapping[str, Any]) -> list[str]:
    """They are alone, or each with its provenance."""
    return [one if isinstance(one, str) else one[0] for one in cell["images"]]


def _chosen(product: str, multiprocessors: int, cell: Mapping[str, Any]) -> Sequence[str]:
    place = {"arch": "sm_90", "product": product, "multiprocessors": multiprocessors, "dtype": "bf16"}
    call = {name: cell[name] for name in ("batch", "head_dim", "causal")}
    call |= {"seqlen_q": cell["seqlen"], "seqlen_k": cell["seqlen"]}
    call |= {"heads_q": cell["heads"], "heads_k": cell.get("heads_k", cell["heads"])}
    return [choice["image"] for choice in aotriton.explain(KINDS[cell["direction"]], **place, **call)]


def main() -> int:
    record = stored.load(Path(sys.argv[1]))
    found = others(record)
    print(f"{len(found)} of {len(record['cells'])} calls run other images", *found[:5], sep="\n    ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
