"""Kernels of Liger-Kernel, at sizes of Llama 3, Gemma 2 and Stable Diffusion. Its configs follow from
``calculate_settings`` and the like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from public.declared import Arguments, public

WARPS = (1, 2, 4, 8, 16, 32)


def of_rms_norm(X_ptr: Any, W_ptr: Any) -> Any:
    rstd = ((X_ptr * X_ptr).mean(-1) + 1e-6).rsqrt()
    return X_ptr * rstd[:, None] * W_ptr, rstd


@public(
    "liger_kernel.ops.rms_norm", "_rms_norm_forward_kernel",
    author={"num_warps": 8}, small={"rows": 5, "columns": 48}, num_warps=WARPS,
)  # fmt: skip
def liger_rms_norm() -> Arguments:
    return {
        "inputs": {
            "X_ptr": "bf16[rows, columns]", "W_ptr": "bf16[columns]", "Y_row_stride": "Y_ptr.stride(0)",
            "X_row_stride": "X_ptr.stride(0)", "W_row_stride": "W_ptr.stride(0)", "n_cols": "columns",
            "RSTD_row_stride": "RSTD_ptr.stride(0)", "eps": 1e-6, "offset": 0.0, "casting_mode": 0,
            "elementwise_affine": True, "BLOCK_SIZE": "next_power_of_2(columns)",
        },
        "results": {"Y_ptr": "bf16[rows, columns]", "RSTD_ptr": "fp32[rows]"},
        "sizes": {"rows": 8192, "columns": 4096},
        "reference": of_rms_norm,
        "grid": "rows",
    }  # fmt: skip


def of_fused_add_rms_norm(X_ptr: Any, R_ptr: Any, W_ptr: Any) -> Any:
    total = X_ptr + R_ptr
    rstd = ((total * total).mean(-1) + 1e-6).rsqrt()
    return total * rstd[:, None] * W_ptr, total, rstd


@public(
    "liger_kernel.ops.fused_add_rms_norm", "_fused_add_rms_norm_forward_kernel",
    author={"num_warps": 8}, small={"rows": 5, "columns": 48}, num_warps=WARPS,
)  # fmt: skip
def liger_fused_add_rms_norm() -> Arguments:
    return {
        "inputs": {
            "X_ptr": "bf16[rows, columns]", "R_ptr": "bf16[rows, columns]", "W_ptr": "bf16[columns]",
            "Y_row_stride": "Y_ptr.stride(0)", "S_row_stride": "S_ptr.stride(0)", "X_row_stride": "X_ptr.stride(0)",
            "R_row_stride": "R_ptr.stride(0)", "W_row_stride": "W_ptr.stride(0)", "n_cols": "columns",
            "RSTD_row_stride": "RSTD_ptr.stride(0)", "eps": 1e-6, "offset": 0.0, "casting_mode": 0,
            "BLOCK_SIZE": "next_power_of_2(columns)",
        },
        "results": {"Y_ptr": "bf16[rows, columns]", "S_ptr": "bf16[rows, columns]", "RSTD_ptr": "fp32[rows]"},
        "sizes": {"rows": 8192, "columns": 4096},
        "reference": of_fused_add_rms_norm,
        "grid": "rows",
    }  # fmt: skip


def of_layer_norm(X_ptr: Any, W_ptr: Any, B_ptr: Any) -> Any:
    mean = X_ptr.mean(-1)
    rstd = (X_ptr.var(-1, correction=0) + 1e-6).rsqrt()
    return (X_ptr - mean[:, None]) * rstd[:, None] * W_ptr + B_ptr, mean, rstd


@public(
    "liger_kernel.ops.layer_norm", "_layer_norm_forward_kernel",
    author={"num_warps": 8}, small={"rows": 5, "columns": 48}, num_warps=WARPS,
)  # fmt: skip
def liger_layer_norm() -> Arguments:
    return {
        "inputs": {
            "X_ptr": "bf16[rows, columns]", "W_ptr": "bf16[columns]", "B_ptr": "bf16[columns]",
            "Y_row_stride": "Y_ptr.stride(0)", "X_row_stride": "X_ptr.stride(0)", "W_row_stride": "W_ptr.stride(0)",
            "B_row_stride": "B_ptr.stride(0)", "Mean_row_stride": "Mean_ptr.stride(0)", "n_cols": "columns",
            "RSTD_row_stride": "RSTD_ptr.stride(0)", "eps": 1e-6, "BLOCK_SIZE": "next_power_of_2(columns)",
        },
        "results": {"Y_ptr": "bf16[rows, columns]", "Mean_ptr": "fp32[rows]", "RSTD_ptr": "fp32[rows]"},
        "sizes": {"rows": 8192, "columns": 4096},
        "reference": of_layer_norm,
        "grid": "rows",
    }  # fmt: skip


def of_swiglu(a_ptr: Any, b_ptr: Any) -> Any:
    return a_ptr * a_ptr.sigmoid() * b_ptr


@public(
    "liger_kernel.ops.swiglu", "_swiglu_forward_kernel",
    author={"num_warps": 16}, small={"rows": 5, "columns": 48}, num_warps=WARPS,
)  # fmt: skip
def liger_swiglu() -> Arguments:
    return {
        "inputs": {
            "a_ptr": "bf16[rows, columns]", "b_ptr": "bf16[rows, columns]", "stride": "c_ptr.stride(0)",
            "gate_multiplier": 1.0, "n_cols": "columns", "BLOCK_SIZE": "next_power_of_2(columns)",
        },
        "results": {"c_ptr": "bf16[rows, columns]"},
        "sizes": {"rows": 8192, "columns": 14336},
        "reference": of_swiglu,
        "grid": "rows",
    }  # fmt: skip


def of_geglu(a: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(a, approximate="tanh") * b


@public(
    "liger_kernel.ops.geglu", "_geglu_tanh_forward_kernel",
    author={"num_warps": 16}, small={"rows": 5, "columns": 48}, num_warps=WARPS,
)  # fmt: skip
def liger_geglu() -> Arguments:
    return {
        "inputs": {
            "a": "bf16[rows, columns]", "b": "bf16[rows, columns]", "stride": "c.stride(0)",
            "n_cols": "columns", "BLOCK_SIZE": "next_power_of_2(columns)",
        },
        "results": {"c": "bf16[rows, columns]"},
        "sizes": {"rows": 8192, "columns": 14336},
        "reference": of_geglu,
        "grid": "rows",
    }  # fmt: skip


def of_cross_entropy(X_ptr: Any, Y_ptr: Any) -> Any:
    tokens = len(X_ptr)
    logarithms = X_ptr.log_softmax(-1)
    loss = -logarithms.gather(1, Y_ptr[:, None])[:, 0] / tokens
    gradient = logarithms.exp()
    gradient.scatter_add_(1, Y_ptr[:, None], -gradient.new_ones((tokens, 1)))
    return gradient / tokens, loss


def labels(X_ptr: Any, Y_ptr: Any) -> Mapping[str, Any]:
    return {"Y_ptr": Y_ptr % X_ptr.shape[1]}


@public(
    "liger_kernel.ops.cross_entropy", "liger_cross_entropy_kernel",
    author={"BLOCK_SIZE": 32768, "num_warps": 32}, small={"tokens": 3, "vocabulary": 80},
    BLOCK_SIZE=(1024, 2048, 4096, 8192, 16384, 32768), num_warps=(4, 8, 16, 32),
)  # fmt: skip
def liger_cross_entropy() -> Arguments:
    return {
        "inputs": {
            "X_ptr": "bf16[tokens, vocabulary]", "Y_ptr": "i64[tokens]", "X_stride": "X_ptr.stride(0)",
            "Y_stride": "Y_ptr.stride(0)", "weight_ptr": None, "z_loss_ptr": None, "loss_stride": "loss_ptr.stride(0)",
            "token_accuracy_ptr": None, "token_accuracy_stride": 0, "predicted_tokens_ptr": None,
            "predicted_tokens_stride": 0, "n_cols": "vocabulary", "n_non_ignore": "tokens",
            "sum_non_ignore_weight": "tokens", "weight_sum": 0.0, "ignore_index": -100, "lse_square_scale": 0.0,
            "label_smoothing": 0.0, "reduction": "mean", "softcap": None, "RETURN_Z_LOSS": False,
            "RETURN_TOKEN_ACCURACY": False, "RETURN_PREDICTED_TOKENS": False, "HAS_WEIGHT": False,
            "HAS_SOFTCAPPING": False, "HAS_GRADIENTS": True,
        },
        "results": {"X_ptr": "bf16[tokens, vocabulary]", "loss_ptr": "bf16[tokens]"},
        "sizes": {"tokens": 2048, "vocabulary": 128256},
        "reference": of_cross_entropy,
        "prepare": labels,
        "grid": "tokens",
    }  # fmt: skip


def of_rope(q_ptr: Any, k_ptr: Any, cos: Any, sin: Any) -> Any:
    import torch

    cos, sin = (one[:, None, : one.shape[1] // 2] for one in (cos, sin))
    halves = (one.chunk(2, -1) for one in (q_ptr, k_ptr))
    return [torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in halves]


@public(
    "liger_kernel.ops.rope", "_triton_rope",
    author={"num_warps": 4}, small={"tokens": 3, "q_heads": 4, "kv_heads": 2, "head_dim": 16}, num_warps=WARPS,
)  # fmt: skip
def liger_rope() -> Arguments:
    return {
        "inputs": {
            "q_ptr": "bf16[tokens, q_heads, head_dim]", "k_ptr": "bf16[tokens, kv_heads, head_dim]",
            "cos": "bf16[tokens, head_dim]", "sin": "bf16[tokens, head_dim]", "q_row_stride": "q_ptr.stride(0)",
            "k_row_stride": "k_ptr.stride(0)", "cos_row_stride": "cos.stride(0)", "sin_row_stride": "sin.stride(0)",
            "sl": "tokens", "bs": 1, "cos_bs": 1, "n_qh": "q_heads", "n_kh": "kv_heads", "hd": "head_dim",
            "pad_n_qh": "next_power_of_2(q_heads)", "pad_n_kh": "next_power_of_2(kv_heads)",
            "pad_hd": "next_power_of_2(head_dim)", "pad_rd": "next_power_of_2(head_dim)", "rd": "head_dim",
            "BLOCK_SIZE": 32,
        },
        "results": {"q_ptr": "bf16[tokens, q_heads, head_dim]", "k_ptr": "bf16[tokens, kv_heads, head_dim]"},
        "sizes": {"tokens": 8192, "q_heads": 32, "kv_heads": 8, "head_dim": 128},
        "reference": of_rope,
        "grid": "tokens",
    }  # fmt: skip


def of_softmax(X_ptr: Any) -> Any:
    return X_ptr.softmax(-1)


@public(
    "liger_kernel.ops.softmax", "_softmax_single_block_forward_kernel",
    author={"num_warps": 8}, small={"rows": 5, "columns": 48}, num_warps=WARPS,
)  # fmt: skip
def liger_softmax() -> Arguments:
    return {
        "inputs": {
            "X_ptr": "bf16[rows, columns]", "X_row_stride": "X_ptr.stride(0)", "Y_row_stride": "Y_ptr.stride(0)",
            "n_cols": "columns", "BLOCK_SIZE": "next_power_of_2(columns)",
        },
        "results": {"Y_ptr": "bf16[rows, columns]"},
        "sizes": {"rows": 16384, "columns": 4096},
        "reference": of_softmax,
        "grid": "rows",
    }  # fmt: skip


def of_kl_div(y_ptr: Any, gt_ptr: Any) -> Any:
    return (gt_ptr * (gt_ptr.clamp(min=1e-10).log() - y_ptr)).sum(-1)


def distributions(y_ptr: Any, gt_ptr: Any) -> Mapping[str, Any]:
    return {"y_ptr": y_ptr.log_softmax(-1), "gt_ptr": gt_ptr.softmax(-1)}


@public(
    "liger_kernel.ops.kl_div", "_kldiv_kernel_forward",
    author={"BLOCK_SIZE": 16384, "num_warps": 16}, small={"tokens": 3, "vocabulary": 80},
    BLOCK_SIZE=(1024, 2048, 4096, 8192, 16384), num_warps=(2, 4, 8, 16, 32),
)  # fmt: skip
def liger_kl_div() -> Arguments:
    return {
        "inputs": {
            "y_ptr": "fp32[tokens, vocabulary]", "gt_ptr": "fp32[tokens, vocabulary]", "y_stride": "y_ptr.stride(0)",
            "gt_stride": "gt_ptr.stride(0)", "loss_stride": "loss_ptr.stride(0)", "n_cols": "vocabulary",
            "eps": 1e-10, "reduction": 3, "log_target": False,
        },
        "results": {"loss_ptr": "fp32[tokens]"},
        "sizes": {"tokens": 4096, "vocabulary": 32000},
        "reference": of_kl_div,
        "tolerance": 1e-5,
        "prepare": distributions,
        "grid": "tokens",
    }  # fmt: skip


def of_dyt(X: Any, Alpha: Any, Gamma: Any, Beta: Any) -> Any:
    return (Alpha * X).tanh() * Gamma + Beta


@public(
    "liger_kernel.ops.dyt", "_dyt_fwd_kernel", author={}, small={"rows": 3, "columns": 48},
    BLOCK_N=(512, 1024, 2048, 4096), num_warps=(2, 4, 8, 16), num_stages=(1,),
)  # fmt: skip
def liger_dyt() -> Arguments:
    return {
        "inputs": {
            "X": "bf16[rows, columns]", "Alpha": "fp32[one]", "Gamma": "bf16[columns]", "Beta": "bf16[columns]",
            "HAVE_BETA": True, "N": "columns",
        },
        "results": {"Y": "bf16[rows, columns]"},
        "sizes": {"rows": 8192, "columns": 4096, "one": "1"},
        "reference": of_dyt,
        "grid": ("cdiv(columns, BLOCK_N)", "rows"),
    }  # fmt: skip


def of_group_norm(X_ptr: Any, W_ptr: Any, B_ptr: Any) -> Any:
    import torch

    mean, variance = X_ptr.mean(-1), X_ptr.var(-1, correction=0)
    rstd = (variance + 1e-6).rsqrt()
    groups = X_ptr.shape[1]
    channels = torch.arange(groups * 16, device=X_ptr.device).view(groups, 16)
    of_each = channels.repeat_interleave(X_ptr.shape[2] // 16, 1)
    return (X_ptr - mean[..., None]) * rstd[..., None] * W_ptr[of_each] + B_ptr[of_each], mean, rstd


@public(
    "liger_kernel.ops.group_norm", "_group_norm_forward_kernel",
    author={"BLOCK_SIZE": 65536, "num_warps": 4}, small={"batch": 2, "groups": 2, "elements": 48},
    BLOCK_SIZE=(1024, 2048, 4096, 8192, 16384, 65536), num_warps=(4, 8, 16, 32),
)  # fmt: skip
def liger_group_norm() -> Arguments:
    return {
        "inputs": {
            "X_ptr": "fp32[batch, groups, elements]", "W_ptr": "fp32[channels]", "B_ptr": "fp32[channels]",
            "Y_row_stride": "Y_ptr.stride(0)", "Y_col_stride": "Y_ptr.stride(1)", "X_row_stride": "X_ptr.stride(0)",
            "X_col_stride": "X_ptr.stride(1)", "Mean_row_stride": "Mean_ptr.stride(0)",
            "Mean_col_stride": "Mean_ptr.stride(1)", "RSTD_row_stride": "RSTD_ptr.stride(0)",
            "RSTD_col_stride": "RSTD_ptr.stride(1)", "hidden_size": "elements", "channels_per_group": 16, "eps": 1e-6,
        },
        "results": {
            "Y_ptr": "fp32[batch, groups, elements]", "Mean_ptr": "fp32[batch, groups]",
            "RSTD_ptr": "fp32[batch, groups]",
        },
        "sizes": {"batch": 4, "groups": 32, "elements": "65536", "channels": "groups * 16"},
        "reference": of_group_norm,
        "tolerance": 1e-5,
        "grid": ("batch", "groups"),
    }  # fmt: skip
