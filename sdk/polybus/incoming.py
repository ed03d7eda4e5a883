"""What a peer sends: each kind of message has its function here.

Nothing in this module waits. A handler is started through the workers; replies and control go past the handlers.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .account import cost
from .calls import Call, ChannelCall, RefusedCall
from .channel import CREDIT, Channel
from .errors import BusError, Code
from .message import Kind, Message
from .subjects import RESERVED_PREFIX, canonical, check_pattern, pattern_cost, wire_pattern
from .urgency import UrgentQueue

if TYPE_CHECKING:
    from .handlers import Handler
    from .peer import Peer

__all__ = ["next_call", "receive"]

logger: logging.Logger = logging.getLogger("polybus")

DRAINING = "this bus takes no requests now, it is draining or has not started yet: ask another, or later"
MODES = ("stream", "channel", "tunnel")
_LARGE = 16 * 1024
"""Bytes: smaller bodies of requests that run are not charged, `Limits.total_running` bounds them."""

REQUEST, RESPONSE, ERROR, PUBLISH = Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.PUBLISH


def receive(peer: Peer, message: Message, now: float) -> None:
    """A message has come from a peer."""
    bus = peer._link.bus
    bus._counters.received += 1
    kind = message.kind
    if kind is RESPONSE:
        reply = peer.pending.pop(message.id, None)
        if reply is not None:
            reply._resolve(message)
        elif (question := peer.late_answer(message.id)) is not None:
            question._resolve(message)
        else:
            bus._counters.late += 1
    elif kind is REQUEST:
        _request(peer, message, now)
    elif kind is PUBLISH and bus._authorize is None:
        bus._deliver(message, peer)
    else:
        _OTHERS[kind](peer, message, now)


def _error(peer: Peer, message: Message, now: float) -> None:
    reply = peer.pending.pop(message.id, None) or peer.late_answer(message.id)
    if reply is not None:
        reply._reject(message, now)
    elif peer.channels is not None and (channel := peer.channels.get(message.id)) is not None:
        channel.received_end(message)  # an open that was refused in the protocol's own words
    else:
        peer._link.bus._counters.late += 1


# -- requests ------------------------------------------------------------------------------------------------------------


def _request(peer: Peer, message: Message, now: float) -> None:
    link = peer._link
    bus = link.bus
    calls = peer.calls
    if calls is None:
        calls = peer.calls = {}
    elif message.id in calls:
        _duplicate(peer, message, now)
        return
    ttl = message.ttl
    if ttl is not None and ttl <= 0:
        bus._counters.refused += 1
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
        call = Call(bus, peer, peer, handler, message, deadline)
    calls[message.id] = call
    admit(peer, call)
    if deadline < peer._due:
        peer._watch(deadline)


def _duplicate(peer: Peer, message: Message, now: float) -> None:
    """An id that is still in flight: what came second is not run."""
    link = peer._link
    link.refused("duplicate_id", f"the id of a {message.kind.value} for {message.subject!r} is still in flight", now)
    if link.session is not None and link.session.capabilities.answers_duplicates:
        kind = Kind.END if message.kind is Kind.OPEN else Kind.ERROR
        peer.send_error(
            message, Code.ALREADY_EXISTS, "this id is still in flight: ids must be unique", "duplicate_id", kind=kind
        )


def admit(peer: Peer, call: Call) -> None:
    """Start a call, or let it wait for its turn, or refuse it."""
    runtime = peer._link.runtime
    limits = runtime.limits
    waiting = peer.waiting
    if not waiting and len(peer.calls or ()) + peer.stopping <= limits.running and runtime.running < limits.total_running:
        raw = call.message.raw
        if raw is not None and len(raw) > _LARGE and not _keep(peer, call):
            _turn_away(peer, call, f"{runtime.buffered} bytes wait here (Limits.total_bytes)")
            return
        runtime.running += 1
        runtime.workers.submit(call)
        return
    urgency = peer._link.urgency
    if waiting is None:
        waiting = peer.waiting = deque() if urgency is None else UrgentQueue()
    if len(waiting) >= limits.waiting or not peer.hold(call.message):
        _turn_away(peer, call, f"{limits.running} requests run, {len(waiting)} wait (Limits.running, waiting, waiting_bytes)")
        return
    if urgency is None:
        waiting.append(call)
    else:
        cast("UrgentQueue[Call]", waiting).append(call, urgency(call.message))
    runtime.crowded[peer] = None


def _turn_away(peer: Peer, call: Call, why: str) -> None:
    if peer.calls is not None:
        peer.calls.pop(call.message.id, None)
    call.ended = True
    peer._link.bus._counters.refused += 1
    call.origin.refuse(call, Code.RESOURCE_EXHAUSTED, f"{why}: try again later", "too_many_requests", None)


def _keep(peer: Peer, call: Call) -> bool:
    """Charge a large body that its handler keeps. False if the bus keeps too much already."""
    size = cost(call.message)
    if not peer._link.runtime.large.hold(size):
        return False
    peer.large = peer.large if peer.large is not None else {}
    peer.large[call] = size
    return True


def next_call(peer: Peer) -> None:
    """A place became free: it goes round among the peers that have requests waiting.

    Each step starts a request, or takes a peer out that must wait for a place of its own, and will be back with it.
    """
    runtime = peer._link.runtime
    crowded = runtime.crowded
    if peer.waiting:
        crowded.setdefault(peer)
    while crowded and runtime.running < runtime.limits.total_running:
        first = next(iter(crowded))
        del crowded[first]
        waiting = first.waiting
        if not waiting or first.calls is None or len(first.calls) - len(waiting) + first.stopping >= runtime.limits.running:
            continue
        call = waiting.popleft()
        size = cost(call.message)
        first.account.release(size)
        if size > _LARGE:
            _ = _keep(first, call)  # it has room: it was kept until now
        runtime.running += 1
        runtime.workers.submit(call)
        if waiting:
            crowded[first] = None


def _unhandled(peer: Peer, message: Message, handler: Handler | None, deadline: float) -> Call | None:
    """Answer a request that no handler gets; a call where `authorize` is asked before the answer."""
    bus, subject = peer._link.bus, message.subject
    if isinstance(subject, str) and subject.startswith(RESERVED_PREFIX):
        _hello(peer, message)
        return None
    if not bus.ready:
        bus._counters.refused += 1
        peer.send_error(message, Code.UNAVAILABLE, DRAINING)
        return None
    if handler is None and (passage := bus._passage(subject, "request")) is not None:
        passing: Call = passage.call(peer, peer, message, deadline)
        return passing
    if handler is None:
        problem = Code.UNIMPLEMENTED, f"nobody handles {subject!r} here"
    else:
        problem = Code.INVALID_ARGUMENT, f"{subject!r} is a {handler.style}: use bus.{handler.style}()"
    if bus._authorize is not None:
        return RefusedCall(bus, peer, message, deadline, *problem)
    bus._counters.refused += 1
    peer.send_error(message, *problem)
    return None


def _hello(peer: Peer, message: Message) -> None:
    """The peer is one of ours (or pretends to be, which harms only itself)."""
    if message.subject != "_polybus.hello":
        peer.send_error(message, Code.UNIMPLEMENTED, f"{message.subject!r} is not known to this version of polybus")
    elif peer.undecided is not None:
        _queue_undecided(peer, message)  # it is a barrier: what was written before it is decided first
    else:
        _answer_hello(peer, message)


def _answer_hello(peer: Peer, message: Message) -> None:
    body = message.body if isinstance(message.body, dict) else {}
    confirm = body.get("confirm")
    answer: dict[str, Any] = {"v": 1} if peer._link.initiates else {"v": 1, "answers_only": True}
    if to_tell := peer._link.bus._distribution.to_tell(peer):
        answer["subscribes"] = to_tell
    peer.is_ours(body.get("subscribes"))
    if isinstance(confirm, list):
        answer["refused"] = [p for p in confirm[:1024] if isinstance(p, (str, int)) and _wanted(p) not in (peer.patterns or ())]
    peer.answer(Call(peer._link.bus, peer, peer, None, message, math.inf), answer)  # type: ignore[arg-type]  # no handler


def _notify(peer: Peer, message: Message, now: float) -> None:
    bus = peer._link.bus
    handler = bus._handler_of(message)
    if handler is None or not bus.ready or handler.style in ("stream", "channel"):
        # Nobody asked for an answer, so nobody is refused one; as for a publication that nobody hears, it is no offence.
        why = "no handler" if handler is None else f"a {handler.style} handler" if bus.ready else "draining"
        bus._counters.refused += handler is not None
        code = Code.UNAVAILABLE if not bus.ready else Code.UNIMPLEMENTED
        bus._dead_letter(peer, message, code, why)
        return
    call = Call(bus, peer, peer, handler, message, math.inf if message.expires is None else message.expires)
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
    session = peer._link.session
    if session is not None and session.capabilities.scarce_ids and call.message.kind is REQUEST:
        peer.send_error(call.message, Code.CANCELLED, "cancelled by whoever asked", delivered=True)


# -- publications and subscriptions --------------------------------------------------------------------------------------


def _gated(act: Callable[[Peer, Message], None], verb: str) -> Callable[[Peer, Message, float], None]:
    """Ask `authorize` first. While an asynchronous answer is out, what follows from this peer waits behind it, in order."""

    def gate(peer: Peer, message: Message, now: float) -> None:
        bus = peer._link.bus
        if bus._authorize is None:
            act(peer, message)
            return
        # Asked about what is granted.
        subscribes = message.kind is Kind.SUBSCRIBE
        message.subject = _wanted(message.subject) if subscribes else _spelled(message.subject)
        if peer.undecided is not None:
            _queue_undecided(peer, message)
            return
        if message.kind is Kind.UNSUBSCRIBE:
            act(peer, message)  # who may not subscribe any more may still leave
            return
        allowed = bus._asks(peer, verb, message.subject, message)
        if inspect.isawaitable(allowed):
            if peer.hold(message):
                waiting = peer.undecided = deque()
                peer.spawn(_decide, peer, message, allowed, waiting)
            else:
                getattr(allowed, "close", lambda: None)()
                bus._counters.dropped += 1
        elif allowed:
            act(peer, message)
        else:
            _refuse(peer, message)

    return gate


def _queue_undecided(peer: Peer, message: Message) -> None:
    assert peer.undecided is not None
    if len(peer.undecided) < peer._link.runtime.limits.waiting and peer.hold(message):
        peer.undecided.append(message)
    else:
        peer._link.bus._counters.dropped += 1


async def _decide(peer: Peer, message: Message | None, allowed: Any, waiting: deque[Message]) -> None:
    """Wait for `authorize`, then do what waited behind the answer, as far as no further answer is needed.

    Ends with the peer. What is held of its messages is released: the one in hand here, the others there.
    """
    bus = peer._link.bus
    try:
        while message is not None:
            granted = await bus._allowed(allowed)
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
                allowed = bus._asks(peer, _VERBS[message.kind][0], message.subject, message)
    finally:
        if message is not None:
            peer.release(message)
        # A cancellation that escaped from `authorize` refuses what waited; it must not block what follows.
        if peer.undecided is waiting:
            for left in waiting:
                peer.release(left)
                bus._counters.refused += 1
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
    peer._link.bus._counters.refused += 1
    if message.kind is Kind.SUBSCRIBE:
        peer._link.bus._distribution.told(peer)


def _spelled(subject: str | int) -> str | int:
    """An address in its one spelling, everything else as it is."""
    return canonical(subject) if isinstance(subject, str) and "/" in subject else subject


def _wanted(pattern: str | int) -> str | int:
    """A pattern of a peer as it is asked about, kept and taken back."""
    return _spelled(wire_pattern(pattern))


def _publish(peer: Peer, message: Message) -> None:
    peer._link.bus._deliver(message, peer)


def _subscribe(peer: Peer, message: Message) -> None:
    _add_subscription(peer, _wanted(message.subject))
    peer._link.bus._distribution.told(peer)


def _add_subscription(peer: Peer, pattern: str | int) -> None:
    link = peer._link
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
        link.bus._counters.refused += 1
        if link.initiates:
            link.bus._too_many_subscriptions(peer, pattern)
        return
    patterns[pattern] = size
    link.bus._peer_subscribed(peer, pattern)


def _unsubscribe(peer: Peer, message: Message) -> None:
    pattern = _wanted(message.subject)
    if peer.patterns is not None and (size := peer.patterns.pop(pattern, None)) is not None:
        peer.account.release(size)
        peer._link.bus._peer_unsubscribed(peer, pattern)


# -- channels ------------------------------------------------------------------------------------------------------------


def _open(peer: Peer, message: Message, now: float) -> None:
    link = peer._link
    bus, limits = link.bus, link.runtime.limits
    mode = message.attributes.get("mode", "stream")
    handler = bus._handler_of(message) if mode != "tunnel" else bus._entrance(message.subject)
    if mode == "tunnel":
        message.subject = _spelled(message.subject)
    channels = peer.channels = peer.channels if peer.channels is not None else {}
    passage = None
    if bus._passages and mode != "tunnel" and (handler is None or handler.style != mode):
        passage = bus._passage(message.subject, mode)
    problem: tuple[Code, str] | None = None
    unanswerable: tuple[Code, str] | None = None
    if message.id in channels or message.id in (peer.calls or ()):
        _duplicate(peer, message, now)  # an end under this id would be the first one's
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
    if unanswerable is not None and bus._authorize is not None:
        refused = peer.calls[message.id] = RefusedCall(bus, peer, message, deadline, *unanswerable)
        admit(peer, refused)
        return
    problem = problem or unanswerable
    if problem is not None or (handler is None and passage is None):
        assert problem is not None
        bus._counters.refused += 1
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
        call = passage.channel_call(peer, message, deadline, channel)
    else:
        assert handler is not None
        call = ChannelCall(bus, peer, peer, handler, message, deadline, channel)
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


def _item(peer: Peer, message: Message, now: float) -> None:
    channel = peer.channels.get(message.id) if peer.channels else None
    if channel is not None:
        channel.received_item(message)
    else:
        peer._link.bus._counters.late += 1


def _credit(peer: Peer, message: Message, now: float) -> None:
    channel = peer.channels.get(message.id) if peer.channels else None
    if channel is not None:
        channel.received_credit(message.attributes.get("credit"))


def _end(peer: Peer, message: Message, now: float) -> None:
    channel = peer.channels.get(message.id) if peer.channels else None
    if channel is not None:
        channel.received_end(message)


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
    Kind.OPEN: _open,
    Kind.ITEM: _item,
    Kind.CREDIT: _credit,
    Kind.END: _end,
    Kind.CONTROL: _control,
}
