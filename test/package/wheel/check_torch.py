"""torch's operators of the wheel, as a user meets them: run by .ci/wheel in an environment with torch."""

from __future__ import annotations

import torch

import aotriton.torch
from aotriton.torch.library import HAS_AUTOGRAD

q, k, v = (torch.randn(1, 2, 5, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
out = aotriton.torch.attention(q, k, v, causal=True)
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
out.sum().backward()
assert q.grad is not None
assert torch.ops.aotriton.gemm(q.detach()[0], k.detach()[0].mT).shape == (2, 5, 5)
aotriton.torch.stats()
assert HAS_AUTOGRAD  # in C++, for the torch that built it
print(f"torch's operators of the wheel are right with torch {torch.__version__}")
