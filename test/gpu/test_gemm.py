"""GEMM on a GPU: random problems of every kind against float64, with guards around each result."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest

pytest.importorskip("torch", reason="torch is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}  # of a number when it becomes one of this type, relative
ACTIVATIONS = (lambda x: x, torch.relu, torch.nn.functional.gelu, torch.nn.functional.silu)
PROBLEMS = 200
CHUNK = 20


@dataclass(frozen=True)
class Problem:
    """d = activation(alpha a b + bias). ``layouts`` of a, b and d: see ``stored``."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    layouts: tuple[str, str, str]
    alpha: float
    activation: int
    bias: bool
    seed: int


LAYOUTS = ("rows", "columns", "padded rows", "padded columns", "odd rows", "odd columns", "apart")


def draw(seed: int) -> Problem:
    """Sizes from 1 to thousands, small ones as likely as large; mostly layouts that fast kernels take."""
    choose = random.Random(seed)
    batch = choose.choice((1, 1, 1, 2, 3, 7))
    m, n, k = (round(math.exp(choose.uniform(0, math.log(5000)))) for _ in range(3))
    if choose.random() < 0.7:
        n, k = 8 * -(-n // 8), 8 * -(-k // 8)
    fast = choose.random() < 0.8
    of_a, of_b = (choose.choice(LAYOUTS[:4] if fast else LAYOUTS) for _ in range(2))
    of_d = choose.choice(("rows", "rows", "padded rows", "padded columns") if fast else LAYOUTS)
    alpha = choose.choice((1.0, 1.0, -0.37, 2.5))
    return Problem(
        batch, m, n, k, choose.choice(tuple(DTYPES)), (of_a, of_b, of_d), alpha, choose.randrange(4),
        choose.random() < 0.5, seed,
    )  # fmt: skip


def stored(batch: int, rows: int, columns: int, layout: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A [batch, rows, columns] view full of NaN, and the whole memory that it is in."""
    if layout.endswith("columns"):
        whole, view = stored(batch, columns, rows, layout.replace("columns", "rows"), dtype)
        return whole, view.transpose(1, 2)
    if layout == "apart":
        whole = torch.full((batch, rows, columns, 2), float("nan"), dtype=dtype, device="cuda")
        return whole, whole[..., 0]
    padding = {"rows": 0, "padded rows": 8 + -columns % 8, "odd rows": 1 + columns % 2}[layout]
    whole = torch.full((batch + 1, rows, columns + padding), float("nan"), dtype=dtype, device="cuda")
    return whole, whole[:batch, :, :columns]


def run(problem: Problem) -> float:
    """Runs the problem, checks that nothing else was written, and returns how much of what is allowed it is off by."""
    p, dtype = problem, DTYPES[problem.dtype]
    generator = torch.Generator(device="cuda").manual_seed(p.seed)
    (_, a), (_, b), (memory, d) = (
        stored(p.batch, rows, columns, layout, dtype)
        for rows, columns, layout in zip((p.m, p.k, p.m), (p.k, p.n, p.n), p.layouts, strict=True)
    )
    for operand in (a, b):
        operand.copy_(torch.randn(operand.shape, generator=generator, device="cuda"))
    bias = torch.randn(p.n, generator=generator, device="cuda").to(dtype) * math.sqrt(p.k) if p.bias else None
    options = {"alpha": p.alpha, "activation": p.activation}
    workspace = torch.full((aotriton.gemm_workspace_size(a, b, d, bias, **options),), 0x7F, dtype=torch.uint8).cuda()
    aotriton.gemm(a, b, d, bias, workspace, **options)
    true = p.alpha * (a.double() @ b.double())
    true = ACTIVATIONS[p.activation](true if bias is None else true + bias.double())
    assert bool(d.isfinite().all()), f"{p}: {int((~d.isfinite()).sum())} elements are not written, or not finite"
    # Sums of k products in fp32, which tensor cores cut off, then one rounding.
    allowed = ROUNDING[p.dtype] * true.abs() + 1e-5 * abs(p.alpha) * math.sqrt(p.k) * max(1, math.log2(p.k))
    excess = float(((d.double() - true).abs() / allowed).max())
    first = d.clone()
    d.fill_(float("nan"))
    assert bool(memory.isnan().all()), f"{p}: elements outside of d were written"
    aotriton.gemm(a, b, d, bias, workspace, **options)
    assert torch.equal(first, d), f"{p}: another run gives other bits"
    return excess


@pytest.mark.parametrize("chunk", range(PROBLEMS // CHUNK))
def test_random_problems(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        problem = draw(seed)
        excess = run(problem)
        assert excess <= 1, f"{problem}: off by {excess:.2f} times what is allowed"


@pytest.mark.parametrize("m", [16, 64, 200, 512, 2048])
@pytest.mark.parametrize("n", [512, 2056, 6144])
@pytest.mark.parametrize("k", [72, 4096, 16384])
def test_every_kind_of_cell_with_bias_and_activation(m: int, n: int, k: int) -> None:
    """Other code of a kernel runs where there is a bias or an activation than where there is none."""
    for i, layouts in enumerate(
        (("rows", "columns", "rows"), ("columns", "rows", "rows"), ("rows", "rows", "columns"))
    ):
        for dtype in DTYPES:
            problem = Problem(1, m, n, k, dtype, layouts, 0.5, i + 1, i != 1, m + n + k)
            excess = run(problem)
            assert excess <= 1, f"{problem}: off by {excess:.2f} times what is allowed"


def test_no_products() -> None:
    """Without products the sum is 0, and the bias and the activation remain."""
    a, b = (
        torch.empty(2, 40, 0, dtype=torch.bfloat16, device="cuda"),
        torch.empty(2, 0, 24, dtype=torch.bfloat16, device="cuda"),
    )
    d, bias = (
        torch.full((2, 40, 24), float("nan"), dtype=torch.bfloat16, device="cuda"),
        torch.randn(24).bfloat16().cuda(),
    )
    aotriton.gemm(a, b, d, bias, activation=1)
    assert torch.equal(d, bias.relu().expand(2, 40, 24))


@pytest.mark.parametrize("sizes", [(0, 8, 8, 8), (2, 0, 8, 8), (2, 8, 0, 8)])
def test_no_result(sizes: tuple[int, int, int, int]) -> None:
    batch, m, n, k = sizes
    a, b, d = (torch.empty(batch, *shape, dtype=torch.float16, device="cuda") for shape in ((m, k), (k, n), (m, n)))
    aotriton.gemm(a, b, d)
    torch.cuda.synchronize()


MOST = 2**31 - 1 - 1023  # of a size: what is beyond is refused


def needs_memory(gigabytes: int) -> None:
    free = torch.cuda.mem_get_info()[0] >> 30
    if free < gigabytes:
        pytest.skip(f"needs {gigabytes} GiB of the GPU's memory, of which {free} are free")


@pytest.mark.parametrize("side", ["m", "n"])
def test_a_result_of_the_largest_size_is_written_and_nothing_else(side: str) -> None:
    """All of it, by tiles whose ends are near 2^31; one more row or column is refused, and leaves d as it is."""
    needs_memory(40)
    torch.cuda.empty_cache()
    one = torch.arange(64, device="cuda").reshape(1, 8, 8).bfloat16()
    memory = torch.full((8 * (MOST + 1) + 512,), float("nan"), dtype=torch.bfloat16, device="cuda")

    def operands(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inner = memory[256 : 256 + 8 * size]
        if side == "m":
            return one[:, :1].expand(1, size, 8), one, inner.view(1, size, 8)
        return one, one[:, :, :1].expand(1, 8, size), inner.view(1, 8, size)

    with pytest.raises(aotriton.AotritonError, match=f"gemm: {side} is more than {MOST}"):
        aotriton.gemm(*operands(MOST + 1))
    a, b, d = operands(MOST)
    aotriton.gemm(a, b, d)
    true = (one[:, :1].double() @ one.double() if side == "m" else one.double() @ one[:, :, :1].double()).bfloat16()
    wrong = sum(int((part != true).sum()) for part in d.split(1 << 26, 1 if side == "m" else 2))
    assert wrong == 0, f"{wrong} elements of {d.numel()} are wrong"
    outside = torch.cat((memory[:256], memory[256 + 8 * MOST :]))
    assert bool(outside.isnan().all())


def test_the_longest_sum_is_summed_to_its_end() -> None:
    """Of overlapping rows, by descriptors, with a workspace and without: all that is not 0 are its last elements."""
    needs_memory(12)
    torch.cuda.empty_cache()
    k = MOST // 8 * 8
    of_a = torch.zeros(k + 64, dtype=torch.bfloat16, device="cuda")
    of_a[k - 8 :] = 1
    a = of_a.as_strided((1, 8, k), (0, 8, 1))  # row r ends with 8 + 8 r ones
    b = torch.ones(k + 64, dtype=torch.bfloat16, device="cuda").as_strided((1, k, 8), (0, 1, 8))
    true = torch.arange(8, 72, 8, device="cuda").bfloat16()[:, None].expand(1, 8, 8)
    d = torch.full((1, 8, 8), float("nan"), dtype=torch.bfloat16, device="cuda")
    aotriton.gemm(a, b, d)
    assert torch.equal(d, true)
    workspace = torch.empty(aotriton.gemm_workspace_size(a, b, d), dtype=torch.uint8, device="cuda")
    d.fill_(float("nan"))
    aotriton.gemm(a, b, d, None, workspace)
    assert torch.equal(d, true)
    longer = of_a.as_strided((1, 1, 1), (0, 0, 1)).expand(1, 1, 2**31 - 8)
    with pytest.raises(aotriton.AotritonError, match=f"gemm: k is more than {MOST}"):
        aotriton.gemm(longer, longer.transpose(1, 2), d[:, :1, :1])
