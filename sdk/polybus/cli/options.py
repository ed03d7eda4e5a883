"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import json
import math
import ssl
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from .. import Backoff, Bus, Limits, connect
from ..plugins.registry import resolve_url
from .problems import UsageError

Url: TypeAlias = Annotated[
    str, typer.Argument(metavar="URL", help="protocol+transport://address, for example ubre+ws://127.0.0.1:8000/bus")
]
Body: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[BODY]", help="JSON; - reads it from stdin.", show_default=False)
]
Header: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="'K: V'", help="A header of the handshake; may be given several times.", show_default=False),
]
Ca: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificates of the authorities to trust, in PEM.", show_default=False)
]
Wait: TypeAlias = Annotated[float, typer.Option(metavar="S", min=0, help="Go on trying to connect for so many seconds.")]
Origin: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="O", help="A web origin whose pages may connect; several are possible.", show_default=False),
]
Insecure: TypeAlias = Annotated[
    bool, typer.Option("--insecure", help="Let everybody in although other machines can reach the address.")
]
Cert: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="For tls and wss: the certificate, in PEM.", show_default=False)
]
Key: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its private key, where it is in a file of its own.", show_default=False)
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One line of JSON each, for machines, even on a terminal.")]


_IMPATIENT = Backoff(maximum=1.0)
"""Somebody sits before the screen."""

_FAREWELL = 0.3
"""Seconds for a peer to answer the goodbye: a command ends by its deadline, also where nobody answers at all."""


def connecting(
    url: str, header: list[str] | None, ca: Path | None, wait: float, timeout: float = 0.0
) -> AbstractAsyncContextManager[Bus]:
    """The connection that a command wants. `timeout` bounds each step of connecting, where it is shorter than usual.

    Raises:
        UsageError: A header or the certificate file cannot be used.
        ValueError: The URL is wrong.
    """
    usual = Limits()
    limits = Limits(
        connect_timeout=min(usual.connect_timeout, timeout or math.inf),
        handshake_timeout=min(usual.handshake_timeout, timeout or math.inf),
        close_timeout=_FAREWELL,
    )
    return connect(url, headers=headers_of(header), tls=trust_of(ca), wait=wait, backoff=_IMPATIENT, limits=limits)


def finite(value: float) -> float:
    """The check of --timeout.

    Raises:
        BadParameter: It is infinite.
    """
    if value == math.inf:
        raise typer.BadParameter(f"{value} is not a finite number of seconds.")
    return value


def headers_of(given: list[str] | None) -> dict[str, str] | None:
    """The headers of --header.

    Raises:
        UsageError: One of them is none.
    """
    headers: dict[str, str] = {}
    for text in given or ():
        name, colon, value = text.partition(":")
        if not (colon and name.strip()):
            raise UsageError(f"--header {text!r}: of the form 'name: value'")
        headers[name.strip()] = value.strip()
    return headers or None


def trust_of(ca: Path | None) -> ssl.SSLContext | None:
    """The context of --ca.

    Raises:
        UsageError: The file holds no certificates.
    """
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca {ca}: {error.strerror or error}; it must hold certificates in PEM") from None


def certificate(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The certificate of a server, from its files; None without.

    Raises:
        UsageError: They cannot be used.
    """
    if cert is None:
        if key is not None:
            raise UsageError("--key without --cert: name the certificate too")
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"--cert {cert}: {error.strerror or error}; certificate and key must be in PEM and belong together"
        ) from None
    return tls


def parse_body(text: str | None) -> Any:
    """The value of a BODY.

    Raises:
        UsageError: It is no JSON.
    """
    if text is None:
        return None
    if text == "-" and sys.stdin is None:
        raise UsageError("BODY is - and stdin is closed: there is nothing to read")
    given = sys.stdin.read() if text == "-" else text
    try:
        return json.loads(given)
    except ValueError as error:
        hint = """; text needs its own quotes: '"like this"'""" if given[:1].isalpha() else ""
        raise UsageError(f"BODY is not JSON: {error}{hint}") from None
    except RecursionError:
        raise UsageError("BODY is nested too deeply: nothing that a bus carries needs so many brackets") from None


def parse_subject(url: str, text: str) -> str | int:
    """The subject of a SUBJECT: a number, also in hexadecimal, where the protocol of the URL numbers its subjects.

    Raises:
        ValueError: The URL is wrong.
    """
    if not text[:1].isdigit():
        return text
    adapter, _, _ = resolve_url(url)
    if not adapter.session("client").capabilities.numbers:
        return text
    try:
        return int(text, 0)
    except ValueError:
        return text


def json_line(value: Any, *, pretty: bool = False) -> str:
    """JSON; bytes are base64."""
    line = msgspec.json.encode(value, enc_hook=str)
    return (msgspec.json.format(line, indent=2) if pretty else line).decode()
