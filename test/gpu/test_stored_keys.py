"""The tuner on calls with keys of 8 bits and in pages: few candidates of one cell, and a wrong kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images  # noqa: E402 - it needs both
from aotriton.rules.flash.split import (  # noqa: E402
    ATTN_FWD_COMBINE,
    ATTN_FWD_DECODE,
    ATTN_FWD_SPLIT,
    KEYS,
    OF_FP8,
    OF_PAGES,
    Keys,
)
from aotriton.rules.image import ImageSpec  # noqa: E402
from aotriton.rules.kernel import KernelDescription  # noqa: E402
from aotriton.tune.measure.launcher import GpuLauncher, Opened  # noqa: E402
from aotriton.tune.measure.requests import Draw, LaunchSequence, Request, launch_request  # noqa: E402
from aotriton.tune.problem.problems import Problem, Wish, problems, shape_of  # noqa: E402

LEVELS = Keys.pages, Keys.fp8e4nv, Keys.pages_fp8e4nv
FEW = {"decode": "num_warps=1 num_stages=3", "split": "num_warps=4 num_stages=2"}


@pytest.fixture(scope="module")
def launcher() -> GpuLauncher:
    return GpuLauncher()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(Path(os.environ.get("AOTRITON_IMAGE_STORE") or tmp_path_factory.mktemp("images")))


def problem_of(kernel: KernelDescription, keys: Keys, head_dim: int = 64) -> Problem:
    wish = Wish({KEYS.name: [keys], "BLOCK_DMODEL": [head_dim]}, {"max_seqlen_q": [64], "max_seqlen_k": [2048]})
    (found,) = problems([kernel], "sm_90", torch.cuda.get_device_properties(0).multi_processor_count, wish)
    return found


def specs_of(problem: Problem) -> list[ImageSpec]:
    if problem.kernel is ATTN_FWD_DECODE and problem.functional.level in OF_FP8:
        most = 2**14 // int(problem.functional["BLOCK_DMODEL"])
        configs = [
            f"BLOCK_M=16 BLOCK_N={n} EARLY=1 num_warps=4 num_stages=2" for n in (most // 2, most) if 64 <= n <= 256
        ]
    else:
        rows = 16 if problem.kernel is ATTN_FWD_DECODE else 32
        few = FEW["decode" if rows == 16 else "split"]
        configs = [f"BLOCK_M={rows} BLOCK_N={n} EARLY=1 {few}" for n in (32, 64)]
        configs.append(f"BLOCK_M={rows} BLOCK_N=64 EARLY=1 num_warps=4 num_stages=2")
    return [ImageSpec.parse(problem.functional, one) for one in dict.fromkeys(configs)]


def requests(specs: list[ImageSpec], store: ImageStore) -> Mapping[str, Request]:
    made = {}
    for spec, image in compile_images(specs, store, None):
        assert isinstance(image, CompiledImage), image
        made[spec.name] = launch_request(spec, image)
    return made


def opened(launcher: GpuLauncher, problem: Problem, store: ImageStore) -> Iterator[Opened]:
    launcher.prepare(problem)
    for request in requests(specs_of(problem), store).values():
        one = launcher.open(request)
        yield one
        launcher.close(one)


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize("kernel", [ATTN_FWD_DECODE, ATTN_FWD_SPLIT], ids=lambda one: one.name)
@pytest.mark.parametrize("keys", LEVELS, ids=str)
def test_candidates_are_right(
    launcher: GpuLauncher, store: ImageStore, keys: Keys, kernel: KernelDescription, head_dim: int
) -> None:
    """On the inputs of their cell and on others, with the same bits each time; and they can be timed."""
    problem = problem_of(kernel, keys, head_dim)
    for one in opened(launcher, problem, store):
        check = launcher.check(one)
        assert check.wrong is None
        assert check.error
        assert launcher.check_further(one)[0].wrong is None
        assert any(launcher.round([one]) + launcher.round([one]))
    assert launcher.intact()


@pytest.mark.parametrize("kernel", [ATTN_FWD_DECODE, ATTN_FWD_SPLIT], ids=lambda one: one.name)
@pytest.mark.parametrize("keys", LEVELS, ids=str)
def test_wrong_kernels_are_found(
    launcher: GpuLauncher, store: ImageStore, keys: Keys, kernel: KernelDescription
) -> None:
    """One that ignores a scale, and one that takes another sequence's pages."""
    problem = problem_of(kernel, keys)
    launcher.prepare(problem)
    data = launcher._data
    wrong: list[dict[str, Any]] = [
        {name: torch.ones_like(data.tensors[name])} for name in (["k_descale", "v_descale"] if keys in OF_FP8 else [])
    ]
    if keys in OF_PAGES:
        wrong.append({"block_table": data.tensors["block_table"].roll(1, 0).contiguous()})
    first = launcher.open(next(iter(requests(specs_of(problem)[:1], store).values())))
    for other in wrong:
        tensors = {name: one.tensor for name, one in first.results.items()}
        first.launch = launcher.bind(kernel, first.candidate, {**tensors, **other})
        assert launcher.check(first).wrong, other.keys()
    launcher.close(first)


@pytest.mark.parametrize("keys", LEVELS, ids=str)
def test_launch_sequences_agree(launcher: GpuLauncher, store: ImageStore, keys: Keys) -> None:
    """Of a call with many splits and of one with one: two images of a backend have the same results, and a time."""
    decode = specs_of(problem_of(ATTN_FWD_DECODE, keys))
    combine = ATTN_FWD_COMBINE.like(decode[0].functional)
    assert combine
    last = ImageSpec.parse(combine, "AT_ONCE=8 EARLY=1 num_warps=4 num_stages=1")
    made = requests([*decode, last], store)
    sequences = tuple(LaunchSequence("decode", (made[one.name], made[last.name])) for one in decode)
    for batch, seqlen_k in ((1, 8192), (128, 1024)):
        shape = shape_of(batch=batch, heads_q=32, heads_k=8, seqlen_q=1, seqlen_k=seqlen_k, head_dim=64)
        timed = launcher.sequences(Draw(decode[0].functional, shape, sequences))
        assert len(timed.timings) == len(decode)
        assert all(one.median_us > 0 for one in timed.timings)
