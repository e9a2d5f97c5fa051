"""What a run would do: its problems and candidates listed, or their images compiled ahead."""

from __future__ import annotations

import sys
from collections import Counter

from aotriton.codegen.compile import CompileFailure, ImageStore, compile_images
from aotriton.rules.arch import ARCHS, arch_spec
from aotriton.tune.cli.invocation import Invocation, make_folder, require_triton
from aotriton.tune.problem.candidates import space


def list_problems(call: Invocation) -> int:
    arch = call.arch_without_gpu(ARCHS[0].arch)
    candidates, skipped, images = 0, Counter[str](), set[str]()
    found = call.problems(arch, arch_spec(arch).multiprocessors)
    for problem in found:
        one = space(problem)
        sizes = ", ".join(f"{name} {size}" for name, size in problem.shape)
        print(f"{problem}: {sizes}; {len(one.candidates)} candidates")
        candidates += len(one.candidates)
        images |= {spec.name for spec in one.candidates}
        skipped.update(reason for _, reason in one.skipped)
    for reason, count in skipped.most_common():
        print(f"skipped {count}: {reason}")
    print(f"{len(found)} problems, {candidates} candidates, {len(images)} images, {skipped.total()} skipped")
    return 0


def compile_candidates(call: Invocation) -> int:
    make_folder(call.options.database)
    require_triton()
    arch = call.arch_without_gpu(ARCHS[0].arch)
    found = call.problems(arch, arch_spec(arch).multiprocessors)
    specs = {spec.name: spec for problem in found for spec in space(problem).candidates}
    store, failures, done = ImageStore(), [], 0
    for done, (spec, result) in enumerate(compile_images(specs.values(), store, call.options.jobs), 1):
        if isinstance(result, CompileFailure):
            failures.append(f"{spec.functional.kernel.name} {spec.functional} {spec.config}: {result.message}")
        if sys.stderr.isatty() or done * 20 // len(specs) > (done - 1) * 20 // len(specs):
            print(f"images {done}/{len(specs)}", end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    for failure in failures:
        print(f"did not compile: {failure}", file=sys.stderr)
    print(f"{done - len(failures)} images in {store.path}, {len(failures)} candidates did not compile")
    return 1 if len(failures) == len(specs) else 0
