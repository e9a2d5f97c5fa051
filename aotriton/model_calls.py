"""The attention calls that a model makes, from its ``config.json``, and what serves each of them. Needs no GPU.

``python3 -m aotriton.model_calls config.json --device h200`` reads a config as Hugging Face's transformers write it;
where pip installed the package, ``aotriton-explain --model config.json`` does the same. It needs neither transformers
nor a network.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aotriton

CONTEXT = 4096  # tokens, if neither the caller nor the config says fewer
ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet", "deberta", "vit", "deit",
            "siglip_vision_model", "clip_vision_model", "dinov2", "modernbert", "nomic_bert", "eurobert")  # fmt: skip
ALIBI = ("bloom", "mpt")  # Falcon says it by itself
SINKS = ("gpt_oss",)
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


class ConfigError(Exception):
    """A config that cannot be read, or that lacks what a call needs; the message names what is missing."""


@dataclass(frozen=True)
class Layer:
    """Attention as one kind of layer has it. ``window`` is the number of keys that a query sees, its own included; of a
    layer that is not causal, half of them are on each side. ``head_dim_v``: of values, where it is another one.

    ``reason`` says why the library has no call for it; None where there is one.
    """

    heads_q: int
    heads_k: int
    head_dim: int
    causal: bool = True
    window: int | None = None
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    dropout: float = 0.0
    head_dim_v: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Call:
    """A call that ``layers`` layers of the model make. ``arguments`` are those of ``aotriton.explain``."""

    step: str
    layers: int
    operator: str
    arguments: Mapping[str, Any]
    reason: str | None = None


@dataclass(frozen=True)
class Served:
    """What serves a call: images in the order of their launches, and microseconds of one layer and how they are known.

    ``microseconds`` is 0 where no time is known. ``checked``: the results of all images were checked on some GPU.
    ``reason`` says why nothing serves the call.
    """

    call: Call
    backend: str = ""
    images: tuple[str, ...] = ()
    microseconds: float = 0.0
    known: str = ""
    checked: bool = False
    reason: str | None = None


def layers_of(config: Mapping[str, Any]) -> Counter[Layer]:
    """The kinds of attention layers of a model, and how many layers are of each.

    ConfigError if the config does not say. Of a model with text and images, the layers of the text. A layer without
    attention does not count.
    """
    config = config | config["text_config"] if isinstance(config.get("text_config"), Mapping) else config
    if config.get("is_encoder_decoder"):
        raise ConfigError(
            f"{_model(config)} has an encoder and a decoder: only models with one stack of layers are read"
        )
    base = _layer(config)
    kinds = list(_kinds(config))
    found: Counter[Layer] = Counter()
    for kind in kinds:
        if kind == "sliding_attention":
            found[_changed(base, window=int(_needed(config, "sliding_window", "local_attention")))] += 1
        elif kind == "chunked_attention":
            found[_changed(base, reason="keys are in chunks (chunked_attention), and no kernel has such a mask")] += 1
        elif kind in ("full_attention", "attention"):
            found[base] += 1
    if not found:
        raise ConfigError(
            f"{_model(config)} has no layer with attention: its layers are {', '.join(sorted(set(kinds)))}"
        )
    return found


def calls_of(config: Mapping[str, Any], batch: int = 1, context: int | None = None, train: bool = False) -> list[Call]:
    """The calls of one step: of a model that generates a prefill of ``context`` tokens and the token behind them; of an
    encoder its forward; with ``train`` a forward and a backward of ``context`` tokens each.

    ``context`` is by default 4096, or what the model has at most. ConfigError if the config does not say enough.
    """
    most = config.get("max_position_embeddings") or config.get("n_positions") or CONTEXT
    length = context or min(CONTEXT, int(most))
    made = []
    for layer, count in layers_of(config).items():
        steps = ["forward", "backward"] if train else ["prefill", "decode"] if layer.causal else ["forward"]
        for step in steps:
            queries = 1 if step == "decode" else length
            arguments = _arguments(layer, batch, queries, length, train)
            if step == "backward":
                arguments |= {"dsinks": True} if layer.sinks else {}
            elif train:
                arguments |= {"logsumexp": True}
            operator = "attn_bwd" if step == "backward" else "attn_fwd"
            made.append(Call(step, count, operator, arguments, layer.reason))
    return sorted(made, key=lambda one: ("prefill", "decode", "forward", "backward").index(one.step))


def serve(call: Call, dtype: str, **target: Any) -> Served:
    """What serves a call on a GPU that ``target`` names as ``aotriton.explain`` does; needs the library, and no GPU."""
    if call.reason:
        return Served(call, reason=call.reason)
    try:
        chosen = aotriton.explain(call.operator, dtype=dtype, **target, **call.arguments)
    except aotriton.AotritonError as error:
        return Served(call, reason=str(error))
    first, alike = chosen[0], all(one["representative_is"] == "alike" for one in chosen)
    featured = any("LEVEL=" in one["functional"] for one in chosen)  # bins do not know how wide a window is
    microseconds, known = 0.0, "no time is known of such a call"
    if first["predicted_total_us"]:
        off = max(one["predicted_error"] for one in chosen)
        microseconds = first["predicted_total_us"]
        known = f"predicted, {f'off by {100 * off:.1f} % in the median' if off else 'compared with no measurement'}"
    elif first["total_us"] and alike and not featured:
        microseconds, known = first["total_us"], "measured"
    images, checked = tuple(one["image"] for one in chosen), all(one["certificate"] for one in chosen)
    return Served(call, first["backend"], images, microseconds, known, checked)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exit status: 0 if every call is served, 1 if one is not, 2 for a question without an answer."""
    parser = argparse.ArgumentParser(
        prog="aotriton-explain --model",
        description="Lists the attention calls of a model, and which image of this build serves each. Needs no GPU.",
    )
    parser.add_argument("model", type=Path, help="config.json of the model, or its folder")
    parser.add_argument("--device", required=True, help="part of the name of a product of this build, such as h200")
    parser.add_argument("--batch", type=_positive, default=1, help="sequences in a call (default: %(default)s)")
    parser.add_argument(
        "--context", type=_positive, help=f"tokens of a sequence (default: {CONTEXT}, or the model's most)"
    )
    parser.add_argument("--dtype", choices=[*DTYPES.values()], help="default: that of the config, else bf16")
    parser.add_argument("--train", action="store_true", help="the calls of a training step")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    try:
        config = read(options.model)
        calls = calls_of(config, options.batch, options.context, options.train)
        dtype = options.dtype or DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), "bf16")
        arch, product = product_named(options.device)
        served = [serve(call, dtype, arch=arch, product=product) for call in calls]
    except ConfigError as error:
        print(f"aotriton-explain: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(one) for one in served], indent=1))
    else:
        print(f"{_model(config)}, {dtype}, batch {options.batch}, on {product}")
        print(*_table(served), sep="\n")
    return 1 if any(one.reason for one in served) else 0


def product_named(part: str) -> tuple[str, str]:
    """Arch and whole name of the one product of this build with ``part`` in its name; ConfigError if none has it."""
    every = {name: arch for arch, names in aotriton.products().items() for name in names}
    found = [name for name in every if part.lower() in name.lower()]
    exact = [name for name in found if part.lower() == name.lower()] or found
    if len(exact) != 1:
        raise ConfigError(f"{len(exact)} products have {part!r} in their name: choose from {', '.join(every)}")
    return every[exact[0]], exact[0]


def read(path: Path) -> dict[str, Any]:
    """A config from a file, or from the folder that has it; ConfigError if there is none that can be read."""
    file = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: a config is an object of JSON, not {type(found).__name__}")
    return found


def _layer(config: Mapping[str, Any]) -> Layer:
    """Attention of a layer without a window."""
    heads = int(_needed(config, "num_attention_heads", "n_head", "n_heads", "num_heads"))
    heads_k = int(_first(config, "num_key_value_heads", "num_kv_heads", "n_head_kv", "attn_config.kv_n_heads") or heads)
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        heads_k = 1
    name = str(config.get("model_type", ""))
    softcap = float(config.get("attn_logit_softcapping") or 0)
    alibi = bool(config.get("alibi")) or name in ALIBI
    dropout = float(_first(config, "attention_dropout", "attn_pdrop", "attention_probs_dropout_prob") or 0)
    causal = name not in ENCODERS and config.get("is_causal") is not False
    if config.get("kv_lora_rank"):  # latent attention, whose keys and values are made before the call
        qk = int(_needed(config, "qk_nope_head_dim")) + int(_needed(config, "qk_rope_head_dim"))
        v = int(_needed(config, "v_head_dim"))
        return Layer(heads, heads, qk, causal, dropout=dropout, head_dim_v=v if v != qk else None)
    head_dim = _first(config, "head_dim", "attention_head_dim")
    width = int(head_dim) if head_dim else int(_needed(config, "hidden_size", "n_embd", "d_model")) // heads
    return Layer(heads, heads_k, width, causal, None, softcap, name in SINKS, alibi, dropout)


def _kinds(config: Mapping[str, Any]) -> Iterator[str]:
    """What transformers calls the attention of each layer, the first at the front."""
    count = int(_needed(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers"))
    if types := config.get("layer_types"):
        yield from map(str, types)
        return
    window = config.get("sliding_window") if config.get("use_sliding_window") is not False else None
    every = config.get("sliding_window_pattern") or (2 if config.get("model_type") == "gemma2" else 0)
    first = config.get("max_window_layers") if config.get("use_sliding_window") else 0
    for index in range(count):
        full = (every and (index + 1) % int(every) == 0) or index < int(first or 0)
        yield "sliding_attention" if window and not full else "full_attention"


def _arguments(layer: Layer, batch: int, queries: int, keys: int, train: bool) -> dict[str, Any]:
    """What ``aotriton.explain`` is asked for a call of the layer."""
    made: dict[str, Any] = {"batch": batch, "heads_q": layer.heads_q, "heads_k": layer.heads_k}
    made |= {"seqlen_q": queries, "seqlen_k": keys, "head_dim": layer.head_dim}
    if layer.head_dim_v:
        made["head_dim_v"] = layer.head_dim_v
    if layer.causal and queries > 1:
        made["causal"] = True
    if layer.window and not layer.causal:
        made |= {"window_left": layer.window // 2, "window_right": layer.window // 2}
    elif layer.window and layer.window < keys:
        made |= {"causal": True, "causal_variant": "bottom_right", "window_left": layer.window - 1}
    if layer.softcap:
        made["softcap"] = layer.softcap
    made |= {name: True for name, given in (("sinks", layer.sinks), ("alibi_slopes", layer.alibi)) if given}
    if train and layer.dropout:
        made |= {"dropout": layer.dropout, "dropout_seed": True, "dropout_offset": True}
    return made


def _table(served: Sequence[Served]) -> Iterator[str]:
    """Lines for each call, and whether all are served."""
    for one in served:
        call = one.call
        sizes = " ".join(f"{name}={value:g}" if type(value) is float else f"{name}={value}"
                         for name, value in call.arguments.items() if name != "batch")  # fmt: skip
        yield f"{call.step}, {call.layers} layers: {call.operator} {sizes}"
        if one.reason:
            yield f"    not served: {one.reason}"
            continue
        total = one.microseconds * call.layers / 1000
        time = f"{one.microseconds:,.1f} us a layer, {total:,.2f} ms in all, " if one.microseconds else ""
        yield f"    {one.backend}: {time}{one.known}; {'checked on a GPU' if one.checked else 'compiled only'}"
        yield from (f"    {name}" for name in one.images)
    missing = sum(1 for one in served if one.reason)
    yield f"{len(served)} kinds of calls, {f'{missing} not served' if missing else 'all served'}"


def _model(config: Mapping[str, Any]) -> str:
    return str(config.get("model_type") or "a model without model_type")


def _changed(layer: Layer, **values: Any) -> Layer:
    return Layer(**asdict(layer) | values)


def _first(config: Mapping[str, Any], *names: str) -> Any:
    """The first value that the config has under one of the names; a dot goes into what is nested."""
    for name in names:
        found: Any = config
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            return found
    return None


def _needed(config: Mapping[str, Any], *names: str) -> Any:
    found = _first(config, *names)
    if found is None:
        raise ConfigError(f"{_model(config)}: the config has no {' or '.join(names)}")
    return found


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


if __name__ == "__main__":
    sys.exit(main())
