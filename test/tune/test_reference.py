"""The tuner's reference: true results, and tolerances that an ordinary implementation meets and a wrong one misses."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the reference needs torch, which only tuning machines have")

import torch

from aotriton.rules.family import family
from aotriton.rules.flash.backward import ATTN_BWD_DSINKS
from aotriton.rules.flash.forward import OPERATOR as FORWARD
from aotriton.rules.flash.planned import PLANNED
from aotriton.rules.flash.split import ATTN_FWD_COMBINE, KEYS, Keys
from aotriton.rules.kernel import KernelDescription, Tensor
from aotriton.tune.flash.dq_layout import from_dq_layout, to_dq_layout
from aotriton.tune.flash.plan import combine_tiles
from aotriton.tune.flash.reference import UNCHECKED, Attention, combined, name_of
from aotriton.tune.flash.split import in_halves
from aotriton.tune.problem.family import results_of
from aotriton.tune.problem.problems import Wish, problems, scalars_of

# Scalars of which checks alone make something.
CHECKED = {"deterministic", "causal_variant", "window_left", "window_right", "max_seqlen_q", "max_seqlen_k"}
# Scalars of features and hints, which a measured call leaves at their default of 0.
OFF = {"softcap", "dropout", "batch_invariant", "skip_gradients"}
MEASURED = [kernel for kernel in family("flash").kernels if kernel.timed and kernel is not ATTN_BWD_DSINKS]


def attention(
    dtype: str = "bfloat16", causal: bool = False, truth: str = "float32", keys: Keys = Keys.rows
) -> Attention:
    kinds = getattr(torch, dtype), "cpu", getattr(torch, truth)
    return Attention(2, 6, 192, 192, 64, causal, *kinds, 132, keys=keys)


@pytest.mark.parametrize("causal", [False, True])
def test_it_agrees_with_autograd(causal: bool) -> None:
    """In float64, with the rounding of out undone, results are those of torch's own forward and backward."""
    data = attention("float64", causal, "float64")
    q, k, v = (tensor.clone().requires_grad_() for tensor in (data.q, data.k, data.v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    out.backward(data.dout)
    for name, actual in (("out", out.detach()), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)):
        for head, expected in data.expected(name).items():
            torch.testing.assert_close(actual[head], expected.value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "keys"), [(96, 160), (160, 96)])
def test_a_band_is_measured_as_a_causal_one(rows: int, keys: int) -> None:
    """What problems of a level with bands are: every row sees a key, the last one the last key."""
    lead = FORWARD.lead.functional("sm_90", LEVEL=4, T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="general")
    sizes: dict[str, Any] = {"batch": 1, "heads": 2, "seqlen_q": rows, "seqlen_k": keys, "head_dim": 64}
    asked = scalars_of(lead, sizes)
    assert (asked["level"], asked["causal"]) == (4, 0)
    double, band = torch.float64, (asked["lo"], asked["hi"])
    data = Attention(**sizes, causal=False, dtype=double, device="cpu", truth=double, multiprocessors=132, band=band)
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(max(keys - rows, 0))
    assert mask.any(-1).all()
    q, k, v = (tensor.clone().requires_grad_() for tensor in (data.q, data.k, data.v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out.backward(data.dout)
    for name, actual in (("out", out.detach()), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)):
        for head, expected in data.expected(name).items():
            torch.testing.assert_close(actual[head], expected.value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_an_ordinary_implementation_passes(dtype: str, causal: bool) -> None:
    """torch's low-precision forward is within the tolerance, in flat and in peaked heads, and so is an exact lse."""
    data = attention(dtype, causal)
    out = torch.nn.functional.scaled_dot_product_attention(data.q, data.k, data.v, is_causal=causal)
    check = data.compare("out", out)
    assert check.wrong is None
    assert check.error is not None
    assert check.tolerance is not None
    assert 0 < check.error < check.tolerance < 0.01
    assert data.compare("lse", data.lse).wrong is None
    assert {(b * 6 + h) % 2 for b, h in data.sample} == {0, 1}
    assert {(0, 0), (1, 5)} <= set(data.sample)


def test_wrong_results_are_found() -> None:
    """A mask that is off in one row or in all, an unwritten element, an lse in base 2: none passes."""
    data = attention(causal=True)

    def masked(mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(data.q, data.k, data.v, attn_mask=mask)

    mask = torch.ones(192, 192, dtype=torch.bool).tril()
    assert data.compare("out", masked(mask)).wrong is None
    mask[100, 101] = True  # one element too many in one row
    assert "out of head" in str(data.compare("out", masked(mask)).wrong)
    assert "out" in str(data.compare("out", masked(torch.ones(192, 192, dtype=torch.bool).tril(1))).wrong)
    missing = masked(torch.ones(192, 192, dtype=torch.bool).tril())
    missing[1, 3, 100, 63] = torch.nan
    assert "not written" in str(data.compare("out", missing).wrong)
    assert "lse" in str(data.compare("lse", data.lse * 1.4427).wrong)


def test_one_bad_row_of_many_is_found() -> None:
    """An error that is small against the whole head, but all in one row, does not pass."""
    data = Attention(1, 2, 1024, 1024, 64, False, torch.bfloat16, "cpu", torch.float32, 132)
    out = torch.nn.functional.scaled_dot_product_attention(data.q, data.k, data.v)
    assert data.compare("out", out).wrong is None
    out[0, 0, 700] *= 1.06
    assert "a row of out of head (0, 0)" in str(data.compare("out", out).wrong)


def test_the_gradient_of_sinks_is_not_measured() -> None:
    """It has one config only, and no run has a problem of it."""
    for arch in ATTN_BWD_DSINKS.archs:
        (functional,) = ATTN_BWD_DSINKS.functionals(arch)
        vendor = functional.arch_spec.vendor
        values = {**ATTN_BWD_DSINKS.tunable_values(vendor), **ATTN_BWD_DSINKS.compile_option_values(vendor)}
        assert {len(of_one) for of_one in values.values()} == {1}
        assert problems([ATTN_BWD_DSINKS], arch, 132, Wish()) == []


@pytest.mark.parametrize(
    "kernel", [one for one in MEASURED if one not in PLANNED.kernels], ids=lambda kernel: kernel.name
)
def test_every_result_of_every_kernel_is_checked(kernel: KernelDescription) -> None:
    """The truth passes as a kernel's result, in the tensor that the launcher gives it; the same upside down does not,
    and neither does a tensor that the kernel has not written.
    """
    combines = kernel is ATTN_FWD_COMBINE  # what more keys leave
    keys, causal = (600, False) if combines else (96, True)
    data = Attention(1, 2, 96, keys, 32, causal, torch.bfloat16, "cpu", torch.float32, 132)
    results = {}
    for argument in results_of(kernel):
        tensor, fill = data.result(kernel, argument, {})
        results[argument.operand.name] = tensor.fill_(fill)
    for argument in results_of(kernel):
        name, tensor = argument.operand.name, results[argument.operand.name].clone()
        data.expect(kernel, argument)
        if name in UNCHECKED:
            continue  # but as a part of other results
        if argument.access == "write":
            assert "not written" in str(data.check(kernel, argument, {}, results).wrong)
        ordered = name == "dq_sum"
        rows = data.q.float() if ordered else tensor
        for head, expected in data.expected(name_of(kernel, argument)).items():
            rows[head] = expected.value
        if ordered:
            tensor = to_dq_layout(rows, tensor.shape[2] // 2)  # of two tiles of 64 queries
        tensor.nan_to_num_()  # heads that are not looked at
        assert data.check(kernel, argument, {}, {**results, name: tensor}).wrong is None
        wrong = tensor.flip(2) if tensor.any() else tensor + 1
        assert data.check(kernel, argument, {}, {**results, name: wrong}).wrong is not None


def planned(kernel: KernelDescription, keys: Keys = Keys.rows) -> tuple[Attention, dict[str, torch.Tensor]]:
    """A problem with split tiles, and what a kernel of the planned forward finds in the place of its results."""
    data = Attention(2, 3, 200, 704, 32, False, torch.bfloat16, "cpu", torch.float32, 24, keys=keys)
    results = {}
    for argument in results_of(kernel):
        tensor, fill = data.result(kernel, argument, {})
        results[argument.operand.name] = tensor.fill_(fill)
    return data, results


def wrongs(data: Attention, kernel: KernelDescription, results: dict[str, torch.Tensor]) -> list[str]:
    """What is wrong with the results, which stay as they are."""
    checks = [
        data.check(kernel, one, {}, {name: result.clone() for name, result in results.items()})
        for one in results_of(kernel)
    ]
    return [check.wrong for check in checks if check.wrong is not None]


def test_a_plan_is_checked() -> None:
    """A right one passes; one that lacks keys, a tile or a split tile's place does not."""
    plan = PLANNED.kernels[0]
    data, results = planned(plan)
    assert wrongs(data, plan, results) == ["it has -1 items and -1 split tiles, for which there is no room"]
    count, split, *_ = data.tensors["counts"].tolist()
    results["items"][:count], results["split_tiles"][:split] = data.tensors["items"], data.tensors["split_tiles"]
    results["counts"].copy_(data.tensors["counts"])
    assert split > 0
    assert wrongs(data, plan, results) == []
    for change in ("items", count - 1, 4, -128), ("items", 0, 3, 128), ("items", count - 1, 5, -1), ("counts", 0, 0, 0):
        name, row, column, by = change
        broken = {one: tensor.clone() for one, tensor in results.items()}
        if name == "counts":
            broken[name][0] -= 1
        else:
            broken[name][row, column] += by
        assert len(wrongs(data, plan, broken)) == 1, change


@pytest.mark.parametrize("keys", [Keys.rows, Keys.pages])
def test_parts_of_a_plan_are_checked(keys: Keys) -> None:
    """What the main kernel leaves in Out and in parts, and what the last kernel makes of these: as they should be, or
    wrong in one part, or written in a tile that is not the kernel's.
    """
    _, main, last = PLANNED.kernels
    data, results = planned(main, keys)
    assert {"items", "counts", "block_table"} <= set(data.tensors) or not keys
    logits = (data.q.float() @ data.k.float().mT) * data.sm_scale
    for batch, head, position, first, behind, place, *_ in data.tensors["items"].tolist():
        rows = slice(position, min(position + 128, 200))
        own = logits[batch, head, rows, max(first, 0) : min(behind, 704)]
        out = own.softmax(-1) @ data.v[batch, head, max(first, 0) : min(behind, 704)].float()
        if place < 0:
            results["out"][batch, head, rows], results["logsumexp"][batch, head, rows] = out, own.logsumexp(-1)
        else:
            results["parts"][place, : len(out)] = out
            results["parts_lse"][place, : len(out)] = own.logsumexp(-1) / torch.log(torch.tensor(2.0))
    for one in results_of(main):
        data.expect(main, one)
    assert wrongs(data, main, results) == []
    part = data._plan.tiles[-1].places[-1]
    results["parts"][part] += 0.3
    assert len(wrongs(data, main, results)) == 1
    results["parts"][part] -= 0.3
    results["out"][1, 2, 0, 0] = 0.0
    assert len(wrongs(data, main, results)) == 1

    data, results = planned(last)
    for one in results_of(last):
        data.expect(last, one)
    assert "not written" in wrongs(data, last, results)[0]
    for tile, out, lse in combine_tiles(data._plan, data.tensors, combined):
        results["out"][tile.batch, tile.head, tile.rows] = out.bfloat16()
        results["logsumexp"][tile.batch, tile.head, tile.rows] = lse
    assert wrongs(data, last, results) == []
    results["out"][0, 0, 0, 0] = 1.0
    assert len(wrongs(data, last, results)) == 1


def test_what_a_measured_call_does_not_ask_for_is_no_result() -> None:
    """A result that images of some levels alone write is not among a kernel's results; all others are."""
    of_name = {kernel.name: kernel for kernel in family("flash").kernels}
    dq = of_name["attn_bwd_dq"]
    assert "DBias" in {one.name for one in dq.arguments if isinstance(one, Tensor) and one.access == "write"}
    assert [one.name for one in results_of(dq)] == ["DQ"]
    assert [one.name for one in results_of(of_name["attn_bwd_dk_dv"])] == ["DK", "DV"]
    assert [one.name for one in results_of(of_name["attn_fwd"])] == ["Out", "L"]


def test_split_tiles_are_put_together() -> None:
    """A kernel's dk and dv count with the portions that it leaves, and the kernel behind it writes split tiles only."""
    data = Attention(1, 2, 300, 300, 64, False, torch.bfloat16, "cpu", torch.float32, 132)
    of_name = {kernel.name: kernel for kernel in family("flash").kernels}
    shares, finish = of_name["attn_bwd_hopper_shares"], of_name["attn_bwd_hopper_shares_finish"]
    results = {one.operand.name: data.result(shares, one, {})[0].fill_(torch.nan) for one in results_of(shares)}
    true = {name: torch.stack([one.value for one in data.expected(name).values()])[None] for name in ("dv", "dk")}
    results |= {name: one.to(torch.bfloat16) for name, one in true.items()}
    for name in true:
        results[name][0, 1, 128:256] = torch.nan  # tile 4 of 6, which programs 3 and 4 share
    last = torch.stack([one[0, 1, 128:256] for one in true.values()])
    first = torch.randn_like(last)
    results["split_of"].view(torch.int32).fill_(-1)
    results["split_of"].view(torch.int32)[[7, 8]] = torch.tensor([9, 8], dtype=torch.int32)
    results["split"][[7, 8]] = in_halves(torch.stack([first, last - first]), torch.bfloat16)
    arguments = {one.operand.name: one for one in results_of(shares)}
    for name in true:
        assert data.check(shares, arguments[name], {}, results).wrong is None
    results["split"][8, 0] += 1
    assert "dv" in str(data.check(shares, arguments["dv"], {}, results).wrong)
    results["split_of"].view(torch.int32)[7] = -1
    assert "not written" in str(data.check(shares, arguments["dk"], {}, results).wrong)
    (dk,) = (one for one in results_of(finish) if one.operand.name == "dk")
    everything = {"dk": data.dk_sum.to(torch.bfloat16)}
    assert data.check(finish, dk, {}, everything).wrong is None  # all tiles are split
    few = Attention(1, 2, 300, 300, 64, False, torch.bfloat16, "cpu", torch.float32, 4)
    assert "outside" in str(few.check(finish, dk, {}, everything).wrong)


def test_the_order_of_the_sum_of_dq() -> None:
    """A number lies where the order says, in tiles of any width; rows and columns beyond the end do not come back."""
    rows = torch.randn(2, 3, 70, 40)
    ordered = to_dq_layout(rows, 96)
    assert ordered.shape == (2, 3, 2 * 96, 64)
    for row, c in ((0, 0), (9, 3), (63, 39), (64, 38), (69, 17)):
        r = row % 64
        place = c // 8 * 512 + r // 16 * 128 + r % 8 * 16 + c % 8 // 2 * 4 + r // 8 % 2 * 2 + c % 2
        assert torch.equal(ordered.view(2, 3, 2, -1)[:, :, row // 64, place], rows[:, :, row, c])
    assert torch.equal(from_dq_layout(ordered, 70, 40), rows)


def test_what_kernels_read_is_there() -> None:
    """Every tensor that some kernel reads in a call without features, and every scalar that it takes, is among the
    inputs; what is on where a feature is asked for is off by default.
    """
    data = attention()
    for operator in family("flash").operators:
        if not any(kernel.timed for kernel in operator.kernels):
            continue
        assert {scalar.name for scalar in operator.scalars} - CHECKED - OFF <= set(data.scalars)
        assert {scalar.default for scalar in operator.scalars if scalar.name in OFF} == {0}
    for kernel in MEASURED:
        held = next((choice.values for choice in kernel.choices if choice.name == KEYS.name), (Keys.rows,))
        data = attention(keys=Keys(int(held[0])))  # rows, but of a kernel that has none
        for argument in kernel.arguments:
            if not isinstance(argument, Tensor) or argument.levels or argument.operand.optional:
                continue
            if argument.access == "read":
                assert data.tensors[argument.operand.name].ndim == argument.rank
