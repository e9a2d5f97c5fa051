"""Locks of the operating system: they end with the process that has them, however it ends."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path


class Lock:
    """A lock on a file, which is there for as long as somebody has the lock. Two objects exclude each other, also in
    one process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Whether the lock is taken, or was before; does not wait. OSError where the file cannot be made."""
        while self._file is None:
            file = _opened(self.path)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                now = os.stat(self.path)
            except BlockingIOError:
                os.close(file)
                return False
            except FileNotFoundError:  # released, and removed, since it was opened: this lock is of no use
                os.close(file)
                continue
            if os.path.samestat(os.fstat(file), now):
                self._file = file
            else:
                os.close(file)
        return True

    def release(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # in /tmp it may be another user's
                self.path.unlink()
            os.close(self._file)
            self._file = None


def gpu_lock(gpu: str) -> Lock:
    """The lock of this machine's GPU with this uuid, for all users."""
    name = re.sub(r"[^\w.-]", "_", gpu)
    return Lock(Path(tempfile.gettempdir()) / f"aotriton-gpu-{name}.lock")


def _opened(path: Path) -> int:
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR)  # without O_CREAT, which is refused for another user's file in /tmp
        with suppress(FileExistsError):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(file, 0o666)  # whatever the umask says
            return file
