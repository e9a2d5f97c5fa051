"""The example for transformers: a small model with random weights, on a CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import example_module  # noqa: E402
from torch._dynamo.testing import EagerAndRecordGraphs  # noqa: E402


@pytest.fixture(scope="module")
def example() -> Any:
    return example_module.example("transformers/attention.py")


@pytest.fixture
def calls(example: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool, int]]:
    """Rows of q, rows of k and the mask of each call that runs here."""
    seen: list[tuple[int, int, bool, int]] = []
    here = example.aotriton.torch.attention

    def noted(q: Any, k: Any, v: Any, **how: Any) -> Any:
        seen.append((q.shape[2], k.shape[2], how["causal"], how["window_left"]))
        return here(q, k, v, **how)

    monkeypatch.setattr(example.aotriton.torch, "attention", noted)
    return seen


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config).bfloat16().eval()


def logits(model: Any, name: str, **how: Any) -> Any:
    model.set_attn_implementation(name)
    with torch.no_grad():
        return model(torch.arange(22).view(2, 11), **how).logits


def test_a_llama_runs_on_it(model: Any, calls: list[tuple[int, int, bool, int]]) -> None:
    """Each layer's attention runs here, causal and with grouped heads; logits are those of torch's attention, within
    roundings.
    """
    torch.testing.assert_close(logits(model, "aotriton"), logits(model, "sdpa"), rtol=0.05, atol=0.05)
    assert calls == [(11, 11, True, -1)] * 2


def test_generation_runs_on_it(model: Any, calls: list[tuple[int, int, bool, int]]) -> None:
    """Prefill is causal; a single new token sees all keys that are cached."""
    model.set_attn_implementation("aotriton")
    prompt = torch.arange(1, 6)[None]
    model.generate(prompt, max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0)
    assert calls == [(5, 5, True, -1)] * 2 + [(1, 6, False, -1)] * 2 + [(1, 7, False, -1)] * 2


@pytest.mark.usefixtures("example")
def test_a_compiled_llama_runs_on_it(model: Any) -> None:
    """A compiler that traces the model finds the operator in each layer, and no mask."""
    torch._dynamo.reset()
    model.set_attn_implementation("aotriton")
    backend = EagerAndRecordGraphs()
    with torch.no_grad():
        torch.compile(model, backend=backend)(torch.arange(22).view(2, 11))
    nodes = [node for graph in backend.graphs for node in graph.graph.nodes]
    assert sum(node.target is torch.ops.aotriton.attn_fwd.default for node in nodes) == 2
    assert not [node for node in nodes if "scaled_dot_product" in str(node.target)]


def test_masks_run_on_it(model: Any, calls: list[tuple[int, int, bool, int]]) -> None:
    """What a padded batch's mask leaves out is left out: logits of all else are those of torch's attention."""
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, :4] = 0
    got, expected = (logits(model, name, attention_mask=mask)[mask == 1] for name in ("aotriton", "sdpa"))
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    assert calls == [(11, 11, False, -1)] * 2
    assert not torch.allclose(got[6], logits(model, "sdpa")[0, -1], atol=0.05)


def mistral(**more: Any) -> Any:
    torch.manual_seed(1)
    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=4, **more,
    )  # fmt: skip
    return transformers.MistralForCausalLM(config).bfloat16().eval()


def test_windows_run_on_it(calls: list[tuple[int, int, bool, int]]) -> None:
    """A window of four keys: logits are those of torch's attention with a mask, and differ from those without one."""
    windowed = mistral()
    got, expected = (logits(windowed, name) for name in ("aotriton", "sdpa"))
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    assert calls == [(11, 11, True, 3)] * 2
    windowed.config.sliding_window = None
    for layer in windowed.model.layers:
        layer.self_attn.config.sliding_window = None
    assert not torch.allclose(logits(windowed, "sdpa")[:, -1], expected[:, -1], atol=0.05)


def test_generation_with_a_window_runs_on_it(calls: list[tuple[int, int, bool, int]]) -> None:
    """New tokens are those of torch's attention; whatever the cache keeps, the last query is at the last key."""
    windowed, prompt = mistral().float().bfloat16(), torch.arange(1, 8)[None]
    tokens = {}
    for name in ("aotriton", "sdpa"):
        windowed.set_attn_implementation(name)
        tokens[name] = windowed.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert torch.equal(tokens["aotriton"], tokens["sdpa"])
    assert calls[:2] == [(7, 7, True, 3)] * 2
    assert {(rows, causal, left) for rows, _, causal, left in calls[2:]} == {(1, False, 3)}


def test_a_second_prompt_on_a_cache_runs_on_it(model: Any, calls: list[tuple[int, int, bool, int]]) -> None:
    """Queries behind the keys of a cache are causal at the last key: logits are those of one prompt."""
    model.set_attn_implementation("aotriton")
    tokens = torch.arange(22).view(2, 11)
    with torch.no_grad():
        whole = model(tokens).logits
        first = model(tokens[:, :6], use_cache=True)
        second = model(tokens[:, 6:], past_key_values=first.past_key_values)
    torch.testing.assert_close(second.logits, whole[:, 6:], rtol=0.05, atol=0.05)
    assert calls[-2:] == [(5, 11, True, -1)] * 2


def test_caps_run_on_it(calls: list[tuple[int, int, bool, int]]) -> None:
    """A model that caps its scores is one with the cap: logits are those of its own attention, which is not torch's."""
    config = transformers.Gemma2Config(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, attn_logit_softcapping=0.05, sliding_window=4, query_pre_attn_scalar=1,
    )  # fmt: skip
    torch.manual_seed(0)
    capped = transformers.Gemma2ForCausalLM(config).bfloat16().eval()
    got, expected = (logits(capped, name) for name in ("aotriton", "eager"))
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    assert calls == [(11, 11, True, 3), (11, 11, True, -1)]
    for layer in capped.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert not torch.allclose(logits(capped, "aotriton"), expected, rtol=0.05, atol=0.05)


def test_sinks_run_on_it(calls: list[tuple[int, int, bool, int]]) -> None:
    """A model with sinks, such as gpt-oss, has them: logits are those of its own attention, which is not torch's."""
    config = transformers.GptOssConfig(
        vocab_size=64, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=2, num_experts_per_tok=1, sliding_window=4,
    )  # fmt: skip
    torch.manual_seed(0)
    sunk = transformers.GptOssForCausalLM(config).bfloat16().eval()
    for layer in sunk.model.layers:
        layer.self_attn.sinks.data.normal_(2)
    got, expected = (logits(sunk, name) for name in ("aotriton", "eager"))
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    assert calls == [(11, 11, True, 3), (11, 11, True, -1)]
    for layer in sunk.model.layers:
        layer.self_attn.sinks.data.fill_(-100)
    assert not torch.allclose(logits(sunk, "aotriton"), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("windows", [False, True])
def test_continuous_batching_runs_on_it(
    example: Any, model: Any, windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that come in chunks beside decoding steps: new tokens are the likeliest ones, but for roundings. Keys in
    whole pages are read where they are, those of a window are gathered.
    """
    seen: list[tuple[int, int, bool, int]] = []  # sequences, queries, whether keys are in pages, and the window
    here = example.aotriton.torch.attention

    def noted(q: Any, k: Any, v: Any, **how: Any) -> Any:
        seen.append((len(how["cu_seqlens_q"]) - 1, q.shape[0], "block_table" in how, how["window_left"]))
        return here(q, k, v, **how)

    monkeypatch.setattr(example.aotriton.torch, "attention", noted)
    served = mistral() if windows else model
    prompts = [list(range(1, 1 + length)) for length in (5, 40, 3, 21)]
    batching = transformers.ContinuousBatchingConfig(
        block_size=16, num_blocks=32, max_batch_tokens=24, use_cuda_graph=False
    )
    greedy = transformers.GenerationConfig(max_new_tokens=4, do_sample=False, pad_token_id=0)
    served.set_attn_implementation("paged|aotriton")
    found = served.generate_batch(prompts, generation_config=greedy, continuous_batching_config=batching)
    exact = copy.deepcopy(served).double()
    exact.set_attn_implementation("sdpa")
    for prompt, made in zip(prompts, found.values(), strict=True):
        assert len(made.generated_tokens) == 4
        with torch.no_grad():
            wanted = exact(torch.tensor([prompt + made.generated_tokens])).logits[0, len(prompt) - 1 : -1]
        chosen = wanted.gather(1, torch.tensor(made.generated_tokens)[:, None])
        assert (wanted.amax(1) - chosen[:, 0]).max() < 0.02
    assert {left for *_, left in seen} == {3 if windows else -1}
    assert any(1 < sequences < queries for sequences, queries, paged, _ in seen if paged != windows)
    assert any(sequences == queries for sequences, queries, paged, _ in seen if paged != windows)
