"""Winners without a GPU: decided anew, merged from another database, without a session that was retracted, or carried
over to a changed source.
"""

from __future__ import annotations

from collections.abc import Collection

from aotriton.codegen.compile import ImageStore
from aotriton.rules.arch import ARCHS
from aotriton.rules.database import TuningDatabase
from aotriton.rules.family import families
from aotriton.rules.kernel import Functional
from aotriton.tune.cli.invocation import CannotBegin, Invocation, make_folder, require_scipy, require_triton
from aotriton.tune.cli.models import fit_and_compile
from aotriton.tune.cli.origin import origin
from aotriton.tune.dataset import carry_over as carrying
from aotriton.tune.winners.decide_all import decide_all

UNTRUSTED = (
    "Nobody you know vouches for them, so they decide nothing: --confirm races their best here, and --own or"
    " --signers says whose they are"
)


def decide(call: Invocation) -> int:
    make_folder(call.options.database)
    require_triton()
    arch = call.arch_without_gpu(ARCHS[0].arch)
    with TuningDatabase(call.options.database) as database:
        compiled = decide_all(database, call.functionals(arch), ImageStore(), call.options.jobs)
        winners = sum(len(database.winners(arch, kernel.name)) for kernel in call.kernels)
    print(f"{winners} winners stand, {compiled} images that were not known were compiled")
    return 0


def merge(call: Invocation) -> int:
    """Takes over the other database's measurements, of whatever families, and decides all of their winners anew."""
    make_folder(call.options.database)
    require_triton()
    with TuningDatabase(call.options.database) as database:
        with origin(call, call.options.merge) as of:
            taken = database.merge(of.path, call.options.merge, of.own, of.signer)
        if not of.trusted:
            print(f"{taken} timings were new. {UNTRUSTED}")
            return 0
        kernels = {(outcome.arch, outcome.kernel) for outcome in database.evidence.outcomes()} if taken else set()
        compiled = decide_all(database, _functionals(kernels), ImageStore(), call.options.jobs)
    print(f"{taken} timings were new, {compiled} images of borrowed winners were compiled; --fit fits cost models anew")
    return 0


def _functionals(kernels: Collection[tuple[str, str]]) -> list[Functional]:
    """The functionals of those of these kernels, by arch and name, that are known here."""
    known = [kernel for one in families() for kernel in one.kernels]
    return [one for kernel in known for arch in kernel.archs if (arch, kernel.name) in kernels
            for one in kernel.functionals(arch)]  # fmt: skip


def retract(call: Invocation) -> int:
    """Takes a session out of all decisions, and makes anew those that its rows took part in."""
    require_triton()
    options = call.options
    with TuningDatabase(options.database) as database:
        session = database.session(options.session)
        kernels, operators = database.kernels_of([session.uuid]), database.operators_of(session.uuid)
        _check_known(kernels, operators)
        if operators:
            require_scipy()
        database.retract(session, options.why)
        decide_all(database, _functionals(kernels), ImageStore(), options.jobs)
        timed = [one for of in families() for one in of.operators if one.name in {name for _, name in operators}]
        for arch in sorted({arch for arch, _ in operators}):
            for operator in timed:
                own = [one for one in database.evidence.samples(arch, operator.name) if one.product == session.product]
                if not own:
                    database.put_models([], (arch, session.product, operator.name))
            fit_and_compile(database, timed, arch, options.jobs)
    rows = f"{session.measurements} measurements and {session.samples} samples"
    print(f"session {session.uuid} of {session.started} on {session.product} is retracted: its {rows} decide nothing")
    return 0


def _check_known(kernels: Collection[tuple[str, str]], operators: Collection[tuple[str, str]]) -> None:
    """CannotBegin where one of these is of a family that is not here."""
    known = {one.name for of in families() for one in of.kernels}
    known |= {one.name for of in families() for one in of.operators}
    if missing := sorted({name for _, name in (*kernels, *operators)} - known):
        raise CannotBegin(f"the session measured {', '.join(missing)}, of another family: name it by --family FOLDER")


def carry_over(call: Invocation) -> int:
    make_folder(call.options.database)
    require_triton()
    arch = call.arch_without_gpu(ARCHS[0].arch)
    with TuningDatabase(call.options.database) as database:
        functionals = [one for kernel in call.kernels for one in kernel.functionals(arch) if call.wish.has(one)]
        same, other = carrying.carry_over(
            database, call.family.operators, functionals, arch, ImageStore(), call.options.jobs
        )
    print(f"{same} images of a changed source have the same bits and keep their timings, {other} wait to be measured")
    return 0
