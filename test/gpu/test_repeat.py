"""The same bits every time: forward, and backward where it was asked for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
aotriton = pytest.importorskip("aotriton._binding")

RUNS = 1000


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(0)
    shape = (2, 4, 1500, 128)
    names = ("q", "k", "v", "dout")
    made = {name: torch.randn(shape, generator=generator, device="cuda").bfloat16() for name in names}
    made |= {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda") for name in ("out", "dq", "dk", "dv")}
    made["lse"] = torch.empty(shape[:3], device="cuda")
    return made


def test_a_thousand_causal_forwards_have_the_same_bits(tensors: dict[str, torch.Tensor]) -> None:
    results = [tensors[name] for name in ("out", "lse")]

    def forward() -> None:
        for result in results:
            result.fill_(torch.nan)
        inputs = (tensors[name] for name in ("q", "k", "v"))
        stream = torch.cuda.current_stream().cuda_stream
        aotriton.attn_fwd(*inputs, *results, sm_scale=0.1, causal=True, stream=stream)

    forward()
    first = [result.clone() for result in results]
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(RUNS):
        forward()
        for result, wanted in zip(results, first, strict=True):
            differing += (result != wanted).sum()
    assert int(differing) == 0


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_deterministic_backwards_have_the_same_bits(head_dim: int) -> None:
    generator = torch.Generator(device="cuda").manual_seed(1)
    shape = (2, 4, 1500, head_dim)
    q, k, v, dout = (torch.randn(shape, generator=generator, device="cuda").bfloat16() for _ in range(4))
    out, *results = (torch.empty_like(q) for _ in range(4))
    lse = torch.empty(shape[:3], device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    aotriton.attn_fwd(q, k, v, out, lse, sm_scale=0.1, stream=stream)
    arguments = (q, k, v, out, dout, lse, *results)
    size = aotriton.attn_bwd_workspace_size(*arguments, sm_scale=0.1, deterministic=True)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    first = None
    for _ in range(50):
        for result in results:
            result.fill_(torch.nan)
        aotriton.attn_bwd(*arguments, workspace, sm_scale=0.1, deterministic=True, stream=stream)
        first = first or [result.clone() for result in results]
        assert all(torch.equal(result, wanted) for result, wanted in zip(results, first, strict=True))
