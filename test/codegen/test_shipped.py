"""The image that was measured is the one that ships: database, explanation, archive and compiler agree about it.

Run by ctest, which says where the archive and aotriton-explain are and what coverage they were built with.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from operator import mul
from pathlib import Path
from typing import Any

import pytest
from ctest_environment import from_ctest

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images, resources
from aotriton.codegen.pack import difference
from aotriton.codegen.plan import TOLERANCE, UNTIMED, covered
from aotriton.rules.arch import ARCHS
from aotriton.rules.binning import bin_text
from aotriton.rules.database import TuningDatabase, Winner, latest_medians
from aotriton.rules.expression import Environment
from aotriton.rules.family import IN_TREE as FAMILIES
from aotriton.rules.family import family, operator_of
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import parse_functional
from aotriton.rules.operators import Operator
from aotriton.rules.work import WORTH_SHIPPING, terms
from aotriton.tune.problem.problems import scalars_of

KERNELS = family("flash").kernels
ALL_KERNELS = "|".join(kernel.name for name in FAMILIES for kernel in family(name).kernels)
# A shipped image's name, not what is told of another that the source has left behind.
SYMBOL = rf"(?:{ALL_KERNELS})_(?:sm_|gfx)[0-9a-z]+_[0-9a-f]{{16}}(?!: )".encode()

IN_TREE = Path(__file__).resolve().parents[2] / "rules" / "tuning_database.sqlite3"
DATABASE = Path(os.environ.get("AOTRITON_DATABASE") or IN_TREE)  # what the build was generated from


def store() -> ImageStore:
    """The one that the build filled."""
    return ImageStore(os.environ.get("AOTRITON_IMAGE_STORE") or None)


@dataclass(frozen=True)
class Shipped:
    """A measured winner that the build covers, its image as compiled today, and every image timed in its bin."""

    winner: Winner
    spec: ImageSpec
    timed_us: dict[str, float]  # image name to median

    @property
    def bin(self) -> dict[str, int]:
        return {name: int(value) for name, value in (key.split("=") for key in self.winner.bin.split())}

    @property
    def current(self) -> bool:
        """Whether the kernel is still the one that was measured."""
        return self.spec.name == self.winner.image

    @property
    def operator(self) -> Operator:
        return operator_of(self.spec.functional.kernel)

    @property
    def portable(self) -> bool:
        """Whether the kernel is of the backend that serves everything."""
        return self.spec.functional.kernel in self.operator.backends[0].kernels

    @property
    def modelled(self) -> bool:
        """Whether predicted times say which images of the functional ship."""
        return (self.winner.kernel, str(self.spec.functional.measured)) in modelled()

    @property
    def aligned(self) -> bool:
        """Whether it serves contiguous tensors, which explanations are about."""
        functional, aligned = self.spec.functional, self.spec.functional.arch_spec.addressing[-1]
        return functional.get("ADDRESSING", aligned) == aligned

    @property
    def explained(self) -> bool:
        """Whether contiguous tensors get this kernel with this functional."""
        return self.aligned and any(choice["kernel"] == self.winner.kernel for choice in explanations(self))


@cache
def modelled() -> set[tuple[str, str]]:
    with TuningDatabase(DATABASE, readonly=True) as database:
        return {(one.kernel, one.functional) for one in database.models() if one.saves >= WORTH_SHIPPING}


def shipped() -> Iterator[Shipped]:
    coverage = from_ctest("AOTRITON_COVERAGE")
    with TuningDatabase(DATABASE, readonly=True) as database:
        for target in ARCHS:
            for kernel in KERNELS:
                asked = covered(operator_of(kernel).lead, target.arch, coverage)
                functionals = {str(kernel.like(functional)) for functional in asked}
                winners = database.winners(target.arch, kernel.name)
                timed = {
                    product: latest_medians(database.evidence.outcomes(target.arch, kernel.name, product=product))
                    for product in {winner.product for winner in winners}
                }
                for winner in winners:
                    if winner.provenance != "measured" or winner.functional not in functionals:
                        continue
                    functional = parse_functional(kernel, target.arch, winner.functional)
                    spec = ImageSpec.parse(functional, winner.config)
                    outcomes = timed[winner.product].get((winner.functional, winner.bin), [])
                    yield Shipped(winner, spec, {o.image: float(o.median_us or 0) for o in outcomes})


@pytest.fixture(scope="module")
def winners() -> list[Shipped]:
    return list(shipped())


@pytest.fixture(scope="module")
def cells(winners: list[Shipped]) -> list[Shipped]:
    """The winners whose kernel has not changed since it was measured."""
    found = [cell for cell in winners if cell.current]
    assert found, f"{len(winners)} measured winners in {DATABASE}, none of the kernels as they are now: tune again"
    return found


@pytest.fixture(scope="module")
def archive() -> bytes:
    return Path(from_ctest("AOTRITON_ARCHIVE")).read_bytes()


@cache
def explain(*arguments: str) -> list[dict[str, Any]]:
    command = [from_ctest("AOTRITON_EXPLAIN"), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def sizes_of(cell: Shipped) -> dict[str, int]:
    """What a call in the cell's bin is asked about."""
    bin = cell.bin
    seqlen_q = bin["max_seqlen_q"]
    batch = cell.spec.functional.arch_spec.multiprocessors + 1 if bin.get("waves", 1) > 1 else 1  # a tile each
    sizes = {"batch": batch, "heads_q": 1, "heads_k": 1, "seqlen_q": seqlen_q}
    return sizes | {
        "seqlen_k": bin.get("max_seqlen_k", seqlen_q),
        "head_dim": int(cell.spec.functional.get("BLOCK_DMODEL", 64)),  # every coverage has it
    }


def explanations(cell: Shipped) -> list[dict[str, Any]]:
    """What aotriton-explain says of a call in the cell's bin, of each kernel of the backend that serves it."""
    functional = cell.spec.functional.as_dict()
    asked = {
        "op": cell.operator.name,
        "device": cell.winner.product,
        "dtype": functional["T"],
        "multiprocessors": cell.spec.functional.arch_spec.multiprocessors,
        **{name.replace("_", "-"): size for name, size in sizes_of(cell).items()},
    }
    arguments = [text for name, value in asked.items() for text in (f"--{name}", str(value))]
    arguments += ["--causal"] if functional.get("CAUSAL") else []
    return explain(*arguments)


def explanation(cell: Shipped) -> dict[str, Any]:
    """What is said of the cell's own kernel."""
    (choice,) = (choice for choice in explanations(cell) if choice["kernel"] == cell.winner.kernel)
    bin = cell.bin
    assert (choice["arch"], choice["product"]) == (cell.winner.arch, cell.winner.product)
    assert choice["functional"] == cell.winner.functional
    assert {key["name"]: key["representative"] for key in choice["keys"]} == bin
    return choice


def shipping_image(cell: Shipped) -> str:
    return str(explanation(cell)["bin_image"])


def test_what_is_told_of_a_bin_was_measured_there(cells: list[Shipped], archive: bytes) -> None:
    """A measured bin's image was timed in that very bin, and no image of the archive was faster there by more than 1 %:
    by nothing, where predicted times say what ships.
    """
    explained = [cell for cell in cells if cell.explained]
    assert explained, "no measured winner is one that aotriton-explain can be asked about"
    symbols = {name.decode() for name in re.findall(SYMBOL, archive)}
    for cell in explained:
        choice, winner = explanation(cell), cell.winner
        where = f"{winner.kernel} {winner.product} {winner.functional} {winner.bin}: {choice}"
        if not choice["bin_median_us"]:  # the images that ship were worth no try here
            assert not set(cell.timed_us) & symbols, where
            continue
        own = choice["bin_image"] == winner.image
        assert choice["bin_image"] in cell.timed_us, where
        wanted = winner.median_us if own else cell.timed_us[choice["bin_image"]]
        assert choice["bin_median_us"] == pytest.approx(wanted, rel=1e-4), where
        best = winner.median_us
        if choice["predicted_us"]:
            best = min(median for image, median in cell.timed_us.items() if image in symbols)
        assert own or choice["bin_median_us"] <= best * (1 + TOLERANCE) * (1 + 1e-4), where
        assert own or from_ctest("AOTRITON_COVERAGE") != "full", where
        if choice["image"] == choice["bin_image"]:
            assert (choice["provenance"], choice["median_us"]) == ("measured", choice["bin_median_us"]), where
        else:
            assert (choice["provenance"], choice["median_us"]) == ("predicted", 0), where


def test_predicted_times_are_those_of_the_models_in_the_database(cells: list[Shipped]) -> None:
    """The runner evaluates what rules/work.py does, with the coefficients of the chosen image."""
    with TuningDatabase(DATABASE, readonly=True) as database:
        models = {(one.product, one.kernel, one.functional, one.image): one for one in database.models()}
    compared = 0
    for cell in cells:
        for choice in explanations(cell) if cell.explained else ():
            kernel = next(one for one in KERNELS if one.name == choice["kernel"])
            functional = parse_functional(kernel, choice["arch"], choice["functional"])
            if choice["predicted_us"]:
                assert kernel.work
                tunables = {
                    name: int(value) for name, value in (word.split("=") for word in choice["tunables"].split())
                }
                # A product without a model of its own borrows one; explain names the lender.
                lender = choice["model"].removeprefix("product=").replace("_", " ") or choice["product"]
                model = models[lender, kernel.name, str(functional.measured), choice["image"]]
                environment = Environment(
                    sizes_of(cell), scalars_of(functional, sizes_of(cell)), tunables, multiprocessors=132
                )
                found = sum(map(mul, terms(kernel.work, environment, model.occupancy), model.coefficients))
                assert choice["predicted_us"] == pytest.approx(found, rel=1e-4), choice
                compared += 1
    assert compared


def test_the_backend_of_the_least_predicted_time_serves(cells: list[Shipped]) -> None:
    """Of those that can serve the call; where nothing is predicted, the one whose measured winners of the bin take the
    least time.
    """
    measured = {
        (c.winner.product, c.winner.kernel, c.winner.functional, c.winner.bin): c.winner.median_us for c in cells
    }
    compared = 0
    for cell in cells:
        functional = cell.spec.functional
        if (
            functional.kernel is not cell.operator.lead
            or functional["ADDRESSING"] != functional.arch_spec.addressing[-1]
        ):
            continue
        times = {}
        for backend in cell.operator.backends:
            medians = []
            for kernel in backend.timed_kernels:
                bin = bin_text(kernel.tuning_keys, kernel.cell_like(cell.bin))
                medians.append(measured.get((cell.winner.product, kernel.name, str(kernel.like(functional)), bin)))
            known = [median for median in medians if median]
            if len(known) == len(medians):
                times[backend.name] = sum(known)
        choices = explanations(cell)
        predicted = {one["name"]: one["predicted_us"] for one in choices[0]["backends"] if one["predicted_us"]}
        times = predicted or times
        assert {choice["backend"] for choice in choices} == {min(times, key=times.__getitem__, default="portable")}, (
            times
        )
        compared += bool(times)
    assert compared


@pytest.mark.parametrize("arch", [one.arch for one in ARCHS])
@pytest.mark.parametrize(("queries", "backends"), [(1, {"decode"}), (128, {"split", "hopper_planned"})])
def test_keys_in_pages_are_served_on_every_arch(arch: str, queries: int, backends: set[str]) -> None:
    """A step of a decoding model and a chunk of a prompt, of a cache in pages."""
    sizes = {"batch": 4, "heads-q": 32, "heads-k": 8, "seqlen-q": queries, "head-dim": 64}
    sizes |= {"page-size": 64, "pages": 200, "pages-of-sequence": 40, "sequences": 4}
    asked = {"op": "attn_fwd", "arch": arch, "dtype": "bf16"} | sizes
    found = explain(*(f"--{name}={value}" for name, value in asked.items()), "--block-table", "--seqused-k")
    assert {one["backend"] for one in found} <= backends
    walks = [one for one in found if one["kernel"] != "attn_fwd_plan" and "combine" not in one["kernel"]]
    assert all("KEYS=pages" in one["functional"] or one["kernel"].endswith("_paged") for one in walks), found
    assert all(one["image"] for one in found)


def test_a_changed_kernel_is_not_called_measured(winners: list[Shipped]) -> None:
    """An image of a kernel that changed after its winner was measured counts as borrowed, and says so, and so does one
    in whose bin none of the build was measured.
    """
    assert winners, f"{DATABASE} has no measured winner in this build's coverage"
    for cell in winners:
        if cell.explained and not cell.current:
            choice = explanation(cell)
            if choice["image"] == (choice["bin_image"] or choice["image"]):
                assert choice["provenance"] == "borrowed", choice
                assert choice["source"] == UNTIMED or "source has changed" in choice["source"], choice
            else:
                assert choice["provenance"] == "predicted", choice


def test_the_archive_holds_the_images_that_were_measured(cells: list[Shipped], archive: bytes) -> None:
    """Each measured cell's image is a symbol of the archive; where no explanation reaches, the winner or its equal."""
    symbols = {name.decode() for name in re.findall(SYMBOL, archive)}
    for cell in cells:
        if not cell.explained and (cell.aligned or not cell.portable or cell.modelled):
            continue  # a backend ships where it is faster, and of what is predicted that which saves time
        best = min(cell.winner.median_us, *cell.timed_us.values())
        equals = {image for image, median in cell.timed_us.items() if median <= best * (1 + TOLERANCE) * (1 + 1e-4)}
        candidates = {shipping_image(cell)} if cell.explained else equals | {cell.winner.image}
        assert candidates & symbols, f"{cell.winner}: none of {sorted(candidates)} is in the archive"


def test_measured_images_ship_bit_by_bit(cells: list[Shipped], archive: bytes) -> None:
    """Every winner that ships as itself has the checksum that was taken when it was measured, and these bytes ship."""
    own = {cell.spec.name: cell.spec for cell in cells if cell.explained and shipping_image(cell) == cell.spec.name}
    assert own, "no winner ships as itself"
    stored = {hashlib.sha256(binary).hexdigest() for _, binary in images_in(archive)}
    with TuningDatabase(DATABASE, readonly=True) as database:
        checksums = database.checksums()
    for spec, image in compile_images(own.values(), store(), None, checksums=checksums):
        assert isinstance(image, CompiledImage), image
        assert image.metadata["sha256"] == checksums[spec.name], f"{spec.name} is not what was measured"
        assert image.metadata["sha256"] in stored, f"{spec.name} is not in the archive bit by bit"


def test_a_measured_image_compiles_to_the_same_bits_again(cells: list[Shipped], tmp_path: Path) -> None:
    """A store of another machine gets the very images that were measured."""
    specs = {cell.spec.name: cell.spec for cell in cells if "dk_dv" in cell.spec.name}  # the largest kernel
    with TuningDatabase(DATABASE, readonly=True) as database:
        checksums = database.checksums()
    for spec, image in compile_images(specs.values(), ImageStore(tmp_path), None, checksums=checksums):
        assert isinstance(image, CompiledImage), image
        assert image.metadata["sha256"] == checksums[spec.name], f"{spec.name} is not what was measured"


def images_in(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Each image that the archive embeds, compressed or not, and the vendor whose GPU it is for."""
    machines = {190: "cuda", 224: "hip"}  # in an ELF header; what the archive is made of has the host's
    names = {name.decode() for name in re.findall(SYMBOL, archive)}
    checksums = {image.metadata["sha256"] for name in names if (image := store().get(name))}
    by_size: dict[int, list[bytes]] = {}
    for start in re.finditer(rb"\x78\xda|\x7fELF", archive):
        binary = memoryview(archive)[start.start() :]
        if start[0] != b"\x7fELF":
            try:
                binary = memoryview(zlib.decompressobj().decompress(binary))
            except zlib.error:
                continue  # two bytes that happen to look like a beginning
            if bytes(binary[:4]) == bytes(4):  # the difference from an image that is stored before
                made = (difference(bytes(binary), base) for base in by_size.get(len(binary), ()))
                found = [one for one in made if hashlib.sha256(one).hexdigest() in checksums]
                if found:
                    binary = memoryview(found[0])
            else:
                by_size.setdefault(len(binary), []).append(bytes(binary))
        if bytes(binary[:4]) == b"\x7fELF" and int.from_bytes(binary[18:20], "little") in machines:
            # Behind everything else is one of the two tables of headers: offset, size of an entry, entries.
            tables = ((binary[32:40], binary[54:56], binary[56:58]), (binary[40:48], binary[58:60], binary[60:62]))
            numbers = [[int.from_bytes(field, "little") for field in table] for table in tables]
            end = max(offset + size * entries for offset, size, entries in numbers)
            yield machines[int.from_bytes(binary[18:20], "little")], bytes(binary[:end])


def test_no_shipped_image_spills(archive: bytes) -> None:
    """Every image in the archive, read from its own bytes: no register spilled, and no stack."""
    images = list(images_in(archive))
    names = set(re.findall(SYMBOL + rb"\0", archive))
    assert len(images) == len(names) > 0
    for vendor, binary in images:
        found = resources(vendor, binary)
        assert found["spills"] == found["stack"] == 0, f"{found}: {hashlib.sha256(binary).hexdigest()}"
