"""Some of the parameters that AOTriton tests its own attention with: `aotriton_matrix.py` draws as many as asked."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

from gpu.aotriton_matrix import run  # noqa: E402 - it needs torch

# All that is refused of the matrices, by what the reason says.
MISSING: tuple[str, ...] = ()


@pytest.mark.parametrize("seed", [1, 2])
def test_cases_are_served_as_they_should_be_or_refused_for_a_known_reason(seed: int) -> None:
    """400 cases, forward and backward, against float64; scales of 0 are among them."""
    report = run(400, seed)
    print(report)
    assert not report.failed
    assert report.of_scale_zero >= 20
    unknown = [why for why in report.refused if not any(one in why for one in MISSING)]
    assert not unknown, unknown


def test_logsumexp_is_of_scaled_scores() -> None:
    """Of unit vectors: log(15 + e^(1/4))."""
    eye = torch.eye(16, device="cuda", dtype=torch.float16)[None, None]
    out, lse = torch.empty_like(eye), torch.empty(1, 1, 16, device="cuda")
    aotriton.attn_fwd(eye, eye, eye, out, lse, sm_scale=0.25, stream=torch.cuda.current_stream().cuda_stream)
    assert torch.allclose(lse, torch.full_like(lse, 2.7901844978))


@pytest.mark.xfail(strict=True, reason="scores of 1e11 give NaN, as docs/pytorch.md says")
def test_scores_far_beyond_a_types_range_give_numbers() -> None:
    """Of a single key its value comes out, however large the score."""
    large = torch.full((1, 1, 1, 16), 133120.0, dtype=torch.bfloat16, device="cuda")
    out = torch.full_like(large, float("nan"))
    aotriton.attn_fwd(large, large, large, out, sm_scale=0.125, stream=torch.cuda.current_stream().cuda_stream)
    assert torch.equal(out, large)
