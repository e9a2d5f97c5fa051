"""Attention of aotriton for any model of transformers: after ``import attention``, a model takes it by its name.

model.set_attn_implementation("aotriton")
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import aotriton.torch


def attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, sliding_window=None,
    softcap=None, s_aux=None, **others,
):  # fmt: skip
    # The last query is at the last key. A window of n has the query's own key and the n - 1 before it. A mask has both.
    masked = attention_mask is not None
    causal = query.shape[2] > 1 and (module.is_causal if is_causal is None else is_causal)
    out = aotriton.torch.attention(
        query, key, value, scale=scaling, bias=attention_mask, causal=causal and not masked,
        causal_variant="bottom_right", window_left=-1 if masked or sliding_window is None else sliding_window - 1,
        softcap=softcap or 0.0, sinks=s_aux, dropout=dropout,
    )  # fmt: skip
    return out.transpose(1, 2), None


def mask(
    *, q_length, kv_length, q_offset=0, kv_offset=0, attention_mask=None, local_size=None, allow_is_causal_skip=True,
    config=None, **others,
):  # fmt: skip
    """None where the lengths and the window of the layer say all; sdpa_mask makes one where a compiler traces, too."""
    windows = local_size in (None, getattr(config, "sliding_window", None))  # else chunks, for instance
    pads = attention_mask is not None and (torch.compiler.is_compiling() or not attention_mask.all())
    if allow_is_causal_skip and not pads and windows and q_offset + q_length == kv_offset + kv_length:
        return None
    given = {"attention_mask": attention_mask, "local_size": local_size, "allow_is_causal_skip": allow_is_causal_skip}
    given |= {"q_offset": q_offset, "kv_offset": kv_offset}
    return sdpa_mask(q_length=q_length, kv_length=kv_length, config=config, **given, **others)


AttentionInterface.register("aotriton", attention)
AttentionMaskInterface.register("aotriton", mask)
