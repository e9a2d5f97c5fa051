"""Certificates for images that ship and were not measured: the images of other types, for instance."""

from __future__ import annotations

from collections import Counter
from functools import partial

from aotriton.codegen.compile import ImageStore, compile_images
from aotriton.rules.database import TuningDatabase
from aotriton.tune.cli.gpus import gpu_processes
from aotriton.tune.cli.invocation import Invocation, make_folder, require_triton
from aotriton.tune.coordinator.certify import certify, shipped
from aotriton.tune.coordinator.progress import Progress


def certify_images(call: Invocation) -> int:
    """Checks the images of a build that have no certificate on this GPU's product; with --again all of its images.
    Returns 1 where one is wrong, or was not checked although the tuner has a problem for it.
    """
    options = call.options
    make_folder(options.database)
    require_triton()
    TuningDatabase(options.database).close()  # a database that cannot be used ends the command before workers start
    deadline = call.began + (options.time_budget or float("inf"))
    progress, wanted = Progress(deadline), {kernel.name for kernel in call.kernels}
    with gpu_processes(call, progress) as (device, workers):
        with TuningDatabase(options.database, readonly=True) as database:
            ships = shipped(database, call.family.operators, device.arch)
            checksums, certificates = database.evidence.compiled_checksums(), database.certificates()
        has = {name for name, own in certificates.items() if any(one.product == device.name for one in own)}
        asked = [one for one in ships if one.functional.kernel.name in wanted and call.wish.has(one.functional)]
        specs = [one for one in asked if options.again or one.name not in has]
        print(f"{len(asked)} images ship; {len(specs)} of them are to be checked on {device.name}")
        compiler = partial(compile_images, checksums=checksums)
        done = certify(
            options.database, specs, compiler, ImageStore(), options.jobs, device, workers, progress, call.spelled,
            deadline,
        )  # fmt: skip
    print(f"{len(done.right)} images are right")
    if done.without_problem:
        kernels = Counter(one.functional.kernel.name for one in done.without_problem)
        counts = ", ".join(f"{count} of {name}" for name, count in sorted(kernels.items()))
        print(f"the tuner has no problem for {len(done.without_problem)} images: {counts}")
    for name, why in sorted(done.unchecked.items()):
        print(f"{name} was not checked: {why}")
    for name, why in sorted(done.wrong.items()):
        print(f"{name} is wrong: {why}")
    return 1 if done.wrong or done.unchecked else 0
