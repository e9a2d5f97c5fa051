"""DQSum, the sum of DQ, in the order in which the accumulators of a warp group have it.

It is contiguous fp32 [batch, num_heads_q, cdiv(max_seqlen_q, 64) * width, 64]: a tile of 64 query rows has `width` rows
of it, whose numbers lie together, that of row r and column c of the tile at

    c // 8 * 512 + r // 16 * 128 + r % 8 * 16 + c % 8 // 2 * 4 + r // 8 % 2 * 2 + c % 2

So 16 rows have 128 numbers together for each 8 columns, and of these a thread has four together.
"""

import triton
import triton.language as tl


@triton.jit
def _numbers(
    DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, width,
    BLOCK_M: tl.constexpr, BLOCK_DMODEL: tl.constexpr,
):  # fmt: skip
    """Pointers [BLOCK_DMODEL // 8, 8 * BLOCK_M] to the numbers of BLOCK_M rows, from `row` on, which must not cross a
    multiple of 64; and which of them are of columns below head_dim, and of 16 rows of which one is below max_seqlen_q.
    """
    tile = row // 64
    first = ((batch * num_heads_q + head).to(tl.int64) * tl.cdiv(max_seqlen_q, 64) + tile) * width * 64
    columns = tl.arange(0, BLOCK_DMODEL // 8)[:, None]
    index = tl.arange(0, 8 * BLOCK_M)[None, :]
    end = tl.cdiv(tl.minimum(max_seqlen_q - row, BLOCK_M), 16) * 128
    return DQSum + first + (row - tile * 64) * 8 + columns * 512 + index, (columns * 8 < head_dim) & (index < end)


@triton.jit
def clear_dq(
    DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, width,
    BLOCK_M: tl.constexpr, BLOCK_DMODEL: tl.constexpr,
):  # fmt: skip
    """Zeros to what `load_dq` reads with the same arguments, and to no more than 15 rows beyond."""
    numbers, mask = _numbers(
        DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, width, BLOCK_M, BLOCK_DMODEL
    )  # fmt: skip
    tl.store(numbers, tl.zeros([BLOCK_DMODEL // 8, 8 * BLOCK_M], tl.float32), mask=mask)


@triton.jit
def load_dq(
    DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, width,
    BLOCK_M: tl.constexpr, BLOCK_DMODEL: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_DMODEL] fp32 from `row` on; what is outside may be anything. BLOCK_M is 16, 32 or 64."""
    numbers, mask = _numbers(
        DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, width, BLOCK_M, BLOCK_DMODEL
    )  # fmt: skip
    dq = tl.load(numbers, mask=mask, other=0.0).reshape(BLOCK_DMODEL // 8, BLOCK_M // 16, 8, 4, 2, 2)
    return dq.permute(1, 4, 2, 0, 3, 5).reshape(BLOCK_M, BLOCK_DMODEL)
