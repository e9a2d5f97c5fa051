"""Attention of aotriton for vLLM, as its backend CUSTOM: ``vllm serve MODEL --attention-backend CUSTOM``."""

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend


def register() -> None:
    """What vLLM calls in each of its processes; the backend itself is imported once it is chosen."""
    register_backend(AttentionBackendEnum.CUSTOM, "aotriton_vllm.backend.AotritonBackend")
