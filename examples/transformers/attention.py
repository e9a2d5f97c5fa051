"""Attention of aotriton for any model of transformers: after ``import attention``, a model takes it by its name.

model.set_attn_implementation("aotriton"), and for continuous batching, such as model.generate_batch(prompts), first
model.set_attn_implementation("paged|aotriton").
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


def of_layer_type(given, windowed):
    return given["sliding_attention" if windowed else "full_attention"] if isinstance(given, dict) else given


def paged_attention(
    module, query, key, value, attention_mask, *, cache, cu_seq_lens_q, cu_seq_lens_k, max_seqlen_q, max_seqlen_k,
    read_index, write_index, scaling=None, sliding_window=None, softcap=None, s_aux=None, **others,
):  # fmt: skip
    """Prompts, chunks of prompts and decoding steps in one call; keys are read where the cache has them."""
    windowed = sliding_window is not None
    starts, longest = of_layer_type(cu_seq_lens_k, windowed), of_layer_type(max_seqlen_k, windowed)
    group, layer = cache.layer_index_to_group_indices[module.layer_idx]
    rows, size = read_index[group], cache.block_size
    if rows.numel() and not windowed and size % 16 == 0:
        caches = cache.key_cache[layer], cache.value_cache[layer]
        for rows_of_cache, new in zip(caches, (key, value), strict=True):
            rows_of_cache.index_copy_(0, write_index[group], new[0].transpose(0, 1))
        # The rows of a sequence's keys come in whole pages: each page's first one says which it is.
        firsts = starts[:-1, None] + torch.arange(0, longest, size, device=rows.device)
        table = (rows[firsts.clamp(max=rows.numel() - 1)] // size).int()
        key, value = (one.unflatten(0, (-1, size)).transpose(1, 2) for one in caches)
        keys = {"block_table": table, "seqused_k": starts.diff()}
    else:
        key, value = cache.update(key, value, module.layer_idx, read_index, write_index)
        keys = {"cu_seqlens_k": starts}
    out = aotriton.torch.attention(
        query[0].transpose(0, 1), key, value, scale=scaling, causal=True, causal_variant="bottom_right",
        window_left=sliding_window - 1 if windowed else -1, softcap=softcap or 0.0, sinks=s_aux,
        cu_seqlens_q=cu_seq_lens_q, max_seqlen_q=max_seqlen_q, max_seqlen_k=longest, **keys,
    )  # fmt: skip
    return out[None], None


AttentionInterface.register("aotriton", attention)
AttentionInterface.register("paged|aotriton", paged_attention)
AttentionMaskInterface.register("aotriton", mask)
