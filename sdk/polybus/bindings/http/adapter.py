"""HTTP: ``jrep+http://host/path``, and ``uprotocol+http://host/path`` for CloudEvents.

`httpx` is loaded by the first connection, uvicorn or hypercorn by the first listener.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

from attrs import define, field

from ...errors import LocalProtocolError, Unsupported
from ...plugins import DialOptions, ListenOptions, Transport
from ...transports._stream.sockets import bind_tcp
from ...transports._stream.urls import NetAddress, net_address

if TYPE_CHECKING:
    from ...plugins import Connector, Listening

__all__ = ["Http", "SecureHttp"]

_OPTIONS = ("channel", "frame")
_CHANNELS = {"auto": ("websocket", "events", "poll"), "websocket": ("websocket",), "events": ("events",), "poll": ("poll",)}


@define
class HttpConnector:
    """Dials ``http://host/path`` or ``https://host/path``."""

    url: str
    ways: set[str]
    """How messages may come to us."""
    frame: int | None = None
    """Bytes: what is larger is posted, although there is a WebSocket; 0 is nothing. None: as the server needs it."""
    reconnects: bool = field(default=True, init=False)

    async def connect(self, options: DialOptions) -> Transport:
        """One attempt.

        Raises:
            ConnectFailed: Nobody is there.
            Unauthorized, Forbidden: The server does not let us in.
            Unsupported: The protocol has no form over HTTP.
            LocalProtocolError: TLS options without TLS.
        """
        if options.subprotocol not in ("jrep", "uprotocol"):
            raise Unsupported(f"{options.subprotocol} has no form over HTTP here: use ws:// or tcp://")
        if options.tls is not None and urlsplit(self.url).scheme != "https":
            raise LocalProtocolError("tls= given for http://, which is not encrypted: use https://", protocol="http")
        if options.subprotocol == "uprotocol":
            from ..cloudevents_http.client import EventsClient

            return await EventsClient.opened(self.url, options.tls, options)
        from ..jrep_http.client import ErraiClient

        # Nothing is sent yet: the first request is the protocol's handshake.
        return ErraiClient(self.url, options.tls, options, self.ways, self.frame)


class Http:
    """``http://host:port/path``; ``?channel=poll``, ``events`` or ``websocket`` chooses how messages come to a client, and
    ``?frame=`` is the largest frame in bytes that it gives to a WebSocket."""

    name = "http"
    _port = 80

    def connector(self, url: str) -> Connector:
        """For an address without the protocol.

        Raises:
            ValueError: The host is missing, or an option has no value that it may have.
        """
        self._address(url)
        root, _, query = url.partition("?")
        fields = parse_qsl(query, keep_blank_values=True)
        options = {name: value for name, value in fields if name in _OPTIONS}
        channel, frame = options.get("channel", "auto"), options.get("frame")
        if channel not in _CHANNELS:
            raise ValueError(f"http: channel={channel!r} is not known; it is one of {', '.join(_CHANNELS)}")
        if frame is not None and not (frame.isascii() and frame.isdigit()):
            raise ValueError(f"http: frame={frame!r} is no number of bytes; 0 is no limit")
        others = _joined(root, ((name, value) for name, value in fields if name not in _OPTIONS))
        return HttpConnector(others, set(_CHANNELS[channel]), None if frame is None else int(frame))

    def is_private(self, url: str) -> bool:
        """Whether only this machine can reach that address."""
        return self._address(url).private

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and serve in this event loop: with uvicorn on asyncio, with hypercorn on trio.

        Raises:
            OSError: The address is taken or not ours.
            ValueError: The host is missing, or something in `origins` is no origin.
            LocalProtocolError: `tls` is given without need, or is missing.
            Unsupported: The protocol has no form over HTTP, or uvicorn (hypercorn) is not installed.
        """
        from .listener import HttpListener

        address = self._address(url)
        secure = self.name == "https"
        if (options.tls is None) == secure:
            text = "https:// needs tls= with the server's certificate" if secure else "tls= given for http://: use https://"
            raise LocalProtocolError(text, protocol=self.name)
        return await HttpListener.open(address, options, await bind_tcp(address.host, address.port))

    def _address(self, url: str) -> NetAddress:
        return net_address(url, self._port)


class SecureHttp(Http):
    """``https://host:port/path``"""

    name = "https"
    _port = 443


def _joined(root: str, fields: Iterable[tuple[str, str]]) -> str:
    query = urlencode(list(fields))
    return f"{root}?{query}" if query else root
