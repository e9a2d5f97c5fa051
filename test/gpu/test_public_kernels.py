"""Kernels of public packages, tuned on a GPU: what wins is right, and so is its author's config.

Other tests may compute on the GPU meanwhile, so ``crowded_launcher`` stands in: it does not look for other processes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules import family
from aotriton.tune.measure.launcher import visible_gpus

pytest.importorskip("torch", reason="torch is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import public_kernels as program
from public.declared import KERNELS

NAMES = {one.name: one for one in KERNELS}
# In place, many types, with labels; sizes that follow from others; a page table; constants of triton.heuristics.
CHOSEN = ("liger_cross_entropy", "conch_silu_and_mul", "vllm_unified_attention", "fla_chunk_h")
FEW = {"tokens": 256}  # where the kernel has them


@pytest.mark.parametrize("name", CHOSEN)
def test_a_public_kernel_is_tuned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of its configs, at a part of the benchmark's sizes: all of them are right, and both sides of the benchmark
    are timed, and give what the reference does.
    """
    one: Any = NAMES[name]
    for package in (one.package, *(["einops"] if one.package == "fla" else [])):
        pytest.importorskip(package, reason=f"{package} is not installed: bench/public_kernels.py names its wheel")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AOTRITON_IMAGE_STORE", raising=False)
    monkeypatch.setenv(family.VARIABLE, "")
    sizes = one.declaration()["sizes"]
    sizes = sizes | {size: value for size, value in FEW.items() if size in sizes}
    options = ("--launcher", "crowded_launcher:CrowdedLauncher", "--gpus", *visible_gpus())
    tuned, authors = program.described(one, tmp_path / name, 4, options=options, sizes=sizes)
    tuned.tune()
    swept, verdicts = program.medians(tuned)
    assert set(verdicts) <= {"ok", "pruned"}
    configs = tuned._declared.configs
    contenders = {"winner": tuned.config, "author": configs[program.author_of(tuned, swept, authors)]}
    samples, wrong = program.side_by_side(tuned, contenders)
    assert not wrong
    assert all(len(taken) >= 15 and min(taken) > 0 for taken in samples.values())
