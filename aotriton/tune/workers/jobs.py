"""What the coordinator and the workers of a run send each other: jobs, replies, and the bytes of images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.codegen.store import write_atomically
from aotriton.tune.measure.requests import Device, Race, Request, Result
from aotriton.tune.problem.problems import NamedProblem
from aotriton.tune.workers.canary import Canary
from aotriton.tune.workers.families import FamilyFiles

GPU, CPU = "GPU", "CPU"  # Dask's names for what a worker has
PRICE = "USD"  # and for what it costs an hour, where it says so
WANTED = "GPU wanted"  # what no worker has: tasks that wait for it are the GPUs that runs have a use for


@dataclass(frozen=True)
class Setting:
    """What all jobs of a run have in common. ``launcher`` and ``compiler`` are ``module:Class``; ``store`` is the token
    of the coordinator's image store. ``families`` are outside of the tree, as ``families.folders_of`` takes them.
    """

    run: str
    launcher: str
    compiler: str
    store: str
    pauses: tuple[float, ...]
    families: tuple[str, ...]
    candidate_limit: float


@dataclass(frozen=True)
class Facts:
    """The facts of a worker. ``store`` is the token of its image store, ``code`` a digest of our sources."""

    triton: str
    code: str
    store: str
    device: Device | None = None
    gpu: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Greeting:
    """The first job of a run for a worker, which says what it is. ``files`` are those of the setting's families that
    the worker may not have.
    """

    setting: Setting
    files: tuple[FamilyFiles, ...] = ()


@dataclass(frozen=True)
class CompileJob:
    """An image to compile: ``request`` is ``named_request(spec)``, ``checksum`` that of the image that was measured
    before.
    """

    setting: Setting
    request: Mapping[str, Any]
    checksum: str | None = None


@dataclass(frozen=True)
class Compiled:
    """The reply to a CompileJob: ``metadata``, or the compiler's ``message``; the ``binary`` where the coordinator has
    another store. ``error`` is a fault of the machine, whose worker has the address ``station``.
    """

    metadata: Mapping[str, Any] | None = None
    message: str = ""
    binary: bytes | None = None
    error: str | None = None
    seconds: float = 0.0
    station: str = ""


@dataclass(frozen=True)
class MeasureJob:
    """Candidates of one problem, which are swept one after the other, or raced; none, where only its tensors are to be
    made. ``finish``: they are the last ones, and the leaders of all that were swept here race at once. ``images`` has
    those that the worker lacks, by name.
    """

    setting: Setting
    problem: NamedProblem
    requests: tuple[Request, ...]
    race: bool = False
    finish: bool = False
    best_us: float | None = None
    canaries: tuple[Canary, ...] = ()
    images: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """A verdict: ``crashed`` or ``timed_out``, and the message."""

    status: str
    detail: str


@dataclass
class Measured:
    """The reply to a MeasureJob: results by image name; of a race those that fail alone, and the race where none does.
    ``apart``: they race alone, but not together.

    ``missing`` images were not there, ``unprepared`` says why the problem's tensors could not be made; ``error`` is the
    machine's own fault. ``taken``: another run has the GPU, and nothing was done. ``prepared``: no candidate was asked
    for, and the tensors are made. The GPU was busy for ``seconds``, ``preparing`` of them before the first candidate.
    """

    results: dict[str, Result | Failed] = field(default_factory=dict)
    race: Race | None = None
    apart: bool = False
    missing: tuple[str, ...] = ()
    unprepared: str | None = None
    error: str | None = None
    taken: bool = False
    prepared: bool = False
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    preparing: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether it has no result and no reason, as the reply to a job of a run that has ended."""
        return not (
            self.results
            or self.race
            or self.apart
            or self.missing
            or self.unprepared
            or self.error
            or self.taken
            or self.prepared
        )


def received(
    reply: Compiled, name: str, store: ImageStore, checksum: str | None = None
) -> CompiledImage | CompileFailure:
    """The image that a compile job made, in the coordinator's store, or its failure."""
    if reply.metadata is None:
        return CompileFailure(name, reply.message)
    if reply.binary is None:
        return CompiledImage(name, dict(reply.metadata), store.path / str(reply.metadata["file"]))
    own = {key: value for key, value in reply.metadata.items() if key not in ("name", "file", "sha256")}
    return store.put(name, str(reply.metadata["file"]).rpartition(".")[2], reply.binary, own, checksum)


def put_images(store: ImageStore, images: Mapping[str, bytes], requests: Sequence[Request]) -> None:
    """Stores the images of the requests that were sent, if their checksums are right."""
    for request in requests:
        metadata = dict(request.metadata)
        binary = images.get(request.name)
        if binary is not None and hashlib.sha256(binary).hexdigest() == metadata["sha256"]:
            suffix = Path(metadata.pop("file")).suffix.removeprefix(".")
            for name in ("name", "sha256"):
                metadata.pop(name)
            store.put(request.name, suffix, binary, metadata, request.metadata["sha256"])


def store_token(store: ImageStore) -> str:
    """A text that identifies the store's folder, also on another machine that mounts it."""
    path = store.path / ".token"
    if not path.exists():
        write_atomically(path, uuid4().hex.encode())
    return path.read_text()


@cache
def code_digest() -> str:
    """A digest of our own sources: workers with other sources would measure something else."""
    digest = hashlib.sha256()
    for package in ("rules", "tune", "codegen"):
        folder = Path(__file__).absolute().parents[2] / package
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
