"""Adoption of a WebSocket that uvicorn has accepted: from then on it is a connection as those of our own server.

The upgrade comes in through ASGI, with all that an application puts around it. After it, ASGI is a dictionary, a queue and a
turn of a task for each frame. So uvicorn's own object is taken out of the connection; what takes its place stands among those
that uvicorn counts, bids farewell and waits for. What is not exactly as it is known here is left as it is.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final

from websockets.protocol import OPEN

from .._stream.asyncio_wire import AsyncioWire
from .._stream.wire import WireUser
from .asgi import Receive

_MODULE: Final = "uvicorn.protocols.websockets.websockets_sansio_impl"
_USED: Final = (
    "close_sent", "config", "conn", "connections", "disconnected", "frames", "handshake_complete", "queue", "read_paused",
    "request", "response", "stop_keepalive", "transport", "writable",
)  # fmt: skip
"""Attributes of uvicorn's object that are read or set here."""
_STREAM: Final = ("get_protocol", "is_reading", "pause_reading", "set_protocol")
"""Methods that its transport has on the event loops that are known."""
_RESTARTS: Final = 1012
"""Close code of a server that ends, as uvicorn says it."""


class AdoptedWire(AsyncioWire):
    """A connection that was uvicorn's. It is in the set of the server's connections until it is lost.

    An event loop calls it in the context in which uvicorn's connection was made, or in that of whoever resumed reading. What
    comes in is handled in the context of the bus instead: the variables there are the bus's own, and anyio finds its loop.
    """

    __slots__ = ("_connections", "_context", "_goodbye", "_waiter")

    def __init__(self, connections: set[Any]) -> None:
        super().__init__()
        self._connections = connections
        self._context = contextvars.Context()
        self._goodbye: Callable[[int], None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def serve(self, user: WireUser, goodbye: Callable[[int], None]) -> None:
        """Attach the user that stays, for whom things happen in the context of this call; `goodbye` says one, with a code."""
        self._context = contextvars.copy_context()
        self._goodbye = goodbye
        self.attach(user)

    @property
    def transport(self) -> asyncio.Transport | None:
        """Stream of the event loop, under the name that it has in uvicorn's own objects."""
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
        """Say goodbye: the server ends. uvicorn calls this, and waits until the connection is out of its set."""
        if self._goodbye is not None:
            self._goodbye(_RESTARTS)
        else:  # of the turn in which it was taken over
            self.abort()

    async def lost(self) -> None:
        """Wait for the end of the connection; whoever is cancelled meanwhile cuts it."""
        if self._lost is not None:
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise


class UvicornWebSocket:
    """A WebSocket in the hands of uvicorn's websockets-sansio, between the request for an upgrade and the first frame."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol

    @staticmethod
    def under(receive: Receive) -> UvicornWebSocket | None:
        """The owner of an ASGI `receive`, or None: a middleware wraps it and sees each frame, a class was derived that may have
        plans of its own, or this is another server, another of uvicorn's implementations, or one that has changed."""
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
        """Before the answer: take no extension (`permessage-deflate`) of those that were offered."""
        protocol = self._protocol
        if not protocol.handshake_complete:
            protocol.conn.extensions = ()
            protocol.response.headers.pop("Sec-WebSocket-Extensions", None)

    @property
    def untouched(self) -> bool:
        """True if it is open, and nothing is in uvicorn's hands that is not written or was read already.

        A client may not say anything before it has the answer (RFC 6455, section 4.1). Who does is not adopted.
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
            # Not held back by uvicorn's object, nor the stream of a connection that carries several.
            and transport.is_reading()
            and transport.get_protocol() is protocol
        )

    @property
    def largest(self) -> int | None:
        """Bytes of a message that this server takes."""
        size: int | None = self._protocol.config.ws_max_size
        return size

    def hand_over(self, address: str) -> AdoptedWire:
        """The connection, paused. For uvicorn's object, and whoever still asks it, it is over."""
        protocol = self._protocol
        transport: asyncio.Transport = protocol.transport
        protocol.stop_keepalive()
        transport.pause_reading()  # uvloop reads into the buffers of the protocol that it had when reading began
        wire = AdoptedWire(protocol.connections)
        wire.address = address
        transport.set_protocol(asyncio.Protocol())  # uvloop keeps a method of the last protocol that was no `BufferedProtocol`
        transport.set_protocol(wire)
        wire.connection_made(transport)
        protocol.connections.discard(protocol)
        protocol.transport = _NoTransport()
        protocol.conn = protocol.request = protocol.response = None  # most of what it is, where the call goes on
        protocol.disconnected = True
        protocol.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        return wire


def _awaits_a_frame(conn: Any) -> bool:
    """True if its parser waits for the first byte of a frame. Of one that has begun, it may have taken the header already."""
    step: Any = getattr(conn, "parser", None)
    while isinstance(step, GeneratorType) and step.gi_yieldfrom is not None:
        step = step.gi_yieldfrom
    at_eof = getattr(type(getattr(conn, "reader", None)), "at_eof", None)
    return at_eof is not None and getattr(step, "gi_code", None) is getattr(at_eof, "__code__", 0)


class _NoTransport:
    """A transport for uvicorn's object to have afterwards: it closes its own when the ASGI call returns."""

    def is_closing(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        """Nobody is there."""

    def close(self) -> None:
        """It is."""

    abort = pause_reading = resume_reading = close
