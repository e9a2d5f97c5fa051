"""Calls of attention with features, without a GPU: which the library takes, and which it refuses, by name.

Run by ctest, which says where the binding is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

from test_binding import Tensor  # noqa: E402 - it needs the binding

from aotriton.rules.flash.features import (  # noqa: E402
    ALIBI,
    BIAS,
    DROPOUT,
    FP8_KEYS,
    PACKED,
    PAGES,
    PAIRED,
    SOFTCAP,
    Feature,
    bits,
    refusal,
)

Arguments = dict[str, Any]
CHECKED = ("no_driver", "no_context", "no_winner", "unknown_arch", "workspace_too_small")  # what is asked after checks


class Apart(Tensor):
    """Made-up memory in which neighbours of the last dimension are two elements apart, or a dimension is broadcast."""

    def __init__(self, *shape: int, steps: tuple[int, ...], **options: Any) -> None:
        super().__init__(*shape, **options)
        self.steps = steps

    def stride(self) -> tuple[int, ...]:
        return self.steps


class Places:
    """Tensors that share no memory."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *shape: int, dtype: str = "bfloat16") -> Tensor:
        self.count += 1
        return Tensor(*shape, dtype=dtype, address=self.count << 32)


made = Places()


def forward() -> Arguments:
    """A plain call: batch 2, 4 heads on 2, seqlen 48, head_dim 64."""
    sizes = {"q": 4, "k": 2, "v": 2, "out": 4}
    return {name: made(2, heads, 48, 64) for name, heads in sizes.items()} | {
        "logsumexp": made(2, 4, 48, dtype="float32")
    }


def backward() -> Arguments:
    return forward() | {name: made(2, heads, 48, 64) for name, heads in (("dout", 4), ("dq", 4), ("dk", 2), ("dv", 2))}


def floats(*sizes: int) -> Tensor:
    return made(*sizes, dtype="float32")


def whole(count: int, dtype: str = "int32") -> Tensor:
    return made(count, dtype=dtype)


def bias(*sizes: int) -> Arguments:
    return {"bias": made(*(sizes or (2, 4, 48, 48)))}


def packed(backward: bool = False) -> Arguments:
    """What makes a plain call a packed one of two sequences."""
    sizes = {"q": 4, "k": 2, "v": 2, "out": 4} | ({"dout": 4, "dq": 4, "dk": 2, "dv": 2} if backward else {})
    changed: Arguments = {name: made(1, heads, 48, 64) for name, heads in sizes.items()}
    starts = {"cu_seqlens_q": whole(3), "cu_seqlens_k": whole(3)}
    return changed | {"logsumexp": floats(1, 4, 48), **starts, "max_seqlen_q": 28, "max_seqlen_k": 30}


def of_heads(head_dim: int, head_dim_v: int) -> Arguments:
    """What gives a plain call these head dims, of q and k, and of v."""
    of_qk, of_v = ({name: made(2, heads, 48, dim) for name, heads in names.items()} for dim, names in (
        (head_dim, {"q": 4, "k": 2, "dq": 4, "dk": 2}), (head_dim_v, {"v": 2, "out": 4, "dout": 4, "dv": 2})
    ))  # fmt: skip
    return of_qk | of_v


def dropped() -> Arguments:
    seeds = {name: whole(1, "int64") for name in ("dropout_seed", "dropout_offset")}
    return {"dropout": 0.1, **seeds}


GRADIENTS = ("dout", "dq", "dk", "dv")
Change = Callable[[], Arguments]
RIGHT: dict[str, Change] = {
    "packed": packed,
    "packed, used": lambda: packed() | {"seqused_q": whole(2), "seqused_k": whole(2)},
    "packed, dropped": lambda: packed() | dropped(),
    "packed, a slope for each head": lambda: packed() | {"alibi_slopes": floats(1, 4)},
    "used keys": lambda: {"seqused_k": whole(2)},
    "used queries": lambda: {"seqused_q": whole(2)},
    "bias, slopes, sinks and dropout": lambda: {
        **bias(),
        **dropped(),
        "alibi_slopes": floats(2, 4),
        "sinks": floats(4),
    },
    "bias for all": lambda: {"bias": Apart(2, 4, 48, 48, steps=(0, 0, 0, 1), address=1 << 50)},
    "slopes for all batches": lambda: {"alibi_slopes": Apart(2, 4, dtype="float32", steps=(0, 1), address=1 << 50)},
    "softcap and sinks": lambda: {"softcap": 30.0, "sinks": floats(4), "causal": True},
    "no dropout needs no seed": lambda: {"dropout": 0.0},
    "values of a smaller head dim": lambda: of_heads(64, 24),
    "values of a larger head dim": lambda: of_heads(40, 256) | {"sinks": floats(4)},
    "head dims that are no multiples of 8": lambda: of_heads(1, 255) | bias(),
    "wide heads": lambda: of_heads(512, 512) | bias(),
    "wide heads of odd head dims": lambda: of_heads(511, 257) | {"softcap": 30.0, "sinks": floats(4)},
}
WRONG: dict[str, tuple[Change, str, str]] = {
    "bias of packed": (lambda: packed() | bias(1, 4, 48, 48), "not_supported", "bias"),
    "cu_seqlens of q alone": (lambda: packed() | {"cu_seqlens_k": None}, "null_pointer", "cu_seqlens_k"),
    "cu_seqlens of k alone": (lambda: packed() | {"cu_seqlens_q": None}, "null_pointer", "cu_seqlens_q"),
    "packed with batch 2": (
        lambda: {name: one for name, one in packed().items() if name not in forward()},
        "invalid_shape",
        "batch",
    ),
    "packed without max_seqlen_q": (lambda: packed() | {"max_seqlen_q": 0}, "invalid_argument", "max_seqlen_q"),
    "packed without max_seqlen_k": (lambda: packed() | {"max_seqlen_k": 0}, "invalid_argument", "max_seqlen_k"),
    "negative max_seqlen_k": (lambda: packed() | {"max_seqlen_k": -3}, "invalid_argument", "max_seqlen_k"),
    "max_seqlen_q alone": (lambda: {"max_seqlen_q": 48}, "invalid_argument", "max_seqlen_q"),
    "max_seqlen_k alone": (lambda: {"max_seqlen_k": 48}, "invalid_argument", "max_seqlen_k"),
    "cu_seqlens in int64": (lambda: packed() | {"cu_seqlens_q": whole(3, "int64")}, "invalid_dtype", "cu_seqlens_q"),
    "starts of another number": (lambda: packed() | {"cu_seqlens_k": whole(2)}, "invalid_shape", "cu_seqlens_k"),
    "starts of no sequence": (
        lambda: packed() | {"cu_seqlens_q": whole(0), "cu_seqlens_k": whole(0)},
        "invalid_shape",
        "cu_seqlens_q",
    ),
    "seqused of another number": (lambda: {"seqused_k": whole(3)}, "invalid_shape", "seqused_k"),
    "seqused of another number, packed": (lambda: packed() | {"seqused_q": whole(3)}, "invalid_shape", "seqused_q"),
    "seqused in float32": (lambda: {"seqused_q": floats(2)}, "invalid_dtype", "seqused_q"),
    "no seed": (lambda: dropped() | {"dropout_seed": None}, "null_pointer", "dropout_seed"),
    "no offset": (lambda: dropped() | {"dropout_offset": None}, "null_pointer", "dropout_offset"),
    "seed in int32": (lambda: dropped() | {"dropout_seed": whole(1)}, "invalid_dtype", "dropout_seed"),
    "two seeds": (
        lambda: dropped() | {name: whole(2, "int64") for name in ("dropout_seed", "dropout_offset")},
        "invalid_shape",
        "dropout_seed",
    ),
    "dropout of everything": (lambda: dropped() | {"dropout": 1.0}, "invalid_argument", "dropout"),
    "negative dropout": (lambda: dropped() | {"dropout": -0.1}, "invalid_argument", "dropout"),
    "dropout that is no number": (lambda: dropped() | {"dropout": float("nan")}, "invalid_argument", "dropout"),
    "negative softcap": (lambda: {"softcap": -1.0}, "invalid_argument", "softcap"),
    "infinite softcap": (lambda: {"softcap": float("inf")}, "invalid_argument", "softcap"),
    "softcap that is no number": (lambda: {"softcap": float("nan")}, "invalid_argument", "softcap"),
    "softcap and bias": (lambda: {"softcap": 1.0, **bias()}, "not_supported", "softcap together with bias"),
    "softcap and slopes": (
        lambda: {"softcap": 1.0, "alibi_slopes": floats(2, 4)},
        "not_supported",
        "softcap together with alibi_slopes",
    ),
    "softcap and dropout": (lambda: {"softcap": 1.0, **dropped()}, "not_supported", "softcap together with dropout"),
    "bias of another length": (lambda: bias(2, 4, 48, 47), "invalid_shape", "bias"),
    "bias of heads of k": (lambda: bias(2, 2, 48, 48), "invalid_shape", "bias"),
    "bias in float32": (lambda: {"bias": floats(2, 4, 48, 48)}, "invalid_dtype", "bias"),
    "columns apart in bias": (
        lambda: {"bias": Apart(2, 4, 48, 48, steps=(18432, 4608, 96, 2), address=1 << 50)},
        "invalid_stride",
        "bias",
    ),
    "slopes of other heads": (lambda: {"alibi_slopes": floats(2, 2)}, "invalid_shape", "alibi_slopes"),
    "slopes of sequences": (lambda: packed() | {"alibi_slopes": floats(2, 4)}, "invalid_shape", "alibi_slopes"),
    "heads apart in slopes": (
        lambda: {"alibi_slopes": Apart(2, 4, dtype="float32", steps=(8, 2), address=1 << 50)},
        "invalid_stride",
        "alibi_slopes",
    ),
    "head dim 513": (lambda: of_heads(513, 64), "not_supported", "head_dim"),
    "values of head dim 513": (lambda: of_heads(64, 513), "not_supported", "head_dim_v"),
    "out of another head dim than v": (lambda: {"v": made(2, 2, 48, 72)}, "invalid_shape", "head_dim_v"),
    "sinks in bf16": (lambda: {"sinks": made(4)}, "invalid_dtype", "sinks"),
    "sinks of heads of k": (lambda: {"sinks": floats(2)}, "invalid_shape", "sinks"),
}
OF_BACKWARD: dict[str, tuple[Change, str, str]] = {
    "dbias without bias": (lambda: {"dbias": made(2, 4, 48, 48)}, "null_pointer", "bias"),
    "dsinks without sinks": (lambda: {"dsinks": floats(4)}, "null_pointer", "sinks"),
    "dbias through stride 0": (
        lambda: {**bias(), "dbias": Apart(2, 4, 48, 48, steps=(0, 2304, 48, 1), address=1 << 50)},
        "invalid_stride",
        "dbias",
    ),
    "dbias of another length": (lambda: {**bias(), "dbias": made(2, 4, 47, 48)}, "invalid_shape", "dbias"),
    "dbias in float32": (lambda: {**bias(), "dbias": floats(2, 4, 48, 48)}, "invalid_dtype", "dbias"),
    "dsinks in bf16": (lambda: {"sinks": floats(4), "dsinks": made(4)}, "invalid_dtype", "dsinks"),
    "dsinks of heads of k": (lambda: {"sinks": floats(4), "dsinks": floats(2)}, "invalid_shape", "dsinks"),
}


def of_forward(arguments: Arguments) -> Arguments:
    return {name: one for name, one in arguments.items() if name not in GRADIENTS}


def refused(call: Callable[..., None], arguments: Arguments, code: str, words: str) -> None:
    with pytest.raises(aotriton.AotritonError) as raised:
        call(**arguments)
    assert raised.value.code == code, raised.value
    assert re.search(rf"\b{words}\b", str(raised.value)), raised.value


def taken(call: Callable[..., None], arguments: Arguments) -> None:
    """No check refuses the call: what it lacks is a GPU, or an image."""
    with pytest.raises(aotriton.AotritonError) as raised:
        call(**arguments)
    assert raised.value.code in CHECKED, raised.value


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_name_what_is_wrong(what: str) -> None:
    """A forward that makes no sense, or that no kernel has, raises its own error and names the argument."""
    change, code, words = WRONG[what]
    refused(aotriton.attn_fwd, forward() | of_forward(change()), code, words)


@pytest.mark.parametrize("what", WRONG)
def test_backward_refuses_what_forward_refuses(what: str) -> None:
    """With the same error."""
    change, code, words = WRONG[what]
    changed = change()
    of_packed = packed(backward=True) if "q" in changed and "dq" not in changed else {}
    refused(aotriton.attn_bwd, backward() | of_packed | changed, code, words)


@pytest.mark.parametrize("what", OF_BACKWARD)
def test_gradients_that_are_wrong_are_named(what: str) -> None:
    """dbias and dsinks are refused where they have nothing to be a gradient of, or cannot be written."""
    change, code, words = OF_BACKWARD[what]
    refused(aotriton.attn_bwd, backward() | change(), code, words)


@pytest.mark.parametrize("what", RIGHT)
def test_what_makes_sense_is_taken(what: str) -> None:
    """The checks let calls with features pass, forward and backward, with dbias and dsinks where they have them."""
    changed = RIGHT[what]()
    taken(aotriton.attn_fwd, forward() | of_forward(changed))
    of_packed = packed(backward=True) if "q" in changed and "dq" not in changed else {}
    more = {"dbias": made(2, 4, 48, 48)} if "bias" in changed else {}
    more |= {"dsinks": floats(4)} if "sinks" in changed else {}
    taken(aotriton.attn_bwd, backward() | of_packed | changed | more)


OF_8_BITS = {"sm_90": "float8_e4m3fn_k", "gfx942": "float8_e4m3fnuz_k"}
EXPLAINED: dict[Feature, Arguments] = {
    SOFTCAP: {"softcap": 30.0},
    BIAS: {"bias": True},
    ALIBI: {"alibi_slopes": True},
    DROPOUT: {"dropout": 0.1, "dropout_seed": True, "dropout_offset": True},
    PACKED: {"cu_seqlens_q": True, "cu_seqlens_k": True, "starts": 3, "max_seqlen_q": 40, "max_seqlen_k": 48},
    FP8_KEYS: {},
    PAGES: {
        "block_table": True,
        "seqused_k": True,
        "sequences": 2,
        "pages": 9,
        "page_size": 16,
        "pages_of_sequence": 4,
    },
}


@pytest.mark.parametrize("name", ["attn_fwd", "attn_bwd"])
def test_what_no_kernel_has_together_is_refused_as_the_table_says(name: str) -> None:
    """explain() refuses each set of features of the table in its words, as calls do, on every arch; what the table does
    not refuse, no check does.
    """
    assert EXPLAINED.keys() == {*PAIRED}
    of_operator = [one for one in PAIRED if one not in (PAGES, FP8_KEYS) or name == "attn_fwd"]
    for chosen in (one for count in range(len(PAIRED) + 1) for one in combinations(of_operator, count)):
        asked: Arguments = {"batch": 2 - (PACKED in chosen), "heads": 4, "seqlen_q": 48, "seqlen_k": 48, "head_dim": 64}
        for one in chosen:
            asked |= EXPLAINED[one]
        if PAGES in chosen:  # no operand but a bias has seqlen_k then
            without = ("cu_seqlens_k",) if BIAS in chosen else ("cu_seqlens_k", "seqlen_k")
            asked = {key: value for key, value in asked.items() if key not in without}
        said = refusal(bits(chosen))
        for arch in ("sm_90", "gfx942"):
            narrow = {OF_8_BITS[arch]: True} if FP8_KEYS in chosen else {}
            try:
                aotriton.explain(name, arch=arch, dtype="bf16", **asked, **narrow)
                message = None
            except aotriton.AotritonError as error:
                message = str(error) if error.code not in CHECKED else None
            assert message == (said and f"{name}: {said}"), chosen


@pytest.mark.parametrize("product", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
@pytest.mark.parametrize("name", ["attn_fwd", "attn_bwd"])
def test_a_backend_without_any_time_runs_no_call_that_another_one_has_a_time_for(name: str, product: str) -> None:
    """The first backend's kernels are neither fitted nor measured for packed calls with dropout. Such a call runs on
    the backend that is predicted to be the fastest.
    """
    by_prediction = 0
    for chosen in (one for count in range(3) for one in combinations((DROPOUT, ALIBI, PACKED), count)):
        asked: Arguments = {"batch": 1, "heads": 4, "seqlen_q": 4096, "seqlen_k": 4096, "head_dim": 64}
        for one in chosen:
            asked |= EXPLAINED[one]
        if PACKED in chosen:
            asked |= {"max_seqlen_q": 1500, "max_seqlen_k": 1500}
        told = aotriton.explain(name, arch="sm_90", product=product, dtype="bf16", **asked)[0]
        times = {one["name"]: (one["predicted_us"], one["median_us"]) for one in told["backends"]}
        predicted = {which: time for which, (time, _) in times.items() if time}
        if any(times[told["backends"][0]["name"]]) or not predicted:
            continue
        assert told["backend"] == min(predicted, key=lambda which: predicted[which]), (chosen, times)
        by_prediction += 1
    assert by_prediction, "a packed call with dropout, at least"


@pytest.mark.parametrize("arch", OF_8_BITS)
def test_keys_of_8_bits_are_explained(arch: str) -> None:
    """Explanations of keys of 8 bits, in rows and in pages, name the image that reads them; of another arch's type and
    of a backward there is none.
    """
    sizes: Arguments = {"batch": 2, "heads_q": 8, "heads_k": 2, "seqlen_q": 1, "head_dim": 64}
    pages = EXPLAINED[PAGES]
    for more, spelled in (({"seqlen_k": 4096}, "KEYS=fp8e4"), (pages, "KEYS=pages_fp8e4")):
        first = aotriton.explain("attn_fwd", arch=arch, dtype="bf16", **sizes, **more, **{OF_8_BITS[arch]: True})[0]
        assert (first["backend"], spelled in first["functional"]) == ("decode", True), first["functional"]
    (other,) = {*OF_8_BITS.values()} - {OF_8_BITS[arch]}
    sizes["seqlen_k"] = 4096
    with pytest.raises(aotriton.AotritonError):
        aotriton.explain("attn_fwd", arch=arch, dtype="bf16", **sizes, **{other: True})
    with pytest.raises(aotriton.AotritonError, match=f"attn_bwd has no {OF_8_BITS[arch]}"):
        aotriton.explain("attn_bwd", arch=arch, dtype="bf16", **sizes, **{OF_8_BITS[arch]: True})


def test_float32_is_taken() -> None:
    """Forward and backward, alone and with features; but all tensors of a call have one type."""
    sizes = {"q": 4, "k": 2, "v": 2, "out": 4}
    of_forward = {name: floats(2, heads, 48, 64) for name, heads in sizes.items()}
    gradients = {"dout": 4, "dq": 4, "dk": 2, "dv": 2}
    of_backward = of_forward | {name: floats(2, heads, 48, 64) for name, heads in gradients.items()}
    for change in ({}, dropped(), {"window_left": 3, "sinks": floats(4)}, {"bias": floats(2, 4, 48, 48)}):
        taken(aotriton.attn_fwd, forward() | of_forward | change)
        taken(aotriton.attn_bwd, backward() | of_backward | change)
    refused(aotriton.attn_fwd, forward() | of_forward | {"k": made(2, 2, 48, 64)}, "invalid_dtype", "k")
    refused(aotriton.attn_bwd, backward() | of_forward, "invalid_dtype", "dout")
