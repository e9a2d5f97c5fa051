"""The key of a cluster that tunes: one file, which its scheduler, its workers and its clients have a copy of.

It is a private key with a certificate that is its own authority. Each side shows it to the other (mutual TLS), so that
who has no copy can neither join nor read. A scheduler without this package takes the file as Dask's
``--tls-ca-file`` and ``--tls-cert``.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aotriton.codegen.store import config_folder
from aotriton.tune.problem.tuning_error import TuningError

if TYPE_CHECKING:
    from distributed import Security

VARIABLE = "AOTRITON_TUNING_KEY"  # where the file is, if not at its usual place
DAYS = 3650  # that a key is valid
PATIENCE = 5.0  # seconds that an address has to answer

# What openssl makes of it does not depend on the settings of the machine.
REQUEST = """[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = a cluster that tunes
[extensions]
basicConstraints = critical, CA:true
keyUsage = critical, digitalSignature, keyCertSign
subjectKeyIdentifier = hash
"""


class KeyFault(TuningError):
    """A key that is missing, or is not the cluster's."""


def key_file() -> Path:
    """$AOTRITON_TUNING_KEY, or aotriton/tuning-key.pem in the user's folder of settings."""
    return Path(os.environ.get(VARIABLE) or config_folder() / "tuning-key.pem")


def new_key() -> Path:
    """Makes a key in ``key_file()``, which only its owner can read. KeyFault where one is there already."""
    path = key_file()
    if path.exists():
        raise KeyFault(f"{path} is there already: machines that have it are refused by a new one; remove it first")
    with tempfile.TemporaryDirectory() as scratch:
        request, key, certificate = (Path(scratch) / name for name in ("request", "key", "certificate"))
        request.write_text(REQUEST)
        command = ["openssl", "req", "-x509", "-config", str(request), "-days", str(DAYS), "-nodes"]
        command += ["-newkey", "rsa:3072", "-keyout", str(key), "-out", str(certificate)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            raise KeyFault("openssl is missing, which makes keys; any machine may make one, and hand it on") from None
        if done.returncode:
            raise KeyFault(f"openssl does not make a key: {done.stderr.strip()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(key.read_text() + certificate.read_text())
        except OSError as error:
            raise KeyFault(f"{path}: {error.strerror}") from error
    return path


def security(address: str) -> Security | None:
    """What Dask needs for an address of tls://, from the key; None for another one. KeyFault names a file that is
    missing, or is no key.
    """
    from distributed import Security

    if not address.startswith("tls://"):
        return None
    path = str(key_file())
    if not os.path.exists(path):
        raise KeyFault(
            f"{address} needs a key, and {path} is not there: copy it from a machine of the cluster, or name another"
            f" file in {VARIABLE}; `schedule.py --new-key` makes the key of a new cluster"
        )
    parts = (f"tls_{role}_{part}" for role in ("scheduler", "worker", "client") for part in ("cert", "key"))
    made = Security(require_encryption=True, tls_ca_file=path, **dict.fromkeys(parts, path))
    try:
        made.get_connection_args("client")
    except OSError as error:  # ssl's errors, too
        raise KeyFault(f"{path} is no key of a cluster: {error}") from error
    return made


def check(address: str, secured: Security | None) -> bool:
    """Whether somebody listens at the address; KeyFault where who does has another key, or where one side has none.
    TuningError where it is no address.
    """
    there = urlsplit(address if "://" in address else f"tcp://{address}")  # as Dask reads it
    try:
        host, port = there.hostname, there.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise TuningError(f"{address} is no address of a scheduler, as tls://host:8786 is")
    with suppress(OSError), socket.create_connection((host, port), PATIENCE) as plain:
        if secured is None and (_speaks_first(plain) or not _speaks_tls(plain)):
            return True
        if secured is None:
            raise KeyFault(f"who listens at {address} has a key: its address is tls://{there.netloc}")
        try:
            secured.get_connection_args("client")["ssl_context"].wrap_socket(plain).close()
        except ssl.SSLCertVerificationError as error:
            raise KeyFault(
                f"the key {key_file()} is not that of {address} ({error.verify_message}): copy the file that the"
                " scheduler was started with"
            ) from error
        except ssl.SSLError as error:
            raise KeyFault(f"who listens at {address} has no key: its address is tcp://{there.netloc}") from error
        return True
    return False


def stays_here(address: str) -> bool:
    """Whether only this machine reaches what listens there."""
    host = urlsplit(address).hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _speaks_first(plain: socket.socket) -> bool:
    """Whether something comes by itself, as of Dask without TLS."""
    try:
        return bool(plain.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def _speaks_tls(plain: socket.socket) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(plain).close()
    except TimeoutError:
        return False
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    return True
