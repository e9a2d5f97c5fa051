"""Attention of aotriton for any model of transformers: after ``import attention``, a model takes it by its name.

model.set_attn_implementation("aotriton")
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import aotriton.torch


def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **others):
    for feature in ("softcap", "s_aux"):
        if others.get(feature) is not None:
            raise NotImplementedError(f"aotriton's attention has no {feature} yet")
    if attention_mask is not None or dropout:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **others
        )
    # The last query is at the last key. A window of n has the query's own key and the n - 1 before it.
    window = others.get("sliding_window")
    out = aotriton.torch.attention(
        query, key, value, scale=scaling, causal_variant="bottom_right",
        causal=query.shape[2] > 1 and (module.is_causal if is_causal is None else is_causal),
        window_left=-1 if window is None else window - 1,
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
