"""The station of a worker that compiles: from a job to an image, by warm compilers that the jobs share."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from aotriton.codegen.compile import OTHER_SOURCE, CompiledImage, CompileFailure, ImageStore
from aotriton.rules.image import TRITON_VERSION
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.cores import leave
from aotriton.tune.workers.families import known_folders
from aotriton.tune.workers.jobs import Compiled, CompileJob, Facts, Setting, code_digest, store_token
from aotriton.tune.workers.recompile import ImageRequest, is_incident, recompile

EARLY = 32  # most compilers that start before there is a job: each takes memory

Kind = tuple[str, tuple[str, ...]]  # of a compiler: its ``module:Class``, and the folders of families that it knows


class Compiler(Protocol):
    """What compiles: ``codegen.compile.WarmCompiler``, or a stand-in. It is called with the folders of families that it
    alone must know.
    """

    def compile(
        self, request: ImageRequest, store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class CompileStation:
    """The compilers of one machine. Each job has one of them; a killed one's image is compiled again while no other job
    runs.
    """

    def __init__(self, reserved: Callable[[], set[int | None]], count: int = 0) -> None:
        """``reserved``: the machine's cores that compilers do not use; ``count``: how many compilers start when a run
        begins, before there is a job.
        """
        self._count = count
        self.store = ImageStore()
        self._reserved = reserved
        self._idle: list[tuple[Kind, Compiler]] = []
        self._changed = threading.Condition()
        self._busy = 0
        self._closed = False
        self._known_good: dict[Kind, ImageRequest] = {}

    def facts(self, setting: Setting) -> Facts:
        try:
            triton = importlib.metadata.version("triton")
        except importlib.metadata.PackageNotFoundError:
            triton = "missing"
        if triton == TRITON_VERSION and not self._busy:
            threading.Thread(target=self._start, args=(setting,), daemon=True).start()
        return Facts(triton, code_digest(), store_token(self.store))

    def compile(self, job: CompileJob) -> Compiled:
        began = time.monotonic()
        try:
            result = self._compile(job)
        except (OSError, TuningError) as error:
            return Compiled(error=self._message(error))
        seconds = time.monotonic() - began
        if isinstance(result, CompileFailure):
            if OTHER_SOURCE in result.message:
                return Compiled(error="its kernels are not the coordinator's")
            return Compiled(message=result.message, seconds=seconds)
        same = job.setting.store == store_token(self.store)
        return Compiled(result.metadata, binary=None if same else result.binary, seconds=seconds)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for _, one in self._idle:
                one.close()
            self._idle.clear()

    def _compile(self, job: CompileJob) -> CompiledImage | CompileFailure:
        kind = self._kind(job.setting)
        with self._shared(), self._compiler(kind) as compiler:
            result = compiler.compile(job.request, self.store, job.checksum)
            if not is_incident(result):
                if isinstance(result, CompiledImage):
                    self._known_good[kind] = job.request
                return result
        with self._alone(), self._compiler(kind) as compiler:
            return recompile(job.request, self._known_good.get(kind), self.store, compiler.compile)

    def _start(self, setting: Setting) -> None:
        """Starts the compilers of a run that begins, while a GPU starts and images are chosen."""
        with suppress(OSError, ImportError, TuningError):  # the first job says so
            kind = self._kind(setting)
            while self._starts_one(kind):
                pass

    def _starts_one(self, kind: Kind) -> bool:
        """Starts a compiler of this kind, in the place of another one; False where jobs run or there are enough."""
        with self._changed:
            enough = sum(one[0] == kind for one in self._idle) >= min(self._count, EARLY)
            if self._closed or self._busy or enough:
                return False
            if other := next((one for one in self._idle if one[0] != kind), None):
                self._idle.remove(other)
                other[1].close()
            compiler = self._make(kind)
            self._idle.append((kind, compiler))
            compiler.start()
        return True

    def _kind(self, setting: Setting) -> Kind:
        return setting.compiler, known_folders(setting.families)

    def _make(self, kind: Kind) -> Compiler:
        module, _, name = kind[0].partition(":")
        leave(self._reserved())
        made: Compiler = getattr(importlib.import_module(module), name)(kind[1])
        return made

    @contextmanager
    def _compiler(self, kind: Kind) -> Iterator[Compiler]:
        """A compiler that is idle, or else a new one, in the place of an idle one of another kind."""
        with self._changed:
            fit = [one for one in self._idle if one[0] == kind]
            taken = fit[-1] if fit else self._idle[0] if self._idle else None
            if taken:
                self._idle.remove(taken)
        if taken and fit:
            compiler = taken[1]
        else:
            if taken:
                taken[1].close()
            compiler = self._make(kind)
        try:
            yield compiler
        finally:
            with self._changed:
                self._idle.append((kind, compiler))

    @contextmanager
    def _shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._busy >= 0)
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._busy == 0)
            self._busy = -1
        try:
            yield
        finally:
            with self._changed:
                self._busy = 0
                self._changed.notify_all()

    def _message(self, error: BaseException) -> str:
        """The error's text; for a full disk with the path, which a failed write does not name."""
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{error.filename or self.store.path}: {error.strerror}"
        return str(error)
