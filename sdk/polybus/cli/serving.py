"""Options of the commands that serve, and what is made of them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from .problems import UsageError

__all__ = ["Cert", "Insecure", "Key", "Origin", "certificate"]

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
