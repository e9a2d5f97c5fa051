"""The compile pool: from image specs to stored images, through warm worker processes that may hang or die."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aotriton
from aotriton.codegen.store import CompiledImage, CompileFailure, ImageStore
from aotriton.rules import family
from aotriton.rules.image import ImageSpec

TIME_LIMIT = 600.0  # seconds for one image: many times the time of the slowest, so that only a hang reaches it

# ptxas orders something by address: for some kernels it makes one of two binaries, depending on the heap's layout. If
# one of them is required because it was measured, this many tries are enough to get it.
TRIES = 100

# What the process says of an image whose name its own rules and sources do not make.
OTHER_SOURCE = "the kernel's source changed after this image was asked for"

# Variables that Triton, LLVM and ptxas read: an image must not depend on the user who compiles it.
COMPILER_VARIABLES = re.compile(
    r"(TRITON|MLIR|LLVM|AMDGCN|NVPTX|PTXAS|GLUON|PROTON)_.*|(ALLOW|DISABLE|ENABLE)_.*(LLVM|PTXAS|TMEM|MMA).*|USE_IR_LOC"
    r"|NVCC_(PRE|AP)PEND_FLAGS|PTXAS"
)


def cpu_count() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def request_of(spec: ImageSpec) -> dict[str, Any]:
    """The spec as plain data, from which ``spec_of`` makes an equal one."""
    return {
        "kernel": spec.functional.kernel.name,
        "arch": spec.functional.arch,
        "functional": spec.functional.as_dict(),
        "tunables": dict(spec.tunables),
        "compile_options": dict(spec.compile_options),
    }


def named_request(spec: ImageSpec) -> dict[str, Any]:
    """``request_of(spec)`` with the image's name and its file's suffix, for a process that cannot read the rules."""
    return {"name": spec.name, "suffix": spec.suffix, **request_of(spec)}


def spec_of(request: Mapping[str, Any]) -> ImageSpec:
    """The spec that ``request_of`` wrote; ValueError if the rules no longer have one of its names or values."""
    functional = family.kernel(request["kernel"]).functional(request["arch"], **request["functional"])
    return ImageSpec.of(functional, request["tunables"], request["compile_options"])


def compile_images(
    specs: Iterable[ImageSpec],
    store: ImageStore,
    jobs: int | None = None,
    time_limit: float = TIME_LIMIT,
    checksums: Mapping[str, str] | None = None,
    tries: int | None = None,
) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
    """Yields each distinct spec with its image or its failure: stored images at once, the others as they finish.

    Each of ``jobs`` worker processes (default: one for each core) imports Triton once. If a worker dies or takes longer
    than ``time_limit`` seconds, its spec fails and the worker is replaced. Closing the iterator ends the workers.

    ``checksums`` maps image names to SHA-256. An image with another checksum is compiled again, at most ``tries`` times
    in all (default: TRIES).
    """
    wanted, most = checksums or {}, tries or TRIES
    tried: Counter[str] = Counter()
    by_name = {spec.name: spec for spec in specs}
    waiting: deque[Mapping[str, Any]] = deque()
    for name, spec in by_name.items():
        if stored := store.get(name, wanted.get(name)):
            yield spec, stored
        else:
            waiting.append(named_request(spec))
    workers: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="aotriton-compile-") as scratch, selectors.DefaultSelector() as selector:
        try:
            while waiting and len(workers) < (jobs or cpu_count()):
                workers.append(_Worker(Path(scratch), selector))
                workers[-1].begin(waiting.popleft(), time_limit)
            while workers:
                deadline = min(worker.deadline for worker in workers)
                ready = {key.data for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
                for worker in list(workers):
                    if worker not in ready and time.monotonic() < worker.deadline:
                        continue
                    request = worker.request
                    name = str(request["name"])
                    checksum = wanted.get(name)
                    result = worker.finish(store, checksum) if worker in ready else worker.give_up(time_limit)
                    result = replace(result, seconds=time.monotonic() - worker.begun)
                    tried[name] += 1
                    again = isinstance(result, CompiledImage) and checksum not in (None, result.metadata["sha256"])
                    again = again and tried[name] < most
                    if again:
                        waiting.append(request)
                    if waiting:
                        worker.begin(waiting.popleft(), time_limit)  # before the yield: it works while the caller does
                    else:
                        worker.stop()
                        workers.remove(worker)
                    if not again:
                        yield by_name[name], result
        finally:
            for worker in workers:
                worker.stop()


class WarmCompiler:
    """One worker process, for a caller with several threads; each thread needs its own worker.

    ``families`` are the folders of the families outside of the tree that the process knows; None: those of this one.
    """

    def __init__(self, families: Sequence[str] | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="aotriton-compile-")
        self._selector = selectors.DefaultSelector()
        self._worker = _Worker(Path(self._scratch.name), self._selector, families)

    def compile(
        self, request: Mapping[str, Any], store: ImageStore, checksum: str | None = None, time_limit: float = TIME_LIMIT
    ) -> CompiledImage | CompileFailure:
        """The image of a ``named_request``, from the store or else made; ``checksum`` as in ``compile_images``."""
        if stored := store.get(request["name"], checksum):
            return stored
        for _ in range(TRIES):
            self._worker.begin(request, time_limit)
            ready = self._selector.select(time_limit)
            result = self._worker.finish(store, checksum) if ready else self._worker.give_up(time_limit)
            if isinstance(result, CompileFailure) or checksum in (None, result.metadata["sha256"]):
                break
        return result

    def start(self) -> None:
        """Starts the process, which is started by the first image otherwise."""
        self._worker.start()

    def close(self) -> None:
        """Ends the worker."""
        self._worker.stop()
        self._selector.close()
        self._scratch.cleanup()


class _Worker:
    """A child process running ``compile.serve``, started when it is needed: a line of json in, a line of json out."""

    request: Mapping[str, Any]
    begun: float
    deadline: float

    def __init__(self, scratch: Path, selector: selectors.BaseSelector, families: Sequence[str] | None = None) -> None:
        self.scratch = Path(tempfile.mkdtemp(dir=scratch))
        self.selector, self.families = selector, families
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """That of the image under way."""
        return str(self.request["name"])

    def begin(self, request: Mapping[str, Any], time_limit: float) -> None:
        """Sends a ``named_request`` to the process, which has ``time_limit`` seconds for it."""
        self.start()
        self._free()
        self.request, self.begun = request, time.monotonic()
        self.deadline = self.begun + time_limit
        self.log.seek(0)
        self.log.truncate()
        line = json.dumps({"binary": str(self.scratch / self.name), **request}).encode() + b"\n"
        with suppress(BrokenPipeError):  # it has just died; finish() will meet its closed stdout
            self.stdin.write(line)

    def finish(self, store: ImageStore, checksum: str | None) -> CompiledImage | CompileFailure:
        """The result of the spec under way, once stdout has something to read or has closed."""
        line = self.stdout.readline()
        if not line.endswith(b"\n"):
            said = self._said()
            code = self.stop(grace=5.0)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
            return CompileFailure(self.name, f"the compiler process {how}{said}")
        answer = json.loads(line)
        if "error" in answer:
            return CompileFailure(self.name, answer["error"] + self._said())
        binary = self.scratch / self.name
        image = store.put(self.name, self.request["suffix"], binary.read_bytes(), answer["metadata"], checksum)
        binary.unlink()
        return image

    def _free(self) -> None:
        """Removes the compiler's files of the previous image: those of hundreds do not fit in a small /tmp."""
        for path in self.scratch.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def give_up(self, time_limit: float) -> CompileFailure:
        """Ends a process that did not answer in time."""
        said = self._said()
        self.stop()
        return CompileFailure(self.name, f"not compiled within {time_limit:g} s{said}")

    def stop(self, grace: float = 0.0) -> int:
        """Ends the process and its children if they still run after ``grace`` seconds; returns the exit status."""
        if self.process is None:
            return 0
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.selector.unregister(self.stdout)
        for file in (self.stdin, self.stdout, self.log):
            file.close()
        self.process = None
        return code

    def start(self) -> None:
        """Starts the process, unless it runs."""
        if self.process is not None:
            return
        root = str(Path(aotriton.__file__).absolute().parent.parent)
        kept = {name: value for name, value in os.environ.items() if not COMPILER_VARIABLES.fullmatch(name)}
        environment = kept | {
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
            "TMPDIR": str(self.scratch),
            "TRITON_CACHE_DIR": str(self.scratch / "triton"),
            "TRITON_ALWAYS_COMPILE": "1",  # the store is the only cache: Triton's key is not the image's name
            "TRITON_DISABLE_LINE_INFO": "1",
        }
        if self.families is not None:
            environment[family.VARIABLE] = os.pathsep.join(self.families)
        self.log = tempfile.TemporaryFile(dir=self.scratch, buffering=0)  # noqa: SIM115 (lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from aotriton.codegen.compile import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C is the parent's to handle, and ptxas must die with its worker
        )
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.selector.register(self.stdout, selectors.EVENT_READ, self)

    def _said(self) -> str:
        """The end of the process's output, where compilers print what is wrong."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()[-20:]
        return ":\n" + "\n".join(lines) if lines else ""
