"""Attention forward: one program turns BLOCK_M rows of Q and all their keys and values into rows of Out and L."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.column_parts import add_dot, dot_rows, load_parts, store_parts, zero_parts
from aotriton.tritonsrc.flash.lib.mask import key_interval, visible
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads, head_rows


@triton.jit
def attn_fwd(
    Q,
    K,
    V,
    Out,
    L,
    store_lse,
    sm_scale,
    stride_q_b,
    stride_q_h,
    stride_q_s,
    stride_k_b,
    stride_k_h,
    stride_k_s,
    stride_v_b,
    stride_v_h,
    stride_v_s,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    CAUSAL: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch). ``sm_scale`` must not be negative.

    CAUSAL needs max_seqlen_q == max_seqlen_k. L, contiguous [batch, num_heads_q, max_seqlen_q], is untouched when
    store_lse is 0.
    """
    all_q = Heads(Q, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim)
    all_k = Heads(K, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim)
    all_v = Heads(V, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim)
    all_out = Heads(Out, stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim)
    tiles = tl.cdiv(max_seqlen_q, BLOCK_M)
    tile, head, batch = tile_of_program(tiles, num_heads_q)
    if CAUSAL:  # longest programs first
        tile = tiles - 1 - tile
    head_k = head // (num_heads_q // num_heads_k)
    q_row = tile * BLOCK_M

    # Key tiles before `full` need no mask. One loop with a branch: two loops are no faster on an H100.
    full, end = key_interval(q_row, q_row + BLOCK_M, max_seqlen_k, BLOCK_N, CAUSAL)

    # log2(e): exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = tl.maximum(sm_scale * 1.4426950408889634, 1e-30)
    rows = q_row + tl.arange(0, BLOCK_M)
    q = load_parts(all_q, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    out = zero_parts(BLOCK_M, BLOCK_DMODEL)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)  # scaled, in units of log2
    for key in range(0, end, BLOCK_N):
        k = load_parts(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        s = dot_rows(q, k)
        if key >= full:
            columns = key + tl.arange(0, BLOCK_N)
            s = tl.where(visible(columns[None, :], rows[:, None], max_seqlen_k, CAUSAL), s, float("-inf"))
        # Every row sees key 0, so that row_max is finite from the first tile on.
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_max[:, None])
        correction = tl.exp2(row_max - new_max)
        row_sum = row_sum * correction + tl.sum(p, 1)
        row_max = new_max
        v = load_parts(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        p = p.to(v[0].dtype)
        out = add_dot(p, v, [part * correction[:, None] for part in out])

    out = [part / row_sum[:, None] for part in out]
    store_parts(all_out, out, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    if store_lse != 0:
        lse = (row_max + tl.log2(row_sum)) * 0.6931471805599453
        tl.store(head_rows(L, batch, head, num_heads_q, max_seqlen_q) + rows, lse, mask=rows < max_seqlen_q)
