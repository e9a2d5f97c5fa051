"""Attention forward for Hopper, whose programs take the items of a plan: `forward_planned`."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.forward_planned import forward_planned


@gluon.jit
def attn_fwd_hopper_planned(
    Items,
    Counts,
    Q,
    K,
    V,
    Out,
    L,
    Parts,
    PartsL,
    store_lse,
    sm_scale,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim_v,
    packed,
    lo,
    hi,
    features,
    Sinks,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
):
    """Grid: as many programs as the plan is for. Items and Counts as attn_fwd_plan leaves them: programs count there
    what they draw, and the last one sets it back. `sm_scale` must not be negative.

    K, V: TMA descriptors as attn_fwd_hopper has them; Q of [batch, heads / packed, rows, packed, head_dim], with boxes
    [1, 1, 64 / packed rounded down, packed, BLOCK_DMODEL], which the compiler takes for [1, 1, 64, 1, ...]: at most as
    many bytes, in the same place. Out, [batch, num_heads_q, rows, head_dim_v], by pointer. Row i sees keys from i + lo
    to i + hi; where there are none and no sink, Out is zero and L minus infinity. L, contiguous fp32 [batch,
    num_heads_q, max_seqlen_q], is untouched when store_lse is 0. `features`: the bits of lib/features.py, of which
    softcap, ALiBi, bias and dropout are not served; pointers of what the call does not have are not followed.

    Parts, fp32 [4 * programs, 128, head_dim_v], gets what parts of the keys make of the rows of split tiles, relative
    to their sums of weights; PartsL, fp32 [4 * programs, 128], the logarithms of these, in units of log2.
    """
    forward_planned(
        Items, Counts, (Q,), (K,), (V,), Out, stride_out_b, stride_out_h, stride_out_s, L, Parts, PartsL, store_lse,
        sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, packed, lo, hi, features, Sinks,
        CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, 0, 0, 0, 0, 0, 0,
        BLOCK_N, BLOCK_DMODEL, STAGES, False,
    )  # fmt: skip
