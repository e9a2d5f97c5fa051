"""Kernels of flash-linear-attention (the package fla), at sizes of models of 1 to 7 billion parameters. Most of them
are within its author's triton.autotune.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from public.declared import Arguments, public

CHUNK = 64  # tokens
SIZES = {"B": 2, "T": 4096, "H": 16, "HV": 16, "K": 128, "V": 128, "BT": CHUNK}
SMALL = {"B": 2, "T": 80, "H": 2, "HV": 2, "K": 16, "V": 16, "BT": CHUNK}


def chunks(*tensors: Any) -> Any:
    """Parts of CHUNK tokens of tensors [batch, tokens, ...], side by side."""
    return zip(*(one.split(CHUNK, 1) for one in tensors), strict=True)


def local_decays(g: Any) -> Mapping[str, Any]:
    """Logarithms of decays, summed up within each chunk."""
    import torch

    return {"g": torch.cat([(-0.05 * one.abs()).cumsum(1) for (one,) in chunks(g)], 1)}


def of_matmul(a: Any, b: Any) -> Any:
    return a @ b


@public(
    "fla.ops.utils.matmul", "matmul_kernel", author={}, small={"M": 48, "N": 80, "K": 96},
    BM=(64, 128, 256), BN=(128, 256), BK=(32, 64), G=(4,), num_warps=(4, 8), num_stages=(3, 4),
)  # fmt: skip
def fla_matmul() -> Arguments:
    return {
        "inputs": {
            "a": "bf16[batch, M, K]", "b": "bf16[K, N]", "input": None, "alpha": None, "beta": None,
            "stride_ab": "a.stride(0)", "stride_am": "a.stride(1)", "stride_ak": "a.stride(2)",
            "stride_bk": "b.stride(0)", "stride_bn": "b.stride(1)", "stride_cb": "c.stride(0)",
            "stride_cm": "c.stride(1)", "stride_cn": "c.stride(2)", "ACTIVATION": "", "ALLOW_TF32": True,
            "HAS_INPUT": False,
        },
        "results": {"c": "bf16[batch, M, N]"},
        "sizes": {"M": 4096, "N": 4096, "K": 4096, "batch": "1"},
        "reference": of_matmul,
        "grid": ("batch", "cdiv(M, BM)", "cdiv(N, BN)"),
    }  # fmt: skip


def of_l2norm(x: Any) -> Any:
    rstd = ((x * x).sum(-1) + 1e-6).rsqrt()
    return x * rstd[:, None], rstd


@public(
    "fla.modules.norm.l2norm", "l2norm_fwd_kernel", author={}, small={"T": 37, "D": 16},
    BT=(4, 8, 16, 32), num_warps=(1, 2, 4), num_stages=(3,),
)  # fmt: skip
def fla_l2norm() -> Arguments:
    return {
        "inputs": {"x": "bf16[T, D]", "eps": 1e-6, "BD": "next_power_of_2(D)", "NB": "cdiv(T, 65536)"},
        "results": {"y": "bf16[T, D]", "rstd": "fp32[T]"},
        "sizes": {"T": 8192 * 16, "D": 128},
        "reference": of_l2norm,
        "grid": "cdiv(T, BT)",
    }


def of_local_cumsum(s: Any) -> Any:
    import torch

    return torch.cat([one.cumsum(1) for (one,) in chunks(s)], 1)


@public(
    "fla.ops.utils.cumsum", "chunk_local_cumsum_vector_kernel", author={},
    small={"B": 2, "T": 80, "H": 2, "S": 32}, BS=(16, 32, 64, 128), num_warps=(1, 2, 4, 8),
    num_stages=(3,),
)  # fmt: skip
def fla_local_cumsum() -> Arguments:
    return {
        "inputs": {"s": "fp32[B, T, H, S]", "scale": None, "cu_seqlens": None, "chunk_indices": None, "REVERSE": False}
        | {"BT": CHUNK},
        "results": {"o": "fp32[B, T, H, S]"},
        "sizes": {"B": 2, "T": 4096, "H": 16, "S": 128},
        "reference": of_local_cumsum,
        "tolerance": 1e-5,
        "grid": ("cdiv(S, BS) * cdiv(T, BT)", "B * H"),
    }


def of_dot_kkt(k: Any, g: Any, beta: Any) -> Any:
    import torch

    found = []
    for kc, gc, bc in chunks(k, g, beta):
        decay = gc[..., None].sub(gc.transpose(1, 2)[:, None]).exp2()
        a = torch.einsum("bthk,bshk->bths", kc, kc) * decay * bc[..., None]
        before = torch.ones(len(a[0]), len(a[0]), device=a.device).tril(-1)[:, None]
        found.append(torch.nn.functional.pad(a * before, (0, CHUNK - len(a[0]))))
    return torch.cat(found, 1)


@public(
    "fla.ops.common.chunk_scaled_dot_kkt", "chunk_scaled_dot_kkt_fwd_kernel", author={},
    small={name: SMALL[name] for name in ("B", "T", "H", "HV", "K", "BT")},
    BK=(32, 64, 128), num_warps=(1, 2, 4), num_stages=(2, 3),
)  # fmt: skip
def fla_dot_kkt() -> Arguments:
    return {
        "inputs": {
            "k": "bf16[B, T, H, K]", "g": "fp32[B, T, HV]", "beta": "bf16[B, T, HV]", "cu_seqlens": None,
            "chunk_indices": None,
        },
        "results": {"A": "fp32[B, T, HV, BT]"},
        "sizes": {name: SIZES[name] for name in ("B", "T", "H", "HV", "K", "BT")},
        "reference": of_dot_kkt,
        "prepare": local_decays,
        "grid": ("cdiv(T, BT)", "B * HV"),
    }  # fmt: skip


def of_w_u(k: Any, v: Any, beta: Any, A: Any, g: Any) -> Any:
    import torch

    w, u = [], []
    for kc, vc, bc, ac, gc in chunks(k, v, beta, A, g):
        weights = ac[..., : len(kc[0])]
        w.append(torch.einsum("bths,bshk->bthk", weights, (kc * (bc * gc.exp2())[..., None]).to(k)))
        u.append(torch.einsum("bths,bshv->bthv", weights, vc * bc[..., None]))
    return torch.cat(w, 1), torch.cat(u, 1)


@public(
    "fla.ops.gated_delta_rule.wy_fast", "recompute_w_u_fwd_kernel", author={"BK": 64, "BV": 64}, small=SMALL,
    BK=(64, 128), BV=(64, 128), num_warps=(2, 4, 8), num_stages=(2, 3),
)  # fmt: skip
def fla_recompute_w_u() -> Arguments:
    return {
        "inputs": {
            "k": "bf16[B, T, H, K]", "v": "bf16[B, T, HV, V]", "beta": "bf16[B, T, HV]", "A": "bf16[B, T, HV, BT]",
            "g": "fp32[B, T, HV]", "cu_seqlens": None, "chunk_indices": None,
        },
        "results": {"w": "bf16[B, T, HV, K]", "u": "bf16[B, T, HV, V]"},
        "sizes": SIZES,
        "reference": of_w_u,
        "prepare": local_decays,
        "grid": ("cdiv(T, BT)", "B * HV"),
    }  # fmt: skip


def of_chunk_h(k: Any, v: Any, g: Any) -> Any:
    import torch

    states = [k.new_zeros(k.shape[0], k.shape[2], k.shape[3], v.shape[3])]
    for kc, vc, gc in chunks(k, v, g):
        last = gc[:, -1]
        weighted = (vc * (last[:, None] - gc).exp2()[..., None]).to(k)
        states.append(states[-1] * last.exp2()[..., None, None] + torch.einsum("bthk,bthv->bhkv", kc, weighted))
    return torch.stack(states[:-1], 1).flatten(3)


@public(
    "fla.ops.common.chunk_h", "chunk_fwd_kernel_h", author={},
    small={name: SMALL[name] for name in ("B", "T", "H", "K", "V")},
    BK=(64, 128), BV=(64, 128), num_warps=(4, 8), num_stages=(2, 3),
)  # fmt: skip
def fla_chunk_h() -> Arguments:
    return {
        "inputs": {
            "k": "bf16[B, T, H, K]", "v": "bf16[B, T, H, V]", "g": "fp32[B, T, H]", "g_gamma": None, "gk": None,
            "gv": None, "h0": None, "ht": None, "cu_seqlens": None, "split_offsets": None, "BT": CHUNK, "BS": CHUNK,
            "USE_G": True, "USE_G_GAMMA": False, "USE_GK": False, "USE_GV": False, "STATE_V_FIRST": False,
        },
        "results": {"h": "bf16[B, NT, H, KV]"},
        "sizes": {**{name: SIZES[name] for name in ("B", "T", "H", "K", "V")}, "NT": "cdiv(T, BT)", "KV": "K * V"},
        "reference": of_chunk_h,
        "prepare": local_decays,
        "grid": "cdiv(K, BK) * cdiv(V, BV) * B * H",
    }  # fmt: skip


def of_chunk_o(q: Any, k: Any, v: Any, h: Any, g: Any) -> Any:
    import torch

    found = []
    for place, (qc, kc, vc, gc) in enumerate(chunks(q, k, v, g)):
        decay = gc[..., None].sub(gc.transpose(1, 2)[:, None]).exp2()
        seen = torch.ones(len(qc[0]), len(qc[0]), device=q.device).tril()[:, None]
        a = (torch.einsum("bthk,bshk->bths", qc, kc) * decay * seen).to(q)
        state = h[:, place].unflatten(-1, (qc.shape[-1], -1))
        before = torch.einsum("bthk,bhkv->bthv", qc, state) * gc.exp2()[..., None]
        found.append((before + torch.einsum("bths,bshv->bthv", a, vc)) * 0.08838834764831845)
    return torch.cat(found, 1)


@public(
    "fla.ops.common.chunk_o", "chunk_fwd_kernel_o", author={},
    small={name: SMALL[name] for name in SMALL if name != "BT"},
    BK=(32, 64, 128), BV=(64, 128), num_warps=(2, 4, 8), num_stages=(2, 3),
)  # fmt: skip
def fla_chunk_o() -> Arguments:
    return {
        "inputs": {
            "q": "bf16[B, T, H, K]", "k": "bf16[B, T, H, K]", "v": "bf16[B, T, HV, V]", "h": "bf16[B, NT, HV, KV]",
            "g": "fp32[B, T, HV]", "g_gamma": None, "cu_seqlens": None, "chunk_indices": None,
            "scale": 0.08838834764831845, "BT": CHUNK, "STATE_V_FIRST": False,
        },
        "results": {"o": "bf16[B, T, HV, V]"},
        "sizes": {**{name: SIZES[name] for name in SIZES if name != "BT"}, "NT": "cdiv(T, BT)", "KV": "K * V"},
        "reference": of_chunk_o,
        "prepare": local_decays,
        "grid": ("cdiv(V, BV) * cdiv(T, BT)", "B * HV"),
    }  # fmt: skip


def of_recurrent(q: Any, k: Any, v: Any, g: Any, beta: Any, h0: Any) -> Any:
    import torch

    q, k = (one.repeat_interleave(v.shape[2] // one.shape[2], 2) for one in (q, k))
    state, found = h0, []
    for t in range(q.shape[1]):
        qt, kt = (one[:, t, ..., None].to(h0) for one in (q, k))
        state = state * g[:, t].exp()[..., None, None]
        new = beta[:, t, :, None] * (v[:, t] - (state * kt).sum(2))
        state = state + kt * new[:, :, None]
        found.append((state * qt).sum(2) * 0.08838834764831845)
    return torch.stack(found, 1), state


def decays(g: Any) -> Mapping[str, Any]:
    return {"g": -g.abs()}


@public(
    "fla.ops.gated_delta_rule.fused_recurrent", "fused_recurrent_gated_delta_rule_fwd_kernel",
    author={"BV": 8, "num_warps": 1, "num_stages": 3},
    small={"B": 2, "T": 3, "H": 1, "HV": 2, "K": 16, "V": 16},
    BV=(8, 16, 32, 64, 128), num_warps=(1, 2, 4), num_stages=(1, 3),
)  # fmt: skip
def fla_recurrent_gated_delta_rule() -> Arguments:
    return {
        "inputs": {
            "q": "bf16[B, T, H, K]", "k": "bf16[B, T, H, K]", "v": "bf16[B, T, HV, V]", "g": "fp32[B, T, HV]",
            "gk": None, "gv": None, "beta": "bf16[B, T, HV]", "A_log": None, "dt_bias": None,
            "h0": "fp32[B, HV, K, V]", "cu_seqlens": None, "scale": 0.08838834764831845,
            "BK": "next_power_of_2(K)", "USE_QK_L2NORM_IN_KERNEL": False, "IS_BETA_HEADWISE": True,
            "STATE_V_FIRST": False, "APPLY_BETA_SIGMOID": False, "ALLOW_NEG_EIGVAL": False,
        },
        "results": {"o": "bf16[B, T, HV, V]", "ht": "fp32[B, HV, K, V]"},
        "sizes": {"B": 128, "H": 16, "HV": 32, "K": 128, "V": 128, "T": "1"},
        "reference": of_recurrent,
        "tolerance": 1e-5,
        "prepare": decays,
        "grid": "cdiv(V, BV) * B * HV",
    }  # fmt: skip
