"""Attention forward for Hopper with queries, keys and values of 8 bits: `forward`, with values turned."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.forward import forward


@gluon.jit
def attn_fwd_hopper_fp8(
    Q,
    K,
    Turned,
    Out,
    L,
    store_lse,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    batch,
    log2_packed,
    QDescale,
    KDescale,
    VDescale,
    stride_qdescale_b,
    stride_qdescale_h,
    stride_kdescale_b,
    stride_kdescale_h,
    stride_vdescale_b,
    stride_vdescale_h,
    descales,
    BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
    GROUP_ROUNDS: gl.constexpr,
    Q_SLOTS: gl.constexpr,
    TURNS: gl.constexpr,
):
    """As attn_fwd_hopper, with Q and K of 8 bits, and Turned as attn_fwd_turn leaves it: a TMA descriptor of [batch,
    num_heads_k, head_dim, keys] with boxes [1, 1, BLOCK_DMODEL, BLOCK_N]. Out is whole where it is staged.

    QDescale, KDescale, VDescale, fp32 [batch, num_heads_k]: what the numbers of these tensors are multiplied by;
    `descales` has the bits 4, 1 and 2 of those that are given.
    """
    forward(
        (Q,), (K,), (Turned,), (Out,), L, store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k,
        batch, log2_packed,
        (
            QDescale, KDescale, VDescale, stride_qdescale_b, stride_qdescale_h, stride_kdescale_b, stride_kdescale_h,
            stride_vdescale_b, stride_vdescale_h, descales,
        ),
        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, Q_SLOTS, False, 1, TURNS, False,
    )  # fmt: skip
