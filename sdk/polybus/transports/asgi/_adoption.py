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

from ...plugins import ListenOptions, Transport
from ..websocket import upgraded
from ._transport import Receive

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
class AdoptedConnection(asyncio.BufferedProtocol):
    """A connection taken over from uvicorn. It stays in the server's set of connections until it is closed.

    The event loop calls it in the context of uvicorn's connection. `wire` is called in the bus's context, because anyio looks
    up its event loop there.
    """

    transport: asyncio.Transport
    _wire: asyncio.BufferedProtocol
    _begin: Callable[[contextvars.Context], Transport] | None
    _connections: set[Any]
    get_buffer: Any = field(init=False)
    _context: contextvars.Context = field(factory=contextvars.Context, init=False)
    _served: Transport | None = field(default=None, init=False)
    _waiter: asyncio.Future[None] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.get_buffer = self._wire.get_buffer
        self._wire.connection_made(self.transport)
        self._connections.add(self)

    def serve(self) -> Transport:
        """Create the bus's transport. Input is handled in the context of this call from then on."""
        assert self._begin is not None
        self._context = contextvars.copy_context()
        self._served, self._begin = self._begin(self._context), None
        return self._served

    def abort(self) -> None:
        self.transport.abort()

    # -- what the event loop calls

    def buffer_updated(self, nbytes: int) -> None:
        self._context.run(self._wire.buffer_updated, nbytes)

    def eof_received(self) -> bool | None:
        return self._context.run(self._wire.eof_received)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._context.run(self._wire.connection_lost, exc)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pause_writing(self) -> None:
        self._wire.pause_writing()

    def resume_writing(self) -> None:
        self._context.run(self._wire.resume_writing)

    # -- what uvicorn calls

    def shutdown(self) -> None:
        """Close the connection on shutdown. uvicorn calls this method, then waits until the connection has left its set."""
        if self._served is not None:
            self._served.close(_RESTARTS)
        else:  # taken over in this turn
            self.abort()

    async def lost(self) -> None:
        if self not in self._connections:
            return
        self._waiter = asyncio.get_running_loop().create_future()
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

    def hand_over(self, name: str, address: str, options: ListenOptions, limit: int) -> AdoptedConnection:
        """Return the connection with reading paused. uvicorn and its users see it as closed."""
        protocol = self._protocol
        transport: asyncio.Transport = protocol.transport
        protocol.stop_keepalive()
        transport.pause_reading()  # uvloop reads into the buffers of the protocol at the start of reading
        connection = AdoptedConnection(transport, *upgraded(name, address, options, limit), protocol.connections)
        transport.set_protocol(asyncio.Protocol())  # uvloop keeps a method of the last one that isn't a `BufferedProtocol`
        transport.set_protocol(connection)
        protocol.connections.discard(protocol)
        protocol.transport = _NoTransport()
        protocol.conn = protocol.request = protocol.response = None  # frees most of its memory if the call goes on
        protocol.disconnected = True
        protocol.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        return connection


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
