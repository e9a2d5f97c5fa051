"""The tuner in a process of its own, and the events of its run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aotriton.rules.family import VARIABLE

OnEvent = Callable[[Mapping[str, Any]], None]


def run_tuner(options: Sequence[str], on_event: OnEvent | None = None) -> int:
    """Runs ``tune.py`` with these options, and returns its exit status. What ``on_event`` raises ends the run as Ctrl-C
    does, and is raised here.
    """
    # GPU workers import the main module of their parent, and this program's may be any.
    root = str(Path(__file__).absolute().parents[3])
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *filter(None, sys.path)]))
    command = [sys.executable, "-m", "aotriton.tune.tune", *options]
    if on_event is None:
        return subprocess.run(command, env=environment, check=False).returncode
    reading, writing = os.pipe()
    command += ["--events", f"/dev/fd/{writing}"]
    with open(reading) as lines:
        try:
            process = subprocess.Popen(command, env=environment, pass_fds=[writing])
        finally:
            os.close(writing)  # the run's alone: the lines end with it
        try:
            for line in lines:
                on_event(json.loads(line))
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
        finally:
            process.wait()
    return process.returncode
