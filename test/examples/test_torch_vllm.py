"""examples/vllm with vLLM itself: its registry, its checks of a backend, its attention layer and its caches.

Without a GPU, vLLM 0.26.0 of PyPI, installed without its dependencies, imports as far as its attention layer and the
model runner's functions for caches, once the Python packages that it asks for are there, and runs them on its
unspecified platform. vllm.platforms.cuda is not imported, because it needs libcuda.so.1: what that platform asks the
backend when it chooses one, validate_configuration, is tested, and its choice is not. No test runs a whole model.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)
pytest.importorskip("vllm", reason="vllm is not installed")
if not metadata.version("vllm").startswith("0.26."):
    pytest.skip("the package is for vLLM 0.26", allow_module_level=True)

from vllm.config import (  # noqa: E402
    AttentionConfig,
    CUDAGraphMode,
    DeviceConfig,
    ModelConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.forward_context import set_forward_context  # noqa: E402
from vllm.model_executor.layers.attention.attention import Attention  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402
from vllm.utils.torch_utils import set_default_torch_dtype  # noqa: E402
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402
from vllm.v1.attention.selector import AttentionSelectorConfig  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec  # noqa: E402
from vllm.v1.worker.gpu.attn_utils import _reshape_attention_kv_cache  # noqa: E402

from aotriton.torch import stats  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vllm"
BLOCKS, COLUMNS, HEADS, HEADS_K, HEAD_DIM = 40, 10, 4, 2, 64
# With a GPU, vLLM has its layer's operator there alone.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What vLLM finds as CUSTOM once its plugin is called."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    importlib.import_module("aotriton_vllm").register()
    yield AttentionBackendEnum.CUSTOM.get_class()
    AttentionBackendEnum.CUSTOM.clear_override()


def test_its_name_is_vllms(backend: Any) -> None:
    """By it --attention-backend chooses, and the layer finds its member of the registry."""
    assert AttentionConfig(backend="CUSTOM").backend is AttentionBackendEnum[backend.get_name()]


def test_vllm_finds_the_installed_plugin(tmp_path: Path) -> None:
    """Once the package is installed, vLLM's loader of plugins registers the backend."""
    if int(metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("the package is built by setuptools 77 or newer")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    source = tmp_path / "vllm"
    source.mkdir()
    (source / "pyproject.toml").write_text((EXAMPLE / "pyproject.toml").read_text())
    (source / "aotriton_vllm").mkdir()
    for module in (EXAMPLE / "aotriton_vllm").glob("*.py"):
        (source / "aotriton_vllm" / module.name).write_text(module.read_text())
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(source)], check=True)
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path / "site")!r})
from vllm.plugins import load_general_plugins
from vllm.v1.attention.backends.registry import AttentionBackendEnum
assert not AttentionBackendEnum.CUSTOM.is_overridden()
load_general_plugins()
print(AttentionBackendEnum.CUSTOM.get_path())
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.split()[-1] == "aotriton_vllm.backend.AotritonBackend"


def reasons(backend: Any, capability: tuple[int, int] = (9, 0), **how: Any) -> list[str]:
    """Why vLLM does not choose the backend for a layer: [] where it does."""
    plain = {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": None}
    asked = AttentionSelectorConfig(**(plain | how))
    found = backend.validate_configuration(device_capability=DeviceCapability(*capability), **asked._asdict())
    return list(found)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"dtype": torch.float16, "kv_cache_dtype": "float16"},
        {"kv_cache_dtype": "bfloat16", "block_size": 16},
        {"head_size": 8, "block_size": 48},
        {"head_size": 256, "has_sink": True, "has_sliding_window": True},
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "fp8_e4m3", "dtype": torch.float16, "head_size": 80, "block_size": 32},
    ],
    ids=str,
)
def test_served_layers_pass_vllms_checks(backend: Any, how: dict[str, Any]) -> None:
    assert reasons(backend, **how) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"head_size": 36}, "head_size not supported"),
        ({"head_size": 264}, "head_size not supported"),
        ({"dtype": torch.float32}, "dtype not supported"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype not supported"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "kv_cache_dtype not supported"),
        (
            {"kv_cache_dtype": "fp8", "head_size": 72},
            "a cache of fp8 with head_size 72, which must be a multiple of 16",
        ),
        (
            {"kv_cache_dtype": "float16"},
            "a cache of float16 with queries of torch.bfloat16, which must have one type",
        ),
        ({"block_size": 24}, "block_size not supported"),
        ({"use_mla": True}, "MLA not supported"),
        ({"use_sparse": True}, "sparse not supported"),
        ({"use_mm_prefix": True}, "partial multimodal token full attention not supported"),
        ({"use_per_head_quant_scales": True}, "per-head quant scales not supported"),
        ({"use_non_causal": True}, "non-causal attention not supported"),
        ({"use_kv_connector": True}, "KV connector not supported"),
        ({"use_pcp": True}, "PCP not supported"),
        ({"attn_type": "encoder"}, "attention type encoder not supported"),
        ({"attn_type": "encoder_only"}, "attention type encoder_only not supported"),
        ({"attn_type": "encoder_decoder"}, "attention type encoder_decoder not supported"),
        ({"capability": (8, 0)}, "compute capability not supported"),
        ({"capability": (10, 0)}, "compute capability not supported"),
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_by_vllms_checks(backend: Any, how: dict[str, Any], why: str) -> None:
    (found,) = reasons(backend, **how)
    assert found == why


def test_a_batch_invariant_vllm_has_no_cache_of_8_bits(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    why = "no kernel has a cache of fp8 together with batch invariance"
    assert reasons(backend, kv_cache_dtype="fp8") == [why]
    assert reasons(backend) == []


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, []),
        ({"architectures": ["BloomForCausalLM"], "model_type": "bloom"}, ["no kernel has ALiBi together with pages"]),
        (
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rswa_window": 8},
            ["no kernel has windows that leave a prefix visible"],
        ),
    ],
    ids=["llama", "bloom", "a visible prefix"],
)
def test_models_are_refused_by_their_config(
    backend: Any, tmp_path: Path, config: dict[str, Any], why: list[str]
) -> None:
    """While vLLM builds a model, the backend asks the model's config for what vLLM's checks do not ask."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(sizes | config))
    model = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, max_model_len=64, dtype="bfloat16")
    with set_current_vllm_config(VllmConfig(model_config=model, device_config=DeviceConfig(device=DEVICE))):
        assert reasons(backend) == why
    assert reasons(backend) == []


class Layer:
    """vLLM's attention layer on the backend, with a cache of random numbers that vLLM's runner lays out."""

    def __init__(
        self, backend: Any, block_size: int = 16, head_dim: int = HEAD_DIM, padding: int = 0,
        dtype: Any = torch.bfloat16, heads_k: int = HEADS_K, cache: str = "auto", **how: Any,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        self.config = VllmConfig(device_config=DeviceConfig(device=DEVICE))
        self.config.cache_config.cache_dtype = cache
        self.narrow = cache != "auto"
        self.block_size, self.dtype = block_size, dtype
        self.scale, self.heads_k, self.head_dim = 0.2, heads_k, head_dim
        self.window = how.get("per_layer_sliding_window")
        self.softcap, self.sinks = how.get("logits_soft_cap"), how.get("sinks")
        with set_current_vllm_config(self.config), set_default_torch_dtype(dtype):
            self.layer = Attention(
                HEADS, head_dim, self.scale, heads_k, prefix="layer", attn_backend=backend,
                cache_config=self.config.cache_config, **how,
            )  # fmt: skip
        self.layer.to(DEVICE)
        if self.narrow:
            self.layer._k_scale.fill_(0.5)
            self.layer._v_scale.fill_(0.25)
        stored = torch.uint8 if self.narrow else dtype
        sizes = {"block_size": block_size, "num_kv_heads": heads_k, "head_size": head_dim, "dtype": stored}
        spec = FullAttentionSpec(**sizes)
        if padding:
            spec = FullAttentionSpec(**sizes, page_size_padded=spec.page_size_bytes + padding)
        element = torch.float8_e4m3fn if self.narrow else dtype
        count = BLOCKS * spec.page_size_bytes // element.itemsize
        raw = torch.randn(count, device=DEVICE).to(element).view(torch.int8)
        shape = backend.get_kv_cache_shape(BLOCKS, block_size, heads_k, head_dim)
        order = backend.get_kv_cache_stride_order()
        self.layer.kv_cache = _reshape_attention_kv_cache(raw, spec, shape, order, BLOCKS, None)
        self.builder = backend.get_builder_cls()(spec, ["layer"], self.config, torch.device(DEVICE))

    def stored(self, k: Any, v: Any) -> Any:
        """A key and its value as the cache has them, one behind the other."""
        if not self.narrow:
            return torch.cat([k, v], -1)
        parts = [x.float() / scale for x, scale in ((k, self.layer._k_scale), (v, self.layer._v_scale))]
        return torch.cat(parts, -1).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)

    def read(self, rows: Any) -> tuple[Any, Any]:
        """Keys and values of rows of the cache."""
        if not self.narrow:
            return rows[..., : self.head_dim], rows[..., self.head_dim :]
        keys, values = rows.view(torch.float8_e4m3fn).float().split(self.head_dim, -1)
        return keys * self.layer._k_scale, values * self.layer._v_scale

    def __call__(self, batch: Any, q: Any, k: Any, v: Any) -> Any:
        """The layer's result for vLLM's CommonAttentionMetadata."""
        metadata = self.builder.build(0, batch)
        slots = {"layer": batch.slot_mapping}
        with set_forward_context({"layer": metadata}, self.config, slot_mapping=slots), torch.inference_mode():
            return self.layer(*(one.flatten(1) for one in (q, k, v))).unflatten(1, (HEADS, -1))


class Batch:
    """Requests of (queries, keys), whose blocks lie anywhere but in the first one, which vLLM keeps for padding."""

    def __init__(self, layer: Layer, requests: list[tuple[int, int]], padding: int = 0) -> None:
        size = layer.block_size
        free = iter((torch.randperm(BLOCKS - 1) + 1).tolist())
        self.requests = requests
        self.blocks: list[list[int]] = [[next(free) for _ in range(-(-keys // size))] for _, keys in requests]
        table = torch.zeros(len(requests), COLUMNS, dtype=torch.int32)
        slots: list[int] = []
        for row, (queries, keys) in enumerate(requests):
            table[row, : len(self.blocks[row])] = torch.tensor(self.blocks[row], dtype=torch.int32)
            slots += [self.slot(row, key, size) for key in range(keys - queries, keys)]
        self.starts = torch.tensor([0, *(queries for queries, _ in requests)]).cumsum(0).int()
        lengths = torch.tensor([keys for _, keys in requests], dtype=torch.int32)
        self.tokens, self.slots = len(slots), slots
        self.common = CommonAttentionMetadata(
            query_start_loc=self.starts.to(DEVICE),
            query_start_loc_cpu=self.starts,
            seq_lens=lengths.to(DEVICE),
            num_reqs=len(requests),
            num_actual_tokens=self.tokens,
            max_query_len=max(queries for queries, _ in requests),
            max_seq_len=max(keys for _, keys in requests),
            block_table_tensor=table.to(DEVICE),
            slot_mapping=torch.tensor(slots + [-1] * padding, dtype=torch.int64).to(DEVICE),
        )

    def slot(self, row: int, key: int, size: int) -> int:
        """Where the cache has the key of a request, counted in rows through all blocks."""
        return self.blocks[row][key // size] * size + key % size

    def padded(self, layer: Layer, tokens: int, requests: int) -> Any:
        """As vLLM replays a graph of so many tokens and requests: those of padding have neither queries nor keys, and
        the longest lengths are upper bounds.
        """
        given, more = self.common, requests - self.common.num_reqs
        pad, slots = torch.nn.functional.pad, given.slot_mapping[: self.tokens]
        return given.replace(
            query_start_loc=pad(given.query_start_loc, (0, more), value=self.tokens),
            query_start_loc_cpu=pad(given.query_start_loc_cpu, (0, more), value=self.tokens),
            seq_lens=pad(given.seq_lens, (0, more)),
            block_table_tensor=pad(given.block_table_tensor, (0, 0, 0, more)),
            slot_mapping=pad(slots, (0, tokens - self.tokens), value=-1),
            num_reqs=requests,
            num_actual_tokens=tokens,
            max_query_len=tokens,
            max_seq_len=COLUMNS * layer.block_size,
        )

    def rows(self, layer: Layer, row: int, cache: Any) -> tuple[Any, Any]:
        """The request's keys and values, [heads_k, keys, head_dim] each."""
        places = [
            divmod(self.slot(row, key, layer.block_size), layer.block_size) for key in range(self.requests[row][1])
        ]
        found = torch.stack([cache[block, :, at] for block, at in places], 1)
        return layer.read(found)


def tokens_of(layer: Layer, rows: int) -> list[Any]:
    """q, k and v of so many rows, as parts of one product, which is how models make them."""
    heads = HEADS, layer.heads_k, layer.heads_k
    made = torch.randn(rows, sum(heads), layer.head_dim, device=DEVICE).to(layer.dtype)
    return list(made.split(heads, 1))


def formula(layer: Layer, q: Any, keys: Any, values: Any) -> Any:
    """Attention of one request in float64: q is [queries, heads, head_dim], the last query is at the last key."""
    group = HEADS // layer.heads_k
    q, keys, values = q.double().transpose(0, 1), keys.double(), values.double()
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    scores = layer.scale * q @ keys.mT
    if layer.softcap:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    queries, number = scores.shape[1:]
    before = torch.arange(number - queries, number)[:, None] - torch.arange(number)[None]
    seen = before >= 0
    if layer.window is not None:
        seen &= before < layer.window
    scores = scores.masked_fill(~seen.to(scores.device), -torch.inf)
    if layer.sinks is not None:
        sinks = layer.sinks.double()[:, None, None].expand(HEADS, queries, 1)
        scores = torch.cat([scores, sinks], 2)
        return (scores.softmax(2)[:, :, :-1] @ values).transpose(0, 1)
    return (scores.softmax(2) @ values).transpose(0, 1)


PREFILL = [(37, 37), (5, 5), (16, 16)]
DECODE = [(1, 40), (1, 1), (1, 97), (1, 16)]
CHUNKS = [(20, 50), (33, 65)]
MIXED = [(1, 90), (23, 23), (1, 17), (14, 60), (2, 35)]


def check(layer: Layer, requests: list[tuple[int, int]], padding: int = 0) -> None:
    """Results are the formula's on the cache as it is then; new rows are in it, and nothing else of it has changed."""
    batch = Batch(layer, requests, padding)
    q, k, v = tokens_of(layer, batch.tokens + padding)
    before = layer.layer.kv_cache.clone()
    out = layer(batch.common, q, k, v)
    size, cache = layer.block_size, layer.layer.kv_cache
    for token, slot in enumerate(batch.slots):
        before[slot // size, :, slot % size] = layer.stored(k[token], v[token])
    assert torch.equal(cache, before)
    assert out.shape == q.shape
    for row, (start, end) in enumerate(zip(batch.starts[:-1], batch.starts[1:], strict=True)):
        expected = formula(layer, q[start:end], *batch.rows(layer, row, cache))
        rounding = 2e-3 if layer.dtype == torch.float16 else 1.5e-2
        torch.testing.assert_close(out[start:end].double(), expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("requests", [PREFILL, DECODE, CHUNKS, MIXED], ids=["prefill", "decode", "chunks", "mixed"])
@pytest.mark.parametrize("cache", ["auto", "fp8"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"per_layer_sliding_window": 9},
        {"logits_soft_cap": 1.5},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 4.0]).bfloat16()},
        {"per_layer_sliding_window": 20, "logits_soft_cap": 3.0, "sinks": torch.zeros(4)},
    ],
    ids=["plain", "window", "softcap", "sinks", "all"],
)
def test_a_layer_is_the_formula(backend: Any, requests: list[tuple[int, int]], how: dict[str, Any], cache: str) -> None:
    """With two query heads for each of the keys', and blocks in any order."""
    how = {name: one.to(DEVICE) if name == "sinks" else one for name, one in how.items()}
    check(Layer(backend, cache=cache, **how), requests)


@pytest.mark.parametrize(
    "how",
    [
        {"block_size": 48},
        {"head_dim": 8, "heads_k": 4},
        {"head_dim": 256},
        {"heads_k": 1},
        {"heads_k": 4},
        {"dtype": torch.float16},
        {"padding": 256},
        {"cache": "fp8", "head_dim": 16, "block_size": 48},
        {"cache": "fp8_e4m3", "dtype": torch.float16, "padding": 256},
    ],
    ids=str,
)
def test_a_cache_may_have_any_shape_that_vllms_checks_pass(backend: Any, how: dict[str, Any]) -> None:
    """Other sizes of blocks and heads, and blocks with bytes between them, which models of several kinds of layers
    have.
    """
    layer = Layer(backend, **how)
    assert backend.indexes_kv_by_block_stride()
    assert backend.get_kv_cache_block_dim(layer.block_size, layer.heads_k, layer.head_dim) == 0
    check(layer, MIXED)


def test_padding_counts_not(backend: Any) -> None:
    """Rows behind the batch's tokens, whose slots are -1, are written nowhere."""
    check(Layer(backend), MIXED, padding=7)


def test_a_padded_batch_counts_as_it_is(backend: Any) -> None:
    """The metadata of a capture are those of any batch; requests of padding change nothing."""
    layer = Layer(backend)
    batch = Batch(layer, MIXED)
    rows, padded = tokens_of(layer, 96), batch.padded(layer, 96, 8)
    expected = layer(batch.common, *(one[: batch.tokens] for one in rows))
    cache = layer.layer.kv_cache.clone()
    assert layer.builder.build_for_cudagraph_capture(padded) == layer.builder.build(0, padded)
    out = layer(padded, *rows)
    torch.testing.assert_close(out[: batch.tokens], expected)
    assert torch.equal(layer.layer.kv_cache, cache)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU")
def test_a_graph_follows_other_batches(backend: Any) -> None:
    """A graph of one mixed batch is right for another one, whose lengths, tables and slots are in the same memory."""
    layer = Layer(backend)
    captured, other = (Batch(layer, requests) for requests in (MIXED, CHUNKS))
    rows, given, later = tokens_of(layer, 96), captured.padded(layer, 96, 8), other.padded(layer, 96, 8)
    layer(Batch(layer, DECODE).common, *tokens_of(layer, len(DECODE)))  # loads what writes the cache
    layer.builder.build_for_cudagraph_capture(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(given, *rows)
    for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
        getattr(given, name).copy_(getattr(later, name))
    graph.replay()
    torch.testing.assert_close(out[: other.tokens], layer(later, *rows)[: other.tokens])


@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_images_are_loaded_before_a_capture(backend: Any, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """vLLM's metadata for a capture are made right before it: then each layer is called once with the same sizes."""
    layer, module = Layer(backend, cache=cache, per_layer_sliding_window=9), sys.modules[backend.__module__]
    seen, here = [], module.attention

    def noted(q: Any, *others: Any, **how: Any) -> Any:
        seen.append((q.shape, q.dtype, how["max_seqlen_q"], how["max_seqlen_k"], how["window_left"]))
        return here(q, *others, **how)

    monkeypatch.setattr(module, "attention", noted)
    batch, before = Batch(layer, DECODE), layer.layer.kv_cache.clone()
    layer.builder.build_for_cudagraph_capture(batch.common.replace(max_seq_len=128))
    assert seen == [((4, HEADS, HEAD_DIM), torch.bfloat16, 1, 128, 8)]
    assert torch.equal(layer.layer.kv_cache, before)


def test_vllm_may_capture_any_batch_and_shares_no_prefix(backend: Any) -> None:
    """Graphs of decoding steps and of mixed batches; no cascade attention."""
    layer = Layer(backend)
    assert layer.builder.get_cudagraph_support(layer.config, layer.builder.kv_cache_spec) is AttentionCGSupport.ALWAYS
    asked = {"use_alibi": False, "use_sliding_window": False, "use_local_attention": False, "dcp_world_size": 1}
    sizes = {"num_query_heads": HEADS, "num_kv_heads": HEADS_K, "num_sms": 132}
    assert not layer.builder.use_cascade_attention(4096, torch.ones(64).numpy(), **sizes, **asked)


def test_batch_invariance_is_a_hint(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With vLLM's VLLM_BATCH_INVARIANT calls have the hint; on a GPU a request then has the same bits alone as in a
    batch.
    """
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    before = stats()["hints"].get("attn_fwd", {}).get("batch_invariant=1", 0)
    layer = Layer(backend)
    check(layer, MIXED)
    assert stats()["hints"]["attn_fwd"]["batch_invariant=1"] == before + 1
    batch = Batch(layer, MIXED)
    rows = tokens_of(layer, batch.tokens)
    together, given = layer(batch.common, *rows), batch.common
    for row, (begin, end) in enumerate(zip(batch.starts[:-1], batch.starts[1:], strict=True)):
        queries = int(end - begin)
        one = given.replace(
            query_start_loc=torch.tensor([0, queries], dtype=torch.int32, device=DEVICE),
            query_start_loc_cpu=torch.tensor([0, queries], dtype=torch.int32),
            seq_lens=given.seq_lens[row : row + 1],
            block_table_tensor=given.block_table_tensor[row : row + 1],
            slot_mapping=given.slot_mapping[begin:end],
            num_reqs=1,
            num_actual_tokens=queries,
            max_query_len=queries,
            max_seq_len=batch.requests[row][1],
        )
        alone = layer(one, *(part[begin:end] for part in rows))
        if DEVICE == "cuda":
            assert torch.equal(alone, together[begin:end]), batch.requests[row]
        torch.testing.assert_close(alone, together[begin:end])


@pytest.mark.parametrize("mode", ["NONE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE", "FULL"])
def test_a_graph_of_mixed_batches_is_captured_with_all_queries_in_one_request(backend: Any, mode: str) -> None:
    """vLLM's batch for a capture has a few queries for each request. A replay may have all in one, where vLLM captures
    batches that are not of decoding steps alone.
    """
    layer = Layer(backend)
    layer.config.compilation_config.cudagraph_mode = CUDAGraphMode[mode]
    batch = Batch(layer, CHUNKS)
    made = layer.builder.build_for_cudagraph_capture(batch.common)
    assert made.max_query_len == (batch.tokens if mode == "FULL" else batch.common.max_query_len)
    assert made.max_seq_len == batch.common.max_seq_len


def test_a_profiling_run_has_zeros(backend: Any) -> None:
    """vLLM runs a model before there is a cache, to measure its memory."""
    layer = Layer(backend)
    q, k, v = tokens_of(layer, 4)
    with set_forward_context(None, layer.config, slot_mapping={}):
        assert not layer.layer(*(one.flatten(1) for one in (q, k, v))).any()


def test_slopes_are_refused_when_the_layer_is_made(backend: Any) -> None:
    """Of models whose config does not say that they have ALiBi."""
    with pytest.raises(NotImplementedError, match="no kernel has ALiBi together with pages: choose another"):
        Layer(backend, alibi_slopes=[0.5] * HEADS)


def test_keys_of_less_than_a_warp_are_refused_when_the_layer_is_made(backend: Any) -> None:
    """On a GPU, vLLM's kernel that writes the cache would not end."""
    with pytest.raises(NotImplementedError, match="aotriton: keys of 2 x 8 elements: with fewer than 32 of a token"):
        Layer(backend, head_dim=8)


def test_a_batch_that_is_not_causal_is_refused(backend: Any) -> None:
    layer = Layer(backend)
    with pytest.raises(NotImplementedError, match="a batch with causal=False, which must be True"):
        layer.builder.build(0, Batch(layer, DECODE).common.replace(causal=False))
