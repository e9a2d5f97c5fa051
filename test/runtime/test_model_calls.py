"""A model's config.json says which attention calls it makes, and the build which image serves each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aotriton import installed, model_calls
from aotriton.model_calls import ConfigError, Layer, calls_of, layers_of, main, serve

LLAMA = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GPT_OSS = LLAMA | {
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "head_dim": 64,
    "num_hidden_layers": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
SMALL_HEADS = {"qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 32}  # of a build of small coverage


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (LLAMA, {Layer(32, 8, 64): 16}),
        (LLAMA | {"head_dim": 128}, {Layer(32, 8, 128): 16}),
        ({"text_config": LLAMA, "vision_config": {}, "model_type": "a"}, {Layer(32, 8, 64): 16}),
        ({"model_type": "gpt2", "n_head": 12, "n_embd": 768, "n_layer": 12, "attn_pdrop": 0.1},
         {Layer(12, 12, 64, dropout=0.1): 12}),
        (LLAMA | {"model_type": "mistral", "sliding_window": 4096}, {Layer(32, 8, 64, window=4096): 16}),
        (LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, {Layer(32, 8, 64): 16}),
        (LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 6},
         {Layer(32, 8, 64): 6, Layer(32, 8, 64, window=4096): 10}),
        (LLAMA | {"model_type": "gemma2", "sliding_window": 4096, "attn_logit_softcapping": 50.0},
         {Layer(32, 8, 64, softcap=50.0): 8, Layer(32, 8, 64, window=4096, softcap=50.0): 8}),
        (LLAMA | {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6},
         {Layer(32, 8, 64): 2, Layer(32, 8, 64, window=512): 14}),
        (GPT_OSS, {Layer(64, 8, 64, sinks=True): 2, Layer(64, 8, 64, window=128, sinks=True): 2}),
        ({"model_type": "bloom", "n_head": 16, "hidden_size": 1024, "n_layer": 24},
         {Layer(16, 16, 64, alibi=True): 24}),
        ({"model_type": "falcon", "num_attention_heads": 71, "hidden_size": 4544, "num_hidden_layers": 32,
          "multi_query": True, "new_decoder_architecture": False}, {Layer(71, 1, 64): 32}),
        ({"model_type": "bert", "num_attention_heads": 12, "hidden_size": 768, "num_hidden_layers": 12},
         {Layer(12, 12, 64, causal=False): 12}),
        ({"model_type": "modernbert", "num_attention_heads": 12, "hidden_size": 768, "num_hidden_layers": 2,
          "local_attention": 128, "layer_types": ["full_attention", "sliding_attention"]},
         {Layer(12, 12, 64, causal=False): 1, Layer(12, 12, 64, causal=False, window=128): 1}),
        (DEEPSEEK, {Layer(128, 128, 192, head_dim_v=128): 61}),
        (DEEPSEEK | {"v_head_dim": 192}, {Layer(128, 128, 192): 61}),
        (LLAMA | {"layer_types": ["linear_attention"] * 12 + ["full_attention"] * 4}, {Layer(32, 8, 64): 4}),
    ],
)  # fmt: skip
def test_layers_are_those_of_the_config(config: dict[str, Any], layers: dict[Layer, int]) -> None:
    """Heads, head dim, windows, softcap, sinks, ALiBi and dropout, under the names that models have for them."""
    assert layers_of(config) == layers


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "a model without model_type: the config has no num_attention_heads or n_head"),
        ({"model_type": "x", "num_attention_heads": 8}, "x: the config has no hidden_size or n_embd or d_model"),
        (LLAMA | {"is_encoder_decoder": True}, "llama has an encoder and a decoder"),
        (LLAMA | {"layer_types": ["sliding_attention"]}, "llama: the config has no sliding_window"),
        (LLAMA | {"layer_types": ["mamba"] * 3}, "llama has no layer with attention: its layers are mamba"),
    ],
)
def test_a_config_that_says_too_little_is_refused(config: dict[str, Any], message: str) -> None:
    """The message names what is missing."""
    with pytest.raises(ConfigError, match=message):
        layers_of(config)


def test_steps_are_those_of_generation_or_training() -> None:
    """A prefill and a token behind it, or a forward that keeps logsumexp and a backward; an encoder has a forward."""
    sizes = {"batch": 2, "heads_q": 32, "heads_k": 8, "seqlen_q": 512, "seqlen_k": 512, "head_dim": 64}
    prefill, decode = calls_of(LLAMA, batch=2, context=512)
    assert (prefill.step, prefill.operator, prefill.arguments) == ("prefill", "attn_fwd", sizes | {"causal": True})
    assert (decode.step, decode.operator, decode.arguments) == ("decode", "attn_fwd", sizes | {"seqlen_q": 1})
    forward, backward = calls_of(LLAMA | {"attention_dropout": 0.5}, batch=2, context=512, train=True)
    dropped = {"causal": True, "dropout": 0.5, "dropout_seed": True, "dropout_offset": True}
    assert (forward.operator, forward.arguments) == ("attn_fwd", sizes | dropped | {"logsumexp": True})
    assert (backward.operator, backward.arguments) == ("attn_bwd", sizes | dropped)
    (encoder,) = calls_of(LLAMA | {"model_type": "bert"}, batch=2, context=512)
    assert (encoder.step, encoder.arguments) == ("forward", sizes)
    (both,) = calls_of(LLAMA | {"model_type": "bert", "sliding_window": 128}, batch=2, context=512)
    assert both.arguments == sizes | {"window_left": 64, "window_right": 64}
    windows = [call.arguments.get("window_left") for call in calls_of(GPT_OSS, context=1000)]
    assert windows == [127, None, 127, None]
    assert {call.arguments["seqlen_k"] for call in calls_of(LLAMA)} == {model_calls.CONTEXT}
    assert {call.arguments["seqlen_k"] for call in calls_of(LLAMA | {"max_position_embeddings": 64})} == {64}


def test_each_call_has_its_image_or_a_reason() -> None:
    """What the build serves has images and whether they were checked; what no kernel computes has a reason."""
    target = {"arch": "sm_90", "product": "NVIDIA H200"}
    for call in calls_of(LLAMA, context=2048):
        found = serve(call, "bf16", **target)
        assert not found.reason
        assert found.microseconds > 0
        assert found.known.startswith(("predicted, off by ", "measured"))
        assert found.checked
    (features, *_) = calls_of(GPT_OSS, context=2048)
    found = serve(features, "bf16", **target)
    assert found.microseconds > 0
    assert found.known.startswith("predicted, off by ")
    assert found.images
    assert all("attn_fwd" in name for name in found.images)
    (chunked, *_) = calls_of(LLAMA | {"layer_types": ["chunked_attention"] * 16})
    assert "chunked_attention" in str(serve(chunked, "bf16", **target).reason)
    for call in calls_of(DEEPSEEK | SMALL_HEADS, context=2048, train=True):
        assert (call.arguments["head_dim"], call.arguments["head_dim_v"]) == (64, 32)
        found = serve(call, "bf16", **target)
        assert not found.reason
        assert found.images
    (large, *_) = calls_of(LLAMA | {"head_dim": 520})
    assert "head_dim 520, which must be from 1 to 512" in str(serve(large, "bf16", **target).reason)


def test_the_command_says_what_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 0 if every call is, 1 if one is not, and 2 for a file, a config or a product that cannot be used."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    assert main([str(tmp_path), "--device", "h200"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("llama, bf16, batch 1, on NVIDIA H200\nprefill, 16 layers: attn_fwd heads_q=32 ")
    assert told.endswith("2 kinds of calls, all served\n")
    assert main([str(file), "--device", "NVIDIA H200", "--json", "--context", "100", "--batch", "3"]) == 0
    prefill, _ = json.loads(capsys.readouterr().out)
    assert prefill["call"]["arguments"]["batch"] == 3
    assert prefill["images"]
    file.write_text(json.dumps(DEEPSEEK | SMALL_HEADS))
    assert main([str(file), "--device", "h200"]) == 0
    assert "head_dim=64 head_dim_v=32" in capsys.readouterr().out
    file.write_text(json.dumps(DEEPSEEK | {"v_head_dim": 264}))
    assert main([str(file), "--device", "h200"]) == 1
    assert "2 kinds of calls, 2 not served" in capsys.readouterr().out
    for wrong, message in (
        (["nowhere.json", "--device", "h200"], "nowhere.json"),
        ([str(file), "--device", "b200"], "0 products have 'b200' in their name: choose from NVIDIA H100"),
        ([str(file), "--device", "nvidia"], "2 products have 'nvidia' in their name"),
    ):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err
    file.write_text("[]")
    assert main([str(file), "--device", "h200"]) == 2
    assert "a config is an object of JSON, not list" in capsys.readouterr().err


def test_the_installed_program_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``aotriton-explain --model`` answers as the module does."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setattr("sys.argv", ["aotriton-explain", "--model", str(tmp_path), "--device", "h100"])
    assert installed.explain() == 0
    assert "all served" in capsys.readouterr().out
