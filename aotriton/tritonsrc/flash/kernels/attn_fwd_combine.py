"""Attention forward for few queries: one program combines what the splits of attn_fwd_split have of one row."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.features import PACKED, USED_Q
from aotriton.tritonsrc.flash.lib.partial import await_results, finished, place_in_l
from aotriton.tritonsrc.flash.lib.sequence import sequence_of


@triton.jit
def attn_fwd_combine(
    Partial,
    PartialL,
    Out,
    L,
    store_lse,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    num_heads_q,
    max_seqlen_q,
    head_dim_v,
    features,
    Sinks,
    CuSeqlensQ,
    SequsedQ,
    longest,
    rows_of_all,
    splits,
    AT_ONCE: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (longest * num_heads_q * sequences). Partial and PartialL as attn_fwd_split leaves them: a split in which a
    row sees no key has minus infinity in PartialL.
    """
    row, index = tl.program_id(0) % longest, tl.program_id(0) // longest
    head, sequence = index % num_heads_q, index // num_heads_q
    # Its keys and its band are not asked for: they are anything of the right type.
    of = sequence_of(
        sequence, features & (PACKED | USED_Q), row, row, CuSeqlensQ, CuSeqlensQ, SequsedQ, SequsedQ,
        max_seqlen_q, max_seqlen_q, True,
    )  # fmt: skip
    await_results(EARLY)
    if row >= of.q.rows:
        return
    in_l = place_in_l(of, row, head, num_heads_q, max_seqlen_q)
    columns = tl.arange(0, BLOCK_DMODEL)
    out = tl.zeros([BLOCK_DMODEL], tl.float32)
    row_sum = tl.full([1], 0.0, tl.float32)
    row_max = tl.full([1], float("-inf"), tl.float32)
    for first in range(0, splits, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        row_of = in_l + split.to(tl.int64) * rows_of_all
        lse = tl.load(PartialL + row_of, mask=split < splits, other=float("-inf"))
        there = (split < splits)[:, None] & (columns < head_dim_v)[None, :]
        part = tl.load(Partial + row_of[:, None] * head_dim_v + columns[None, :], mask=there, other=0.0)
        part = tl.where((lse > float("-inf"))[:, None], part, 0.0)
        top = tl.maximum(row_max, tl.max(lse, 0))
        base = tl.where(top == float("-inf"), 0.0, top)
        correction = tl.exp2(row_max - base)
        weights = tl.exp2(lse - base)
        row_sum = row_sum * correction + tl.sum(weights, 0)
        out = out * correction + tl.sum(part * weights[:, None], 0)
        row_max = top

    factor, lse = finished(row_max, row_sum, Sinks, head, features, row < of.q.used)
    place = Out + of.batch * stride_out_b + head * stride_out_h + (of.q.begin + row).to(tl.int64) * stride_out_s
    tl.store(place + columns, (out * factor).to(Out.dtype.element_ty), mask=columns < head_dim_v)
    if store_lse != 0:
        tl.store(L + in_l + tl.arange(0, 1), lse)
