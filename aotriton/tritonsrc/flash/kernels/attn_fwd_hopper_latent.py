"""Attention forward of a latent cache for Hopper: `forward_latent`."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.hopper_latent import forward_latent
from aotriton.tritonsrc.flash.lib.partial import launch_next


@gluon.jit
def attn_fwd_hopper_latent(
    Q,
    K,
    Out,
    L,
    Partial,
    PartialL,
    store_lse,
    sm_scale,
    stride_q_b,
    stride_q_h,
    stride_q_s,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    lo,
    hi,
    features,
    Sinks,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    longest,
    rows_of_all,
    splits,
    keys_of_split,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    EARLY: gl.constexpr,
):
    """Grid and results as of attn_fwd_latent, with tiles of 64 rows. K: a TMA descriptor of [batch, num_heads_k, rows,
    LATENT + ROPE] with boxes of BLOCK_N rows and 64 columns. `sm_scale` must not be negative. Softcap is not served.
    """
    launch_next(EARLY)
    forward_latent(
        Q, K, Out, L, Partial, PartialL, store_lse, sm_scale, stride_q_b, stride_q_h, stride_q_s,
        stride_out_b, stride_out_h, stride_out_s, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, lo, hi,
        features, Sinks, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest, rows_of_all, splits, keys_of_split,
        CuSeqlensQ, 0, 0, 0, 0, 0,
        BLOCK_N, STAGES, False,
    )  # fmt: skip
