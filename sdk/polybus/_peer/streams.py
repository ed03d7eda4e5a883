"""Streams, channels and tunnels of a peer: opening them, and the port through which they write."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from .._core.memory import OVERHEAD, cost
from .._rpc.channel import CREDIT, Channel
from ..errors import Code, Disconnected, TooManyRequests, Unsupported
from ..message import Kind, Message
from .negotiation import AcquaintedPeer

if TYPE_CHECKING:
    from ..body import BodyFormat

__all__ = ["ChannelledPeer"]


class ChannelledPeer(AcquaintedPeer):
    """The part of a `Peer` that its channels write through: a `channel.Port`."""

    __slots__ = ()

    channels: dict[Any, Channel[Any, Any]] | None  # declared in `KnownPeer`; again here for type checkers

    async def _open(self, subject: str | int, body: Any, mode: str, timeout: float | None, hops: int = 0) -> Channel[Any, Any]:
        channel: Channel[Any, Any] = Channel(self.link.runtime.loop, self, subject, 0)
        await self._open_channel(channel, body, mode, timeout, CREDIT, hops)
        return channel

    async def _open_channel(
        self, channel: Channel[Any, Any], body: Any, mode: str, timeout: float | None, credit: int, hops: int = 0
    ) -> None:
        """Write an open. `hops` are the bridges and tunnels that it has come through before this link."""
        link, subject = self.link, channel.subject
        if link.session is not None and not link.session.capabilities.extensions:
            raise Unsupported(f"{self.protocol} cannot carry a {mode}")
        if not await self.extended():
            raise self.not_extended(f"it can carry requests, but no {mode}")
        if self._answers_only:
            raise Unsupported(f"{self!r} only answers on this connection: it can carry requests, but no {mode}")
        now = link.runtime.time()
        if len(self.channels or ()) >= 2 * link.runtime.limits.channels:
            raise TooManyRequests(f"{len(self.channels or ())} channels are open on this peer (Limits.channels)")
        facts = {"mode": mode, "credit": credit, "hops": hops}
        message = Message(
            Kind.OPEN, subject, None, None, link.format, None, link.runtime.ttl(now, now + timeout if timeout else math.inf)
        )
        message.extras = facts
        if body is not None:
            message.format = chosen = link.format_for(body, subject)
            message.raw = chosen.encode(body)
        if link.outbox is not None:  # what was published before leaves before
            await link.room(0, now + (30.0 if timeout is None else timeout))
        if not self.connected:
            raise Disconnected(f"a {mode} does not wait for it to come back", self.address, False)
        link.check_initiates(self)  # type: ignore[arg-type]  # every one is a Peer
        channel.started = now
        channel.id = link.write(message, self)  # type: ignore[arg-type]  # every one is a Peer
        channels = self.channels = self.channels if self.channels is not None else {}
        channels[channel.id] = channel
        if timeout is not None:
            channel.deadline = now + timeout
            if channel.deadline < self._due:
                self._watch(channel.deadline)

    @property
    def takes_items(self) -> bool:
        """Whether an item written now would not add to what waits for too long already."""
        return self.link.takes_answers

    def channel_frame(self, channel: Channel[Any, Any], frame: bytes, body_format: BodyFormat | None) -> int:
        """Write a frame of a tunnel as an item. What it costs the other side until it is read.

        Args:
            body_format: How it travels; None for a value of this wire.
        """
        if body_format is None:
            return self.channel_send(channel, Kind.ITEM, frame, None, {})
        self.link.answer(Message(Kind.ITEM, channel.subject, channel.id, frame, body_format), self)  # type: ignore[arg-type]  # every one is a Peer
        return len(frame) + OVERHEAD

    def channel_send(self, channel: Channel[Any, Any], kind: Kind, value: Any, code: Code | None, facts: dict[str, Any]) -> int:
        """A channel's port: write an item, a credit or an end. What it costs the other side until it is read."""
        link = self.link
        message = Message(kind, channel.subject, channel.id, None, link.format, code=code)
        if facts:
            message.extras = facts
        if kind is Kind.ITEM:
            message.format = chosen = link.format_for(value, channel.subject)
            message.raw = chosen.encode(value)
        link.answer(message, self)  # type: ignore[arg-type]  # every one is a Peer
        return cost(message)

    def channel_room(self) -> Awaitable[None] | None:
        """A channel's port: something to wait for while too much waits to be written."""
        return self.link.room_for_answer() if self.link.outbox is not None else None

    def channel_done(self, channel: Channel[Any, Any]) -> None:
        """A channel's port: it is over."""
        if self.channels is not None and self.channels.pop(channel.id, None) is not None:
            session = self.link.session
            if session is not None:
                session.forget(channel.id, self.link.runtime.time())
