"""A plan of a batch of equal sequences for the planned forward, as attn_fwd_plan leaves one, and what is made of it.

Most tiles are whole, and some of the last are split into two or three parts, so that both are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotriton.rules.flash.planned import COUNTS, FIELDS, STEP, TILE_ROWS

if TYPE_CHECKING:
    import torch

FAR = 1 << 30


@dataclass(frozen=True)
class SplitTile:
    """Rows of a head, and the places of the results of their keys' parts."""

    batch: int
    head: int
    rows: slice
    places: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The int32 tensors of the workspace, and the split tiles in words."""

    items: torch.Tensor
    split_tiles: torch.Tensor
    counts: torch.Tensor
    tiles: tuple[SplitTile, ...]


def plan_of(
    batch: int, heads: int, rows: int, keys_of: Callable[[int, int], tuple[int, int]], programs: int, device: str
) -> Plan:
    """A plan for sequences of so many rows in heads that share no keys. ``keys_of`` says the first key that rows from
    one to before another see, and the one behind their last.
    """
    import torch

    tiles = [(b, h, begin) for b in range(batch) for h in range(heads) for begin in range(0, rows, TILE_ROWS)]
    whole = len(tiles) - max(1, programs // 8)
    items, split, found, place = [], [], list[SplitTile](), 0
    for number, (b, h, begin) in enumerate(tiles):
        end = min(begin + TILE_ROWS, rows)
        first, behind = keys_of(begin, end)
        first = first // STEP * STEP
        steps = -(-(behind - first) // STEP)
        parts = min(2 + number % 2, steps) if number >= whole else 1
        if parts == 1:
            items.append([b, h, begin, 0, FAR, -1, 0, 0])
            continue
        keys = -(-steps // parts) * STEP
        for part in range(parts):
            at = first + part * keys
            items.append([b, h, begin, at, at + keys, place + part, 0, 0])
        split.append([parts, b, h, begin, place, 1, 0, 0])
        found.append(SplitTile(b, h, slice(begin, end), tuple(range(place, place + parts))))
        place += parts

    def whole_numbers(values: list[list[int]] | list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    none = [[0] * FIELDS]
    counts = [len(items), len(split), 1, 0]
    assert len(counts) == COUNTS
    return Plan(whole_numbers(items), whole_numbers(split or none), whole_numbers(counts), tuple(found))


def combine_tiles(
    plan: Plan, results: Mapping[str, torch.Tensor], combined: Callable[..., tuple[torch.Tensor, torch.Tensor]]
) -> list[tuple[SplitTile, torch.Tensor, torch.Tensor]]:
    """Of each split tile, [rows, columns] of out and [rows] of logsumexp, from what ``results`` has of its parts."""
    found = []
    for tile in plan.tiles:
        count = tile.rows.stop - tile.rows.start
        parts = [results[name][list(tile.places), :count] for name in ("parts", "parts_lse")]
        found.append((tile, *combined(*parts)))
    return found


def wrong_with(
    results: Mapping[str, torch.Tensor],
    tiles: Iterable[tuple[int, int, int]],
    keys_of: Callable[[int, int], tuple[int, int]],
    rows: int,
    programs: int,
) -> str | None:
    """What is wrong with a plan that a kernel left in ``results``; None where nothing is. ``tiles``: batch, head and
    first row of each one, as for ``plan_of``.
    """
    count, split, *_ = results["counts"].tolist()
    if not (0 <= count <= len(results["items"]) and 0 <= split <= len(results["split_tiles"])):
        return f"it has {count} items and {split} split tiles, for which there is no room"
    of_tile: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for sequence, head, position, first, behind, place, *_ in results["items"][:count].tolist():
        of_tile.setdefault((sequence, head, position), []).append((first, behind, place))
    wanted = set(tiles)
    if set(of_tile) != wanted:
        return f"items are of {len(of_tile)} tiles, not of the {len(wanted)} that there are"
    places: list[int] = []
    said = {(row[1], row[2], row[3]): [row[4] + i * row[5] for i in range(row[0])]
            for row in results["split_tiles"][:split].tolist()}  # fmt: skip
    for tile, parts in of_tile.items():
        parts.sort()
        first, behind = keys_of(tile[2], min(tile[2] + TILE_ROWS, rows))
        ends = [part[1] for part in parts]
        if (
            parts[0][0] > first
            or ends[-1] < behind
            or any(a != b[0] for a, b in zip(ends[:-1], parts[1:], strict=True))
        ):
            return f"items of tile {tile} have keys {[part[:2] for part in parts]}, not {first} to {behind}"
        own = [part[2] for part in parts]
        if said.pop(tile, [-1]) != own:
            return f"the places of tile {tile} are {own}, which the list of split tiles does not say"
        places += own if len(own) > 1 else []
    if said or len(set(places)) != len(places) or not all(0 <= place < 4 * programs for place in places):
        return f"the places of split tiles are {sorted(places)}"
    return None
