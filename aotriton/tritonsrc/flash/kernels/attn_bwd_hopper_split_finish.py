"""Backward for Hopper, DK and DV in parts, last kernel: the sums to DK and DV, in their type; DK scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.kernels.attn_bwd_hopper_parts_finish import convert
from aotriton.tritonsrc.flash.lib.tile import place


@triton.jit
def attn_bwd_hopper_split_finish(
    DKSum,
    DVSum,
    DK,
    DV,
    sm_scale,
    stride_dk_b,
    stride_dk_h,
    stride_dk_s,
    stride_dv_b,
    stride_dv_h,
    stride_dv_s,
    num_heads_k,
    max_seqlen_k,
    head_dim,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_k, BLOCK_M) * num_heads_k * batch)."""
    tile, head, batch = place(tl.cdiv(max_seqlen_k, BLOCK_M), num_heads_k)
    row = tile * BLOCK_M
    convert(
        DKSum, DK, sm_scale, batch, head, row, stride_dk_b, stride_dk_h, stride_dk_s, num_heads_k, max_seqlen_k,
        head_dim, BLOCK_M, BLOCK_DMODEL,
    )  # fmt: skip
    convert(
        DVSum, DV, 1.0, batch, head, row, stride_dv_b, stride_dv_h, stride_dv_s, num_heads_k, max_seqlen_k,
        head_dim, BLOCK_M, BLOCK_DMODEL,
    )  # fmt: skip
