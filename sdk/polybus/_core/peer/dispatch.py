"""Dispatches a peer's messages: requests to handlers, answers to replies, items to channels, publications to queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...message import Kind, Message
from ...plugins.hello import HELLO
from . import authorization_queue

if TYPE_CHECKING:
    from .peer_core import PeerCore

_REQUEST, _RESPONSE, _PUBLISH = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH
_AUTHORIZED: Final = (Kind.PUBLISH, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE)


def dispatch(peer: PeerCore, message: Message, now: float) -> None:
    """Handle a message without waiting. Handlers run in workers."""
    services = peer.link.services
    services.counters.received += 1
    kind = message.kind
    if kind is _RESPONSE:
        reply = peer.pending.pop(message.id, None)
        if reply is None:
            reply = peer.late_answer(message)
        if reply is not None:
            reply.resolve(message)
        else:
            services.counters.late += 1
    elif kind is _REQUEST:
        if (inbound := peer.inbound_if_any) is not None:
            inbound.request(message, now)
        else:
            _first_request(peer, message, now)
    elif kind is _PUBLISH and services.authorize is None:
        peer.host.deliver(message, peer)
    elif kind in _AUTHORIZED:
        authorization_queue.receive(peer, message)
    else:
        _dispatch_other(peer, message, now)


def _first_request(peer: PeerCore, message: Message, now: float) -> None:
    if message.subject == HELLO and (message.ttl is None or message.ttl > 0):
        authorization_queue.hello(peer, message)
    else:
        peer.inbound.request(message, now)


def _dispatch_other(peer: PeerCore, message: Message, now: float) -> None:
    kind = message.kind
    channel = peer.streams_if_any.channels.get(message.id) if peer.streams_if_any is not None else None
    if kind is Kind.ITEM:
        if channel is not None:
            channel.received_item(message)
        else:
            peer.link.services.counters.late += 1
    elif kind is Kind.CREDIT:
        if channel is not None:
            channel.received_credit(message.attributes.get("credit"))
    elif kind is Kind.END:
        if channel is not None:
            channel.received_end(message)
    elif kind is Kind.ERROR:
        reply = peer.pending.pop(message.id, None)
        if reply is None:
            reply = peer.late_answer(message)
        if reply is not None:
            reply.reject(message, now)
        elif channel is not None:
            channel.received_end(message)  # the peer refused an open in the protocol's own way
        else:
            peer.link.services.counters.late += 1
    elif kind is Kind.NOTIFY:
        peer.inbound.notify(message)
    elif kind is Kind.CANCEL:
        if peer.inbound_if_any is not None:
            peer.inbound_if_any.cancel(message)
    elif kind is Kind.OPEN:
        peer.streams.opened(message, now)
