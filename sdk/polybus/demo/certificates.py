"""A certificate for this machine alone, made when the demo starts and gone when it ends."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from attrs import frozen

_SUBJECT = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@frozen
class Certificate:
    certificate: Path
    key: Path
    ca: Path
    """The authority for clients to trust."""


def make_certificate(folder: Path) -> Certificate | str:
    """Files made by `trustme`, a development dependency, or else by the command ``openssl``; or why there are none."""
    return with_trustme(folder) or with_openssl(folder) or "neither the Python package trustme nor the command openssl is here"


def with_trustme(folder: Path) -> Certificate | None:
    """None where the package is missing."""
    try:
        import trustme
    except ImportError:
        return None
    made = Certificate(folder / "server.pem", folder / "server.key", folder / "ca.pem")
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(made.ca))
    server.private_key_pem.write_to_path(str(made.key))
    for chained in server.cert_chain_pems:
        chained.write_to_path(str(made.certificate), append=True)
    return made


def with_openssl(folder: Path) -> Certificate | None:
    """None where the command is missing or does not do it."""
    command = shutil.which("openssl")
    if command is None:
        return None
    made = Certificate(folder / "self.pem", folder / "self.key", folder / "self.pem")
    arguments = ["req", "-x509", *_KEY, "-days", "30", *_SUBJECT, "-keyout", str(made.key), "-out", str(made.certificate)]
    try:
        subprocess.run([command, *arguments], check=True, capture_output=True, timeout=20)
    except (subprocess.SubprocessError, OSError):
        return None
    return made
