"""Turns values of 8 bits for products whose operands lie along the keys (lib/turned_values.py)."""

import triton
import triton.language as tl


@triton.jit
def attn_fwd_turn(
    V,
    Turned,
    stride_v_b,
    stride_v_h,
    stride_v_s,
    num_heads_k,
    max_seqlen_k,
    head_dim_v,
    keys,
    ROWS: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid: cdiv(keys, ROWS) * num_heads_k * batch programs. V: [batch, num_heads_k, max_seqlen_k, head_dim_v]; Turned,
    contiguous [batch, num_heads_k, head_dim_v, keys], with `keys` max_seqlen_k rounded up to a multiple of 16, gets its
    columns as rows, of each 16 keys in the order that lib/turned_values.py says, and zeros beyond the last.
    """
    program = tl.program_id(0)
    blocks = tl.cdiv(keys, ROWS)
    head = program // blocks
    first = (program - head * blocks) * ROWS
    batch = head // num_heads_k
    column = tl.arange(0, BLOCK_DMODEL)
    row = first + tl.arange(0, ROWS)
    head_of_batch = head - batch * num_heads_k
    rows = V + batch.to(tl.int64) * stride_v_b + head_of_batch.to(tl.int64) * stride_v_h
    there = (row[:, None] < max_seqlen_k) & (column[None, :] < head_dim_v)
    bits = tl.load(
        rows.to(tl.pointer_type(tl.uint8), bitcast=True) + row[:, None].to(tl.int64) * stride_v_s + column[None, :],
        mask=there, other=0,
    )  # fmt: skip
    out = Turned.to(tl.pointer_type(tl.uint8), bitcast=True) + head.to(tl.int64) * head_dim_v * keys
    groups = tl.trans(bits).reshape([BLOCK_DMODEL, ROWS // 16, 2, 4, 2]).permute([0, 1, 3, 2, 4])
    turned = groups.reshape([BLOCK_DMODEL, ROWS])
    target = out + column[:, None].to(tl.int64) * keys + row[None, :]
    tl.store(target, turned, mask=(column[:, None] < head_dim_v) & (row[None, :] < keys))
