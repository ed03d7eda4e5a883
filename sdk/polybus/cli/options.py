"""Options and arguments shared by several commands, and functions that interpret them."""

from __future__ import annotations

import inspect
import json
import math
import re
import ssl
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import parse_qsl

import msgspec
import typer

from .. import Backoff, Bus, Cluster, Limits, connect
from ..nodes import VARIABLE
from ..plugins.registry import mistyped_options, resolve_url
from .problems import UsageError, say


def finite(value: float) -> float:
    if value == math.inf:
        raise typer.BadParameter(f"{value} is not a finite number of seconds.")
    return value


def group(name: str, help: str) -> typer.Typer:
    return typer.Typer(name=name, help=help, no_args_is_help=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


def option(metavar: str, help: str, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=help, **more)


def duration(help: str, min: float = 0) -> Any:
    return typer.Option(metavar="S", help=help, min=min, callback=finite)


def flag(name: str, help: str) -> Any:
    return typer.Option(name, help=help)


Url: TypeAlias = Annotated[str, argument("URL", "Server URL, for example ubre+ws://127.0.0.1:8000/bus.")]
AnyUrl: TypeAlias = Annotated[
    str,
    argument(
        "URL",
        "Server URL, for example ubre+ws://127.0.0.1:8000/bus. "
        "For a cluster: nats+tcp://host/name, or auto for POLYBUS_CLUSTER.",
    ),
]
Body: TypeAlias = Annotated[str | None, argument("BODY", "JSON body, or - to read it from stdin.")]
Folder: TypeAlias = Annotated[str, argument("DIR", "Capture: a folder, or a URI such as s3://bucket/capture.")]
Header: TypeAlias = Annotated[list[str] | None, option("'K: V'", "Header to send in the handshake. Can be repeated.")]
Wait: TypeAlias = Annotated[float, option("S", "Retry the first connection for up to this many seconds.", min=0)]
Origin: TypeAlias = Annotated[list[str] | None, option("O", "Accept web pages from this origin. Can be repeated.")]
Insecure: TypeAlias = Annotated[
    bool, flag("--insecure", "Accept unauthenticated clients, even if other machines can reach the address.")
]
Ca: TypeAlias = Annotated[Path | None, option("FILE", "Trusted CA certificates (PEM).")]
OwnCert: TypeAlias = Annotated[Path | None, option("FILE", "Certificate to use both as a client and as a server (PEM).")]
Cert: TypeAlias = Annotated[Path | None, option("FILE", "Server certificate for tls and wss (PEM).")]
Key: TypeAlias = Annotated[Path | None, option("FILE", "Private key for --cert, if it is in a separate file.")]
Tls: TypeAlias = ssl.SSLContext | None
"""TLS options, created from --ca, --cert and --key by `connects`."""
Json: TypeAlias = Annotated[bool, flag("--json", "Print JSON lines, even on a terminal.")]


_OF_CLIENTS = {
    "ca": Ca,
    "cert": Annotated[Path | None, option("FILE", "Client certificate, if the server requires one (PEM).")],
    "key": Key,
}


def connects(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's `tls` parameter with --ca, --cert and --key."""

    @wraps(command)
    def run(*, ca: Path | None = None, cert: Path | None = None, key: Path | None = None, **given: Any) -> None:
        command(**given, tls=client_tls(ca, cert, key))

    given = inspect.signature(command, eval_str=True).parameters
    tls = [given["tls"].replace(name=name, annotation=kind) for name, kind in _OF_CLIENTS.items()]
    parameters = [one for parameter in given.values() for one in (tls if parameter.name == "tls" else [parameter])]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    return run


# -- values ------------------------------------------------------------------------------------------------------------------

_IMPATIENT = Backoff(maximum=1.0)
"""Back-off for commands that a user is waiting for at a terminal."""

FOR_EVER: Final = 1e9
"""A time in seconds that is practically unlimited."""

_CONTROLS = re.compile(r"[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters that affect terminals but that JSON does not escape."""

_FAREWELL = 0.3
"""Seconds to wait for the peer's close message, so that a command meets its deadline even if the peer is silent."""


def cluster_of(url: str, wait: float = 0.0, tls: ssl.SSLContext | None = None) -> Cluster | None:
    """Return the cluster that a URL names by its path or by ``auto``, or `None` for any other URL."""
    scheme, _, rest = url.partition("://")
    path = rest.partition("?")[0].partition("/")[2]
    if url != "auto" and not (scheme in ("nats+tcp", "nats+tls") and path):
        return None
    options = Cluster(url, wait=min(wait, FOR_EVER), tls=tls)
    if options.resolved() is None:
        raise UsageError(f"auto uses {VARIABLE}, which is not set: set it, or give a URL")
    return options


def hasty_bus(timeout: float, cluster: Cluster | None = None, message: int | None = None) -> Bus:
    """Create a command's bus. `timeout` (seconds) lowers its time limits, and `message` is its `Limits.message`."""
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
    """Connect a command's bus, by default a `hasty_bus`. Raises `UsageError` if options contradict the URL."""
    bus = bus or hasty_bus(timeout, cluster_of(url, wait, tls))
    if bus.cluster is None:
        warn_of_slips(url)
        return connect(url, bus=bus, backoff=_IMPATIENT, **dialling(header, tls, wait))
    check_for_cluster(header)
    return bus


def check_for_cluster(header: list[str] | None) -> None:
    if header:
        raise UsageError("--header: a cluster does not use headers; put a token before the host of its URL, as in TOKEN@host")


def warn_of_slips(url: str) -> None:
    """Warn about query parameters that look like mistyped options, because they are silently sent to the server."""
    if slips := mistyped_options(url):
        say(f"unknown options in the URL go to the server unchanged: {slips}?")


def dialling(header: list[str] | None, tls: ssl.SSLContext | None, wait: float) -> dict[str, Any]:
    """Return the arguments of `connect`. Raises UsageError for a malformed --header."""
    return {"headers": headers_of(header), "tls": tls, "wait": wait}


def headers_of(given: list[str] | None) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for text in given or ():
        name, colon, value = text.partition(":")
        if not (colon and name.strip()):
            raise UsageError(f"--header {text!r}: write 'name: value'")
        headers[name.strip()] = value.strip()
    return headers or None


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return a client's TLS context, or `None` without --ca and --cert. Raises `UsageError` if a file cannot be used."""
    _check_pair(cert, key)
    if ca is None and cert is None:
        return None
    try:
        tls = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca {ca}: {error.strerror or error}; it must contain PEM certificates") from None
    if cert is not None:
        _load(tls, cert, key)
    return tls


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return a server's TLS context, or `None` without --cert. Raises `UsageError` if a file cannot be used."""
    _check_pair(cert, key)
    if cert is None:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(tls, cert, key)
    return tls


def _check_pair(cert: Path | None, key: Path | None) -> None:
    if cert is None and key is not None:
        raise UsageError("--key without --cert: give the certificate too")


def _load(tls: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    def encrypted() -> str:  # otherwise OpenSSL prompts for the password
        raise UsageError(f"--key {key or cert}: the private key is encrypted: decrypt it with openssl pkey -in FILE -out NEW")

    try:
        tls.load_cert_chain(cert, key, encrypted)
    except (OSError, ssl.SSLError) as error:
        missing = "" if key is not None else "; if the key is in a separate file, add --key FILE"
        file = next((given for given in (cert, key) if given is not None and not given.is_file()), None)
        option = "--key" if file is not None and file == key else "--cert"
        raise UsageError(
            f"{option} {file or cert}: {error.strerror or error}; "
            f"certificate and key must be PEM files that belong together{missing}"
        ) from None


def parse_body(text: str | None) -> Any:
    if text is None:
        return None
    if text == "-" and sys.stdin is None:
        raise UsageError("BODY is -, but stdin is closed")
    given = sys.stdin.read() if text == "-" else text
    try:
        return json.loads(given)
    except ValueError as error:
        raise UsageError(f"BODY is not JSON: {error}{_meant(given)}") from None
    except RecursionError:
        raise UsageError("BODY is nested too deeply") from None


def _meant(body: str) -> str:
    if body[:1] == "@":
        return f"; to read a file, write - < {body[1:101]}"
    return """; a string needs its own quotes: '"like this"'""" if body[:1].isalpha() else ""


def parse_subject(url: str, text: str) -> str | int:
    """Return the subject, as an `int` if it is a number and the URL's protocol has numeric subjects."""
    if not text[:1].isdigit():
        return text
    # A cluster takes both.
    if cluster_of(url) is None and not resolve_url(url)[0].session("client").capabilities.numbers:
        return text
    try:
        return int(text, 0)
    except ValueError:
        return text


def parse_protocol(text: str) -> tuple[str, dict[str, str]]:
    """Split a protocol with options, such as ``ubre?format=binary``."""
    name, _, query = text.partition("?")
    return name.lower(), dict(parse_qsl(query, keep_blank_values=True))


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", re.I)


def parse_size(option: str, text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} {text!r}: use a number of bytes, such as 500M or 10GiB")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def json_line(value: Any, *, pretty: bool = False) -> str:
    """Return JSON with bytes as base64, and with escapes for characters that affect terminals."""
    line = msgspec.json.encode(value, enc_hook=str)
    if not pretty:
        return _for_terminal(line.decode())
    return "\n".join(map(_for_terminal, msgspec.json.format(line, indent=2).decode().split("\n")))


def _for_terminal(line: str) -> str:
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
