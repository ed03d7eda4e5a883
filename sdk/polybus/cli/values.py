"""Values of options: connections, headers, certificates, bodies and subjects; and JSON output."""

from __future__ import annotations

import json
import math
import re
import ssl
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import msgspec

from .. import Backoff, Bus, Cluster, Limits, connect
from ..nodes import VARIABLE
from ..plugins.registry import mistyped_options, resolve_url
from .problems import UsageError, say

_IMPATIENT = Backoff(maximum=1.0)
"""A person waits at the screen."""

_FOR_EVER: Final = 1e9
"""Seconds."""

_CONTROLS = re.compile(r"[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that JSON allows in texts but that a terminal must not get; JSON escapes the other control characters itself."""

_FAREWELL = 0.3
"""Seconds for a peer to answer the goodbye: a command ends by its deadline, even if the peer is silent."""


def cluster_of(url: str, wait: float = 0.0, tls: ssl.SSLContext | None = None) -> Cluster | None:
    """Cluster of polybus programs that a URL names by its path or as ``auto``; None for others, such as a plain NATS server.

    Raises:
        UsageError: ``auto``, but the environment names none.
    """
    scheme, _, rest = url.partition("://")
    path = rest.partition("?")[0].partition("/")[2]
    if url != "auto" and not (scheme in ("nats+tcp", "nats+tls") and path):
        return None
    options = Cluster(url, wait=min(wait, _FOR_EVER), tls=tls)
    if options.resolved() is None:
        raise UsageError(f"auto reads {VARIABLE}, which is not set: set it, or give a URL")
    return options


def hasty_bus(timeout: float, cluster: Cluster | None = None, message: int | None = None) -> Bus:
    """Bus of a command; `timeout` shortens its time limits, `message` is its `Limits.message`."""
    usual = Limits()
    limits = Limits(
        message=message or usual.message,
        connect_timeout=min(usual.connect_timeout, timeout or math.inf),
        handshake_timeout=min(usual.handshake_timeout, timeout or math.inf),
        close_timeout=_FAREWELL,
    )
    return Bus(limits=limits, cluster=cluster)


def connecting(
    url: str, header: list[str] | None, tls: ssl.SSLContext | None, wait: float, timeout: float = 0.0, bus: Bus | None = None
) -> AbstractAsyncContextManager[Bus]:
    """Connection of a command, by default of a `hasty_bus`; raises UsageError for impossible options."""
    bus = bus or hasty_bus(timeout, cluster_of(url, wait, tls))
    if bus.cluster is None:
        warn_of_slips(url)
        return connect(url, bus=bus, backoff=_IMPATIENT, **dialling(header, tls, wait))
    check_for_cluster(header)
    return bus


def check_for_cluster(header: list[str] | None) -> None:
    """Raise UsageError for headers, which clusters do not use."""
    if header:
        raise UsageError("--header: a cluster does not use headers; put a token before the host of its URL, as in TOKEN@host")


def warn_of_slips(url: str) -> None:
    """Warn of members of the query that resemble options: they go to the server, without any other message."""
    if slips := mistyped_options(url):
        say(f"{slips}? It is not an option, and goes to the server unchanged")


def dialling(header: list[str] | None, tls: ssl.SSLContext | None, wait: float) -> dict[str, Any]:
    """Options of `connect`, including --header and --wait; raises UsageError if they cannot be used."""
    return {"headers": headers_of(header), "tls": tls, "wait": wait}


def headers_of(given: list[str] | None) -> dict[str, str] | None:
    """Headers of --header; raises UsageError for a malformed one."""
    headers: dict[str, str] = {}
    for text in given or ():
        name, colon, value = text.partition(":")
        if not (colon and name.strip()):
            raise UsageError(f"--header {text!r}: write 'name: value'")
        headers[name.strip()] = value.strip()
    return headers or None


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS context from --ca, --cert and --key of a client; None without them; raises UsageError for an unusable file."""
    _check_pair(cert, key)
    if ca is None and cert is None:
        return None
    try:
        tls = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca {ca}: {error.strerror or error}; it must hold certificates in PEM") from None
    if cert is not None:
        _load(tls, cert, key)
    return tls


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS context from --cert and --key of a server; None without them; raises UsageError for an unusable file."""
    _check_pair(cert, key)
    if cert is None:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(tls, cert, key)
    return tls


def _check_pair(cert: Path | None, key: Path | None) -> None:
    if cert is None and key is not None:
        raise UsageError("--key without --cert: name the certificate too")


def _load(tls: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    """Load a certificate with its private key; raises UsageError."""

    def encrypted() -> str:  # without it OpenSSL asks at the terminal
        raise UsageError(f"--key {key or cert}: the private key is encrypted: decrypt it with openssl pkey -in FILE -out NEW")

    try:
        tls.load_cert_chain(cert, key, encrypted)
    except (OSError, ssl.SSLError) as error:
        missing = "" if key is not None else "; name a separate key file with --key"
        file = next((given for given in (cert, key) if given is not None and not given.is_file()), None)
        option = "--key" if file is not None and file == key else "--cert"
        raise UsageError(
            f"{option} {file or cert}: {error.strerror or error}; "
            f"certificate and key must be in PEM and belong together{missing}"
        ) from None


def parse_body(text: str | None) -> Any:
    """Value of a BODY; raises UsageError if it is not JSON."""
    if text is None:
        return None
    if text == "-" and sys.stdin is None:
        raise UsageError("BODY is - and stdin is closed: there is nothing to read")
    given = sys.stdin.read() if text == "-" else text
    try:
        return json.loads(given)
    except ValueError as error:
        raise UsageError(f"BODY is not JSON: {error}{_meant(given)}") from None
    except RecursionError:
        raise UsageError("BODY is nested too deeply") from None


def _meant(body: str) -> str:
    """Advice for a BODY that is not JSON: its probable meaning."""
    if body[:1] == "@":
        return f"; to read a file, write - < {body[1:101]}"
    return """; text needs its own quotes: '"like this"'""" if body[:1].isalpha() else ""


def parse_subject(url: str, text: str) -> str | int:
    """Subject of a SUBJECT: a number, also in hexadecimal, if the protocol of the URL numbers its subjects."""
    if not text[:1].isdigit():
        return text
    if cluster_of(url) is None:  # a cluster takes both
        adapter, _, _ = resolve_url(url)
        if not adapter.session("client").capabilities.numbers:
            return text
    try:
        return int(text, 0)
    except ValueError:
        return text


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", re.I)


def parse_size(option: str, text: str) -> int:
    """Number of bytes, such as 500M or 10GiB; raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} {text!r}: a number of bytes, such as 500M or 10GiB")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def json_line(value: Any, *, pretty: bool = False) -> str:
    """JSON line; bytes as base64, control characters escaped for terminals."""
    line = msgspec.json.encode(value, enc_hook=str)
    if not pretty:
        return _for_terminal(line.decode())
    return "\n".join(map(_for_terminal, msgspec.json.format(line, indent=2).decode().split("\n")))


def _for_terminal(line: str) -> str:
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
