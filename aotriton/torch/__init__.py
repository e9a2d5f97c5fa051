"""aotriton in PyTorch: ``torch.ops.aotriton``, functions on top of it, and a backend for torch's own attention."""

from aotriton.torch.append import kv_append
from aotriton.torch.attention import attention
from aotriton.torch.dropout import dropout_mask
from aotriton.torch.gemm import gemm
from aotriton.torch.hints import hinted, hints, keep_hints
from aotriton.torch.library import HAS_AUTOGRAD
from aotriton.torch.sdpa import stats

if not HAS_AUTOGRAD:
    from aotriton.torch import autograd  # noqa: F401 (registers it in Python)

__all__ = ["attention", "dropout_mask", "gemm", "hinted", "hints", "keep_hints", "kv_append", "stats"]
