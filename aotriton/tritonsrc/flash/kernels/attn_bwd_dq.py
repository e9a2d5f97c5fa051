"""Backward, gradient of queries: one program turns all keys and values of a query tile into BLOCK_M rows of DQ."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.column_parts import add_dot, dot_rows, load_parts, store_parts, zero_parts
from aotriton.tritonsrc.flash.lib.mask import key_interval, visible
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads, head_rows


@triton.jit
def _masked(p, key, rows, max_seqlen_k, CAUSAL: tl.constexpr):
    """Zero for keys that a row must not see. One beyond the end scores 0, which may be far above lse: its p could be
    infinite, and infinity times the zero row of k is not a number.
    """
    columns = key + tl.arange(0, p.shape[1])
    return tl.where(visible(columns[None, :], rows[:, None], max_seqlen_k, CAUSAL), p, 0.0)


@triton.jit
def _accumulate(
    dq, q, do, lse, delta, all_k, all_v, batch, head_k, first, full, end, rows, scale,
    MASKED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_DMODEL: tl.constexpr, CAUSAL: tl.constexpr,
    ADDRESSING: tl.constexpr,
):  # fmt: skip
    """Adds the key tiles from ``first`` to ``end``, MASKED "none", "all" or, from ``full`` on, "some"; ``lse`` is in
    units of log2.
    """
    for key in range(first, end, BLOCK_N):
        k = load_parts(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        p = tl.exp2(dot_rows(q, k) * scale - lse[:, None])
        if MASKED == "all":
            p = _masked(p, key, rows, all_k.seqlen, CAUSAL)
        elif MASKED == "some":  # noqa: SIM102 (known when compiled, as the next is not)
            if key >= full:
                p = _masked(p, key, rows, all_k.seqlen, CAUSAL)
        v = load_parts(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        ds = p * (dot_rows(do, v) - delta[:, None])
        dq = add_dot(ds.to(k[0].dtype), k, dq)
    return dq


@triton.jit
def attn_bwd_dq(
    Q,
    K,
    V,
    DO,
    DQ,
    L,
    Delta,
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
    stride_do_b,
    stride_do_h,
    stride_do_s,
    stride_dq_b,
    stride_dq_h,
    stride_dq_s,
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
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch).

    CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous [batch, num_heads_q, max_seqlen_q].
    """
    all_q = Heads(Q, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim)
    all_k = Heads(K, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim)
    all_v = Heads(V, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim)
    all_do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    all_dq = Heads(DQ, stride_dq_b, stride_dq_h, stride_dq_s, max_seqlen_q, head_dim)
    tiles = tl.cdiv(max_seqlen_q, BLOCK_M)
    tile, head, batch = tile_of_program(tiles, num_heads_q)
    if CAUSAL:  # longest programs first
        tile = tiles - 1 - tile
    head_k = head // (num_heads_q // num_heads_k)
    q_row = tile * BLOCK_M

    full, end = key_interval(q_row, q_row + BLOCK_M, max_seqlen_k, BLOCK_N, CAUSAL)  # before `full` without a mask

    rows = q_row + tl.arange(0, BLOCK_M)
    inside = rows < max_seqlen_q
    scale = sm_scale * 1.4426950408889634  # log2(e): exponentials are taken to base 2
    lse = tl.load(head_rows(L, batch, head, num_heads_q, max_seqlen_q) + rows, mask=inside, other=0.0)
    lse = lse * 1.4426950408889634
    delta = tl.load(head_rows(Delta, batch, head, num_heads_q, max_seqlen_q) + rows, mask=inside, other=0.0)
    q = load_parts(all_q, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    do = load_parts(all_do, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    dq = zero_parts(BLOCK_M, BLOCK_DMODEL)
    if len(q) == 1:  # two loops: a branch in one made this kernel 5 to 8 % slower on an H100
        dq = _accumulate(
            dq, q, do, lse, delta, all_k, all_v, batch, head_k, 0, full, full, rows, scale,
            "none", BLOCK_N, BLOCK_DMODEL, CAUSAL, ADDRESSING,
        )  # fmt: skip
        dq = _accumulate(
            dq, q, do, lse, delta, all_k, all_v, batch, head_k, full, full, end, rows, scale,
            "all", BLOCK_N, BLOCK_DMODEL, CAUSAL, ADDRESSING,
        )  # fmt: skip
    else:  # two would take a fifth more registers on gfx942
        dq = _accumulate(
            dq, q, do, lse, delta, all_k, all_v, batch, head_k, 0, full, end, rows, scale,
            "some", BLOCK_N, BLOCK_DMODEL, CAUSAL, ADDRESSING,
        )  # fmt: skip

    dq = [part * sm_scale for part in dq]
    store_parts(all_dq, dq, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
