"""aotriton in PyTorch: ``torch.ops.aotriton``, functions on top of it, and a backend for torch's own attention."""

from aotriton.torch.append import kv_append
from aotriton.torch.attention import attention
from aotriton.torch.gemm import gemm
from aotriton.torch.hints import hinted, hints, keep_hints
from aotriton.torch.sdpa import stats

__all__ = ["attention", "gemm", "hinted", "hints", "keep_hints", "kv_append", "stats"]
