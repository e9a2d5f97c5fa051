"""The backend "aotriton" of torch's own attention, as far as it goes without a GPU.

Its kernels are put in the place of torch's for tensors of a CPU, where torch has none. So each call that they do not
take, and would hand on, is an error here, which says why.
"""

from __future__ import annotations

import inspect
import shutil
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
from torch.nn.attention.varlen import AuxRequest, varlen_attn  # noqa: E402

from aotriton.torch import attention, stats  # noqa: E402

EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention
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
    ((Q, Q, Q, 0.0, False, True), {}, "return_debug_mask"),
    ((Q, Q, Q), {"scale": -1.0}, "attn_fwd: sm_scale is -1, which must be finite, and not negative"),
    ((tensor(1, 2, 3, 520),) * 3, {}, "attn_fwd: q has head_dim 520, which must be from 1 to 512"),
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
    [
        (0.5, None, "the forward, with dropout, was torch's own"),
        (0.0, -1.0, "attn_bwd: sm_scale is -1, which must be finite, and not negative"),
    ],
)
@pytest.mark.usefixtures("active")
def test_a_backward_goes_elsewhere(
    dropout: float, scale: float | None, why: str, counted: Callable[[], dict[str, Any]]
) -> None:
    """So does a backward by itself, also that of torch's own dropout."""
    seed = torch.empty(2, dtype=torch.uint64)
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
    """Of a user who has disabled the flash backend, in whose place this library is; and torch's own dropout."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError, match="the flash backend is disabled"):
        CUDNN(Q, Q, Q, None, True)
    seed, rest = torch.empty((), dtype=torch.int64), (None, None, None, 6, 6, 0.5, False)
    with pytest.raises(RuntimeError, match="the forward, with dropout, was torch's own"):
        torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            Q, Q, Q, Q, Q, Q[..., :1].float(), seed, seed, *rest
        )
    found = counted()
    assert found["forward"] == {"aotriton": 0, "torch": {"the flash backend is disabled": 1}}
    assert found["backward"] == {"aotriton": 0, "torch": {"the forward, with dropout, was torch's own": 1}}


def same_as_attention(results: Any, leaves: Any, *, dropout: float = 0.0, state: Any = None, **how: Any) -> None:
    """The first result is that of ``attention`` with what the call drew, and so are the gradients of the leaves."""
    if dropout:
        drawn = state.view(torch.int64).flatten()[0]  # serves as both
        how |= {"dropout_seed": drawn, "dropout_offset": drawn}
    expected = attention(*leaves[:3], dropout=dropout, **how)
    assert torch.equal(results[0], expected)
    dout, asking = tensor(*expected.shape, seed=9), [leaf for leaf in leaves if leaf.requires_grad]
    found = torch.autograd.grad(results[0], asking, dout)
    for got, want in zip(found, torch.autograd.grad(expected, asking, dout), strict=True):
        assert torch.equal(got, want)


def as_foretold(results: Any, fake: Any) -> None:
    """Results lie as torch says in advance. A state that is not torch's is of another type."""
    for got, expected in zip(results, fake, strict=True):
        if isinstance(got, torch.Tensor):
            assert (got.shape, got.stride()) == (expected.shape, expected.stride())
            assert got.dtype == expected.dtype or {got.dtype, expected.dtype} == {torch.int64, torch.uint64}


LEAVES = [tensor(2, 4, n, 16, seed=n).requires_grad_() for n in (6, 9)]
QKV = LEAVES[0], LEAVES[1], tensor(2, 4, 9, 16, seed=3)
MASKS = {
    "whole": tensor(2, 4, 6, 9, seed=4),
    "of a batch": tensor(2, 1, 1, 9, seed=4),
    "of all": tensor(6, 9, seed=4),
    "hides": torch.zeros(6, 9).bfloat16().masked_fill(torch.arange(9) > 3, -torch.inf),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.usefixtures("active")
def test_dropout_of_the_flash_backend_runs_here(causal: bool, counted: Callable[[], dict[str, Any]]) -> None:
    """torch's generator draws, and the backward drops what the forward dropped."""
    torch.manual_seed(1)
    results = SDPA(*QKV, 0.5, causal)
    as_foretold(results, SDPA(*(x.to("meta") for x in QKV), 0.5, causal))
    how = {"causal": causal, "causal_variant": "bottom_right"}
    same_as_attention(results, QKV, dropout=0.5, state=results[6], **how)
    assert not torch.equal(SDPA(*QKV, 0.5, causal)[0], results[0])
    torch.manual_seed(1)
    assert torch.equal(SDPA(*QKV, 0.5, causal)[0], results[0])
    assert counted() == {"forward": {"aotriton": 3, "torch": {}}, "backward": {"aotriton": 1, "torch": {}}}


@pytest.mark.usefixtures("active")
def test_a_backward_that_nobody_can_compute() -> None:
    """What this library dropped, torch's own kernel cannot know: the call fails where it would be handed on."""
    state = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(
        RuntimeError, match="with dropout, was aotriton's, whose backward cannot run: attn_bwd: sm_scale"
    ):
        BACKWARD(Q, Q, K, K, Q, Q[..., 0].float(), None, None, 6, 5, 0.5, False, state, state[0], scale=-1.0)


@pytest.mark.parametrize("mask", [None, *MASKS.values()], ids=["none", *MASKS])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.usefixtures("active")
def test_masks_and_dropout_of_cudnn_run_here(mask: Any, dropout: float, counted: Callable[[], dict[str, Any]]) -> None:
    """A mask of floating point, as SDPA makes it of any, is a bias, broadcast without a copy."""
    results = CUDNN(*QKV, mask, True, dropout)
    of_meta = None if mask is None else mask.to("meta")
    as_foretold(results, CUDNN(*(x.to("meta") for x in QKV), of_meta, True, dropout))
    same_as_attention(results, QKV, dropout=dropout, state=results[6], bias=mask)
    assert counted() == {"forward": {"aotriton": 1, "torch": {}}, "backward": {"aotriton": 1, "torch": {}}}


@pytest.mark.parametrize("of_values", [8, 21, 40])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["heads", "rows"])
@pytest.mark.usefixtures("active")
def test_values_with_a_head_dim_of_their_own_run_here(
    of_values: int, order: tuple[int, ...], counted: Callable[[], dict[str, Any]]
) -> None:
    """What SDPA gives cuDNN, and its memory-efficient backend with a mask; results lie as torch says in advance."""
    widths = (16, 16, of_values)
    leaves = [tensor(*(of[dim] for dim in order), seed=n).permute(order).requires_grad_()
              for n, of in enumerate((2, 4, 6 if n == 0 else 9, width) for n, width in enumerate(widths))]  # fmt: skip
    meta, mask = [x.to("meta") for x in leaves], tensor(6, 9, seed=4)
    results = CUDNN(*leaves, None, True)
    as_foretold(results, CUDNN(*meta, None, True))
    same_as_attention(results, leaves)
    of_efficient = EFFICIENT(*leaves, mask, True)
    as_foretold(of_efficient, EFFICIENT(*meta, mask.to("meta"), True))
    same_as_attention(of_efficient, leaves, bias=mask)
    assert counted() == {"forward": {"aotriton": 2, "torch": {}}, "backward": {"aotriton": 2, "torch": {}}}


@pytest.mark.parametrize("rows", [6, 32])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("keys", [9, 16])
@pytest.mark.usefixtures("active")
def test_masks_of_the_memory_efficient_backend_run_here(
    rows: int, keys: int, dropout: float, counted: Callable[[], dict[str, Any]]
) -> None:
    """With the gradient of the mask; results lie as that backend's, whose rows of logsumexp are padded."""
    leaves = [tensor(2, 4, n, 16, seed=n).requires_grad_() for n in (rows, keys, keys)]
    mask = tensor(2, 4, rows, keys, seed=4).requires_grad_()
    results = EFFICIENT(*leaves, mask, True, dropout)
    meta = [x.to("meta") for x in (*leaves, mask)]
    as_foretold(results, EFFICIENT(*meta, True, dropout))
    same_as_attention(results, [*leaves, mask], dropout=dropout, state=results[2], bias=mask)
    assert (results[1][:, :, rows:] == torch.inf).all()
    with torch.no_grad():
        assert EFFICIENT(*leaves, mask, False)[1].shape == (2, 4, 0)
    assert counted() == {"forward": {"aotriton": 2, "torch": {}}, "backward": {"aotriton": 1, "torch": {}}}


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
@pytest.mark.usefixtures("active")
def test_the_memory_efficient_backward_computes_what_is_asked_for(wanted: tuple[bool, ...]) -> None:
    """Other gradients have their sizes and nothing else: torch lets their memory go."""
    given = [tensor(2, 4, n, 16, seed=n) for n in (6, 9, 9)]
    mask = tensor(2, 4, 6, 9, seed=4)
    out, *others = EFFICIENT(*given, mask, True, 0.5)

    def backward(*which: bool) -> list[Any]:
        made: tuple[Any, ...] = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            tensor(2, 4, 6, 16, seed=9), *given, mask, out, *others, 0.5, [*which, False]
        )
        return list(made[:3])

    every, found = backward(True, True, True), backward(*wanted)
    for one, expected, asked in zip(found, every, wanted, strict=True):
        assert one.shape == expected.shape
        assert torch.equal(one, expected) == asked


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


BACKENDS = [
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="inductor wants g++ for a CPU")),
]
DOORS: dict[str, Callable[..., Any]] = {
    "flash": lambda *given: SDPA(*given, 0.5)[0],
    "cuDNN": lambda *given: CUDNN(*given, MASKS["whole"], True, 0.5)[0],
    "memory-efficient": lambda *given: EFFICIENT(*given, MASKS["whole"], True, 0.5)[0],
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("active")
def test_dropout_compiles(door: Callable[..., Any], backend: str) -> None:
    """A compiled call drops, forward and backward, what the eager one drops after the same manual_seed."""
    torch._dynamo.reset()
    leaves, results = [x.detach().clone().requires_grad_() for x in QKV], []
    for call in (door, torch.compile(door, fullgraph=True, backend=backend)):
        torch.manual_seed(2)
        out = call(*leaves)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.usefixtures("active")
def test_a_call_stays_with_the_memory_efficient_backend(counted: Callable[[], dict[str, Any]]) -> None:
    """What has no mask is counted with the reason, as far as that is known; and what the user wants there."""
    calls = {"neither float16 nor bfloat16": Q.float(), "SDPA chose its memory-efficient backend": Q}
    for why, q in calls.items():
        with pytest.raises(RuntimeError, match=f"torch has no kernel of its own for this device: {why}"):
            EFFICIENT(q, q, q, None, True)
    mask = torch.zeros(2, 4, 6, 6).bfloat16()
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), pytest.raises(RuntimeError, match="flash backend is disabled"):
        EFFICIENT(Q, Q, Q, mask, True)
    assert counted()["forward"] == {"aotriton": 0, "torch": dict.fromkeys([*calls, "the flash backend is disabled"], 1)}


STARTS_Q, STARTS_K = (torch.tensor(starts, dtype=torch.int32) for starts in ([0, 5, 5, 14], [0, 7, 9, 16]))
PACKED = (
    tensor(14, 4, 16).requires_grad_(),
    tensor(16, 4, 16, seed=1).requires_grad_(),
    tensor(16, 4, 16, seed=2).requires_grad_(),
)
LENGTHS = STARTS_Q, STARTS_K, 9, 7
OF_PACKED: dict[str, Any] = dict(
    zip(("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), LENGTHS, strict=True)
)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 2)])
@pytest.mark.usefixtures("active")
def test_varlen_attn_runs_here(window: tuple[int, int], counted: Callable[[], dict[str, Any]]) -> None:
    """torch's function for sequences of different lengths, both ways, with its logsumexp."""
    out, lse = varlen_attn(*PACKED, *LENGTHS, window_size=window, scale=0.3, return_aux=AuxRequest(lse=True))
    how: dict[str, Any] = {"causal_variant": "bottom_right", "window_left": window[0], "window_right": window[1]}
    same_as_attention([out], PACKED, scale=0.3, **how, **OF_PACKED)
    expected = attention(PACKED[0], PACKED[1], PACKED[2], scale=0.3, **how, **OF_PACKED, return_logsumexp=True)[1]
    assert torch.equal(lse, expected)
    assert counted() == {"forward": {"aotriton": 1, "torch": {}}, "backward": {"aotriton": 1, "torch": {}}}


CACHES = "block_table" in inspect.signature(varlen_attn).parameters
with_caches = pytest.mark.skipif(not CACHES, reason="torch's varlen_attn has caches since 2.12")


@with_caches
@pytest.mark.parametrize("table", [False, True], ids=["packed keys", "pages"])
@pytest.mark.parametrize("window", [(-1, 0), (3, 0)])
@pytest.mark.usefixtures("active")
def test_varlen_attn_of_a_cache_runs_here(
    table: bool, window: tuple[int, int], counted: Callable[[], dict[str, Any]]
) -> None:
    """Used lengths of keys, and pages, whose rows lie before their heads."""
    q, k, v = (x.detach() for x in PACKED)
    used = torch.tensor([7, 0, 5], dtype=torch.int32)
    of_keys: dict[str, Any] = {"cu_seqlens_k": STARTS_K}
    given: dict[str, Any] = {}
    own_k, own_v = k, v
    if table:
        k, v = (tensor(4, 16, 2, 16, seed=n) for n in (5, 6))
        own_k, own_v = k.transpose(1, 2), v.transpose(1, 2)
        given = of_keys = {"block_table": torch.tensor([[3], [1], [0]], dtype=torch.int32)}
    lengths = STARTS_Q, None if table else STARTS_K, 9, 7
    out = varlen_attn(q, k, v, *lengths, window_size=window, enable_gqa=True, seqused_k=used, **given)
    expected = attention(
        q, own_k, own_v, cu_seqlens_q=STARTS_Q, seqused_k=used, max_seqlen_q=9, max_seqlen_k=7, **of_keys,
        causal_variant="bottom_right", window_left=window[0], window_right=window[1],
    )  # fmt: skip
    assert torch.equal(out, expected)
    assert counted()["forward"] == {"aotriton": 1, "torch": {}}


@with_caches
@pytest.mark.usefixtures("active")
def test_one_split_asks_for_the_same_bits_in_every_batch(counted: Callable[[], dict[str, Any]]) -> None:
    """The hint batch_invariant is given; other numbers of splits are left to the library."""
    q = PACKED[0].detach()
    pages = tensor(4, 16, 4, 16, seed=5)
    how: dict[str, Any] = {"block_table": torch.tensor([[3], [1], [0]], dtype=torch.int32)}
    how["seqused_k"] = torch.tensor([7, 3, 5], dtype=torch.int32)
    before = stats()["hints"].get("attn_fwd", {}).get("batch_invariant=1", 0)
    for splits in (1, 4, None):
        out = varlen_attn(q, pages, pages, STARTS_Q, None, 9, 7, num_splits=splits, **how)
        assert torch.equal(out, varlen_attn(q, pages, pages, STARTS_Q, None, 9, 7, **how))
    assert counted()["forward"] == {"aotriton": 6, "torch": {}}
    assert stats()["hints"]["attn_fwd"]["batch_invariant=1"] == before + 1


@pytest.mark.usefixtures("active")
def test_sequences_with_dropout_run_here() -> None:
    """As torch's nested tensors call them; results lie as torch says in advance."""
    call = torch.ops.aten._flash_attention_forward
    q, k, v = (x.detach() for x in PACKED)
    results = call(q, k, v, *LENGTHS, 0.5, True, False)
    as_foretold(results, call(*(x.to("meta") for x in (q, k, v, STARTS_Q, STARTS_K)), 9, 7, 0.5, True, False))
    drawn = results[2][0]  # serves as both
    how: dict[str, Any] = {"dropout": 0.5, "dropout_seed": drawn, "dropout_offset": drawn, "causal": True}
    out = attention(PACKED[0], PACKED[1], PACKED[2], **OF_PACKED, **how, causal_variant="bottom_right")
    assert torch.equal(results[0], out)
    dout = tensor(14, 4, 16, seed=9)
    found = torch.ops.aten._flash_attention_backward(
        dout, q, k, v, results[0], results[1], *LENGTHS, 0.5, True, results[2], results[3]
    )
    assert all(map(torch.equal, found, torch.autograd.grad(out, PACKED, dout)))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"alibi_slopes": torch.ones(4)}, "alibi_slopes"),
        pytest.param(
            {"seqused_k": torch.ones(3, dtype=torch.int32)},
            "seqused_k",
            marks=pytest.mark.skipif(CACHES, reason="since torch 2.12 it has no backward"),
        ),
        ({"scale": -1.0}, "attn_fwd: sm_scale is -1"),
    ],
)
@pytest.mark.usefixtures("active")
def test_sequences_go_elsewhere(given: dict[str, Any], why: str, counted: Callable[[], dict[str, Any]]) -> None:
    """What the backward would not be told, and what is not supported, goes on to torch's own kernel."""
    with pytest.raises(RuntimeError, match=f"torch has no kernel of its own for this device: {why}"):
        torch.ops.aten._flash_attention_forward(*(x.detach() for x in PACKED), *LENGTHS, 0.0, True, False, **given)
    assert sum(counted()["forward"]["torch"].values()) == 1


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
