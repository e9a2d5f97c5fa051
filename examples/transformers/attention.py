"""Attention of aotriton for any model of transformers: after ``import attention``, a model takes it by its name.

model.set_attn_implementation("aotriton")
"""

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import aotriton.torch


def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **others):
    causal = query.shape[2] > 1 and (module.is_causal if is_causal is None else is_causal)
    if attention_mask is not None or dropout or (causal and query.shape[2] != key.shape[2]):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **others
        )
    return aotriton.torch.attention(query, key, value, causal=causal, scale=scaling).transpose(1, 2), None


def mask(*, q_length, kv_length, attention_mask=None, local_size=None, allow_is_causal_skip=True, **others):
    if allow_is_causal_skip and attention_mask is None and local_size is None and q_length == kv_length:
        return None  # causal says it all; sdpa_mask makes one all the same where a compiler traces the model
    given = {"attention_mask": attention_mask, "local_size": local_size, "allow_is_causal_skip": allow_is_causal_skip}
    return sdpa_mask(q_length=q_length, kv_length=kv_length, **given, **others)


AttentionInterface.register("aotriton", attention)
AttentionMaskInterface.register("aotriton", mask)
