"""The tuner's truth of keys and values that caches hold: of the numbers that codes and scales stand for, where the
block table says, and what kernels make of it.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the reference needs torch, which only tuning machines have")

import torch

from aotriton.rules.flash.fp8 import ATTN_FWD_HOPPER_FP8, ATTN_FWD_TURN, GROUP, TURNED
from aotriton.rules.flash.split import ATTN_FWD_DECODE, ATTN_FWD_SPLIT, OF_8_BITS, OF_PAGES, Keys
from aotriton.rules.kernel import KernelDescription, Tensor
from aotriton.tune.flash.reference import PARTIAL, PARTS_OF_PLAN, PLAN, Attention
from aotriton.tune.flash.stored_keys import PAGE, narrow, turned
from aotriton.tune.problem.accuracy import Check
from aotriton.tune.problem.family import results_of

HELD = [one for one in Keys if one]
BY_LEVEL = pytest.mark.parametrize("keys", HELD, ids=str)
TUNABLES = {"BLOCK_M": 16, "BLOCK_N": 32, "EARLY": 0}


def attention(keys: Keys, seqlen_k: int = 512, seed: int = 3) -> Attention:
    return Attention(
        2, 3, 4, seqlen_k, 32, False, torch.bfloat16, "cpu", torch.float64, multiprocessors=24, seed=seed, keys=keys
    )


def meant(data: Attention) -> list[torch.Tensor]:
    """q, k and v [batch, heads, rows, columns] of float64, from what a kernel is given."""
    found = []
    for name in "qkv":
        numbers = data.tensors[name].double()
        if data.keys in OF_PAGES and name != "q":
            pages = data.tensors["block_table"].long()
            numbers = numbers[pages].permute(0, 2, 1, 3, 4).flatten(2, 3)
        if name in narrow(data.keys):
            numbers = numbers * data.tensors[f"{name}_descale"].double()[:, :, None, None]
        found.append(numbers)
    return found


@BY_LEVEL
def test_the_truth_is_of_what_a_kernel_is_given(keys: Keys) -> None:
    """By torch's own attention in float64: codes times scales, in the order of the table; keys are of 8 bits, and each
    head's scale is another one.
    """
    data = attention(keys)
    q, k, v = meant(data)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    for head, expected in data.expected("out").items():
        torch.testing.assert_close(out[head], expected.value, rtol=1e-12, atol=1e-12)
    of_8_bits = keys in OF_8_BITS
    assert {one for one in "qkv" if data.tensors[one].element_size() == 1} == {*narrow(keys)}
    assert set(data.tensors) - {"q", "k", "v"} == {
        *(f"{name}_descale" for name in narrow(keys)),
        *((TURNED.name,) if keys == Keys.q_fp8e4nv else ()),
        *(("block_table", "seqused_k") if keys in OF_PAGES else ()),
        *((*PLAN, *PARTS_OF_PLAN) if keys == Keys.pages else ()),  # of the planned forward
    }
    if of_8_bits:
        scales = torch.stack([data.tensors[f"{name}_descale"] for name in narrow(keys)])
        assert len(scales.unique()) == scales.numel()
        assert all(float(data.tensors[name].float().abs().max()) < 240 for name in narrow(keys))
        assert float((k - k.bfloat16().double()).abs().max()) > 0  # what no tensor of 16 bits would hold


@BY_LEVEL
def test_an_ordinary_implementation_is_right(keys: Keys) -> None:
    """One that rounds weights and results to the queries' type; not one that leaves out a scale, or takes pages in
    another order.
    """
    data = attention(keys)
    assert data.compare("out", ordinary(data)).wrong is None
    for name in (f"{one}_descale" for one in narrow(keys)):
        whole = data.tensors[name].clone()
        data.tensors[name].fill_(1.0)
        assert "out" in str(data.compare("out", ordinary(data)).wrong), name
        data.tensors[name].copy_(whole[:, [1, 2, 0]])
        assert "out" in str(data.compare("out", ordinary(data)).wrong), name
        data.tensors[name].copy_(whole)
    if keys in OF_PAGES:
        data.tensors["block_table"][1, :2] = data.tensors["block_table"][1, :2].flip(0).clone() * 0
        assert "out" in str(data.compare("out", ordinary(data)).wrong)


def ordinary(data: Attention) -> torch.Tensor:
    q, k, v = meant(data)
    weights = (q @ k.mT * data.sm_scale).softmax(-1)
    if data.keys == Keys.q_fp8e4nv:
        most = weights.amax(-1, keepdim=True) / 256
        weights = (weights / most).to(data.q.dtype).double() * most
    return (weights.to(data.dtype).double() @ v).to(data.dtype)


def test_rows_that_do_not_fill_pages_are_refused() -> None:
    """There is no size of pages that a caller could have meant."""
    with pytest.raises(ValueError, match=f"do not fill pages of {PAGE}"):
        assert attention(Keys.pages, seqlen_k=PAGE + 1).tensors


def test_other_seeds_have_other_scales_and_pages() -> None:
    """So that what may win is checked on them, too."""
    tensors = [attention(Keys.pages_fp8e4nv, seed=seed).tensors for seed in (3, 4)]
    for name in ("k_descale", "v_descale", "block_table"):
        assert not torch.equal(tensors[0][name], tensors[1][name])


def interpreted(
    launch: Any, data: Attention, kernel: KernelDescription, without: frozenset[str] = frozenset()
) -> list[Check]:
    """What the judge says of the results that the kernel leaves, by Triton's interpreter, whose bf16 is not rounded;
    ``without`` some operands.
    """
    results = {one.operand.name: data.result(kernel, one, TUNABLES) for one in results_of(kernel)}
    given = {name: one for name, one in data.tensors.items() if name not in without}
    tensors = [one for one in kernel.arguments if isinstance(one, Tensor)]
    read = {one.name: given[one.operand.name].double().numpy() for one in tensors if one.operand.name in given}
    written = {one.name: tuple(results[one.operand.name][0].shape) for one in results_of(kernel)}
    sizes = {"batch": data.batch, "heads_q": data.heads, "seqlen_q": data.seqlen_q, "head_dim_v": data.head_dim}
    sizes |= {"partial_splits": len(results[PARTIAL][0]), **data.sizes}
    values = {"T": "fp16", "BLOCK_DMODEL": data.head_dim, "ADDRESSING": "offset32", "KEYS": data.keys, **TUNABLES}
    values |= {**data.scalars, "multiprocessors": data.multiprocessors}
    paged = {one.name: one.operand.paged_dims for one in tensors if data.keys in OF_PAGES and one.operand.paged_dims}
    made = launch(kernel.name, read, written, values, 0, frozenset(), {}, paged, sizes)
    filled = {}
    for one in results_of(kernel):
        tensor, number = data.result(kernel, one, TUNABLES)
        found = torch.from_numpy(made[one.name])
        untouched = bool(found.numel()) and bool((found == found.flatten()[0]).all())
        filled[one.operand.name] = tensor.copy_(torch.full_like(found, number) if untouched else found)
    for one in results_of(kernel):
        data.expect(kernel, one)
    return [data.check(kernel, one, TUNABLES, filled) for one in results_of(kernel)]


@pytest.mark.parametrize(
    ("keys", "kernel", "seqlen_k"),
    [
        (Keys.pages, ATTN_FWD_SPLIT, 192),
        (Keys.fp8e4nv, ATTN_FWD_DECODE, 192),
        (Keys.pages_fp8e4nv, ATTN_FWD_DECODE, 128),
        (Keys.fp8e4b8, ATTN_FWD_SPLIT, 128),
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_kernels_are_judged(launch: Any, keys: Keys, kernel: KernelDescription, seqlen_k: int) -> None:
    """Each level's kernel is right, with split keys and with one split, and wrong if it ignores a scale."""
    rows = 4 if kernel is ATTN_FWD_DECODE else 20
    data = Attention(1, 2, rows, seqlen_k, 32, False, torch.float16, "cpu", torch.float64, 24, seed=3, keys=keys)
    assert bool(len(data.result(kernel, results_of(kernel)[2], TUNABLES)[0])) == (seqlen_k > 128)
    assert [one.wrong for one in interpreted(launch, data, kernel)] == [None] * 4
    for name in (f"{one}_descale" for one in narrow(keys)):
        wrong = [one.wrong for one in interpreted(launch, data, kernel, frozenset({name}))]
        assert any(wrong), name


@pytest.mark.parametrize("keys", [48, 45])
def test_values_are_turned_in_the_order_of_operands(keys: int) -> None:
    """Within 16 keys, key 8 j + 2 i + e lies at 4 i + 2 j + e; what is beyond the last one is zero."""
    v = torch.arange(2 * keys * 16).view(1, 2, keys, 16).to(torch.uint8).view(torch.float8_e4m3fn)
    made = turned(v).view(torch.uint8)
    assert made.shape == (1, 2, 16, 48)
    for key in range(48):
        group, within = key // GROUP * GROUP, key % GROUP
        j, i, e = within // 8, within % 8 // 2, within % 2
        column = v.view(torch.uint8)[:, :, key] if key < keys else torch.zeros(1, 2, 16, dtype=torch.uint8)
        assert torch.equal(made[..., group + 4 * i + 2 * j + e], column), key


def test_the_turned_copy_is_judged_to_the_bit() -> None:
    """It has v's numbers, each at its place, or is wrong."""
    data = attention(Keys.q_fp8e4nv)
    (result,) = results_of(ATTN_FWD_TURN)
    right = data.tensors[TURNED.name].clone()
    assert data.check(ATTN_FWD_TURN, result, {}, {TURNED.name: right}) == Check(0.0, 0.0)
    right.view(torch.uint8)[1, 2, 3, 4] ^= 1
    assert "other numbers than v" in str(data.check(ATTN_FWD_TURN, result, {}, {TURNED.name: right}).wrong)


def test_causal_queries_of_8_bits_are_judged() -> None:
    """The mask that hides the future, and 8 bits of weights in what is allowed: more than 16 bits are, and less than a
    wrong scale makes.
    """
    data = Attention(
        1, 2, 64, 64, 32, True, torch.bfloat16, "cpu", torch.float64, multiprocessors=24, keys=Keys.q_fp8e4nv
    )
    scalars = {name: data.scalars[name] for name in ("level", "lo", "hi", "features")}
    assert scalars == {"level": 4, "lo": -64, "hi": 0, "features": 0}
    q, k, v = meant(data)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    for head, expected in data.expected("out").items():
        torch.testing.assert_close(out[head], expected.value, rtol=1e-12, atol=1e-12)
    result = next(one for one in results_of(ATTN_FWD_HOPPER_FP8) if one.operand.name == "out")
    exact = out.to(torch.bfloat16)
    assert data.check(ATTN_FWD_HOPPER_FP8, result, {}, {"out": exact}).wrong is None
    assert data.check(ATTN_FWD_HOPPER_FP8, result, {}, {"out": exact * 1.05}).wrong
