"""dq_sum in the order of accumulators, as tritonsrc/flash/lib/dq_layout.py has it, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def to_dq_layout(rows: torch.Tensor, width: int) -> torch.Tensor:
    """[batch, heads, seqlen, head_dim] as tritonsrc/flash/lib/dq_layout.py has it, in tiles of ``width`` columns, zero
    where there is no row or column: [batch, heads, ceil(seqlen / 64) * width, 64].
    """
    import torch

    batch, heads, seqlen, head_dim = rows.shape
    tiles = -(-seqlen // 64)
    padded = torch.nn.functional.pad(rows, (0, width - head_dim, 0, 64 * tiles - seqlen))
    parts = padded.view(batch, heads, tiles, 4, 2, 8, width // 8, 4, 2)
    return parts.permute(0, 1, 2, 6, 3, 5, 7, 4, 8).reshape(batch, heads, tiles * width, 64)


def from_dq_layout(dq_sum: torch.Tensor, seqlen: int, head_dim: int) -> torch.Tensor:
    """[batch, heads, seqlen, head_dim] from what ``to_dq_layout`` makes of it."""
    batch, heads, rows, _ = dq_sum.shape
    tiles = -(-seqlen // 64)
    width = rows // tiles
    parts = dq_sum.view(batch, heads, tiles, width // 8, 4, 8, 4, 2, 2).permute(0, 1, 2, 4, 7, 5, 3, 6, 8)
    return parts.reshape(batch, heads, 64 * tiles, width)[:, :, :seqlen, :head_dim]
