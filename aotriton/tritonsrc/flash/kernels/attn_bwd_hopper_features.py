"""Attention backward for Hopper with bands, sinks, packed sequences and used lengths: Q, K, V and DO to DK, DV, DQSum.

As attn_bwd_hopper_pair, which describes the warps and who waits for whom, with these differences. Every tile of 128
keys has a program of its own. It visits the query rows that see any of its keys (`walk_band`). DK and DV are written by
pointer: a descriptor's store would go on behind the end of a sequence.

Of packed sequences, descriptors go through all rows. What lies behind those in use is cleared in shared memory: of keys
by all warps before they part, of a step's queries by the consumers, half each. DQSum has tiles of 64 rows for each
sequence, so that no two sequences share one (`first_tile`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.backward_features_program import backward_features


@gluon.jit
def attn_bwd_hopper_features(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    DQSum,
    L,
    Delta,
    sm_scale,
    stride_dk_b,
    stride_dk_h,
    stride_dk_s,
    stride_dv_b,
    stride_dv_h,
    stride_dv_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim_qk,
    head_dim_v,
    lo,
    hi,
    features,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    longest,
    sequences,
    together,
    DQHalf,
    DQ,
    stride_dq_b,
    stride_dq_h,
    stride_dq_s,
    Marks,
    ahead,
    behind,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
):
    """Grid (tiles * num_heads_k): tiles of 128 keys, cdiv(longest, 128) of each batch, or of packed sequences those of
    tile_of_sequences. `sm_scale` must not be negative.

    Q, K, V, DO: TMA descriptors of [batch, heads, seqlen, head_dim_qk] (Q, K) and [.., head_dim_v] (V, DO) with boxes
    [1, 1, BLOCK_M, BLOCK_DMODEL] (Q, DO) and [1, 1, 128, BLOCK_DMODEL] (K, V). BLOCK_M is 64 where BLOCK_DMODEL is 128.
    DK and DV: [batch, num_heads_k, seqlen_k, head_dim_qk or head_dim_v] by pointer. DQSum: of fp32 [batch, num_heads_q,
    tiles * BLOCK_DMODEL, 64], with boxes [1, 1, 64, 64] that are not swizzled, and with so many tiles of 64 rows as
    attn_bwd_hopper_features_prepare has. It begins at zero; DQ is sm_scale * DQSum in the order of rows. L and Delta
    are contiguous fp32 [batch, num_heads_q, max_seqlen_q]; of a row that sees no key L is minus infinity, or its sink.

    Row i sees keys from i + lo to i + hi. `longest`: the most keys of a sequence. `sequences`: how many are packed.
    So many heads of keys `together` have their tiles side by side, the first of each sequence first. `features`: the
    bits of lib/features.py, of which softcap, ALiBi, bias and dropout are not served; pointers of what the call does
    not have are not followed.
    """
    backward_features(
        Q, K, V, DO, DK, DV, DQSum, L, Delta, sm_scale, stride_dk_b, stride_dk_h, stride_dk_s, stride_dv_b,
        stride_dv_h, stride_dv_s, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_qk, head_dim_v, lo, hi,
        features, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest, sequences, together, DQHalf, DQ,
        stride_dq_b, stride_dq_h, stride_dq_s, Marks, ahead, behind, BLOCK_M, BLOCK_DMODEL,
    )  # fmt: skip
