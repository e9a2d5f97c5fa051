"""Hints from Python without a GPU: their two forms, what is refused, and what is told of them.

Run by ctest, which says where the binding is.
"""

from __future__ import annotations

from typing import Any

import pytest
from ctest_environment import on_standin_driver

aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

SIZES = {"batch": 4, "heads": 32, "seqlen_q": 4096, "seqlen_k": 4096, "head_dim": 64}
EVERYTHING = {
    "schedule": "dfs",
    "workspace_limit": 1 << 20,
    "deterministic": True,
    "latency": 1,
    "throughput": False,
    "backend": "portable",
    "image": None,
    "exclude": ["hopper", "nothing"],
    "colour": "red",
}


def explained(hints: Any, op: str = "attn_fwd") -> dict[str, Any]:
    """What is told of the first kernel on an H200."""
    choice: dict[str, Any] = aotriton.explain(op, arch="sm_90", product="NVIDIA H200", dtype="bf16", hints=hints,
                                                **SIZES)[0]  # fmt: skip
    return choice


def test_text_and_dict_say_the_same() -> None:
    """Flags are bools or 0 and 1, lists are lists, and None is a hint that is not given."""
    text = "schedule=dfs workspace_limit=1048576 deterministic latency backend=portable exclude=hopper,nothing colour"
    of_text, of_dict = explained(text), explained(EVERYTHING)
    assert of_text == of_dict
    assert of_text["backend"] == "portable"
    assert explained(None)["backend"] == explained("")["backend"] == explained({})["backend"]
    assert explained({"deterministic": False})["hints"] == {}


def test_outcomes_are_told_by_name() -> None:
    """Each hint that is given, whether it was honoured, and why; without hints there are none."""
    outcomes = explained(EVERYTHING)["hints"]
    assert list(outcomes) == ["backend", "exclude", "workspace_limit", "schedule", "deterministic", "latency", "colour"]
    assert {name for name, told in outcomes.items() if not told["honoured"]} == {"colour"}
    assert outcomes["colour"] == {"honoured": False, "why": "there is no hint of this name"}
    assert explained(None)["hints"] == {}
    throughput = explained("throughput")["hints"]["throughput"]
    assert not throughput["honoured"]
    assert "no cost model" in throughput["why"]


def test_a_batch_invariant_call_has_a_backend_of_its_own() -> None:
    """Of the forward one that serves calls of any sizes; what it lacks is refused, and the backward has none."""
    for sizes in ({}, {"seqlen_q": 1}, {"causal": True}, {"batch": 1, "seqlen_k": 100}):
        told: Any = aotriton.explain("attn_fwd", arch="sm_90", product="NVIDIA H200", dtype="bf16",
                                     hints="batch_invariant", **SIZES | sizes)  # fmt: skip
        assert told[0]["backend"] == "invariant"
        assert told[0]["hints"]["batch_invariant"] == {"honoured": True, "why": ""}
        assert "batch_invariant" in told[0]["backends"][0]["refusal"]
    with pytest.raises(Exception, match=r"^attn_fwd: the hint batch_invariant is for fp16 and bf16"):
        aotriton.explain("attn_fwd", arch="sm_90", dtype="bf16", hints="batch_invariant", bias=True, **SIZES)
    assert not explained("batch_invariant", "attn_bwd")["hints"]["batch_invariant"]["honoured"]
    assert explained(None)["backend"] != "invariant"


def test_an_image_that_is_asked_for_is_launched() -> None:
    """The name that an explanation gives forces that image; another functional's is refused by the library."""
    image = explained("backend=portable")["image"]
    assert explained({"image": image})["image"] == image != explained(None)["image"]
    assert image not in explained({"exclude": [image]})["image"]
    with pytest.raises(aotriton.AotritonError, match="no image of it is left") as raised:
        aotriton.explain("attn_fwd", arch="sm_90", dtype="bf16", hints={"image": image}, causal=True, **SIZES)
    assert raised.value.code == "not_supported"


@pytest.mark.parametrize(
    ("error", "message", "hints"),
    [
        (TypeError, "^hints must be text or a dict, got int", 3),
        (TypeError, "^hints must be text or a dict, got list", ["schedule=dfs"]),
        (TypeError, "^hints: a name must be text, got int", {3: "dfs"}),
        (TypeError, "^hints: schedule must be text, a whole number, a flag or a list of names, got float",
         {"schedule": 1.5}),
        (TypeError, "^hints: exclude must be a list of names, and has one of type int", {"exclude": ["a", 3]}),
        (ValueError, "^hints: schedule is 'up', which must be auto, bfs or dfs", {"schedule": "up"}),
        (ValueError, "^hints: schedule is 'up', which must be auto, bfs or dfs", "schedule=up"),
        (ValueError, "^hints: workspace_limit is '-1'", {"workspace_limit": -1}),
        (ValueError, "^hints: deterministic is '2', which must be 0 or 1", {"deterministic": 2}),
        (ValueError, "^hints: backend has a blank in its value", {"backend": "portable schedule=dfs"}),
        (ValueError, "^hints: exclude has a blank in its value", {"exclude": ["a b"]}),
        (ValueError, "^hints: a=b has a blank in its value, or is no name", {"a=b": "c"}),
        (ValueError, "^hints: the text has a zero", "latency\0schedule=up"),
        (ValueError, "^hints: backend has 40 letters", {"backend": "a" * 40}),
    ],
)  # fmt: skip
def test_wrong_hints_are_named(error: type[Exception], message: str, hints: Any) -> None:
    """TypeError or ValueError with the hint's name, from explanations and calls alike, before anything is launched."""
    with pytest.raises(error, match=message):
        explained(hints)
    for function in (
        aotriton.attn_fwd,
        aotriton.attn_fwd_supported,
        aotriton.attn_fwd_hint_outcomes,
        aotriton.attn_bwd_workspace_size,
    ):
        with pytest.raises(error, match=message):
            function(hints=hints)


# Where libcuda.so.1 is test/runtime/vendor's. Prints what calls with hints raised or returned, and their launches.
ON_STANDIN = """
import ctypes, json
import aotriton
from test_binding import Tensor, forward

driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_calls.restype = ctypes.c_char_p

def call(function, hints):
    driver.fake_cuda_calls()
    try:
        result = function(**forward(), hints=hints)
    except aotriton.AotritonError as error:
        result = str(error)
    done = [one.decode(errors="replace").split() for one in driver.fake_cuda_calls().split(b";") if one]
    return {"result": result, "launches": [one for one in done if one[0] == "launch"]}

hints = [None, "backend=portable", {"backend": "hopper"}, "backend=none", "schedule=dfs colour", "deterministic"]
seen = [[call(function, one) for one in hints] for function in
        (aotriton.attn_fwd, aotriton.attn_fwd_supported, aotriton.attn_fwd_hint_outcomes)]
print(json.dumps(seen))
"""


def test_calls_carry_hints() -> None:
    """What a hint refuses is refused in a real call, too; the others launch one kernel, and outcomes are told without a
    launch.
    """
    calls, supported, outcomes = on_standin_driver(ON_STANDIN)
    refusal = (
        "attn_fwd: hint backend=none: its backends are portable, hopper, hopper_slim, portable_slim, hopper_features, "
        "decode, split, hopper_planned, invariant, hopper_latent, latent, hopper_fp8"
    )
    assert [one["result"] for one in calls] == [None, None, None, refusal, None, None]
    assert [len(one["launches"]) for one in calls] == [1, 1, 1, 0, 1, 1]
    portable, hopper = (one["launches"][0] for one in calls[1:3])
    assert portable != hopper
    assert [one["result"] for one in supported] == [True, True, True, False, True, True]
    told = [one["result"] for one in outcomes]
    assert told[0] == {}
    assert told[1] == told[2] == {"backend": {"honoured": True, "why": ""}}
    assert told[3] == refusal
    assert [told[4][name]["honoured"] for name in ("schedule", "colour")] == [True, False]
    assert told[5]["deterministic"]["honoured"]
    assert not any(one["launches"] for one in (*supported, *outcomes))
