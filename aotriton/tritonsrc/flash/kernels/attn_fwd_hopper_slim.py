"""Attention forward for Hopper, of head dims between powers of two: `forward`, with columns in two parts.

A tile's sides are powers of two, and a head dim of 96 in one tile of 128 columns is a quarter of zeros. Here each tile
of Q, K, V and Out is a first one, of the largest power of two below the head dim, and one of the rest: 64 + 32 columns,
128 + 64. Each has a descriptor and a place in shared memory of its own:

    S = Q Kᵀ + QRest KRestᵀ         Out += P V         OutRest += P VRest
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.forward import forward


@gluon.jit
def attn_fwd_hopper_slim(
    Q,
    K,
    V,
    Out,
    QRest,
    KRest,
    VRest,
    OutRest,
    L,
    store_lse,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    batch,
    log2_packed,
    BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
    GROUP_ROUNDS: gl.constexpr,
    Q_SLOTS: gl.constexpr,
    Q_IN_REGISTERS: gl.constexpr,
    OUT_PIECES: gl.constexpr,
    TURNS: gl.constexpr,
    RING: gl.constexpr,
):
    """Grid and arguments as attn_fwd_hopper's, with BLOCK_DMODEL the sum of two powers of two.

    Q, K, V, Out: boxes of as many columns as the first, QRest, KRest, VRest, OutRest: of as many as the second, and of
    as many rows; Out's and OutRest's of a half of them with two OUT_PIECES. Each pair is of one tensor. STAGES of a
    RING: keys or values of one step.
    """
    forward(
        (Q, QRest), (K, KRest), (V, VRest), (Out, OutRest), L, store_lse, sm_scale, num_heads_q, num_heads_k,
        max_seqlen_q, max_seqlen_k, batch, log2_packed, (),
        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, Q_SLOTS, Q_IN_REGISTERS, OUT_PIECES, TURNS, RING,
    )  # fmt: skip
