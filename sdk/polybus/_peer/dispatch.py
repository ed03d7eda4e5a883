"""What a peer sends: each kind of message has its function here.

Nothing in this module waits. A handler is started through the workers; replies and control go past the handlers.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._core.via import hide
from .._rpc.call import Call, RefusedCall
from .._util.hello import HELLO, answer_of
from .._util.pattern_index import pattern_cost
from ..errors import BusError, Code
from ..headers import VIA
from ..message import Kind, Message
from ..subjects import RESERVED_PREFIX, check_pattern, wire_pattern
from .concurrency import DRAINING, admit, duplicate
from .extension_probe import HELLO_TIMEOUT
from .inbound_streams import credited, ended, item, opened, spelled

if TYPE_CHECKING:
    from .._handlers.handler import Handler
    from .._link.link import Link
    from .peer import Peer

__all__ = ["receive"]

logger: logging.Logger = logging.getLogger("polybus")

REQUEST, RESPONSE, ERROR, PUBLISH = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.PUBLISH


def receive(peer: Peer, message: Message, now: float) -> None:
    """A message has come from a peer."""
    services = peer.link.services
    services.counters.received += 1
    kind = message.kind
    if kind is RESPONSE:
        reply = peer.pending.pop(message.id, None)
        if reply is not None:
            reply._resolve(message)
        elif (question := peer.late_answer(message.id)) is not None:
            question._resolve(message)
        else:
            services.counters.late += 1
    elif kind is REQUEST:
        _request(peer, message, now)
    elif kind is PUBLISH and services.authorize is None:
        peer.link.bus._deliver(message, peer)
    else:
        _OTHERS[kind](peer, message, now)


def _error(peer: Peer, message: Message, now: float) -> None:
    reply = peer.pending.pop(message.id, None) or peer.late_answer(message.id)
    if reply is not None:
        reply._reject(message, now)
    elif peer.channels is not None and (channel := peer.channels.get(message.id)) is not None:
        channel.received_end(message)  # an open that was refused in the protocol's own words
    else:
        peer.link.services.counters.late += 1


def _request(peer: Peer, message: Message, now: float) -> None:
    link = peer.link
    bus, services = link.bus, link.services
    calls = peer.calls
    if calls is None:
        calls = peer.calls = {}
    elif message.id in calls:
        duplicate(peer, message, now)
        return
    ttl = message.ttl
    if ttl is not None and ttl <= 0:
        services.counters.refused += 1
        peer.send_error(message, Code.DEADLINE_EXCEEDED, "the deadline had passed on arrival")
        return
    handler = bus._handlers.get(message.subject) or bus._handler_of(message)
    deadline = math.inf if ttl is None else now + ttl
    call: Call
    if handler is None or not bus.ready or handler.style in ("stream", "channel"):
        unhandled = _unhandled(peer, message, handler, deadline)
        if unhandled is None:
            return
        call = unhandled
    else:
        if message.headers is not None and VIA in message.headers:
            hide(message)
        call = Call(services, peer, peer, handler, message, deadline)
    calls[message.id] = call
    admit(peer, call)
    if deadline < peer._due:
        peer._watch(deadline)


def _unhandled(peer: Peer, message: Message, handler: Handler | None, deadline: float) -> Call | None:
    """Answer a request that no handler gets; a call where `authorize` is asked before the answer."""
    bus, services, subject = peer.link.bus, peer.link.services, message.subject
    if isinstance(subject, str) and subject.startswith(RESERVED_PREFIX):
        _hello(peer, message)
        return None
    if not bus.ready:
        services.counters.refused += 1
        peer.send_error(message, Code.UNAVAILABLE, DRAINING)
        return None
    if handler is None and (passage := bus._passage(subject, "request")) is not None:
        passing: Call = passage.requests.call(peer, peer, message, deadline)
        return passing
    if handler is None:
        problem = Code.UNIMPLEMENTED, f"nobody handles {subject!r} here"
    else:
        problem = Code.INVALID_ARGUMENT, f"{subject!r} is a {handler.style}: use bus.{handler.style}()"
    if services.authorize is not None:
        return RefusedCall(services, peer, message, deadline, *problem)
    services.counters.refused += 1
    peer.send_error(message, *problem)
    return None


def _hello(peer: Peer, message: Message) -> None:
    """The peer is one of ours (or pretends to be, which harms only itself)."""
    if message.subject != HELLO:
        peer.send_error(message, Code.UNIMPLEMENTED, f"{message.subject!r} is not known to this version of polybus")
    elif peer.undecided is not None:
        _queue_undecided(peer, message)  # it is a barrier: what was written before it is decided first
    else:
        _answer_hello(peer, message)


def _answer_hello(peer: Peer, message: Message) -> None:
    body = message.body if isinstance(message.body, dict) else {}
    link = peer.link
    if link.upstream or link.runtime.ends.said(peer, body.get("secret")):
        _say_hello(peer, link, message, body)
    else:
        peer.spawn(_say_hello_later, peer, link, message, body)


async def _say_hello_later(peer: Peer, link: Link, message: Message, body: dict[str, Any]) -> None:
    await link.runtime.ends.settled(HELLO_TIMEOUT / 2)  # so that the peer hears of it in time
    if peer.connected:
        _say_hello(peer, link, message, body)


def _say_hello(peer: Peer, link: Link, message: Message, body: dict[str, Any]) -> None:
    confirm = body.get("confirm")
    answer = answer_of(body, peer.id)
    if answer is None:
        peer.send_error(message, Code.UNIMPLEMENTED, "this question has come back to the bus that asked it")
        return
    if not link.initiates:
        answer["answers_only"] = True
    answer |= link.runtime.ends.answer(body.get("nonce"))
    if to_tell := link.bus._distribution.to_tell(peer):
        answer["subscribes"] = to_tell
    peer.is_ours(body.get("subscribes"), body.get("passes"))
    if isinstance(confirm, list):
        answer["refused"] = [p for p in confirm[:1024] if isinstance(p, (str, int)) and _wanted(p) not in (peer.patterns or ())]
    peer.respond(message, answer)


def _notify(peer: Peer, message: Message, now: float) -> None:
    bus, services = peer.link.bus, peer.link.services
    handler = bus._handler_of(message)
    passage = None
    if handler is None and bus.ready:
        session = peer.link.session
        # To that peer a publication and a notification are one thing, which has come as the former just before.
        published = session is not None and session.capabilities.handlers
        if published and bus._distribution.takes(message.subject):
            return
        if not published or bus._passage(message.subject, "publish") is None:  # else it has crossed a bridge so
            passage = bus._passage(message.subject, "request")
    if passage is None and (handler is None or not bus.ready or handler.style in ("stream", "channel")):
        # Nobody asked for an answer, so nobody is refused one; as for a publication that nobody hears, it is no offence.
        why = "no handler" if handler is None else f"a {handler.style} handler" if bus.ready else "draining"
        services.counters.refused += handler is not None
        code = Code.UNAVAILABLE if not bus.ready else Code.UNIMPLEMENTED
        services.dead_letter(peer, message, code, why)
        return
    deadline = math.inf if message.expires is None else message.expires
    call: Call
    if passage is not None:
        call = passage.requests.call(peer, peer, message, deadline)
    else:
        assert handler is not None
        if message.headers is not None and VIA in message.headers:
            hide(message)
        call = Call(services, peer, peer, handler, message, deadline)
    peer.calls = peer.calls if peer.calls is not None else {}
    message.id = call  # unique, and never written
    peer.calls[call] = call
    admit(peer, call)
    if call.deadline < peer._due:
        peer._watch(call.deadline)


def _cancel(peer: Peer, message: Message, now: float) -> None:
    call = peer.calls.get(message.id) if peer.calls else None
    if call is None:
        return
    call.stop()
    session = peer.link.session
    if session is not None and session.capabilities.scarce_ids and call.message.kind is REQUEST:
        peer.send_error(call.message, Code.CANCELLED, "cancelled by whoever asked", delivered=True)


def _gated(act: Callable[[Peer, Message], None], verb: str) -> Callable[[Peer, Message, float], None]:
    """Ask `authorize` first. While an asynchronous answer is out, what follows from this peer waits behind it, in order."""

    def gate(peer: Peer, message: Message, now: float) -> None:
        services = peer.link.services
        if services.authorize is None:
            act(peer, message)
            return
        # Asked about what is granted.
        subscribes = message.kind is Kind.SUBSCRIBE
        message.subject = _wanted(message.subject) if subscribes else spelled(message.subject)
        if peer.undecided is not None:
            _queue_undecided(peer, message)
            return
        if message.kind is Kind.UNSUBSCRIBE:
            act(peer, message)  # who may not subscribe any more may still leave
            return
        allowed = services.access.asks(peer, verb, message.subject, message)
        if inspect.isawaitable(allowed):
            if peer.hold(message):
                waiting = peer.undecided = deque()
                peer.spawn(_decide, peer, message, allowed, waiting)
            else:
                getattr(allowed, "close", lambda: None)()
                services.counters.dropped += 1
        elif allowed:
            act(peer, message)
        else:
            _refuse(peer, message)

    return gate


def _queue_undecided(peer: Peer, message: Message) -> None:
    assert peer.undecided is not None
    if len(peer.undecided) < peer.link.runtime.limits.waiting and peer.hold(message):
        peer.undecided.append(message)
    else:
        peer.link.services.counters.dropped += 1


async def _decide(peer: Peer, message: Message | None, allowed: Any, waiting: deque[Message]) -> None:
    """Wait for `authorize`, then do what waited behind the answer, as far as no further answer is needed.

    Ends with the peer. What is held of its messages is released: the one in hand here, the others there.
    """
    services = peer.link.services
    try:
        while message is not None:
            granted = await services.access.answer(allowed)
            if peer.undecided is not waiting:
                return  # the peer has gone meanwhile
            _decided(peer, message, granted)
            peer.release(message)
            message = waiting.popleft() if waiting else None
            while message is not None and message.kind in (REQUEST, Kind.UNSUBSCRIBE):
                if message.kind is REQUEST:
                    _answer_hello(peer, message)
                else:
                    _unsubscribe(peer, message)
                peer.release(message)
                message = waiting.popleft() if waiting else None
            if message is not None:
                allowed = services.access.asks(peer, _VERBS[message.kind][0], message.subject, message)
    finally:
        if message is not None:
            peer.release(message)
        # A cancellation that escaped from `authorize` refuses what waited; it must not block what follows.
        if peer.undecided is waiting:
            for left in waiting:
                peer.release(left)
                services.counters.refused += 1
            peer.undecided = None


def _decided(peer: Peer, message: Message, granted: bool) -> None:
    if granted:
        try:
            _VERBS[message.kind][1](peer, message)
        except BusError:
            logger.exception("polybus: %r from %r was dropped", message, peer)
    else:
        _refuse(peer, message)


def _refuse(peer: Peer, message: Message) -> None:
    peer.link.services.counters.refused += 1
    if message.kind is Kind.SUBSCRIBE:
        peer.link.bus._distribution.told(peer)


def _wanted(pattern: str | int) -> str | int:
    """A pattern of a peer as it is asked about, kept and taken back."""
    return spelled(wire_pattern(pattern))


def _publish(peer: Peer, message: Message) -> None:
    peer.link.bus._deliver(message, peer)


def _subscribe(peer: Peer, message: Message) -> None:
    _add_subscription(peer, _wanted(message.subject))
    peer.link.bus._distribution.told(peer)


def _add_subscription(peer: Peer, pattern: str | int) -> None:
    link = peer.link
    try:
        check_pattern(pattern, link.runtime.limits.subject, foreign=True)
    except Exception as error:
        link.refused("invalid_subject", str(error), link.runtime.time())
        return
    patterns = peer.patterns
    if patterns is None:
        patterns = peer.patterns = {}
    if pattern in patterns:
        return
    size = pattern_cost(pattern)
    if len(patterns) >= link.runtime.limits.subscriptions or not link.initiates or not peer.account.hold(size):
        link.services.counters.refused += 1
        if link.initiates:
            link.bus._subscription_refused(peer, pattern)
        return
    patterns[pattern] = size
    link.bus._peer_subscribed(peer, pattern)


def _unsubscribe(peer: Peer, message: Message) -> None:
    pattern = _wanted(message.subject)
    if peer.patterns is not None and (size := peer.patterns.pop(pattern, None)) is not None:
        peer.account.release(size)
        peer.link.bus._peer_unsubscribed(peer, pattern)


def _control(peer: Peer, message: Message, now: float) -> None:
    """Whatever a session reports for the record only."""


_VERBS: dict[Kind, tuple[str, Callable[[Peer, Message], None]]] = {
    Kind.PUBLISH: ("publish", _publish),
    Kind.SUBSCRIBE: ("subscribe", _subscribe),
    Kind.UNSUBSCRIBE: ("subscribe", _unsubscribe),
}

_OTHERS: dict[Kind, Callable[[Peer, Message, float], None]] = {
    Kind.ERROR: _error,
    Kind.PUBLISH: _gated(_publish, "publish"),
    Kind.SUBSCRIBE: _gated(_subscribe, "subscribe"),
    Kind.UNSUBSCRIBE: _gated(_unsubscribe, "subscribe"),
    Kind.NOTIFY: _notify,
    Kind.CANCEL: _cancel,
    Kind.OPEN: opened,
    Kind.ITEM: item,
    Kind.CREDIT: credited,
    Kind.END: ended,
    Kind.CONTROL: _control,
}
