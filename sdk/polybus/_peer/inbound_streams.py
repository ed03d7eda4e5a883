"""Streams, channels and tunnels that a peer opens, and what it sends on them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._rpc.call import RefusedCall
from .._rpc.channel import CREDIT, Channel
from .._rpc.stream_call import ChannelCall
from ..errors import Code
from ..message import Kind, Message
from ..subjects import canonical
from .concurrency import DRAINING, admit, duplicate

if TYPE_CHECKING:
    from .peer import Peer

__all__ = ["credited", "ended", "item", "opened", "spelled"]

MODES = ("stream", "channel", "tunnel")


def spelled(subject: str | int) -> str | int:
    """An address in its one spelling, everything else as it is."""
    return canonical(subject) if isinstance(subject, str) and "/" in subject else subject


def opened(peer: Peer, message: Message, now: float) -> None:
    link = peer.link
    bus, services, limits = link.bus, link.services, link.runtime.limits
    mode = message.attributes.get("mode", "stream")
    handler = bus._handler_of(message) if mode != "tunnel" else bus._entrance(message.subject)
    if mode == "tunnel":
        message.subject = spelled(message.subject)
    channels = peer.channels = peer.channels if peer.channels is not None else {}
    passage = None
    if bus._passages and mode != "tunnel" and (handler is None or handler.style != mode):
        passage = bus._passage(message.subject, mode)
    problem: tuple[Code, str] | None = None
    unanswerable: tuple[Code, str] | None = None
    if message.id in channels or message.id in (peer.calls or ()):
        duplicate(peer, message, now)  # an end under this id would be the first one's
        return
    if not bus.ready:
        problem = Code.UNAVAILABLE, DRAINING
    elif mode not in MODES:
        problem = Code.INVALID_ARGUMENT, f"a mode of {mode!r}: one of {', '.join(MODES)}"
    elif _open_channels(peer) >= limits.channels or len(peer.calls or ()) >= limits.running + limits.waiting:
        problem = Code.RESOURCE_EXHAUSTED, f"{len(channels)} channels are open (Limits.channels)"
    elif passage is not None:
        pass
    elif handler is None:
        what = "serves a tunnel" if mode == "tunnel" else "handles"
        unanswerable = Code.UNIMPLEMENTED, f"nobody {what} {message.subject!r} here"
    elif handler.style != mode:
        kind = handler.style if handler.style in ("stream", "channel") else "request"
        unanswerable = Code.INVALID_ARGUMENT, f"{message.subject!r} answers {kind}, not {mode}: use bus.{kind}()"
    deadline = math.inf if message.ttl is None else now + message.ttl
    peer.calls = peer.calls if peer.calls is not None else {}
    if unanswerable is not None and services.authorize is not None:
        refused = peer.calls[message.id] = RefusedCall(services, peer, message, deadline, *unanswerable)
        admit(peer, refused)
        return
    problem = problem or unanswerable
    if problem is not None or (handler is None and passage is None):
        assert problem is not None
        services.counters.refused += 1
        peer.send_error(message, *problem, kind=Kind.END)
        return
    if mode == "tunnel":
        _open_tunnel(peer, message, handler, deadline)
        return
    credit = message.attributes.get("credit")
    channel: Channel[Any, Any] = Channel(
        link.runtime.loop, peer, message.subject, credit if isinstance(credit, int) and credit > 0 else CREDIT
    )
    channel.id = message.id
    channel._receiving = mode != "stream"
    channels[message.id] = channel
    call: ChannelCall
    if passage is not None:
        call = passage.conversations.call(peer, message, deadline, channel)
    else:
        assert handler is not None
        call = ChannelCall(services, peer, peer, handler, message, deadline, channel)
    peer.calls[message.id] = call
    if mode != "stream":
        peer.channel_send(channel, Kind.CREDIT, None, None, {"credit": CREDIT})
    admit(peer, call)
    if deadline < peer._due:
        peer._watch(deadline)


def _open_tunnel(peer: Peer, message: Message, entrance: Any, deadline: float) -> None:
    call = entrance.call(peer, message, deadline)
    assert peer.channels is not None and peer.calls is not None
    peer.channels[message.id] = call.channel
    peer.calls[message.id] = call
    admit(peer, call)


def _open_channels(peer: Peer) -> int:
    """Streams, channels and tunnels that a peer has opened: tunnels are no calls any more once they stand."""
    channels = peer.channels or {}
    return sum(isinstance(call, ChannelCall) for call in (peer.calls or {}).values()) + sum(
        channel.frames and channel.answers for channel in channels.values()
    )


def item(peer: Peer, message: Message, now: float) -> None:
    channel = peer.channels.get(message.id) if peer.channels else None
    if channel is not None:
        channel.received_item(message)
    else:
        peer.link.services.counters.late += 1


def credited(peer: Peer, message: Message, now: float) -> None:
    channel = peer.channels.get(message.id) if peer.channels else None
    if channel is not None:
        channel.received_credit(message.attributes.get("credit"))


def ended(peer: Peer, message: Message, now: float) -> None:
    channel = peer.channels.get(message.id) if peer.channels else None
    if channel is not None:
        channel.received_end(message)
