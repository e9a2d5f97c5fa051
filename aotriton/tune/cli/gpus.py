"""The GPUs of this machine that a command uses."""

from __future__ import annotations

from collections.abc import Sequence

from aotriton.rules.arch import arch_spec
from aotriton.tune.cli.invocation import CannotBegin, Invocation
from aotriton.tune.cli.options import LAUNCHER
from aotriton.tune.measure.launcher import visible_gpus


def gpus_of(call: Invocation) -> Sequence[str]:
    """The GPUs that were asked for, or all that are visible; CannotBegin where there is none.

    A stand-in for the launcher has one, whatever the machine has.
    """
    here = visible_gpus() if call.options.launcher == LAUNCHER else ["0"]
    gpus: Sequence[str] = call.options.gpus or here
    if not gpus:
        hip = bool(call.options.arch) and arch_spec(call.options.arch).vendor == "hip"
        model = f", --predict has a static model choose for {call.options.arch}" if hip else ""
        raise CannotBegin(f"no GPU here. --dry-run lists the problems, --compile-only fills the image store{model}")
    return gpus
