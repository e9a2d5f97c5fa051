"""Attention forward with the same bits in every call: one program adds what attn_fwd_invariant has of a row's parts."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.features import PACKED, USED_Q
from aotriton.tritonsrc.flash.lib.invariant import added
from aotriton.tritonsrc.flash.lib.partial import await_results, finished, place_in_l
from aotriton.tritonsrc.flash.lib.sequence import sequence_of


@triton.jit
def attn_fwd_invariant_combine(
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
    BLOCK_DMODEL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (longest * num_heads_q * sequences). Partial and PartialL as attn_fwd_invariant leaves them: a part in which
    a row sees no key has minus infinity in PartialL.
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
    inside = (columns < head_dim_v)[None, :]
    out = tl.zeros([1, BLOCK_DMODEL], tl.float32)
    row_sum = tl.full([1], 0.0, tl.float32)
    row_max = tl.full([1], float("-inf"), tl.float32)
    row_of = in_l + tl.arange(0, 1)
    for _ in tl.range(0, splits, num_stages=4):
        lse = tl.load(PartialL + row_of)
        # Not masked by what was just loaded, so that the loads of several steps are under way at once.
        part = tl.load(Partial + row_of[:, None] * head_dim_v + columns[None, :], mask=inside, other=0.0)
        part = tl.where((lse > float("-inf"))[:, None], part, 0.0)
        out, row_sum, row_max = added(out, row_sum, row_max, part, lse)
        row_of += rows_of_all

    factor, lse = finished(row_max, row_sum, Sinks, head, features, row < of.q.used)
    place = Out + of.batch * stride_out_b + head * stride_out_h + (of.q.begin + row).to(tl.int64) * stride_out_s
    tl.store(place + columns[None, :], (out * factor[:, None]).to(Out.dtype.element_ty), mask=inside)
    if store_lse != 0:
        tl.store(L + in_l + tl.arange(0, 1), lse)
