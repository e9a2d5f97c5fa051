"""Attention of keys and values of 8 bits, in rows and in pages, against float64."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from attention_cases import Case, inputs  # noqa: E402
from fp8_cases import Quantised, of_fp8, quantised  # noqa: E402
from gpu import gpu_problem  # noqa: E402
from gpu.gpu_problem import bits  # noqa: E402
from gpu.test_features import CASES, FORWARD, UNEVEN, Prepared  # noqa: E402
from gpu.test_features_hopper import without_weights  # noqa: E402
from gpu.test_pages import MIXED, PAGE_SIZES  # noqa: E402
from gpu.test_split import LONG, decoding, run  # noqa: E402
from paged_cases import in_pages, of_pages  # noqa: E402

DTYPE = torch.float8_e4m3fn
NO_NUMBER = 0x7F


class OfFp8(Prepared):
    """A case whose keys and values are numbers of 8 bits times powers of two, which its own type holds, too."""

    def __init__(self, case: Case) -> None:
        self.made: dict[str, Quantised] = {}
        super().__init__(case)

    def given(self, case: Case) -> dict[str, Any]:
        made = inputs(case)
        self.made = {name: quantised(case, "fp8e4nv", made[name], True) for name in "kv"}
        return made | {name: one.values for name, one in self.made.items()}

    def narrow(self, page_size: int) -> dict[str, Any]:
        """The arguments of a forward, with keys and values of 8 bits; in pages, unless ``page_size`` is 0."""
        given = {name: one for name, one in self.features.items() if name != "dout"}
        codes = {name: one.codes.astype(float) for name, one in self.made.items()}
        if page_size:
            pool = in_pages(self.case, codes["k"], codes["v"], page_size)
            codes = {"k": pool.k, "v": pool.v}
            table = torch.from_numpy(pool.table).to(gpu_problem.DEVICE)
            given = {name: one for name, one in given.items() if name != "cu_seqlens_k"} | {"block_table": table}
        for name, values in codes.items():
            guarded = self._guarded(values.shape, torch.uint8, NO_NUMBER)
            guarded.view.copy_(torch.from_numpy(values).nan_to_num(NO_NUMBER))
            given[name] = guarded.view.view(DTYPE)
            given[f"{name}_descale"] = torch.from_numpy(self.made[name].scale).to(gpu_problem.DEVICE)
        return given


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        cases = [*MIXED, *LONG, *decoding(120 + count, seed + 3), *CASES[:100], *UNEVEN]
        metafunc.parametrize("case", dict.fromkeys(of_fp8(without_weights(case)) for case in cases), ids=str)


@pytest.mark.parametrize("paged", [False, True], ids=["rows", "pages"])
def test_the_forward_is_as_accurate(case: Case, paged: bool) -> None:
    """Out and logsumexp are as near to float64 as ordinary low precision is; rows and pages that count not are no
    numbers, and what is nobody's is not written.
    """
    prepared = OfFp8(of_pages(case) if paged else case)
    run(prepared, prepared.narrow(PAGE_SIZES[case.number % len(PAGE_SIZES)] if paged else 0))
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


def test_without_scales_they_are_one() -> None:
    """The same bits as with scales of one, also where these are one number by strides of 0."""
    case = of_fp8(Case((3,) * 2, (700,) * 2, heads_k=2, group=4, head_dim=128, dtype="bf16"))
    prepared = OfFp8(case)
    given = prepared.narrow(0)
    one = torch.ones((), device=gpu_problem.DEVICE).expand(2, 2)
    results = []
    for scales in ({}, {"k_descale": one, "v_descale": one}, {"k_descale": one}):
        without = {name: value for name, value in given.items() if not name.endswith("descale")}
        run(prepared, without | scales)
        results.append(bits(prepared.results["out"].view.contiguous()).clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_queries_that_fp16_cannot_hold() -> None:
    """Rows of bf16 of any magnitude, beside each other in a tile, are as accurate as others."""
    case = of_fp8(Case((1,), (900,), heads_k=1, group=8, head_dim=64, dtype="bf16"))
    prepared = OfFp8(case)
    given = prepared.narrow(0)
    factors = 2.0 ** torch.tensor([0, 90, -100, 17, -30, 1, 60, 3], device=gpu_problem.DEVICE)[None, :, None, None]
    run(prepared, given)
    expected = prepared.results["out"].view[:, :1].clone()
    given["q"] = (given["q"][:, :1].float() * factors).to(torch.bfloat16)
    for head, factor in enumerate(factors.flatten().tolist()):
        run(prepared, given | {"sm_scale": case.sm_scale / factor})
        assert torch.equal(bits(prepared.results["out"].view[:, head : head + 1].contiguous()), bits(expected)), factor


def test_what_is_refused() -> None:
    """A call that no image serves says why, before anything is launched."""
    case = of_fp8(Case((1,), (64,), heads_k=2, head_dim=64, dtype="bf16"))
    prepared = OfFp8(case)
    given = prepared.narrow(0)
    scales = ("k_descale", "v_descale")
    half = {"k": given["k"].to(torch.bfloat16), "v": given["v"].to(torch.bfloat16)}
    bias = torch.zeros((1, 2, 1, 64), dtype=torch.bfloat16, device=gpu_problem.DEVICE)
    for changed, message in (
        ({"v": half["v"]}, "k has dtype float8_e4m3fn, v has bfloat16"),
        (half, "k_descale is given, and k has dtype bfloat16, which has no scale"),
        ({name: given[name].expand(3, 2) for name in scales}, "k_descale is of 3 sequences, there are 1"),
        ({"bias": bias}, "no kernel has bias together with k of 8 bits yet"),
        ({"q": given["q"].float()}, "q has dtype float32|out has dtype bfloat16"),
        ({name: given[name].view(torch.float8_e4m3fnuz) for name in "kv"}, "KEYS=fp8e4b8 is not in this build"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=message):
            run(prepared, given | changed)
