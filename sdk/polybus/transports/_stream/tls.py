"""TLS of an address: its scheme says whether there is any, and what is given has to agree."""

from __future__ import annotations

import ssl
from typing import Final

from attrs import define

from ...errors import LocalProtocolError

_SECURE: Final = {"tcp": "tls", "ws": "wss", "http": "https"}


@define
class ClientTls:
    """TLS of the connections to one address."""

    _default: ssl.SSLContext | None = None

    def context(self, scheme: str, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
        """The context for a connection. May raise `LocalProtocolError`: one is given for an address without TLS."""
        check_client_tls(scheme, given)
        if given is not None or scheme in _SECURE:
            return given
        if self._default is None:
            # Verifies the server and its name; TLS 1.2 at least.
            self._default = ssl.create_default_context()
        return self._default


def check_client_tls(scheme: str, given: ssl.SSLContext | None) -> None:
    """May raise `LocalProtocolError`: a context is given for an address without TLS."""
    if given is not None and scheme in _SECURE:
        text = f"tls= given for {scheme}://, which is not encrypted: use {_SECURE[scheme]}://"
        raise LocalProtocolError(text, protocol=scheme)


def check_server_tls(scheme: str, given: ssl.SSLContext | None) -> None:
    """May raise `LocalProtocolError`: a context is missing, or given for an address without TLS."""
    if scheme in _SECURE and given is not None:
        raise LocalProtocolError(f"tls= given for {scheme}://: use {_SECURE[scheme]}://", protocol=scheme)
    if scheme not in _SECURE and given is None:
        raise LocalProtocolError(f"{scheme}:// needs tls= with the server's certificate", protocol=scheme)
