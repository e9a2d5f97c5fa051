"""Attention forward for Hopper with features, of head dims up to a power of two: `forward_features`."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.forward_features import forward_features


@gluon.jit
def attn_fwd_hopper_features(
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
    BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    GROUP_ROUNDS: gl.constexpr,
    Q_SLOTS: gl.constexpr,
    OUT_PIECES: gl.constexpr,
):
    """Grid: one program for each tile, of which there are cdiv(longest * packed, 64 * CONSUMERS) * num_heads_q / packed
    * sequences, with packed = 2 ** log2_packed heads; or, if no length is in device memory, as many as there are
    multiprocessors, if those are fewer. `sm_scale` must not be negative.

    Q, K, V, Out: TMA descriptors as attn_fwd_hopper has them, V and Out of head_dim_v columns; OutRows is Out, [batch,
    num_heads_q, rows, head_dim_v], by pointer. Row i sees keys from i + lo to i + hi; where there are none and no sink,
    Out is zero and L minus infinity. L, contiguous fp32 [batch, num_heads_q, max_seqlen_q], is untouched when store_lse
    is 0. `longest`: the most rows of a sequence. `features`: the bits of lib/features.py, of which softcap, ALiBi, bias
    and dropout are not served; pointers of what the call does not have are not followed.
    """
    forward_features(
        (Q,), (K,), (V,), (Out,), OutRows, stride_outrows_b, stride_outrows_h, stride_outrows_s, L, store_lse, sm_scale,
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, sequences, log2_packed, lo, hi, features,
        Sinks, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest,
        CONSUMERS, STAGES, GROUP_ROUNDS, Q_SLOTS, OUT_PIECES,
    )  # fmt: skip
