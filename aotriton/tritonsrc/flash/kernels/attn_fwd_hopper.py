"""Attention forward for Hopper, of head dims up to a power of two: `forward`, with columns in one part."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.forward import forward


@gluon.jit
def attn_fwd_hopper(
    Q,
    K,
    V,
    Out,
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
    """Grid: one program for each multiprocessor, but no more than there are tiles, cdiv(max_seqlen_q * packed, 64 *
    CONSUMERS) * num_heads_q / packed * batch, with packed = 2 ** log2_packed heads, at most 64, which divide a group of
    num_heads_q / num_heads_k. `sm_scale` must not be negative.

    K, V: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_N, BLOCK_DMODEL]; Q, Out: of
    [batch, heads / packed, seqlen, packed, head_dim], with boxes [1, 1, 64 / packed, packed, BLOCK_DMODEL], Out's of
    BLOCK_DMODEL / OUT_PIECES columns, which the compiler takes for [1, 1, 64, 1, ...]: the same bytes in the same
    place. CAUSAL needs max_seqlen_q == max_seqlen_k. L, contiguous fp32 [batch, num_heads_q, max_seqlen_q], is
    untouched when store_lse is 0.
    """
    forward(
        (Q,), (K,), (V,), (Out,), L, store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k,
        batch, log2_packed, (),
        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, Q_SLOTS, Q_IN_REGISTERS, OUT_PIECES, TURNS, RING,
    )  # fmt: skip
