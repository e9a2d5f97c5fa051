"""Whose data it is that a command takes in: the caller's own, somebody's whose signature is checked, or unknown."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from aotriton.tune.cli.invocation import Invocation
from aotriton.tune.dataset.signature import verified


@dataclass(frozen=True)
class Origin:
    """Where to read what was given, and why it is trusted, if it is."""

    path: Path
    own: bool
    signer: str

    @property
    def trusted(self) -> bool:
        return self.own or bool(self.signer)


def add_options(to: argparse.ArgumentParser) -> None:
    whose = to.add_mutually_exclusive_group()
    whose.add_argument("--own", action="store_true", help="it is your own, and counts like what is measured here")
    whose.add_argument(
        "--signers", type=Path, metavar="FILE",
        help="it counts if one of these signed it: OpenSSH's allowed signers, a line 'NAME ssh-ed25519 KEY' for each",
    )  # fmt: skip


@contextmanager
def origin(call: Invocation, path: Path) -> Iterator[Origin]:
    """Where to read what is at ``path``; TuningError where it lacks the signature that was asked for."""
    if not call.options.signers:
        yield Origin(path, call.options.own, "")
        return
    with TemporaryDirectory() as folder:
        copied, signer = verified(path, call.options.signers, Path(folder))
        print(f"{path} is signed by {signer}")
        yield Origin(copied, False, signer)
