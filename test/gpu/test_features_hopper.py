"""Attention with features on Hopper: the backends `hopper_features` against float64, whatever is faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch
from attention_cases import Case
from gpu.test_features import CASES, FORWARD, UNEVEN, Prepared, assert_sequences_apart

pytestmark = pytest.mark.skipif(
    bool(torch.version.hip) or not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="the kernels are for Hopper, and the GPU is none",
)

MASKS: tuple[dict[str, Any], ...] = (
    {"causal": True, "causal_variant": "bottom_right"},
    {"causal": True},
    {"window": (100, 70)},
    {"window": (200, -1), "causal_variant": "bottom_right"},
    {"window": (0, 0)},
)
OF_FORWARD = [
    Case((q,) * 2, (k,) * 2, group=group, head_dim=head_dim, dtype=dtype, number=k, layout="rows", **mask)
    for q, k, group, head_dim, dtype in (
        (300, 1000, 4, 128, "bf16"), (1000, 300, 1, 64, "fp16"), (700, 701, 16, 64, "bf16"),
        (2, 500, 8, 128, "fp16"), (650, 2100, 3, 32, "bf16"), (650, 700, 2, 256, "bf16"),
    )
    for mask in MASKS
] + [
    Case((600,) * 2, (700,) * 2, group=group, head_dim=head_dim, head_dim_v=head_dim_v, dtype=dtype, layout="rows",
         **mask)
    for group, head_dim, head_dim_v, dtype in (
        (1, 192, 128, "bf16"), (4, 128, 192, "fp16"), (16, 64, 128, "bf16"), (2, 128, 64, "bf16"),
    )
    for mask in ({}, MASKS[0])
]  # fmt: skip
OF_BACKWARD = [
    Case((q,) * 2, (k,) * 2, group=group, head_dim=head_dim, dtype=dtype, number=k, layout="rows", **mask)
    for q, k, group, head_dim, dtype in (
        (300, 1000, 8, 128, "bf16"), (1000, 300, 7, 128, "fp16"), (701, 700, 16, 40, "bf16"),
        (70, 500, 16, 104, "fp16"), (600, 600, 4, 128, "bf16"),
    )
    for mask in MASKS[:4]
    if q != k or not mask.get("causal")
] + [
    Case((600,) * 2, (700,) * 2, group=group, head_dim=head_dim, head_dim_v=head_dim_v, dtype=dtype, layout="rows",
         **mask)
    for group, head_dim, head_dim_v, dtype in ((8, 128, 64, "bf16"), (16, 40, 128, "fp16"), (4, 64, 32, "bf16"))
    for mask in ({}, MASKS[0])
] + [Case((600,) * 2, (700,) * 2, group=3, head_dim=128, causal=True, sinks=True, layout="rows")] + [
    Case((q,) * 2, (k,) * 2, group=group, head_dim=head_dim, dtype=dtype, number=k, layout="rows", dropout=dropout,
         **mask)
    for q, k, group, head_dim, dtype, dropout in (
        (600, 600, 1, 128, "bf16", 0.1), (1000, 300, 3, 64, "fp16", 0.5), (700, 701, 2, 104, "bf16", 0.9),
    )
    for mask in ({}, *MASKS[:4])
]  # fmt: skip


OF_FULL = [  # ALiBi, and dropout where no heads share keys in twos
    Case((q,) * 2, (k,) * 2, group=group, head_dim=head_dim, dtype=dtype, number=k, layout="rows", **weights, **mask)
    for q, k, group, head_dim, dtype in (
        (300, 1000, 1, 128, "bf16"), (1000, 300, 3, 64, "fp16"), (700, 701, 1, 96, "fp16"), (650, 2100, 3, 32, "bf16"),
    )
    for weights in (
        {"dropout": 0.1}, {"alibi": "heads"}, {"alibi": "batch", "dropout": 0.5}, {"alibi": "heads", "sinks": True},
    )
    for mask in ({}, *MASKS[:4])
] + [
    Case((600,) * 2, (700,) * 2, group=group, head_dim=128, head_dim_v=64, alibi="batch", layout="rows", **mask)
    for group in (2, 16)
    for mask in ({}, MASKS[0])
] + [
    Case((700, 1, 0, 640, 64, 65, 1000), (700, 130, 5, 640, 64, 0, 129), packed=True, beyond=70, group=group,
         head_dim=head_dim, dtype=dtype, number=head_dim, alibi=alibi, dropout=dropout, **mask)
    for group, head_dim, dtype, alibi, dropout in (
        (3, 128, "fp16", "heads", 0.2), (5, 64, "bf16", "", 0.1), (8, 128, "bf16", "heads", 0.0),
    )
    for mask in ({}, *MASKS[:2], MASKS[3])
] + [
    Case((600,) * 3, (700,) * 3, used_q=(600, 3, 0), used_k=(700, 1, 90), group=1, head_dim=128, dtype="bf16",
         alibi="heads", dropout=0.1, causal=causal, causal_variant="bottom_right")
    for causal in (False, True)
]  # fmt: skip


def is_dense(case: Case) -> bool:
    """Whether the host knows all lengths."""
    return not case.packed and case.used_q is None and case.used_k is None


def without_weights(case: Case) -> Case:
    """The case without what changes weights, in 16 bits, and with rows that descriptors reach."""
    return replace(
        case, bias="", alibi="", softcap=0.0, dropout=0.0, layout="heads" if case.layout == "odd" else case.layout,
        dtype="bf16" if case.dtype == "fp32" else case.dtype, head_dim=-(-case.head_dim // 8) * 8,
        head_dim_v=-(-case.head_dim_v // 8) * 8,
    )  # fmt: skip


def of_forward(case: Case) -> Case:
    """What the forward serves of the case, which has a feature in any case."""
    return replace(without_weights(case), sinks=True)


@pytest.mark.parametrize(
    "case", [*dict.fromkeys(map(of_forward, filter(is_dense, [*CASES, *UNEVEN]))), *OF_FORWARD, *OF_FULL], ids=str
)
def test_the_forward_is_as_accurate(case: Case) -> None:
    """Out and logsumexp are as near to float64 as ordinary low precision is; what counts not is not read, and what is
    nobody's is not written.
    """
    prepared = Prepared(case)
    prepared.forward(backend="hopper_features")
    torch.cuda.synchronize()
    prepared.check(*FORWARD)


def of_backward(case: Case) -> Case:
    """What the backward serves of the case: dropout, head dims from 40 to 128, and so many heads that 512 rows see each
    key.
    """
    case = replace(without_weights(case), dropout=case.dropout)
    head_dim, head_dim_v = (one and min(max(one, 40), 128) for one in (case.head_dim, case.head_dim_v))
    left, right = case.window
    both = left >= 0 and (right >= 0 or case.causal)
    seeing = min(max(case.lengths_q) + case.beyond, left + (0 if case.causal else right) + 1 if both else 1 << 31)
    return replace(case, head_dim=head_dim, head_dim_v=head_dim_v, group=max(case.group, -(-512 // max(seeing, 1))))


def is_narrow(case: Case) -> bool:
    """Whether it would take too many heads."""
    return case.group > 128


OF_LENGTHS = [
    *dict.fromkeys(one for one in map(of_backward, [*CASES, *UNEVEN]) if not (is_dense(one) or is_narrow(one))),
    *(
        Case((700, 1, 0, 640, 64, 65, 1000), (700, 130, 5, 640, 64, 0, 129), packed=True, beyond=70, group=group,
             head_dim=head_dim, dtype=dtype, number=head_dim, dropout=dropout, **mask)
        for group, head_dim, dtype, dropout in (
            (1, 64, "bf16", 0.0), (3, 128, "bf16", 0.0), (2, 104, "fp16", 0.0), (5, 40, "fp16", 0.0),
            (3, 128, "fp16", 0.2), (5, 64, "bf16", 0.1),
        )
        for mask in ({}, *MASKS[:2], {"window": (400, 300)}, MASKS[3])
    ),
    Case((1,) * 299 + (300,), (130,) * 300, packed=True, group=2, head_dim=128, dtype="bf16"),
]  # fmt: skip


# More programs than run at once, so that some clear and store for others: of other calls they do not.
OF_SWEEPS = [
    Case((2100,) * 8, (2100,) * 8, group=group, head_dim=head_dim, dtype=dtype, number=head_dim, dropout=dropout,
         layout="rows", **mask)
    for group, head_dim, dtype, dropout in (
        (1, 128, "bf16", 0.0), (3, 64, "fp16", 0.0), (2, 104, "bf16", 0.0), (1, 64, "bf16", 0.1), (1, 128, "fp16", 0.1),
    )
    for mask in (
        {"window": (700, 0)}, {"window": (300, 260)}, {"window": (0, 600), "causal_variant": "bottom_right"},
        {"window": (100, 70)},
    )
] + [
    Case(lengths, lengths, packed=True, beyond=beyond, heads_k=6, group=group, head_dim=head_dim, dtype=dtype,
         number=head_dim, **mask)
    for lengths, beyond, group, head_dim, dtype in (
        ((2100, 1, 0, 640, 64, 65, 3000, 129, 700), 70, 1, 128, "bf16"), ((900,) * 7, 0, 3, 64, "fp16"),
        ((3000, 127, 128, 129, 2000, 1, 1, 1500), 1, 2, 40, "bf16"),
    )
    for mask in ({}, MASKS[1], {"window": (600, 300)}, {"causal": True, "sinks": True})
]  # fmt: skip


@pytest.mark.parametrize("case", [*OF_BACKWARD, *OF_LENGTHS, *OF_SWEEPS], ids=str)
def test_the_backward_is_as_accurate(case: Case) -> None:
    """The same of all gradients, behind whatever forward the library chooses."""
    prepared = Prepared(case)
    prepared.forward()
    prepared.backward(backend="hopper_features")
    torch.cuda.synchronize()
    prepared.check()


@pytest.mark.parametrize("head_dim", [40, 64, 128])
def test_packed_sequences_stay_apart(head_dim: int) -> None:
    assert_sequences_apart(head_dim, {}, {"backend": "hopper_features"})


def test_a_call_with_two_cu_seqlens_is_another_one() -> None:
    """It has the sizes of one that was made before, whose queries and keys have one cu_seqlens, and sweeps."""
    lengths = (2100, 640, 1000, 700)
    one = Case(lengths, lengths, packed=True, heads_k=8, head_dim=64, dtype="bf16", causal=True)
    for case in (one, replace(one, lengths_k=lengths[::-1]), one):
        prepared = Prepared(case)
        prepared.forward()
        prepared.backward(backend="hopper_features")
        torch.cuda.synchronize()
        prepared.check()
