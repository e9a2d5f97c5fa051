"""Calls that the library refuses: which error, which argument it names, and that nothing was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed

Arguments = dict[str, Any]


def tensor(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(sizes, float("nan"), dtype=dtype, device="cuda")


def forward_arguments() -> Arguments:
    """A valid forward: batch 2, 4 heads on 2, seqlen 48, head_dim 64."""
    return {
        "q": tensor(2, 4, 48, 64),
        "k": tensor(2, 2, 48, 64),
        "v": tensor(2, 2, 48, 64),
        "out": tensor(2, 4, 48, 64),
        "logsumexp": tensor(2, 4, 48, dtype=torch.float32),
        "sm_scale": 0.125,
        "causal": True,
    }


def backward_arguments() -> Arguments:
    """A valid backward of the same sizes."""
    made = forward_arguments()
    made |= {name: tensor(2, heads, 48, 64) for name, heads in (("dout", 4), ("dq", 4), ("dk", 2), ("dv", 2))}
    size = aotriton.attn_bwd_workspace_size(**made)
    made["workspace"] = torch.full((size,), 0x7F, dtype=torch.uint8, device="cuda")
    return made


def strided(*sizes: int) -> torch.Tensor:
    """A tensor whose last dimension is not contiguous."""
    return tensor(*sizes[:-1], 2 * sizes[-1])[..., ::2]


WRONG_FORWARD: dict[str, tuple[Callable[[], Arguments], str, str]] = {
    "float64 q": (lambda: {"q": tensor(2, 4, 48, 64, dtype=torch.float64)}, "invalid_dtype", "q"),
    "another dtype of k": (lambda: {"k": tensor(2, 2, 48, 64, dtype=torch.float16)}, "invalid_dtype", "k"),
    "float16 logsumexp": (lambda: {"logsumexp": tensor(2, 4, 48, dtype=torch.float16)}, "invalid_dtype", "logsumexp"),
    "columns apart in v": (lambda: {"v": strided(2, 2, 48, 64)}, "invalid_stride", "v"),
    "out through stride 0": (lambda: {"out": tensor(1, 4, 48, 64).expand(2, 4, 48, 64)}, "invalid_stride", "out"),
    "logsumexp with gaps": (
        lambda: {"logsumexp": tensor(2, 4, 50, dtype=torch.float32)[:, :, :48]},
        "invalid_stride",
        "logsumexp",
    ),
    "logsumexp off by one": (
        lambda: {"logsumexp": tensor(2 * 4 * 48 + 1, dtype=torch.float32)[1:].view(2, 4, 48)},
        "misaligned_pointer",
        "logsumexp",
    ),
    "short out": (lambda: {"out": tensor(2, 4, 47, 64)}, "invalid_shape", "out"),
    "v of another length": (lambda: {"v": tensor(2, 2, 49, 64)}, "invalid_shape", "v"),
    "batch of k": (lambda: {"k": tensor(1, 2, 48, 64), "v": tensor(1, 2, 48, 64)}, "invalid_shape", "k"),
    "heads that do not divide": (lambda: {"k": tensor(2, 3, 48, 64), "v": tensor(2, 3, 48, 64)}, "invalid_shape", "k"),
    "logsumexp of another length": (
        lambda: {"logsumexp": tensor(2, 4, 49, dtype=torch.float32)},
        "invalid_shape",
        "logsumexp",
    ),
    "a variant that is none": (lambda: {"causal_variant": 2}, "invalid_argument", "causal_variant"),
    "v of another head dim than out": (lambda: {"v": tensor(2, 2, 48, 72)}, "invalid_shape", "head_dim_v"),
    "head_dim 520": (
        lambda: {name: tensor(2, h, 48, 520) for name, h in (("q", 4), ("k", 2), ("v", 2), ("out", 4))},
        "not_supported",
        "head_dim",
    ),
    "infinite sm_scale": (lambda: {"sm_scale": float("inf")}, "invalid_argument", "sm_scale"),
    "negative sm_scale": (lambda: {"sm_scale": -1.0}, "invalid_argument", "sm_scale"),
}

WRONG_BACKWARD: dict[str, tuple[Callable[[], Arguments], str, str]] = {
    "float16 dout": (lambda: {"dout": tensor(2, 4, 48, 64, dtype=torch.float16)}, "invalid_dtype", "dout"),
    "columns apart in dk": (lambda: {"dk": strided(2, 2, 48, 64)}, "invalid_stride", "dk"),
    "dv of another length": (lambda: {"dv": tensor(2, 2, 47, 64)}, "invalid_shape", "dv"),
    "dq with heads of k": (lambda: {"dq": tensor(2, 2, 48, 64)}, "invalid_shape", "dq"),
    "dk through stride 0": (lambda: {"dk": tensor(2, 1, 48, 64).expand(2, 2, 48, 64)}, "invalid_stride", "dk"),
    "small workspace": (
        lambda: {"workspace": torch.zeros(256, dtype=torch.uint8, device="cuda")},
        "workspace_too_small",
        "workspace",
    ),
    "a variant that is none": (lambda: {"causal_variant": -1}, "invalid_argument", "causal_variant"),
}


def refused(call: Callable[..., None], arguments: Arguments, code: str, argument: str, *written: str) -> None:
    """Asserts the error, and that the outputs still are what they were."""
    with pytest.raises(aotriton.AotritonError) as raised:
        call(**arguments)
    assert raised.value.code == code, raised.value
    assert re.search(rf"\b{argument}\b", str(raised.value)), raised.value
    torch.cuda.synchronize()
    for name in written:
        assert arguments[name].isnan().all(), f"{name} was written"


@pytest.mark.parametrize("what", WRONG_FORWARD)
def test_wrong_forward_calls_name_their_argument(what: str) -> None:
    """A wrong forward call raises its own error, names the argument and writes nothing."""
    change, code, argument = WRONG_FORWARD[what]
    refused(aotriton.attn_fwd, forward_arguments() | change(), code, argument, "out", "logsumexp")


@pytest.mark.parametrize("what", WRONG_BACKWARD)
def test_wrong_backward_calls_name_their_argument(what: str) -> None:
    """A wrong backward call raises its own error, names the argument and writes nothing."""
    change, code, argument = WRONG_BACKWARD[what]
    refused(aotriton.attn_bwd, backward_arguments() | change(), code, argument, "dq", "dk", "dv")


@pytest.mark.parametrize("what", WRONG_FORWARD)
def test_a_wrong_call_is_not_supported(what: str) -> None:
    """Asked beforehand, the library says that it would refuse the call."""
    assert aotriton.attn_fwd_supported(**forward_arguments())
    assert not aotriton.attn_fwd_supported(**forward_arguments() | WRONG_FORWARD[what][0]())


def test_a_workspace_is_not_asked_for_beforehand() -> None:
    """Whether a backward is supported, and how much workspace it needs, is answered without one."""
    arguments = backward_arguments()
    size = len(arguments.pop("workspace"))
    assert aotriton.attn_bwd_supported(**arguments)
    assert aotriton.attn_bwd_workspace_size(**arguments) == size > 0
    assert aotriton.attn_fwd_workspace_size(**forward_arguments()) == 0


@pytest.mark.parametrize("name", ["q", "out", "logsumexp"])
def test_tensors_of_the_host_are_refused(name: str) -> None:
    """A tensor in host memory never reaches the GPU: ValueError names it."""
    arguments = forward_arguments()
    arguments[name] = arguments[name].cpu()
    with pytest.raises(ValueError, match=f"^{name} is not on a GPU"):
        aotriton.attn_fwd(**arguments)


def test_tensors_of_another_rank_are_refused() -> None:
    """A tensor without its batch dimension is a ValueError that names it."""
    arguments = forward_arguments()
    arguments["k"] = arguments["k"][0]
    with pytest.raises(ValueError, match=r"^k "):
        aotriton.attn_fwd(**arguments)


def test_the_calls_are_right_without_the_mistake() -> None:
    """The arguments that the wrong calls start from are accepted, so that each fails for its own reason."""
    aotriton.attn_fwd(**forward_arguments())
    aotriton.attn_bwd(**backward_arguments())
    torch.cuda.synchronize()
