"""What leaves over a connection: at once while it flows, through the outbox while it is slow or down."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import BusError, Disconnected, QueueFull, RequestError, TooLarge, Unsupported, another
from ..message import Message
from ..plugins import TransportFeatures
from .backlog import Backlog, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._peer.peer import Peer
    from .._rpc.reply import Reply
    from ..plugins import Codec, Transport

__all__ = ["Outflow", "State"]


class Outflow(Backlog):
    """The writing half of a link."""

    __slots__ = ()

    # Declared in `Backlog`; again here for type checkers.
    shared: Codec | None
    alike: tuple[Codec, type[Transport], str] | None
    send_framed: Callable[[bytes, int], None] | None
    carries_headers: bool

    def flush(self) -> None:
        """Hand what the session has queued to the transport."""
        session = self.session
        if session is not None and (frames := session.frames_to_send()):
            send = self.transport.send  # type: ignore[union-attr]  # a session stands on a transport
            for frame in frames:
                send(frame)

    def write(self, message: Message, peer: Peer) -> Any:
        """Give a message to the session now, whatever the state of the connection.

        Nothing is written to one of many peers that has gone: its key may be another's by now.

        Raises:
            EncodeError, Unsupported, LocalProtocolError, TooLarge, QueueFull: As `Session.send`.
        """
        assert self.session is not None
        if self.crowd is not None and peer.gone:
            return None
        self.services.counters.sent += 1
        key = self.session.send(message, self.runtime.time(), peer.key)
        self.flush()
        return key

    def publish(self, message: Message, peer: Peer, deadline: float) -> bool:
        """Send a publication or let it wait; False if there is no room (then nothing has happened)."""
        session = self.session
        if self.crowd is not None and peer.gone:
            return True  # nobody will read it
        if self.flowing and session is not None:
            self.services.counters.sent += 1
            codec = self.shared
            if codec is not None:
                shared = message.shared
                frame = shared.get(codec)
                if frame is None:
                    frame = self._shared_frame(message, codec)
                self.transport.send(frame)  # type: ignore[union-attr]  # a session stands on a transport
            else:
                session.send(message, self.runtime.time(), peer.key)
                self.flush()
            return True
        self.check_initiates(peer)
        return self._wait(message, peer, None, deadline, droppable=True)

    def check_initiates(self, peer: Peer) -> None:
        """
        Raises:
            Unsupported: This side may only answer (a plain HTTP server).
        """
        if not self.initiates:
            raise Unsupported(f"{peer!r} can only be answered: on this connection its server begins nothing")

    def publish_alone(self, message: Message, peer: Peer) -> None:
        """`publish` for a link that is flowing and a publication that goes nowhere else: nothing is kept for others."""
        codec = self.shared
        if codec is None:
            self.write(message, peer)
            return
        frame = codec.encode((message,))
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        self.services.counters.sent += 1
        self.transport.send(frame)  # type: ignore[union-attr]  # a flowing link has a transport

    def set_shared(self) -> None:
        """A session has begun, or its peer is known to be one of ours: find out what of a publication it shares with others."""
        session, transport = self.session, self.transport
        assert session is not None and transport is not None
        can = session.capabilities
        self.carries_headers = can.headers
        # Where publications are an extension, what a stranger asked for has a form that strangers read: see the session.
        known = self.opened or not can.asks_before_publishing or (self._peer is not None and self._peer._extended)
        self.shared = session.codec if can.shared_publish and known else None
        features = TransportFeatures.of(transport)
        self.initiates: bool = can.initiates and features.initiates
        self.send_framed = features.send_framed
        self.alike = None
        if self.shared is not None and self.send_framed is not None and self.when_framed(b"") is not None:
            self.alike = self.shared, type(transport), session.codec.writes

    def when_framed(self, frame: bytes) -> bytes | None:
        """The bytes of a frame on this connection, where others alike have the same."""
        framed: bytes | None = self.transport.framed(frame)  # type: ignore[union-attr]  # asked for where `send_framed` is
        return framed

    def framed(self, message: Message) -> bytes:
        """The bytes of a publication on all links alike.

        Raises:
            EncodeError, Unsupported, TooLarge: The wire cannot carry it.
        """
        alike = self.alike
        assert alike is not None
        data = self.when_framed(alike[0].encode((message,)))
        assert data is not None
        message.shared[alike] = data
        return data

    def _too_large(self, frame: bytes) -> TooLarge:
        return TooLarge(f"a publication of {len(frame)} bytes: the limit is {self.runtime.limits.message} (Limits.message)")

    def _shared_frame(self, message: Message, codec: Any) -> bytes:
        frame: bytes = codec.encode((message,))
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        message.shared[codec] = frame
        return frame

    def request(self, message: Message, reply: Reply[Any], peer: Peer) -> None:
        """Send a request or let it wait.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: Misuse; anything else fails the reply.
        """
        if self.crowd is not None and peer.gone:
            reply._fail(Disconnected("the peer has gone", peer.address, False))
            return
        if not self.flowing:
            self.check_initiates(peer)
            if self.state is State.CLOSED or self._closing is not None:
                reply._fail(self.disconnected(sent=False))
            elif self._wait(message, peer, reply, reply.deadline, droppable=False):
                peer._unsent_reply(reply)
            else:
                reply._fail(QueueFull(f"the outbox to {self.address} is full: {self._outbox_state()}"))
            return
        self._send_request(message, reply, peer, reply.started)
        try:
            self.flush()
        except TooLarge as error:  # for a connection that takes less than the session does: a tunnel
            peer.pending.pop(reply.key, None)
            reply._fail(error)

    def request_ahead(self, message: Message, reply: Reply[Any], peer: Peer) -> None:
        """Send a request before anything that waits. For a few small ones."""
        self._send_request(message, reply, peer, reply.started)
        self.flush()

    def _send_request(self, message: Message, reply: Reply[Any], peer: Peer, now: float) -> None:
        if len(peer.pending) >= self.runtime.limits.pending:
            reply._fail(QueueFull(f"{len(peer.pending)} requests to {self.address} already wait for their answer"))
            return
        try:
            key = self.session.send(message, now, peer.key)  # type: ignore[union-attr]
        except (RequestError, QueueFull, Disconnected) as error:
            reply._fail(error)
            return
        self.services.counters.sent += 1
        reply.key = key
        reply.sent = True
        peer.pending[key] = reply

    def answer(self, message: Message, peer: Peer) -> None:
        """Send what must not be dropped: answers, items, control. A peer that does not read even these loses its link."""
        if self.flowing or (self.state is State.UP and not self.paused and not self.outbox):
            self.write(message, peer)
        elif self.state is State.UP and self._closing is None and not self._wait(message, peer, None, 0.0, droppable=False):
            self.too_slow(peer, "its outbox is full of answers")

    async def written(self) -> None:
        """Wait until all that was said so far has left, or the connection is gone. Only where writing takes a while (HTTP):
        elsewhere what the connection takes has left.
        """
        written = TransportFeatures.of(self.transport).written
        if written is None:
            return
        last = self.outbox.last if self.outbox is not None else None
        while last is not None and last.waits and self.state is State.UP:
            await self.room(0, math.inf)
        await written()

    def disconnected(self, *, sent: bool) -> BusError:
        """Why nothing can be sent any more."""
        why = self._closing
        if why is not None and why.error is not None:
            return another(why.error)
        return Disconnected(why.reason if why is not None else "the link is closed", self.address, sent)
