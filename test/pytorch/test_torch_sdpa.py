"""The backend "aotriton" of torch's own attention, as far as it goes without a GPU.

Its kernels are put in the place of torch's for tensors of a CPU, where torch has none. So each call that they do not
take, and would hand on, is an error here, which says why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

from torch.nn.attention import (  # noqa: E402
    SDPBackend,
    activate_flash_attention_impl,
    current_flash_attention_impl,
    list_flash_attention_impls,
    restore_flash_attention_impl,
    sdpa_kernel,
)

from aotriton.torch import attention, stats  # noqa: E402

CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention
SDPA = torch.ops.aten._scaled_dot_product_flash_attention
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward


def tensor(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


def registered(operator: str, key: str) -> str:
    """Where the kernel that torch calls was registered."""
    table: str = torch._C._dispatch_dump_table(f"aten::{operator}")
    return next(line for line in table.splitlines() if line.startswith(f"{key}:"))


@pytest.fixture
def active() -> Iterator[None]:
    torch.ops.aotriton._activate("CPU")
    yield
    torch.ops.aotriton._restore()


@pytest.fixture
def counted() -> Callable[[], dict[str, Any]]:
    """What stats() has more than at the beginning of the test."""
    before = stats()

    def since() -> dict[str, Any]:
        now = stats()
        now.pop("hints")
        for name, calls in now.items():
            calls["aotriton"] -= before[name]["aotriton"]
            reasons = {why: count - before[name]["torch"].get(why, 0) for why, count in calls["torch"].items()}
            calls["torch"] = {why: count for why, count in reasons.items() if count}
        return now

    return since


@pytest.mark.parametrize("heads_k", [4, 2])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.usefixtures("active")
def test_a_call_runs_here(heads_k: int, scale: float | None, counted: Callable[[], dict[str, Any]]) -> None:
    """What the library supports it computes, forward and through torch's own autograd backward, and both are counted;
    results are what torch says of them in advance.
    """
    q = tensor(2, 6, 4, 16).transpose(1, 2).requires_grad_()
    k, v = tensor(2, heads_k, 6, 16, seed=1).requires_grad_(), tensor(2, heads_k, 6, 16, seed=2)
    results = SDPA(q, k, v, 0.0, True, scale=scale)
    assert torch.equal(results[0], attention(q, k, v, causal=True, scale=scale))
    assert results[2:6] == (None, None, 6, 6)
    fake = SDPA(q.to("meta"), k.to("meta"), v.to("meta"), 0.0, True, scale=scale)
    for got, expected in zip(results, fake, strict=True):
        if isinstance(got, torch.Tensor):
            assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), expected.dtype)
    dout = tensor(2, 4, 6, 16, seed=3)
    found = torch.autograd.grad(results[0], (q, k), dout)
    expected = torch.autograd.grad(attention(q, k, v, causal=True, scale=scale), (q, k), dout)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert counted() == {"forward": {"aotriton": 1, "torch": {}}, "backward": {"aotriton": 1, "torch": {}}}


Q, K = tensor(2, 4, 6, 16), tensor(2, 4, 5, 16)
ELSEWHERE = [
    ((Q, Q, Q, 0.5, False), {}, "dropout"),
    ((Q, Q, Q, 0.0, False, True), {}, "return_debug_mask"),
    ((Q, Q, Q), {"scale": -1.0}, "attn_fwd: sm_scale is -1, which must be finite, and not negative"),
    ((Q[..., :12],) * 3, {}, "attn_fwd: q has head_dim 12, which must be a multiple of 8 up to 256"),
    ((Q.float(),) * 3, {}, "attn_fwd: q has dtype float32, which must be float16 or bfloat16"),
]


@pytest.mark.parametrize(("args", "kwargs", "why"), ELSEWHERE, ids=[why for *_, why in ELSEWHERE])
@pytest.mark.usefixtures("active")
def test_a_call_goes_elsewhere(
    args: tuple[Any, ...], kwargs: dict[str, Any], why: str, counted: Callable[[], dict[str, Any]]
) -> None:
    """What the library does not support goes on to torch's own kernel, and is counted with the reason."""
    with pytest.raises(RuntimeError, match="torch has no kernel of its own for this device: ") as raised:
        SDPA(*args, **kwargs)
    assert why in str(raised.value)
    assert counted()["forward"] == {"aotriton": 0, "torch": {why: 1}}


@pytest.mark.parametrize(
    ("dropout", "scale", "why"),
    [(0.5, None, "dropout"), (0.0, -1.0, "attn_bwd: sm_scale is -1, which must be finite, and not negative")],
)
@pytest.mark.usefixtures("active")
def test_a_backward_goes_elsewhere(
    dropout: float, scale: float | None, why: str, counted: Callable[[], dict[str, Any]]
) -> None:
    """So does a backward by itself."""
    seed = torch.empty(())
    with pytest.raises(RuntimeError, match="torch has no kernel of its own"):
        BACKWARD(Q, Q, K, K, Q, Q[..., 0].float(), None, None, 6, 5, dropout, True, seed, seed, scale=scale)
    assert counted()["backward"] == {"aotriton": 0, "torch": {why: 1}}


@pytest.mark.parametrize("heads_k", [4, 2])
@pytest.mark.parametrize("scale", [None, 0.3, 0.0])
@pytest.mark.usefixtures("active")
def test_a_call_that_torch_gives_to_cudnn_runs_here(
    heads_k: int, scale: float | None, counted: Callable[[], dict[str, Any]]
) -> None:
    """SDPA prefers cuDNN on Hopper: those calls come here, too, both ways, with results as torch foretells."""
    q = tensor(2, 6, 4, 16).transpose(1, 2).requires_grad_()
    k, v = tensor(2, heads_k, 6, 16, seed=1).requires_grad_(), tensor(2, heads_k, 6, 16, seed=2)
    results = CUDNN(q, k, v, None, True, 0.0, True, scale=scale)
    assert torch.equal(results[0], attention(q, k, v, causal=True, scale=scale))
    assert results[4:6] == (6, 6)
    fake = CUDNN(q.to("meta"), k.to("meta"), v.to("meta"), None, True, 0.0, True, scale=scale)
    for got, expected in zip(results[:2], fake[:2], strict=True):
        assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), expected.dtype)
    dout = tensor(2, 4, 6, 16, seed=3)
    found = torch.autograd.grad(results[0], (q, k), dout)
    expected = torch.autograd.grad(attention(q, k, v, causal=True, scale=scale), (q, k), dout)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert counted() == {"forward": {"aotriton": 1, "torch": {}}, "backward": {"aotriton": 1, "torch": {}}}


@pytest.mark.usefixtures("active")
def test_a_call_stays_with_cudnn(counted: Callable[[], dict[str, Any]]) -> None:
    """A mask, dropout, and a user who has disabled the flash backend, in whose place this library is."""
    mask = torch.zeros(2, 4, 6, 6).bfloat16()
    for args, why in (
        ((Q, Q, Q, mask, True), "attn_mask"),
        ((Q, Q, Q, None, True, 0.5), "dropout"),
    ):
        with pytest.raises(RuntimeError, match="torch has no kernel of its own for this device: ") as raised:
            CUDNN(*args)
        assert why in str(raised.value)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError, match="the flash backend is disabled"):
        CUDNN(Q, Q, Q, None, True)
    found = counted()["forward"]
    assert (found["aotriton"], sum(found["torch"].values())) == (0, 3)


@pytest.mark.parametrize("keys", [5, 9])
@pytest.mark.usefixtures("active")
def test_causal_of_unequal_lengths_is_as_torch_has_it(keys: int, counted: Callable[[], dict[str, Any]]) -> None:
    """Both ways: what SDPA gives its flash backend is aligned at the last key, as causal_lower_right has it; what it
    gives cuDNN at the first one, as is_causal.
    """
    for operator, before, variant in (
        (SDPA, (0.0, True), "bottom_right"),
        (CUDNN, (None, True, 0.0, True), "top_left"),
    ):
        q, k = tensor(2, 4, 6, 16).requires_grad_(), tensor(2, 4, keys, 16, seed=1).requires_grad_()
        v, dout = tensor(2, 4, keys, 16, seed=2), tensor(2, 4, 6, 16, seed=3)
        out = operator(q, k, v, *before)[0]
        expected = attention(q, k, v, causal=True, causal_variant=variant)
        assert torch.equal(out, expected)
        pairs = zip(*(torch.autograd.grad(one, (q, k), dout) for one in (out, expected)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert counted() == {"forward": {"aotriton": 2, "torch": {}}, "backward": {"aotriton": 2, "torch": {}}}


@pytest.mark.usefixtures("active")
def test_a_call_stays_with_the_memory_efficient_backend(counted: Callable[[], dict[str, Any]]) -> None:
    """What SDPA gives it is counted with the reason, as far as that is known."""
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    calls = {
        "attn_mask": (Q, torch.zeros(2, 4, 6, 6).bfloat16(), True),
        "dropout": (Q, None, True, 0.5),
        "neither float16 nor bfloat16": (Q.float(), None, True),
        "SDPA chose its memory-efficient backend": (Q, None, True),
    }
    for why, (q, *others) in calls.items():
        with pytest.raises(RuntimeError, match=f"torch has no kernel of its own for this device: {why}"):
            efficient(q, q, q, *others)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), pytest.raises(RuntimeError, match="flash backend is disabled"):
        efficient(Q, Q, Q, None, True)
    assert counted()["forward"] == {"aotriton": 0, "torch": dict.fromkeys([*calls, "the flash backend is disabled"], 1)}


@pytest.mark.skipif(
    torch.version.cuda is None, reason="this build of torch has no kernels for CUDA that could be taken"
)
def test_activating_is_silent() -> None:
    """Whoever activates wants torch's kernels to be taken: torch does not warn of it."""
    program = (
        "import aotriton.torch, torch; torch.nn.attention.activate_flash_attention_impl('aotriton'); print('done')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


@pytest.mark.usefixtures("active")
def test_reasons_are_bounded() -> None:
    """However many different reasons there are, stats() stays small, and loses no call."""
    before = sum(stats()["forward"]["torch"].values())
    for number in range(1, 151):
        with pytest.raises(RuntimeError):
            SDPA(Q, Q, Q, scale=-number)
    reasons = stats()["forward"]["torch"]
    assert len(reasons) <= 101
    assert reasons["for more reasons than are kept"] > 0
    assert sum(reasons.values()) - before == 150


@pytest.mark.skipif(
    torch.version.cuda is None, reason="this build of torch has no kernels for CUDA that could be taken"
)
def test_torch_activates_and_restores_it() -> None:
    """The backend is registered, not active, by the import; torch's own functions put its kernels in place of those for
    CUDA, and these back.
    """
    names = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
    assert "aotriton" in list_flash_attention_impls()
    assert current_flash_attention_impl() is None
    before = [registered(name, "CUDA") for name in names]
    for _ in range(2):
        activate_flash_attention_impl("aotriton")
        assert current_flash_attention_impl() == "aotriton"
        assert all("libaotriton_torch" in registered(name, "CUDA") for name in names)
        restore_flash_attention_impl()
        assert [registered(name, "CUDA") for name in names] == before
