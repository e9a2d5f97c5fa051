"""What may win is checked further: the launcher's part, on a CPU, with kernels that are Python functions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the launcher needs torch, which only tuning machines have")

import torch
from test_autotune import scaled, spec_of

from aotriton.rules import family
from aotriton.tune.autotune.tuning import DrawnData
from aotriton.tune.measure.launcher import REPETITIONS, GpuLauncher
from aotriton.tune.measure.requests import Request
from aotriton.tune.problem.accuracy import Check

LAUNCHES: list[Any] = [0]


def right(x: Any, out: Any, CHUNK: int) -> None:
    """It writes all that it should."""
    out.copy_(2 * x)


def tiled(x: Any, out: Any, CHUNK: int) -> None:
    """It leaves out what is behind the last whole tile."""
    whole = len(x) // CHUNK * CHUNK
    out[:whole] = 2 * x[:whole]


def unsteady(x: Any, out: Any, CHUNK: int) -> None:
    """Its last bit changes in the fifth launch."""
    LAUNCHES[0] += 1
    out.copy_(2 * x)
    if LAUNCHES[0] == 5:
        out.view(torch.int16)[3] += 1


def remembering(x: Any, out: Any, CHUNK: int) -> None:
    """It knows the numbers of the first launch by heart."""
    LAUNCHES.append(2 * x)
    out.copy_(LAUNCHES[1] if len(LAUNCHES[1]) == len(x) else 2 * x)


def of_two(x: Any) -> Any:
    return 2 * x


def checked(kernel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Check, Check, int]:
    """The first check of a kernel, and the further ones, of inputs as ``DrawnTuning`` draws them."""
    monkeypatch.setenv(family.VARIABLE, "")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    one = scaled(
        kernel=kernel, inputs={"x": "bf16[n]"}, results={"out": "bf16[n]"}, sizes={"n": 1024}, reference=of_two,
        grid=(), space={"CHUNK": (64,)}, folder=tmp_path / f"family_of_{kernel.__name__}",
    )  # fmt: skip
    spec = spec_of(one)
    launcher: Any = GpuLauncher.__new__(GpuLauncher)  # without a GPU

    def drawn(n: int, seed: int) -> DrawnData:
        return DrawnData(one._operator, {"n": n}, of_two, None, 0.0, "cpu", seed)

    launcher.torch, launcher._data = torch, drawn(1024, 0)
    launcher._further = {"on other numbers": drawn(1024, 1), "at n=1023": drawn(1023, 2)}
    opened = launcher.open(Request(spec.name, kernel.__name__, spec.config, Path(), {}, dict(spec.tunables)))
    module = sys.modules[f"family_of_{kernel.__name__}.tritonsrc.{kernel.__name__}"]
    if hasattr(module, "LAUNCHES"):
        module.LAUNCHES[:] = [0]
    return launcher.check(opened), *launcher.check_further(opened)


def test_a_right_kernel_is_right_on_all_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, further, launches = checked(right, tmp_path, monkeypatch)
    assert (first.wrong, further.wrong, launches) == (None, None, REPETITIONS + 2)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (tiled, "at n=1023: out has elements that were not written, or are not finite"),
        (unsteady, "out has other bits after launch 4 on the same inputs"),
        (remembering, "on other numbers: out is off by"),
    ],
)
def test_what_is_wrong_elsewhere_is_found(
    kernel: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that the first check finds right."""
    first, further, _ = checked(kernel, tmp_path, monkeypatch)
    assert first.wrong is None
    assert str(further.wrong).startswith(said)
