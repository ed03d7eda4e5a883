"""Takes over WebSockets that uvicorn has accepted, so that they run as in the built-in server.

The upgrade passes through ASGI and the application's middleware. After that, ASGI would cost a dictionary, a queue and a task
switch per frame, so polybus replaces uvicorn's protocol object. uvicorn still counts the replacement as one of its connections,
and closes and awaits it on shutdown. If the uvicorn version is unknown, polybus does not take over its WebSockets.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final

from attrs import define, field
from websockets.protocol import OPEN

from .._stream.asyncio_wire import AsyncioWire
from .._stream.wire import WireUser
from .asgi import Receive

_MODULE: Final = "uvicorn.protocols.websockets.websockets_sansio_impl"
_USED: Final = (
    "close_sent",
    "config",
    "conn",
    "connections",
    "disconnected",
    "frames",
    "handshake_complete",
    "queue",
    "read_paused",
    "request",
    "response",
    "stop_keepalive",
    "transport",
    "writable",
)
_STREAM: Final = ("get_protocol", "is_reading", "pause_reading", "set_protocol")
_RESTARTS: Final = 1012
"""Close code that uvicorn sends on shutdown."""


@define(eq=False, repr=False, weakref_slot=False)
class AdoptedWire(AsyncioWire):
    """A connection taken over from uvicorn. It stays in the server's set of connections until it is closed.

    The event loop calls it in the context of uvicorn's connection, or of the code that resumed reading. Input is handled in the
    bus's context, because anyio looks up its event loop there.
    """

    _connections: set[Any] = field(kw_only=True, alias="connections")
    _context: contextvars.Context = field(factory=contextvars.Context, init=False)
    _goodbye: Callable[[int], None] | None = field(default=None, init=False)
    _waiter: asyncio.Future[None] | None = field(default=None, init=False)

    def serve(self, user: WireUser, goodbye: Callable[[int], None]) -> None:
        """Attach the permanent user, in the context of this call."""
        self._context = contextvars.copy_context()
        self._goodbye = goodbye
        self.attach(user)

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    def buffer_updated(self, nbytes: int) -> None:
        self._context.run(AsyncioWire.buffer_updated, self, nbytes)

    def _unstash(self) -> None:
        self._context.run(AsyncioWire._unstash, self)

    def eof_received(self) -> bool:
        return self._context.run(AsyncioWire.eof_received, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._context.run(AsyncioWire.connection_lost, self, exc)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def shutdown(self) -> None:
        """Close the connection on shutdown. uvicorn calls this method, then waits until the connection has left its set."""
        if self._goodbye is not None:
            self._goodbye(_RESTARTS)
        else:  # taken over in this turn
            self.abort()

    async def lost(self) -> None:
        if self._lost is not None:
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise


class UvicornWebSocket:
    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol

    @staticmethod
    def under(receive: Receive) -> UvicornWebSocket | None:
        """Return the connection of an ASGI `receive`, or `None` if it cannot be taken over.

        That is the case if a middleware wraps `receive`, or for another server, implementation, subclass or version.
        """
        protocol: Any = getattr(receive, "__self__", None)
        kind = type(protocol)
        known = getattr(sys.modules.get(_MODULE), "WebSocketsSansIOProtocol", None)
        if known is None or not (kind is known or (issubclass(kind, known) and vars(kind).get("adoptable") is True)):
            return None
        if receive != protocol.receive or not all(hasattr(protocol, name) for name in _USED):
            return None
        if not all(hasattr(protocol.transport, name) for name in _STREAM):
            return None
        return UvicornWebSocket(protocol)

    def decline_extensions(self) -> None:
        protocol = self._protocol
        if not protocol.handshake_complete:
            protocol.conn.extensions = ()
            protocol.response.headers.pop("Sec-WebSocket-Extensions", None)

    @property
    def untouched(self) -> bool:
        """True if the WebSocket is open and uvicorn has no unwritten or unprocessed data.

        A client must not send before the answer (RFC 6455, section 4.1). If the client does, its connection is not taken over.
        """
        protocol = self._protocol
        transport, conn = protocol.transport, protocol.conn
        return (
            protocol.handshake_complete
            and not (protocol.close_sent or protocol.disconnected or protocol.read_paused or protocol.frames)
            and protocol.queue.empty()
            and protocol.writable.is_set()
            and conn.state is OPEN
            and _awaits_a_frame(conn)
            and not transport.is_closing()
            # Neither paused by uvicorn nor a stream of a shared connection.
            and transport.is_reading()
            and transport.get_protocol() is protocol
        )

    @property
    def largest(self) -> int | None:
        size: int | None = self._protocol.config.ws_max_size
        return size

    def hand_over(self, address: str) -> AdoptedWire:
        """Return the connection with reading paused. uvicorn and its users see it as closed."""
        protocol = self._protocol
        transport: asyncio.Transport = protocol.transport
        protocol.stop_keepalive()
        transport.pause_reading()  # uvloop reads into the buffers of the protocol at the start of reading
        wire = AdoptedWire(address, connections=protocol.connections)
        transport.set_protocol(asyncio.Protocol())  # uvloop keeps a method of the last one that isn't a `BufferedProtocol`
        transport.set_protocol(wire)
        wire.connection_made(transport)
        protocol.connections.discard(protocol)
        protocol.transport = _NoTransport()
        protocol.conn = protocol.request = protocol.response = None  # frees most of its memory if the call goes on
        protocol.disconnected = True
        protocol.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        return wire


def _awaits_a_frame(conn: Any) -> bool:
    """Return True if the parser is waiting for the first byte of a frame. Otherwise it may have consumed part of a header."""
    step: Any = getattr(conn, "parser", None)
    while isinstance(step, GeneratorType) and step.gi_yieldfrom is not None:
        step = step.gi_yieldfrom
    at_eof = getattr(type(getattr(conn, "reader", None)), "at_eof", None)
    return at_eof is not None and getattr(step, "gi_code", None) is getattr(at_eof, "__code__", 0)


class _NoTransport:
    """A closed transport for uvicorn's protocol object, which closes its transport when the ASGI call returns."""

    def is_closing(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    abort = pause_reading = resume_reading = close
