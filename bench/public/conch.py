"""Kernels of conch-triton-kernels, those of vLLM among them, at sizes of Llama 3. It takes Triton's defaults, 4 warps
and 3 stages, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from public.declared import Arguments, public

WARPS = (1, 2, 4, 8, 16, 32)


def of_rms_norm(x_ptr: Any, weight_ptr: Any) -> Any:
    return x_ptr * ((x_ptr * x_ptr).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight_ptr


@public(
    "conch.kernels.normalization.rms_norm", "_rms_norm_kernel",
    author={"num_warps": 4}, small={"tokens": 5, "hidden": 48}, num_warps=WARPS,
)  # fmt: skip
def conch_rms_norm() -> Arguments:
    return {
        "inputs": {
            "x_ptr": "bf16[tokens, hidden]", "residual_ptr": None, "weight_ptr": "bf16[hidden]",
            "hidden_size": "hidden", "epsilon": 1e-6, "cxpr_block_size": "next_power_of_2(hidden)",
            "cxpr_use_residual": False,
        },
        "results": {"output_ptr": "bf16[tokens, hidden]"},
        "sizes": {"tokens": 4096, "hidden": 8192},
        "reference": of_rms_norm,
        "grid": "tokens",
    }  # fmt: skip


def of_silu_and_mul(x_ptr: Any) -> Any:
    gate, up = x_ptr.unbind(1)
    return gate * gate.sigmoid() * up


@public(
    "conch.kernels.activation.silu_and_mul", "_silu_and_mul_kernel",
    author={"cxpr_block_size": 1024, "num_warps": 4}, small={"tokens": 5, "d": 80},
    cxpr_block_size=(512, 1024, 2048, 4096, 8192, 16384), num_warps=(2, 4, 8, 16),
)  # fmt: skip
def conch_silu_and_mul() -> Arguments:
    return {
        "inputs": {
            "x_ptr": "bf16[tokens, two, d]", "output_stride": "output_ptr.stride(0)", "input_stride": "x_ptr.stride(0)"
        },
        "results": {"output_ptr": "bf16[tokens, d]"},
        "sizes": {"tokens": 4096, "d": 14336, "two": "2"},
        "reference": of_silu_and_mul,
        "grid": "tokens",
    }  # fmt: skip


def of_rotary_embedding(positions_ptr: Any, query_ptr: Any, key_ptr: Any, cos_sin_cache_ptr: Any) -> Any:
    import torch

    cos, sin = cos_sin_cache_ptr[positions_ptr][:, None].chunk(2, -1)
    halves = (one.chunk(2, -1) for one in (query_ptr, key_ptr))
    return [torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in halves]


def positions(positions_ptr: Any, cos_sin_cache_ptr: Any) -> Mapping[str, Any]:
    return {"positions_ptr": positions_ptr % len(cos_sin_cache_ptr)}


@public(
    "conch.kernels.embedding.rotary_embedding", "_rotary_embedding_kernel",
    author={"cxpr_block_size": 128, "num_warps": 4},
    small={"tokens": 3, "heads": 4, "kv_heads": 2, "head_size": 16, "rows": 8},
    cxpr_block_size=(128, 256, 512, 1024, 2048, 4096), num_warps=(1, 2, 4, 8),
)  # fmt: skip
def conch_rotary_embedding() -> Arguments:
    return {
        "inputs": {
            "positions_ptr": "i64[tokens]", "query_ptr": "bf16[tokens, heads, head_size]",
            "key_ptr": "bf16[tokens, kv_heads, head_size]", "cos_sin_cache_ptr": "bf16[rows, head_size]",
            "rot_dim": "head_size", "query_stride": "query_ptr.stride(0)", "key_stride": "key_ptr.stride(0)",
            "num_heads": "heads", "num_kv_heads": "kv_heads",
        },
        "results": {
            "query_ptr": "bf16[tokens, heads, head_size]", "key_ptr": "bf16[tokens, kv_heads, head_size]"
        },
        "sizes": {"tokens": 8192, "heads": 32, "kv_heads": 8, "head_size": "128", "rows": 4096},
        "reference": of_rotary_embedding,
        "prepare": positions,
        "grid": "tokens",
    }  # fmt: skip


def of_reshape_and_cache(
    key_ptr: Any, value_ptr: Any, key_cache_ptr: Any, value_cache_ptr: Any, slot_mapping_ptr: Any
) -> Any:
    for cache, rows in ((key_cache_ptr, key_ptr), (value_cache_ptr, value_ptr)):
        cache.flatten(0, 1)[slot_mapping_ptr] = rows
    return key_cache_ptr, value_cache_ptr


def slots(key_cache_ptr: Any, slot_mapping_ptr: Any) -> Mapping[str, Any]:
    import torch

    pages, page = key_cache_ptr.shape[:2]
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(pages * page, generator=generator)[: len(slot_mapping_ptr)]
    return {"slot_mapping_ptr": order.to(slot_mapping_ptr)}


@public(
    "conch.kernels.vllm.reshape_and_cache", "_reshape_and_cache_kernel",
    author={"num_warps": 4}, small={"tokens": 5, "kv_heads": 2, "head_size": 16, "pages": 8}, num_warps=(1, 2, 4, 8),
)  # fmt: skip
def conch_reshape_and_cache() -> Arguments:
    return {
        "inputs": {
            "key_ptr": "bf16[tokens, kv_heads, head_size]", "value_ptr": "bf16[tokens, kv_heads, head_size]",
            "key_cache_ptr": "bf16[pages, page, kv_heads, head_size]",
            "value_cache_ptr": "bf16[pages, page, kv_heads, head_size]", "slot_mapping_ptr": "i64[tokens]",
            "k_scale_ptr": None, "v_scale_ptr": None, "cache_block_size": "page",
            "kv_token_stride": "key_ptr.stride(0)", "kv_head_stride": "key_ptr.stride(1)",
            "kv_cache_page_stride": "key_cache_ptr.stride(0)", "kv_cache_block_stride": "key_cache_ptr.stride(1)",
            "kv_cache_head_stride": "key_cache_ptr.stride(2)", "cxpr_head_size_padded": "next_power_of_2(head_size)",
            "cxpr_apply_fp8_scaling": False,
        },
        "results": {
            "key_cache_ptr": "bf16[pages, page, kv_heads, head_size]",
            "value_cache_ptr": "bf16[pages, page, kv_heads, head_size]",
        },
        "sizes": {"tokens": 4096, "kv_heads": 8, "head_size": "128", "pages": 1024, "page": "16"},
        "reference": of_reshape_and_cache,
        "prepare": slots,
        "grid": ("tokens", "kv_heads"),
    }  # fmt: skip


def of_fp8_quantization(input_ptr: Any, scale_ptr: Any) -> Any:
    return input_ptr / scale_ptr


def scale(scale_ptr: Any) -> Mapping[str, Any]:
    return {"scale_ptr": scale_ptr.abs() + 0.5}


@public(
    "conch.kernels.quantization.fp8", "_static_scaled_fp8_quant_kernel",
    author={"cxpr_block_size": 1024, "num_warps": 4}, small={"tokens": 5, "hidden": 1040},
    cxpr_block_size=(256, 512, 1024, 2048), num_warps=(1, 2, 4, 8, 16),
)  # fmt: skip
def conch_fp8_quantization() -> Arguments:
    return {
        "inputs": {
            "input_ptr": "bf16[tokens, hidden]", "scale_ptr": "fp32[one]", "hidden_size": "hidden",
            "cxpr_hidden_size_padded": "next_power_of_2(hidden)", "cxpr_is_rocm": False,
        },
        "results": {"output_ptr": "fp8e4nv[tokens, hidden]"},
        "sizes": {"tokens": 8192, "hidden": 4096, "one": "1"},
        "reference": of_fp8_quantization,
        "prepare": scale,
        "grid": "tokens",
    }  # fmt: skip


def of_int8_quantization(input_ptr: Any, scale_ptr: Any) -> Any:
    return (input_ptr / scale_ptr).clamp(-128, 127)


def small_scale(scale_ptr: Any) -> Mapping[str, Any]:
    return {"scale_ptr": scale_ptr.abs() / 50 + 0.01}


@public(
    "conch.kernels.quantization.int8", "_static_scaled_int8_quant_kernel",
    author={"cxpr_block_size": 1024, "num_warps": 4}, small={"tokens": 5, "hidden": 1040},
    cxpr_block_size=(256, 512, 1024, 2048), num_warps=(1, 2, 4, 8, 16),
)  # fmt: skip
def conch_int8_quantization() -> Arguments:
    return {
        "inputs": {
            "input_ptr": "bf16[tokens, hidden]", "scale_ptr": "fp32[one]", "hidden_size": "hidden",
            "int8_min": -128, "int8_max": 127, "cxpr_hidden_size_padded": "next_power_of_2(hidden)",
        },
        "results": {"output_ptr": "i8[tokens, hidden]"},
        "sizes": {"tokens": 8192, "hidden": 4096, "one": "1"},
        "reference": of_int8_quantization,
        "tolerance": 1e-4,
        "prepare": small_scale,
        "grid": "tokens",
    }  # fmt: skip


def of_unified_attention(
    query_ptr: Any, key_cache_ptr: Any, value_cache_ptr: Any, block_tables_ptr: Any, query_start_len_ptr: Any
) -> Any:
    import torch

    rows = []
    for one, (begin, end) in enumerate(pairwise(query_start_len_ptr.tolist())):
        q = query_ptr[begin:end].transpose(0, 1)
        caches = (key_cache_ptr, value_cache_ptr)
        k, v = (cache[block_tables_ptr[one]].flatten(0, 1).transpose(0, 1) for cache in caches)
        k, v = (each.repeat_interleave(len(q) // len(each), 0) for each in (k, v))
        scores = q @ k.transpose(1, 2) * 0.08838834764831845
        before = k.shape[1] - q.shape[1]  # keys that all queries of the sequence see
        hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(before + 1)
        rows.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(rows)


def sequences(
    query_ptr: Any, key_cache_ptr: Any, block_tables_ptr: Any, seq_lens_ptr: Any, query_start_len_ptr: Any
) -> Mapping[str, Any]:
    """Sequences of as many queries each, at the end of full pages."""
    import torch

    count, pages = block_tables_ptr.shape
    of_each = torch.arange(count * pages).view(count, pages).flip(1)
    starts = torch.arange(count + 1) * (len(query_ptr) // count)
    starts[-1] = len(query_ptr)
    return {
        "block_tables_ptr": of_each.to(block_tables_ptr),
        "seq_lens_ptr": torch.full_like(seq_lens_ptr, pages * key_cache_ptr.shape[1]),
        "query_start_len_ptr": starts.to(query_start_len_ptr),
    }


@public(
    "conch.third_party.vllm.unified_attention", "kernel_unified_attention_2d",
    author={"BLOCK_Q": 4, "num_warps": 4, "num_stages": 3},
    small={"tokens": 20, "count": 2, "pages": 4},
    BLOCK_Q=(4, 8, 16, 32), num_warps=(1, 2, 4, 8), num_stages=(2, 3),
)  # fmt: skip
def vllm_unified_attention() -> Arguments:
    return {
        "inputs": {
            "query_ptr": "bf16[tokens, num_query_heads, HEAD_SIZE]",
            "key_cache_ptr": "bf16[all_pages, BLOCK_SIZE, kv_heads, HEAD_SIZE]",
            "value_cache_ptr": "bf16[all_pages, BLOCK_SIZE, kv_heads, HEAD_SIZE]",
            "block_tables_ptr": "i32[count, pages]", "seq_lens_ptr": "i32[count]", "alibi_slopes_ptr": None,
            "query_start_len_ptr": "i32[starts]", "num_seqs": "count", "scale": 0.08838834764831845, "k_scale": None,
            "v_scale": None, "softcap": 0.0, "num_queries_per_kv": 4,
            "block_table_stride": "block_tables_ptr.stride(0)",
            "query_stride_0": "query_ptr.stride(0)", "query_stride_1": "query_ptr.stride(1)",
            "output_stride_0": "output_ptr.stride(0)", "output_stride_1": "output_ptr.stride(1)",
            "HEAD_SIZE_PADDED": 128, "USE_ALIBI_SLOPES": False, "USE_SOFTCAP": False, "SLIDING_WINDOW": 0,
            "stride_k_cache_0": "key_cache_ptr.stride(0)", "stride_k_cache_1": "key_cache_ptr.stride(1)",
            "stride_k_cache_2": "key_cache_ptr.stride(2)", "stride_k_cache_3": 1,
            "stride_v_cache_0": "value_cache_ptr.stride(0)", "stride_v_cache_1": "value_cache_ptr.stride(1)",
            "stride_v_cache_2": "value_cache_ptr.stride(2)", "stride_v_cache_3": 1,
        },
        "results": {"output_ptr": "bf16[tokens, num_query_heads, HEAD_SIZE]"},
        "sizes": {
            "tokens": 4096, "count": 4, "pages": 128, "num_query_heads": 32, "HEAD_SIZE": 128, "BLOCK_SIZE": 16,
            "kv_heads": "8", "all_pages": "count * pages", "starts": "count + 1",
        },
        "reference": of_unified_attention,
        "prepare": sequences,
        "grid": ("cdiv(tokens, BLOCK_Q) + count", "kv_heads"),
    }  # fmt: skip


def of_scaled_gemm(a_ptr: Any, b_ptr: Any, scales_ptr: Any, scales_a_ptr: Any) -> Any:
    return (a_ptr @ b_ptr) * scales_a_ptr[:, None] * scales_ptr


@public(
    "conch.kernels.quantization.gemm", "_gemm_kernel",
    author={
        "cxpr_block_size_m": 128, "cxpr_block_size_n": 64, "cxpr_block_size_k": 64, "cxpr_group_size_m": 16,
        "cxpr_block_size_scale_a": 128, "cxpr_block_size_scale_b": 64, "num_warps": 8, "num_stages": 2,
    },
    small={"m_dim": 48, "n_dim": 256, "k_dim": 128},
)  # fmt: skip
def conch_scaled_gemm() -> Arguments:
    import triton.language as tl

    return {
        "inputs": {
            "a_ptr": "fp8e4nv[m_dim, k_dim]", "b_ptr": "fp8e4nv[k_dim, n_dim]", "scales_ptr": "fp32[n_dim]",
            "zeros_ptr": "i32[one]", "scales_a_ptr": "fp32[m_dim]", "cxpr_w_nbits": 0, "cxpr_weight_bias": 0,
            "cxpr_group_size": 1, "cxpr_unpack_mask": 0, "cxpr_elements_per_sample": 1,
            "matrix_a_stride_m": "a_ptr.stride(0)", "matrix_a_stride_k": "a_ptr.stride(1)",
            "matrix_b_stride_k": "b_ptr.stride(0)", "matrix_b_stride_n": "b_ptr.stride(1)",
            "matrix_c_stride_m": "c_ptr.stride(0)", "matrix_c_stride_n": "c_ptr.stride(1)",
            "meta_stride_g": "scales_ptr.stride(0)", "meta_stride_n": "scales_ptr.stride(0)",
            "cxpr_input_dtype": tl.float8e4nv, "cxpr_output_dtype": tl.bfloat16, "cxpr_acc_dtype": tl.float32,
            "cxpr_meta_dtype": tl.float32, "cxpr_channel_scale_mode": 3, "cxpr_w_group_mode": 0,
            "cxpr_zero_is_scalar": True, "cxpr_matrix_a_load_order": 2, "cxpr_matrix_a_eviction_policy": "evict_last",
            "cxpr_matrix_b_eviction_policy": "evict_first", "cxpr_meta_eviction_policy": "",
            "cxpr_data_contiguous": True, "cxpr_swizzle_pid": True,
        },
        "results": {"c_ptr": "bf16[m_dim, n_dim]"},
        "sizes": {"m_dim": 4096, "n_dim": "4096", "k_dim": "4096", "one": "1"},
        "reference": of_scaled_gemm,
        "tolerance": 2e-3,
        "grid": "cdiv(m_dim, cxpr_block_size_m) * cdiv(n_dim, cxpr_block_size_n)",
        "space": [
            {
                "cxpr_block_size_m": m, "cxpr_block_size_n": n, "cxpr_block_size_k": k, "cxpr_group_size_m": 16,
                "cxpr_block_size_scale_a": m, "cxpr_block_size_scale_b": n, "num_warps": warps, "num_stages": stages,
            }
            for m in (64, 128) for n in (64, 128, 256) for k in (64, 128) for warps in (4, 8) for stages in (2, 3)
        ],
    }  # fmt: skip
