"""Manages streams, channels and tunnels with a peer."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ..._util.deadlines import Deadlines
from ...errors import BusError, Code, Disconnected, TooManyRequests, Unsupported, another
from ...message import Kind, Message
from ..rpc.call import ChannelCall, refused_call
from ..rpc.channel import CREDIT, Channel
from ..runtime.memory_budgets import OVERHEAD, MemoryBudget, cost
from .inbound_calls import DRAINING
from .responses import refuse_duplicate, send_error

if TYPE_CHECKING:
    from ...body import BodyFormat
    from ..link.link import Link
    from .peer_core import PeerCore

MODES = ("stream", "channel", "tunnel")


class Streams:
    """The open channels with a peer, opened by either side. Implements `channel.ChannelPort`."""

    __slots__ = ("_deadlines", "_peer", "_tunnels", "budget", "channels", "link")

    def __init__(self, peer: PeerCore) -> None:
        self._peer = peer
        self.link: Link = peer.link
        self.budget: MemoryBudget = peer.budget
        """Memory budget of the peer, which is charged for unread items."""
        self.channels: dict[Any, Channel[Any, Any]] = {}
        self._tunnels = 0
        self._deadlines = Deadlines()

    # -- opened by this bus ----------------------------------------------------------------------------------------------

    async def open_channel(
        self,
        channel: Channel[Any, Any],
        body: Any,
        mode: str,
        timeout: float | None,
        credit: int,
        hops: int = 0,
        *,
        to: Any = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send an open message. `hops` is the number of bridges and tunnels before this link.

        In a cluster, `to` is the receiver's address behind the peer.

        Raises:
            Unsupported: If the peer or the protocol doesn't support channels.
            TooManyRequests: If too many channels are open.
            EncodeError: If the body cannot be encoded.
            Disconnected: If the link is down.
        """
        link, peer, subject = self.link, self._peer, channel.subject
        can = None if link.session is None else link.session.capabilities
        if can is not None and not can.extensions:
            raise Unsupported(f"{peer.protocol} cannot carry a {mode}")
        link.check_initiates(peer)
        if not (can is not None and can.built_in) and not await peer.extended():
            raise peer.negotiation.unsupported(f"it can carry requests, but no {mode}")
        if peer.negotiation.answers_only:
            raise Unsupported(f"{peer!r} only answers on this connection: it can carry requests, but no {mode}")
        now = link.runtime.time()
        if len(self.channels) >= 2 * link.runtime.limits.channels:
            raise TooManyRequests(f"{len(self.channels)} channels are open on this peer (Limits.channels)")
        facts = {"mode": mode, "credit": credit, "hops": hops}
        if to is not None:
            facts["to"] = to
        ttl = link.runtime.ttl(now, now + timeout if timeout else math.inf)
        message = Message(Kind.OPEN, subject, None, None, link.format, headers, ttl)
        message.extras = facts
        if body is not None:
            message.format = chosen = link.format_for(body, subject)
            message.raw = message.checked = chosen.encode(body)
        if link.outbox is not None:  # earlier publications leave first
            await link.room(now + (30.0 if timeout is None else timeout))
        if not peer.connected:
            raise Disconnected(f"a {mode} does not wait for it to come back", peer.address, False)
        channel.started, channel.ttl = now, ttl
        if link.services.outgoing and not hops:
            self._write_observed(channel, message)
        else:
            channel.id = link.write(message, peer)
        self.channels[channel.id] = channel
        if timeout is not None:
            channel.deadline = now + timeout
            if channel.deadline < self._deadlines.until:
                self._deadlines.add(channel.deadline, channel.id)
                peer.watch(channel.deadline)

    def expire(self, now: float) -> float:
        for channel in self._deadlines.due(now, self.channels):
            channel.expire(now)
        return self._deadlines.next

    def _write_observed(self, channel: Channel[Any, Any], message: Message) -> None:
        departure = channel.departure = self._peer.depart(message)
        try:
            channel.id = self.link.write(message, self._peer)
        except BaseException as error:
            departure.end(error)
            raise

    # -- opened by the peer ----------------------------------------------------------------------------------------------

    def opened(self, message: Message, now: float, route: Any = None) -> None:
        """Start or reject a channel that the peer opens. With `route`, another node opens it to a client of this node."""
        link, peer, channels = self.link, self._peer, self.channels
        services, limits, inbound = link.services, link.runtime.limits, peer.inbound
        mode = message.attributes.get("mode", "stream")
        found = route or peer.host.lookup.find_for(message, mode)
        if message.id in channels or message.id in inbound.calls:
            refuse_duplicate(peer, message, now)  # an end with this id would end the other channel
            return
        deadline = math.inf if message.ttl is None else now + message.ttl
        if not services.takes_requests and route is None:
            problem = Code.UNAVAILABLE, DRAINING
        elif mode not in MODES:
            problem = Code.INVALID_ARGUMENT, f"a mode of {mode!r}: one of {', '.join(MODES)}"
        elif self._count_opened() >= limits.channels:
            problem = Code.RESOURCE_EXHAUSTED, f"{len(channels)} channels are open (Limits.channels)"
        elif found is not None and found.style in (mode, "route"):
            self._begin(message, mode, deadline, found)
            return
        else:
            problem = _unanswerable(message.subject, mode, found)
            if services.authorize is not None:
                inbound.start(refused_call(inbound, peer, message, deadline, *problem))
                return
        services.counters.refused += 1
        send_error(peer, message, *problem, kind=Kind.END)

    def _begin(self, message: Message, mode: str, deadline: float, found: Any) -> None:
        link, peer, channels, inbound = self.link, self._peer, self.channels, self._peer.inbound
        if mode == "tunnel":
            opening = found.call(peer, message, deadline)
            channels[message.id] = opening.channel
            self._tunnels += 1
            inbound.start(opening)
            return
        credit = message.attributes.get("credit")
        given = credit if isinstance(credit, int) and credit > 0 else CREDIT
        channel: Channel[Any, Any] = Channel(link.runtime.loop, self, message.subject, given, receiving=mode != "stream")
        channel.id = message.id
        channels[message.id] = channel
        call: ChannelCall
        if found.style == "route":
            call = found.call(peer, message, deadline, channel)
        else:
            call = ChannelCall(link.services, inbound, peer, found, message, deadline, found.places, channel=channel)
        if mode != "stream":
            self.channel_send(channel, Kind.CREDIT, None, None, {"credit": CREDIT})
        inbound.start(call)

    def _count_opened(self) -> int:
        """Return the number of streams, channels and tunnels that the peer has opened.

        Open tunnels are counted separately, because their calls have ended.
        """
        return self._peer.inbound.channel_calls + self._tunnels

    # -- ChannelPort -----------------------------------------------------------------------------------------------------

    @property
    def takes_items(self) -> bool:
        return self.link.takes_answers

    def channel_frame(self, channel: Channel[Any, Any], frame: bytes, body_format: BodyFormat | None) -> int:
        """Send a tunnel's frame as an item, by default as a value in this protocol's format. Returns its size in bytes."""
        if body_format is None:
            return self.channel_send(channel, Kind.ITEM, frame, None, {})
        self.link.answer(Message(Kind.ITEM, channel.subject, channel.id, frame, body_format, checked=frame), self._peer)
        return len(frame) + OVERHEAD

    def channel_send(self, channel: Channel[Any, Any], kind: Kind, value: Any, code: Code | None, facts: dict[str, Any]) -> int:
        """Send an item, a credit or an end. Returns the bytes that it occupies at the peer until it is read."""
        link = self.link
        message = Message(kind, channel.subject, channel.id, None, link.format, code=code)
        if facts:
            message.extras = facts
        if kind is Kind.ITEM:
            message.format = chosen = link.format_for(value, channel.subject)
            message.raw = message.checked = chosen.encode(value)
        link.answer(message, self._peer)
        return cost(message)

    def channel_room(self) -> Awaitable[None] | None:
        """Return an awaitable to await if too much is queued. Otherwise return None."""
        return self.link.room_for_answer() if self.link.outbox is not None else None

    def channel_done(self, channel: Channel[Any, Any]) -> None:
        if self.forget(channel.id):
            self.link.forget(channel.id)

    def forget(self, id: Any) -> bool:
        """Forget a channel. Returns False if it is unknown."""
        channel = self.channels.pop(id, None)
        if channel is None:
            return False
        self._tunnels -= channel.frames and channel.answers
        return True

    def lost(self, error: BusError) -> None:
        for channel in list(self.channels.values()):
            channel.lost(another(error))


def _unanswerable(subject: str | int, mode: str, found: Any) -> tuple[Code, str]:
    if found is None:
        return Code.UNIMPLEMENTED, f"no {'tunnel listener' if mode == 'tunnel' else 'handler'} for {subject!r} here"
    kind = found.style if found.style in ("stream", "channel") else "request"
    return Code.INVALID_ARGUMENT, f"{subject!r} answers {kind}, not {mode}: use bus.{kind}()"
