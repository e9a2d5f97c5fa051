"""Attention forward for Hopper, as attn_fwd_hopper_features, with ALiBi and dropout."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.forward_features import forward_features


@gluon.jit
def attn_fwd_hopper_features_full(
    Q,
    K,
    V,
    Out,
    OutRows,
    L,
    store_lse,
    sm_scale,
    stride_outrows_b,
    stride_outrows_h,
    stride_outrows_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim_v,
    sequences,
    log2_packed,
    lo,
    hi,
    features,
    Sinks,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    longest,
    AlibiSlopes,
    stride_alibislopes_b,
    dropout,
    DropoutSeed,
    DropoutOffset,
    BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    GROUP_ROUNDS: gl.constexpr,
    Q_SLOTS: gl.constexpr,
    OUT_PIECES: gl.constexpr,
):
    """Arguments and results as of attn_fwd_hopper_features, and the grid, but that there is one program for each tile
    with dropout above head dim 64, and of packed sequences, which have the tiles of tile_of_sequences. AlibiSlopes:
    fp32, [batch, num_heads_q], the heads of a batch next to each other. `dropout`: the probability. DropoutSeed and
    DropoutOffset: int64, of one element. With dropout heads are not packed. Softcap and bias are not served; pointers
    of what the call does not have are not followed.
    """
    forward_features(
        (Q,), (K,), (V,), (Out,), OutRows, stride_outrows_b, stride_outrows_h, stride_outrows_s, L, store_lse, sm_scale,
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, sequences, log2_packed, lo, hi, features,
        Sinks, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest,
        CONSUMERS, STAGES, GROUP_ROUNDS, Q_SLOTS, OUT_PIECES,
        AlibiSlopes, stride_alibislopes_b, dropout, DropoutSeed, DropoutOffset,
    )  # fmt: skip
