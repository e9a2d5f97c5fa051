"""What the generator knows of a model's call is what the library makes of it: functionals, backend, images and time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ctest_environment import from_ctest

import aotriton
from aotriton import model_coverage
from aotriton.codegen import read_database
from aotriton.codegen.call_times import CallTimes
from aotriton.codegen.plan import plan
from aotriton.codegen.reach import Placed, place
from aotriton.model_coverage import read_models
from aotriton.rules.arch import ARCHS
from aotriton.rules.database import Decisions
from aotriton.rules.expression import evaluate
from aotriton.rules.family import family, operator
from aotriton.rules.kernel import Functional

LLAMA = {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
         "num_hidden_layers": 2}  # fmt: skip
ENCODER = {"model_type": "modernbert", "num_attention_heads": 12, "hidden_size": 768, "num_hidden_layers": 2,
           "local_attention": 128, "layer_types": ["full_attention", "sliding_attention"]}  # fmt: skip
LATENT = {"model_type": "deepseek_v3", "num_attention_heads": 16, "num_hidden_layers": 2, "kv_lora_rank": 512,
          "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 32}  # fmt: skip
# Of a build of small coverage, which has head dim 64. On a MI300X, tensors of the first reach 2 GiB.
ENTRIES: list[dict[str, Any]] = [
    {"config": LLAMA, "batch": [1, 64], "context": [1, 70000]},
    {"config": LLAMA | {"model_type": "gpt_oss", "sliding_window": 128}, "batch": [1, 32], "context": [64, 8192]},
    {"config": LLAMA | {"model_type": "mistral", "sliding_window": 4096}, "batch": [1, 64], "context": [16, 51200]},
    {"config": LLAMA | {"attention_dropout": 0.1}, "batch": 8, "context": [16, 512]},
    {"config": LLAMA | {"model_type": "bloom"}, "batch": 8, "context": [16, 512]},
    {"config": LLAMA | {"head_dim": 60, "attn_logit_softcapping": 50.0}, "batch": 8, "context": [16, 5120]},
    {"config": ENCODER, "batch": [1, 8], "context": [16, 5120]},
    {"config": LATENT, "batch": [1, 64], "context": [16, 51200]},
]
REFUSED = [
    {"config": LLAMA | {"head_dim": 264}, "batch": 2, "context": [16, 128]},
    {"config": LLAMA | {"num_key_value_heads": 5}, "batch": 2, "context": [16, 128]},
    {"config": LLAMA | {"attn_logit_softcapping": 30.0, "attention_dropout": 0.5}, "batch": 2, "context": 64},
    {"config": LLAMA | {"model_type": "bloom", "attn_logit_softcapping": 30.0}, "batch": 2, "context": 64},
]


def placed(folder: Path, entries: Sequence[dict[str, Any]]) -> list[Placed]:
    """The calls of the entries on every product of the build."""
    path = folder / "models.json"
    path.write_text(json.dumps({"models": [{"for": "both", **one} for one in entries]}))
    products = products_of_build()
    return [
        place(operator(call.call.operator), call, product)
        for call in read_models(path).calls
        for of_arch in products.values()
        for product in of_arch
    ]


@cache
def products_of_build() -> Any:
    with Decisions(from_ctest("AOTRITON_DATABASE")) as opened:
        return read_database.products_in([opened], [one.arch for one in ARCHS])


def explained(one: Placed) -> list[dict[str, Any]]:
    target = {"arch": one.product.arch, "product": one.product.name, "dtype": one.call.dtype}
    found: list[dict[str, Any]] = aotriton.explain(one.call.call.operator, **target, **one.call.call.arguments)
    return found


def is_launched(functional: Functional, one: Placed) -> bool:
    """Whether its kernel is timed and has programs in the call: one that combines a single part has none."""
    work = functional.kernel.work
    return functional.kernel.timed and (work is None or evaluate(work.rows, one.environment) > 0)


def test_calls_are_what_the_library_makes_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each call, the plan of default coverage has the backend, functionals and images that the build chooses, and
    the same predicted time. Kernels that a call does not launch are not explained.
    """
    monkeypatch.setattr(model_coverage, "DRAWN", 6)
    calls = placed(tmp_path, ENTRIES)
    assert not [one.reason for one in calls if one.reason]
    flash, products = family("flash"), products_of_build()
    with Decisions(from_ctest("AOTRITON_DATABASE")) as opened:
        winners, timings, _, spills = read_database.read(opened, flash.kernels, products)
        models = read_database.models_in(opened, products)
    reached = [functional for one in calls for kernels in one.backends.values() for functional in kernels]
    made = plan(flash.operators, products, "default", winners, timings, spills, models, dict.fromkeys(reached, ()))
    times = CallTimes(made, products, winners, timings, models)
    levels, predicted = set(), 0
    for one in calls:
        by_backend = times.of(one)
        totals = {number: sum(min(of.values()) for of in kernels) for number, kernels in by_backend.items()}
        best = min(totals, key=lambda number: totals[number])
        kernels = zip(one.backends[best], by_backend[best], strict=True)
        launched = [(functional, images) for functional, images in kernels if is_launched(functional, one)]
        asked = [(str(functional), min(images, key=lambda image: images[image])[1]) for functional, images in launched]
        told = explained(one)
        timed = [(each["functional"], each["image"]) for each in told if each["functional"]]
        assert (told[0]["backend"], timed) == (one.operator.backends[best].name, asked), str(one.call)
        if total := told[0]["predicted_total_us"]:
            assert totals[best] == pytest.approx(total, rel=1e-5), str(one.call)
            predicted += 1
        levels.add((one.call.scalars["level"], one.lead.addressing))
    assert predicted > len(calls) / 4
    assert {level for level, _ in levels} == {0, 2, 4, 5}
    assert {"descriptor", "offset32", "general"} == {addressing for _, addressing in levels}


def test_what_the_library_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    """Head dims, groups and features that no kernel has together."""
    calls = [one for one in placed(tmp_path, REFUSED) if one.reason]
    assert len(calls) > len(REFUSED)
    for one in calls:
        with pytest.raises(aotriton.AotritonError) as caught:
            explained(one)
        assert str(caught.value) == one.reason
