"""Backward for Hopper with features, first kernel: rows of Out and DO to Delta, their dot products, zeros to DQSum."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.delta import store_delta
from aotriton.tritonsrc.flash.lib.dq_layout import clear_dq
from aotriton.tritonsrc.flash.lib.partial import launch_next
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads
from aotriton.tritonsrc.flash.lib.walk_order import who_walks


@triton.jit
def attn_bwd_hopper_features_prepare(
    Out,
    DO,
    Delta,
    DQSum,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    stride_do_b,
    stride_do_h,
    stride_do_s,
    num_heads_q,
    max_seqlen_q,
    head_dim,
    widest,
    dq_tiles,
    dq_width,
    Marks,
    num_heads_k,
    programs,
    tiles,
    together,
    ahead,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(dq_tiles * 64, BLOCK_M) * num_heads_q * batch).

    Out and DO have head_dim columns, Q no more than `widest`. Delta is contiguous [batch, num_heads_q, max_seqlen_q].
    DQSum is contiguous [batch, num_heads_q, dq_tiles * dq_width, 64] and has a tile for each 64 rows of queries, and
    one more for each packed sequence but one: those are cleared, whichever sequence has them, that the first `ahead`
    of so many `programs` of attn_bwd_hopper_features are the first to need. Those have so many `tiles` of 128 keys for
    each of num_heads_k heads, and so many heads `together`. Marks, int32 [2 * programs], has 1 for each of them, and
    then a zero for each program.
    """
    launch_next(True)
    out = Heads(Out, stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim)
    do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    tile, head, batch = tile_of_program(tl.cdiv(dq_tiles * 64, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    if row < max_seqlen_q:
        store_delta(out, do, Delta, batch, head, row, num_heads_q, BLOCK_M, BLOCK_DMODEL, "general")
    group = num_heads_q // num_heads_k
    head_k = head // group
    head_of_all = batch * num_heads_k + head_k
    all_of_them = ahead >= programs
    if all_of_them | (who_walks(row // 128, head_of_all, programs, tiles, together) < ahead):
        clear_dq(DQSum, batch, head, row, num_heads_q, dq_tiles * 64, widest, dq_width, BLOCK_M, BLOCK_DMODEL)
    tile = row // 64
    if (row == tile * 64) & (head == head_k * group) & (tile < tiles):
        cleared = who_walks(tile, head_of_all, programs, tiles, together) < ahead
        mark = Marks + head_of_all * tiles + tile
        tl.store(mark, cleared.to(tl.int32))
        tl.store(mark + programs, 0)
