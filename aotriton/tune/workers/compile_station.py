"""The station of a worker that compiles: from a job to an image, by warm compilers that the jobs share."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, spec_of
from aotriton.rules.image import ImageSpec
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.cores import leave
from aotriton.tune.workers.jobs import Compiled, CompileJob, Facts, Setting, code_digest, store_token
from aotriton.tune.workers.recompile import is_incident, recompile


class Compiler(Protocol):
    """What compiles: ``codegen.compile.WarmCompiler``, or a stand-in."""

    def compile(
        self, spec: ImageSpec, store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure: ...

    def close(self) -> None: ...


class CompileStation:
    """The compilers of one machine. Each job has one of them; a killed one's image is compiled again while no other job
    runs.
    """

    def __init__(self, reserved: Callable[[], set[int | None]]) -> None:
        """``reserved``: the machine's cores that compilers do not use."""
        self.store = ImageStore()
        self._reserved = reserved
        self._idle: list[Compiler] = []
        self._changed = threading.Condition()
        self._busy = 0
        self._known_good: ImageSpec | None = None

    def facts(self, setting: Setting) -> Facts:
        try:
            triton = importlib.metadata.version("triton")
        except importlib.metadata.PackageNotFoundError:
            triton = "missing"
        return Facts(triton, code_digest(), store_token(self.store))

    def compile(self, job: CompileJob) -> Compiled:
        began = time.monotonic()
        try:
            spec = spec_of(job.request)
            if job.request["name"] != spec.name:
                return Compiled(error="its kernels are not the coordinator's")
            result = self._compile(job, spec)
        except (OSError, TuningError) as error:
            return Compiled(error=self._message(error))
        seconds = time.monotonic() - began
        if isinstance(result, CompileFailure):
            return Compiled(message=result.message, seconds=seconds)
        same = job.setting.store == store_token(self.store)
        return Compiled(result.metadata, binary=None if same else result.binary, seconds=seconds)

    def close(self) -> None:
        with self._changed:
            for one in self._idle:
                one.close()
            self._idle.clear()

    def _compile(self, job: CompileJob, spec: ImageSpec) -> CompiledImage | CompileFailure:
        with self._shared():
            compiler = self._take(job.setting.compiler)
            try:
                result = compiler.compile(spec, self.store, job.checksum)
                if not is_incident(result):
                    if isinstance(result, CompiledImage):
                        self._known_good = spec
                    return result
            finally:
                self._idle.append(compiler)
        with self._alone():
            compiler = self._take(job.setting.compiler)
            try:
                return recompile(spec, self._known_good, self.store, compiler.compile)
            finally:
                self._idle.append(compiler)

    def _take(self, path: str) -> Compiler:
        with self._changed:
            if self._idle:
                return self._idle.pop()
        module, _, name = path.partition(":")
        leave(self._reserved())
        made: Compiler = getattr(importlib.import_module(module), name)()
        return made

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
