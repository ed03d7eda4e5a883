"""Options and arguments that several commands share."""

from __future__ import annotations

import inspect
import math
import ssl
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from .values import client_tls


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
    """Option in finite seconds."""
    return typer.Option(metavar="S", help=help, min=min, callback=finite)


def flag(name: str, help: str) -> Any:
    return typer.Option(name, help=help)


Url: TypeAlias = Annotated[str, argument("URL", "Server URL, for example ubre+ws://127.0.0.1:8000/bus.")]
AnyUrl: TypeAlias = Annotated[
    str,
    argument(
        "URL",
        "Server URL, for example ubre+ws://127.0.0.1:8000/bus. For a cluster: nats+tcp://host/name, or auto.",
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
"""Made from --ca, --cert and --key by `connects`."""
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

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name != "tls":
            parameters.append(parameter)
            continue
        for name, kind in _OF_CLIENTS.items():
            parameters.append(parameter.replace(name=name, annotation=kind))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    return run
