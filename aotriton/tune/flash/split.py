"""Tiles of keys that programs share, whose dv and dk each leaves of its portion: fp32 in halves, and whose they are.

``split`` is [splits, 4, 128, columns] of T: of dv and then of dk bits 16 to 31, and bits 0 to 15. ``split_of`` is
[splits] int32 in fp32's place: twice the number of the tile, counted through all heads, and one more where its first
portion is; negative where there is none. The next portion is what the next program began with: each has two places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROWS = 128  # of a tile


def in_halves(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[splits, 4, rows, columns] of fp32 [splits, 2, rows, columns]."""
    import torch

    halves = numbers.contiguous().view(torch.int16).unflatten(-1, (-1, 2))  # little endian: the low half first
    return halves.movedim(-1, 2).flip(2).flatten(1, 2).contiguous().view(dtype)


def of_halves(split: torch.Tensor) -> torch.Tensor:
    """What ``in_halves`` was given."""
    import torch

    halves = split.view(torch.int16).unflatten(1, (2, 2)).flip(2).movedim(2, -1)
    return halves.contiguous().flatten(-2).view(torch.float32)


def sums(split: torch.Tensor, split_of: torch.Tensor) -> dict[int, torch.Tensor]:
    """By the number of a tile that is split: the sum of its portions, fp32 [2, 128, columns], of dv and dk."""
    import torch

    whose = split_of.view(torch.int32).tolist()
    found = {}
    for index, tile in enumerate(whose):
        if tile < 0 or tile % 2 == 0:
            continue
        indices, following = [index], index // 2 * 2 + 2
        while following < len(whose) and whose[following] == tile - 1:
            indices.append(following)
            following += 2
        found[tile // 2] = of_halves(split[indices]).sum(0)
    return found


def with_tiles(gradient: torch.Tensor, tiles: dict[int, torch.Tensor]) -> torch.Tensor:
    """[batch, heads, seqlen, head_dim], with these tiles' [128, columns] in the place of what it has."""
    made = gradient.clone()
    of_head = -(-gradient.shape[2] // ROWS)
    for number, tile in tiles.items():
        head, row = number // of_head, number % of_head * ROWS
        rows = made.flatten(0, 1)[head, row : row + ROWS]
        rows.copy_(tile[: len(rows), : gradient.shape[3]])
    return made
