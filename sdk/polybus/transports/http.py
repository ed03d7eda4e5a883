"""HTTP: ``jrep+http://host/path``, for J.REP over posts and long polls. The library `httpx` is loaded when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from attrs import define, field

from ..errors import LocalProtocolError, Unsupported
from ..plugins import DialOptions, ListenOptions, Transport
from ._urls import NetAddress, net_address

if TYPE_CHECKING:
    from ..plugins import Connector, Listening

__all__ = ["Http", "SecureHttp"]


@define
class HttpConnector:
    """Dials ``http://host/path`` or ``https://host/path``."""

    url: str
    reconnects: bool = field(default=True, init=False)

    async def connect(self, options: DialOptions) -> Transport:
        """One attempt. Nothing is sent yet: the first request is the protocol's handshake.

        Raises:
            Unsupported: The protocol has no form over HTTP.
            LocalProtocolError: TLS options without TLS.
        """
        if options.subprotocol != "jrep":
            raise Unsupported(f"{options.subprotocol} has no form over HTTP here: use ws:// or tcp://")
        if options.tls is not None and urlsplit(self.url).scheme != "https":
            raise LocalProtocolError("tls= given for http://, which is not encrypted: use https://", protocol="http")
        from ._errai_client import ErraiClient

        return ErraiClient(self.url, options.tls, options)


class Http:
    """``http://host:port/path``"""

    name = "http"
    _port = 80

    def connector(self, url: str) -> Connector:
        """For an address without the protocol.

        Raises:
            ValueError: The host is missing.
        """
        self._address(url)
        return HttpConnector(url)

    def is_private(self, url: str) -> bool:
        """Whether only this machine can reach that address."""
        return self._address(url).private

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Not here: an HTTP server is an application's.

        Raises:
            Unsupported: Always; the text says what to write instead.
        """
        raise Unsupported(
            "over HTTP a bus is served in an application: polybus.fastapi.attach(app, bus, path, protocol='jrep')"
        )

    def _address(self, url: str) -> NetAddress:
        return net_address(url, self._port)


class SecureHttp(Http):
    """``https://host:port/path``"""

    name = "https"
    _port = 443
