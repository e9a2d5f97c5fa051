"""The backend: what it serves, the metadata of a batch, and a layer's call of aotriton.torch.attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm import _custom_ops, envs
from vllm.config import CUDAGraphMode, get_current_vllm_config_or_none
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

from aotriton.torch import attention
from aotriton.torch.hints import hints

# What vLLM calls a cache of float8_e4m3fn. It allocates one as uint8, with a scale of keys and of values in each layer.
NARROW = ("fp8", "fp8_e4m3")
MOST = torch.finfo(torch.float8_e4m3fn).max
NO_ALIBI = "no kernel has ALiBi together with pages"
# Of a token's keys. With fewer, reshape_and_cache_flash has less than a warp of threads, and where heads are apart, as
# here, its loop over heads steps by the number of whole warps, which is 0.
FEWEST_ELEMENTS = 32


class AotritonBackend(AttentionBackend):
    """Layers of decoders in float16 and bfloat16, with causal masks, on NVIDIA's sm_90. What the methods do not allow,
    vLLM refuses when it builds the model.
    """

    forward_includes_kv_cache_update = False
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *NARROW]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM looks its own member of the enumeration up by it

    @staticmethod
    def get_impl_cls() -> type[AotritonImpl]:
        return AotritonImpl

    @staticmethod
    def get_builder_cls() -> type[AotritonBuilder]:
        return AotritonBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """[num_blocks, num_kv_heads, block_size, 2 head_size]: a key, and its value behind it."""
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        # Blocks come first, also before layers: vLLM may then pad blocks, as models with several kinds of layers need.
        return (1, 0, 2, 3, 4) if include_num_layers_dimension else (0, 1, 2, 3)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 0 < head_size <= 256

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False  # might work, and was never tried

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        # ROCm has a 9.0, too.
        return torch.version.hip is None and (capability.major, capability.minor) == (9, 0)

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        """Why not, of what vLLM asks no other method about; None: it is served."""
        if kv_cache_dtype in ("float16", "bfloat16") and getattr(torch, kv_cache_dtype) != dtype:
            return f"a cache of {kv_cache_dtype} with queries of {dtype}, which must have one type"
        if kv_cache_dtype in NARROW and head_size % 16:
            return f"a cache of {kv_cache_dtype} with head_size {head_size}, which must be a multiple of 16"
        if kv_cache_dtype in NARROW and envs.VLLM_BATCH_INVARIANT:
            return f"no kernel has a cache of {kv_cache_dtype} together with batch invariance"
        config = get_current_vllm_config_or_none()
        model = None if config is None else config.model_config
        if model is not None and model.uses_alibi:
            return NO_ALIBI
        if model is not None and model.rswa_window is not None:
            return "no kernel has windows that leave a prefix visible"
        return None


@dataclass
class AotritonMetadata(AttentionMetadata):
    """A batch. On the device, all int32: ``query_start_loc``, [requests + 1], where the queries of each request begin;
    ``seq_lens``, [requests], how many keys it has; ``block_table``, [requests, blocks], where they are.
    """

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor


class AotritonBuilder(AttentionMetadataBuilder[AotritonMetadata]):
    # A replay reads lengths and tables on the device; the numbers of a capture are made the most that it may have.
    _cudagraph_support = AttentionCGSupport.ALWAYS

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> AotritonMetadata:
        """NotImplementedError for a batch that is not causal."""
        batch = common_attn_metadata
        if batch.causal is not True:
            raise NotImplementedError(f"aotriton: a batch with causal={batch.causal}, which must be True")
        return AotritonMetadata(
            num_actual_tokens=batch.num_actual_tokens,
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            block_table=batch.block_table_tensor,
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> AotritonMetadata:
        """Also calls each layer, because no image can be loaded during the capture, which follows. vLLM's warm-up may
        have loaded another one, as its max_seq_len is another.
        """
        metadata = self.build(0, common_attn_metadata)
        # The batch has a few queries for each request. A replay of a batch of any kind may have all of them in one.
        if self.vllm_config.compilation_config.cudagraph_mode.mixed_mode() == CUDAGraphMode.FULL:
            metadata.max_query_len = metadata.num_actual_tokens
        for name in self.layer_names:
            layer = self.vllm_config.compilation_config.static_forward_context[name]
            shape = metadata.num_actual_tokens, layer.num_heads, layer.head_size
            dtype = layer.dtype if layer.impl.narrow else layer.kv_cache.dtype
            q = layer.kv_cache.new_zeros(shape, dtype=dtype)
            layer.impl.forward(layer, q, None, None, layer.kv_cache, metadata, torch.empty_like(q))
        return metadata


class AotritonImpl(AttentionImpl[AotritonMetadata]):
    """One layer. ``sinks``, [num_heads]: a score of each head that has no value."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """NotImplementedError for tiny keys, and for slopes, of which vLLM's choice knows only from models that say so
        in their config.
        """
        if alibi_slopes is not None:
            raise NotImplementedError(f"aotriton: {NO_ALIBI}: choose another --attention-backend")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads * head_size < FEWEST_ELEMENTS:
            raise NotImplementedError(
                f"aotriton: keys of {self.num_kv_heads} x {head_size} elements: with fewer than {FEWEST_ELEMENTS} of a "
                "token, vLLM's kernel that writes the cache does not end"
            )
        self.kv_cache_dtype, self.narrow = kv_cache_dtype, kv_cache_dtype in NARROW
        # vLLM counts the query's own key, aotriton only those before it.
        self.window_left = -1 if sliding_window is None else sliding_window - 1
        self.softcap = logits_soft_cap or 0.0
        self.sinks = sinks
        self.hints = {"batch_invariant": True} if envs.VLLM_BATCH_INVARIANT else {}

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Writes key and value, [tokens or more, num_kv_heads, head_size], to the rows of the cache that slot_mapping,
        [tokens] int64, counts through all blocks; those of negative numbers are padding. A cache of 8 bits has them
        divided by the layer's scales.
        """
        keys, values = (one.transpose(1, 2) for one in kv_cache.split(self.head_size, dim=-1))
        if kv_cache.is_cuda:
            _custom_ops.reshape_and_cache_flash(
                key, value, keys, values, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale
            )
            return
        written = slot_mapping >= 0
        slots = slot_mapping[written]
        places = slots // keys.shape[1], slots % keys.shape[1]
        new_keys, new_values = (new[: len(written)][written] for new in (key, value))
        if self.narrow:
            new_keys, new_values = _narrow(new_keys, layer._k_scale), _narrow(new_values, layer._v_scale)
        keys[places], values[places] = new_keys, new_values

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: AotritonMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fills output, [tokens, num_heads, head_size] as query; rows of padding are not set. The cache already has the
        batch's own keys. Prompts, chunks of prompts and decoding steps are one call.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("aotriton: no kernel scales its output for fp8 or fp4")
        if attn_metadata is None:  # vLLM measures how much memory a batch takes, and has no cache yet
            return output.zero_()
        tokens = attn_metadata.num_actual_tokens
        scales: dict[str, torch.Tensor] = {}
        if self.narrow:
            kv_cache = kv_cache.view(torch.float8_e4m3fn)
            each = attn_metadata.seq_lens.shape[0], self.num_kv_heads
            scales = {"k_descale": layer._k_scale.expand(each), "v_descale": layer._v_scale.expand(each)}
        keys, values = kv_cache.split(self.head_size, dim=-1)
        with hints(**self.hints):
            output[:tokens] = attention(
                query[:tokens],
                keys,
                values,
                scale=self.scale,
                causal=True,
                causal_variant="bottom_right",
                window_left=self.window_left,
                softcap=self.softcap,
                sinks=self.sinks,
                cu_seqlens_q=attn_metadata.query_start_loc,
                max_seqlen_q=attn_metadata.max_query_len,
                max_seqlen_k=attn_metadata.max_seq_len,
                seqused_k=attn_metadata.seq_lens,
                block_table=attn_metadata.block_table,
                **scales,
            )
        return output


def _narrow(new: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """As vLLM's kernel writes it into a cache of 8 bits, in bytes: what is beyond the largest number becomes that."""
    return (new.float() / scale).clamp(-MOST, MOST).to(torch.float8_e4m3fn).view(torch.uint8)
