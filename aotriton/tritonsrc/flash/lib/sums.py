"""DKSum and DVSum, what programs add up to DK and DV: contiguous fp32 [batch, num_heads_k, max_seqlen_k, head_dim]."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.tile import Heads, load_tile, store_tile


@triton.jit
def clear_sums(sums, batch, head, row, num_heads, seqlen, head_dim, BLOCK_M: tl.constexpr, BLOCK_DMODEL: tl.constexpr):
    """Zeros to BLOCK_M rows of a head, from `row` on."""
    origin = sums + ((batch * num_heads + head).to(tl.int64) * seqlen + row) * head_dim
    index = tl.arange(0, BLOCK_M * BLOCK_DMODEL)
    zeros = tl.zeros([BLOCK_M * BLOCK_DMODEL], tl.float32)
    tl.store(origin + index, zeros, mask=index < tl.minimum(seqlen - row, BLOCK_M) * head_dim)


@triton.jit
def convert_sums(
    sums, result, scale, batch, head, row, num_heads, BLOCK_M: tl.constexpr, BLOCK_DMODEL: tl.constexpr
):  # fmt: skip
    """BLOCK_M rows of a head of `sums`, times `scale`, to `result`, from `row` on."""
    origin = sums + (batch * num_heads + head).to(tl.int64) * result.seqlen * result.head_dim
    of_head = Heads(origin, 0, 0, result.head_dim.to(tl.int64), result.seqlen, result.head_dim)
    summed = load_tile(of_head, 0, 0, row, BLOCK_M, BLOCK_DMODEL, "general")
    store_tile(result, summed * scale, batch, head, row, BLOCK_M, BLOCK_DMODEL, "general")
