"""Winners without a GPU: decided anew, merged from another database, or carried over to a changed source."""

from __future__ import annotations

from aotriton.codegen.compile import ImageStore
from aotriton.rules.arch import ARCHS
from aotriton.rules.database import TuningDatabase
from aotriton.rules.family import families
from aotriton.tune.cli.invocation import Invocation, make_folder, require_triton
from aotriton.tune.dataset import carry as carrying
from aotriton.tune.winners.decide_all import decide_all


def decide(call: Invocation) -> int:
    make_folder(call.options.database)
    require_triton()
    arch = call.arch_without_gpu(ARCHS[0].arch)
    with TuningDatabase(call.options.database) as database:
        compiled = decide_all(database, call.functionals(arch), ImageStore(), call.options.jobs)
        winners = sum(len(database.winners(arch, kernel.name)) for kernel in call.kernels)
    print(f"{winners} winners stand, {compiled} images of borrowed ones were compiled")
    return 0


def merge(call: Invocation) -> int:
    """Takes over the other database's measurements, of whatever families, and decides all of their winners anew."""
    make_folder(call.options.database)
    require_triton()
    with TuningDatabase(call.options.database) as database:
        taken = database.merge(call.options.merge)
        measured = {(outcome.arch, outcome.kernel) for outcome in database.evidence.outcomes()}
        known = [kernel for one in families() for kernel in one.kernels]
        of_both = [one for kernel in known for arch in kernel.archs if (arch, kernel.name) in measured
                   for one in kernel.functionals(arch)]  # fmt: skip
        compiled = decide_all(database, of_both, ImageStore(), call.options.jobs) if taken else 0
    print(f"{taken} timings were new, {compiled} images of borrowed winners were compiled; --fit fits cost models anew")
    return 0


def carry(call: Invocation) -> int:
    make_folder(call.options.database)
    require_triton()
    arch = call.arch_without_gpu(ARCHS[0].arch)
    with TuningDatabase(call.options.database) as database:
        same, other = carrying.carry(
            database, call.family.operators, call.kernels, arch, ImageStore(), call.options.jobs
        )
    print(f"{same} images of a changed source have the same bits and keep their timings, {other} wait to be measured")
    return 0
