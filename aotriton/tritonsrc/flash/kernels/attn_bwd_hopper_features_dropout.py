"""Attention backward for Hopper, as attn_bwd_hopper_features, with dropout.

A weight that is dropped becomes minus zero, so that registers suffice for the walk: what DV and DS need of it follows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.backward_features_program import backward_features


@gluon.jit
def attn_bwd_hopper_features_dropout(
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
    dropout,
    DropoutSeed,
    DropoutOffset,
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
    """Grid, arguments and results as of attn_bwd_hopper_features. `dropout`: the probability. DropoutSeed and
    DropoutOffset: int64, of one element; not followed where `features` has no dropout.
    """
    backward_features(
        Q, K, V, DO, DK, DV, DQSum, L, Delta, sm_scale, stride_dk_b, stride_dk_h, stride_dk_s, stride_dv_b,
        stride_dv_h, stride_dv_s, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_qk, head_dim_v, lo, hi,
        features, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest, sequences, together, DQHalf, DQ,
        stride_dq_b, stride_dq_h, stride_dq_s, Marks, ahead, behind, BLOCK_M, BLOCK_DMODEL,
        dropout, DropoutSeed, DropoutOffset,
    )  # fmt: skip
