"""Models of all products, fitted and stored, and the images that ship by them, compiled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

from aotriton.codegen.compile import CompiledImage, ImageStore
from aotriton.rules.database import Model, TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.rules.operators import Operator, kernels_of, with_own_shapes
from aotriton.rules.work import WORTH_SHIPPING
from aotriton.tune.costmodel.fit import Fitted, fit
from aotriton.tune.costmodel.worth import with_savings
from aotriton.tune.problem.candidates import spec_of
from aotriton.tune.problem.compiler_facts import FACTS, Compile


def fit_models(
    database: TuningDatabase, operators: Sequence[Operator], arch: str, unfit: Collection[str] = ()
) -> dict[tuple[str, str], float]:
    """Fits and stores the models of every product, without those of images that are ``unfit`` to ship. Returns the
    median error by (operator, product).
    """
    facts = {name: fact for name, fact in database.evidence.facts().items() if name not in unfit}
    found = {}
    for operator in operators:
        samples = database.evidence.samples(arch, operator.name)
        fitted: list[Fitted] = []
        for product in database.products(arch):
            own = [one for one in samples if one.product == product.name]
            fitted += fit(operator, arch, own, facts, product.multiprocessors)
        for name, own_models in groupby(with_savings(fitted, operator, arch), key=lambda model: model.product):
            models = list(own_models)
            database.put_models(models, (arch, name, operator.name))
            errors = sorted(model.error for model in models)
            found[operator.name, name] = errors[len(errors) // 2]
    return found


def compile_shipped(
    database: TuningDatabase,
    operators: Sequence[Operator],
    arch: str,
    compile_images: Compile,
    store: ImageStore,
    jobs: int | None,
) -> tuple[int, set[str]]:
    """Compiles the images that ship by their models. In functionals that are not measured themselves an image may spill
    or be serialised: the database records those that are not serialised, and an image that it does not know does not
    ship.

    Returns how many images were new to the database, and the measured images that cannot ship because they, or others
    that the database knows beside them, turned out to be serialised. An image that does not compile is left to the
    build to report.
    """
    configs = {name: config for name, (config, _, _) in database.evidence.facts().items()}
    models: dict[tuple[str, str], list[Model]] = {}
    for model in database.models(arch):
        if model.image in configs:
            models.setdefault((model.kernel, model.functional), []).append(model)
    specs, own_shapes = {}, with_own_shapes(operators)
    for kernel in kernels_of(operators):
        for functional in kernel.functionals(arch):
            measured = functional.measured
            of_plain = kernel.name in own_shapes and (kernel.name, str(measured)) not in models
            lender = measured.plain if of_plain else measured
            for model in models.get((kernel.name, str(lender)), ()):
                # Of those of another level some may not fit, and others ship in their place.
                worth = lender != measured or model.saves >= WORTH_SHIPPING
                if worth and (spec := spec_of(functional, configs[model.image])):
                    specs[spec.name] = spec
    new, refused = 0, set[str]()
    for spec, image in compile_images(specs.values(), store, jobs):
        if not isinstance(image, CompiledImage):
            continue
        if image.serialised and spec.name in configs:
            refused.add(ImageSpec.parse(spec.functional.measured, spec.config).name)
        elif not image.serialised and spec.name not in configs:
            database.evidence.image_id(spec.name, spec.config, **{fact: image.metadata[fact] for fact in FACTS})
            new += 1
    return new, refused
