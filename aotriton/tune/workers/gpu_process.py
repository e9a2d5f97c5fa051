"""One GPU behind a child process: from requests to results, where a crash and a hang are errors of a known kind.

The child builds a launcher from its import path, so that tests can put a stand-in where the GPU is.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from aotriton.rules.family import VARIABLE
from aotriton.tune.measure import clock as measure
from aotriton.tune.measure.nvml import TUNER
from aotriton.tune.measure.requests import UNKNOWN_CONDITIONS, Device, Draw, Launcher, Race, Request, Result, Timed
from aotriton.tune.problem.accuracy import Check
from aotriton.tune.problem.problems import NamedProblem, Problem
from aotriton.tune.workers.cores import pin

if TYPE_CHECKING:
    from aotriton.tune.measure.requests import Draw

START_LIMIT = 180.0  # seconds to import torch and make a context on a busy machine
PREPARE_LIMIT = 180.0  # seconds for inputs and reference
CANDIDATE_LIMIT = 20.0  # seconds for one candidate, which takes some 50 ms
COMPARED = 64  # rounds of a problem before a candidate's, with whose clock its rounds are compared


class WorkerError(Exception):
    """A request that gave no result; the message says what happened."""


class Unstartable(WorkerError):
    """The child did not come up: no candidate had a part in it."""


class Crashed(WorkerError):
    """The child died, or its launcher raised."""


class TimedOut(WorkerError):
    """The child did not answer in time and was killed."""


class Spare:
    """A child that does not know its part yet. ``ahead``: it imports torch meanwhile, and does not touch a GPU."""

    def __init__(self, ahead: bool = True) -> None:
        """OSError where no process can be started."""
        context = multiprocessing.get_context("spawn")  # a forked CUDA context is broken
        self.pipe, other = context.Pipe()
        with other:  # so that the child's death closes the pipe
            self.child = context.Process(target=_wait, args=(other, os.getpid(), ahead), name="spare", daemon=True)
            self.child.start()

    def close(self) -> None:
        self.child.kill()
        self.child.join(30)
        self.pipe.close()


class GpuProcess:
    """The parent's side. A child that died, hung or lost its context is replaced at the next request.

    ``launcher`` is ``module:Class``; the class is called without arguments in the child, which sees one GPU: ``gpu``,
    an entry of the ``*_VISIBLE_DEVICES`` variables. The child launches from ``core``, where one is given. It alone
    knows ``families``, folders outside of the tree; None: those of this process.
    """

    def __init__(
        self,
        launcher: str,
        gpu: str,
        candidate_limit: float = CANDIDATE_LIMIT,
        core: int | None = None,
        families: Sequence[str] | None = None,
        spare: Spare | None = None,
    ) -> None:
        """``spare``: the first child."""
        self._spare = spare
        self.gpu, self.core = gpu, core
        self._families = families
        self._launcher, self._candidate_limit = launcher, candidate_limit
        self._child: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection
        self._problem: NamedProblem | None = None
        self._prepared = False

    def device(self) -> Device:
        """The GPU's facts. WorkerError where there is no usable GPU, or no binding to launch through."""
        found: Device = self._call("device", limit=START_LIMIT)
        return found

    def prepare(self, problem: NamedProblem) -> None:
        """Makes ``problem`` the one that requests are about; WorkerError where its tensors cannot be made."""
        self.turn_to(problem)
        self._prepare()

    def turn_to(self, problem: NamedProblem) -> None:
        """As ``prepare``, but at the next request."""
        self._problem, self._prepared = problem, False

    def sweep(self, request: Request, best_us: float | None) -> Result:
        """Checks and times one candidate. Crashed or TimedOut are about this candidate."""
        self._prepare()
        result: Result = self._call("sweep", request, best_us, limit=self._candidate_limit)
        return result

    def check(self, request: Request) -> Result:
        """Checks one image as far as what may win is checked, without timing it. Errors as those of ``sweep``."""
        self._prepare()
        result: Result = self._call("check", request, limit=self._candidate_limit)
        return result

    def race(self, requests: Sequence[Request]) -> Race:
        """Candidates that were right before, timed side by side by the child."""
        self._prepare()
        race: Race = self._call("race", requests, limit=self._candidate_limit * len(requests))
        return race

    def sequences(self, draw: Draw) -> Timed:
        """Launch sequences timed side by side on one shape, and the GPU's clock and temperature then."""
        self._prepared = False  # the tensors of a problem make way
        timed: Timed = self._call("sequences", draw, limit=PREPARE_LIMIT)
        return timed

    def healthy(self) -> None:
        """WorkerError where the GPU does not work as it should."""
        if not self._call("healthy", limit=self._candidate_limit):
            self.close()
            raise Crashed("the GPU does not answer as it should")

    def kill(self) -> None:
        """Kills the child; may be called from any thread at any time."""
        if child := self._child:
            child.kill()

    def close(self) -> None:
        """Ends the child."""
        if self._spare:
            self._spare.close()
            self._spare = None
        if self._child is None:
            return
        self._child.kill()
        self._child.join(30)  # the driver may take seconds to stop a kernel that hangs
        self._pipe.close()
        self._child, self._prepared = None, False

    def _prepare(self) -> None:
        if not self._prepared:
            self._call("prepare", self._problem, limit=PREPARE_LIMIT)
            self._prepared = True

    def _start(self) -> None:
        spare, self._spare = self._spare, None
        try:
            spare = spare or Spare(ahead=False)
        except OSError as error:
            raise Unstartable(f"the process for GPU {self.gpu} cannot be started: {error}") from error
        self._child, self._pipe = spare.child, spare.pipe
        self._child.name = f"gpu-{self.gpu}"
        try:
            with suppress(OSError):  # a spare may be dead: reading says how
                self._pipe.send((self._launcher, self.gpu, self.core, self._families))
            self._answer(START_LIMIT)
        except WorkerError as error:
            raise Unstartable(f"the process for GPU {self.gpu} did not come up: {error}") from error

    def _call(self, what: str, *arguments: object, limit: float) -> Any:
        if self._child is None:
            self._start()
        with suppress(OSError):  # the child has just died: reading says how
            self._pipe.send((what, arguments))
        return self._answer(limit)

    def _answer(self, limit: float) -> Any:
        assert self._child is not None
        if not self._pipe.poll(limit):
            self.close()
            raise TimedOut(f"no answer within {limit:g} s")
        try:
            value, error, usable = self._pipe.recv()
        except (EOFError, OSError):
            self._child.join(30)
            code = self._child.exitcode
            self.close()
            how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"exited with status {code}"
            raise Crashed(f"the process {how}") from None
        if not usable:
            self.close()
        if error is not None:
            raise Crashed(error)
        return value


def _wait(pipe: Connection, parent: int, ahead: bool) -> None:
    """Runs the child, once it is sent its part."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with(parent)
    _call_itself(TUNER)
    if ahead:
        with suppress(ImportError):
            importlib.import_module("torch")
    try:
        part = pipe.recv()
    except EOFError:
        return
    _serve(pipe, *part)


def _serve(pipe: Connection, launcher_path: str, gpu: str, core: int | None, families: Sequence[str] | None) -> None:
    """One answer (value, error, whether it can go on) to each request."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        os.environ[variable] = gpu
    if families is not None:
        os.environ[VARIABLE] = os.pathsep.join(families)
    try:
        module, _, name = launcher_path.partition(":")
        launcher: Launcher = getattr(importlib.import_module(module), name)()
    except Exception as error:
        pipe.send((None, f"{type(error).__name__}: {error}", False))
        return
    pin(core)  # not before: the threads of torch and of the driver go where there is room
    pipe.send((None, None, True))
    child = _Child(launcher)
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((getattr(child, what)(*arguments), None, True))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}", what != "prepare" and launcher.healthy()))


class _Child:
    """The requests, as methods."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._problem: Problem | None = None
        self._clocks: deque[int] = deque(maxlen=COMPARED)  # of the problem's last rounds

    def device(self) -> Device:
        return self._launcher.device()

    def prepare(self, problem: NamedProblem) -> None:
        self._problem = problem.problem
        self._clocks.clear()
        self._launcher.prepare(self._problem)

    def sweep(self, request: Request, best_us: float | None) -> Result:
        launcher, opened = self._launcher, self._launcher.open(request)
        check, checks = launcher.check(opened), 1
        samples, conditions = list[float](), UNKNOWN_CONDITIONS
        if not check.wrong:
            began, clocks = time.time(), measure.Clocks(launcher.sm_clock, list(self._clocks))
            samples = measure.sweep(lambda count: launcher.round([opened] * count), best_us, clocks)
            conditions = launcher.conditions(began).of(clocks)
            self._clocks += clocks.known
        if samples and measure.may_win(samples, best_us):
            check, checks = self._check_further(opened, check)
        check = self._closed(opened, check)
        if check.wrong:
            return Result("wrong", (), check, checks=checks)
        return Result("ok", samples, check, conditions, checks)

    def check(self, request: Request) -> Result:
        opened = self._launcher.open(request)
        check, checks = self._launcher.check(opened), 1
        if not check.wrong:
            check, checks = self._check_further(opened, check)
        check = self._closed(opened, check)
        return Result("wrong" if check.wrong else "checked", (), check, checks=checks)

    def _check_further(self, opened: Any, first: Check) -> tuple[Check, int]:
        """The worst of the first check and of those that follow it, and how many these are together."""
        further, launches = self._launcher.check_further(opened)
        return max(first, further, key=lambda one: one.badness), 1 + launches

    def _closed(self, opened: Any, check: Check) -> Check:
        """The check, or what is wrong with the inputs after it, which are then made again. Closes the image."""
        if not self._launcher.intact():
            assert self._problem is not None
            self._launcher.prepare(self._problem)
            check = Check(check.error, check.tolerance, "it wrote over its inputs")
        self._launcher.close(opened)
        return check

    def race(self, requests: Sequence[Request]) -> Race:
        launcher = self._launcher
        opened = {request.name: launcher.open(request) for request in requests}
        began, clocks = time.time(), measure.Clocks(launcher.sm_clock)
        samples = measure.race(
            lambda order: launcher.round([opened[name] for name in order]), list(opened), clocks=clocks
        )
        conditions = launcher.conditions(began).of(clocks)
        for one in opened.values():
            launcher.close(one)
        return Race(samples, conditions)

    def sequences(self, draw: Draw) -> Timed:
        return self._launcher.sequences(draw)

    def healthy(self) -> bool:
        return self._launcher.healthy()


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when the thread that started it ends, also by a kill -9."""
    pr_set_pdeathsig = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it was gone before


def _call_itself(name: str) -> None:
    """Names this process, for /proc and tools that show it."""
    pr_set_name = 15
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(pr_set_name, name.encode())
