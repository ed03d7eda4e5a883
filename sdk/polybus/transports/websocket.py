"""WebSockets: ``ws://host/path`` and ``wss://host/path``.

polybus imports the `websockets` library on first use. Compression is disabled, because it costs memory for each connection and
a 1 KiB message can expand to 1 MiB.
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Final

from .._util.listening import is_loopback
from ..plugins import Connector, DialOptions, Listening, ListenOptions, Transport
from ._stream.dial import NetConnector
from .sockets import bind_tcp, load_names, net_address
from .tls import check_server_tls

if TYPE_CHECKING:
    import asyncio
    import socket
    import ssl
    from collections.abc import Callable
    from contextvars import Context

MAX_FRAGMENTS: Final = 4096
"""Maximum number of fragments in a message, since even an empty fragment costs an object."""

core_logger: logging.Logger = logging.getLogger("polybus.transports.websocket_core")
"""Logger of the `websockets` library. At DEBUG level it would log frame contents and tokens in headers, so its level is at
least WARNING.
"""
core_logger.setLevel(logging.WARNING)


class WebSocketConnector(NetConnector):
    async def dial(self, tls: ssl.SSLContext | None, options: DialOptions) -> Transport:
        from ._ws.client import open_websocket

        return await open_websocket(self.url, tls, options, self.addresses)


class WebSocket:
    """``ws://host:port/path``"""

    name = "ws"

    @staticmethod
    def load(serves: bool) -> None:
        for module in ("._stream.listen", "._ws.server") if serves else ("._ws.client",):
            import_module(module, __package__)
        load_names()

    def connector(self, url: str) -> Connector:
        net_address(url)
        return WebSocketConnector(url)

    def is_private(self, url: str) -> bool:
        return net_address(url).private

    async def bind(self, url: str) -> list[socket.socket]:
        address = net_address(url)
        return await bind_tcp(address.host, address.port)

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        from ._stream.listen import StreamListener
        from ._ws.server import PendingWebSocket
        from .upgrades import OriginPolicy

        address = net_address(url)
        check_server_tls(self.name, options.tls)
        sockets = list(options.sockets) or await self.bind(url)
        loopback = all(is_loopback(sock.getsockname()[0]) for sock in sockets)
        policy = OriginPolicy(options=options, path=address.path, tls=options.tls is not None, loopback=loopback)
        real = address.with_port(sockets[0].getsockname()[1])
        return StreamListener(real, options, sockets, options.tls, functools.partial(PendingWebSocket, policy=policy))


def upgraded(
    name: str, address: str, options: ListenOptions, limit: int
) -> tuple[asyncio.BufferedProtocol, Callable[[Context], Transport]]:
    """Run a WebSocket on asyncio that another server has accepted, without extensions.

    Args:
        name: ``ws`` or ``wss``.
        address: Address of the client.
        options: Options of the listener.
        limit: Maximum size of a message in bytes.

    Returns:
        A protocol for the connection's asyncio transport, which must not be reading, and a function that creates the bus's
        transport. The protocol keeps its input until then. Pass the function the context in which you call the protocol.
    """
    from ._stream.asyncio_wire import AsyncioWire
    from ._ws.transport import make_transport

    wire = AsyncioWire(address)

    def begin(context: Context) -> Transport:
        wire.context = context
        transport = make_transport(name, wire, options, server=True, limit=limit)
        wire.attach(transport)
        return transport

    return wire, begin


class SecureWebSocket(WebSocket):
    """``wss://host:port/path``"""

    name = "wss"
