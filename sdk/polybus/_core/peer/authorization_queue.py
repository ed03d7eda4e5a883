"""Messages from and to a peer during an asynchronous `authorize`: in order, bounded, and charged."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import anyio
from attrs import define, field

from ..._util.event_loop import Notifier
from ..._util.log_fields import log_fields
from ...errors import BusError, Code
from ...message import Kind, Message
from ...plugins.hello import HELLO
from ..link.send_queue import SendQueue
from ..runtime.memory import MemoryBudget
from .responses import send_error
from .subscriptions import canonical_pattern, canonical_subject

if TYPE_CHECKING:
    from ..link.send_queue import WaitingMessage
    from .party import PeerParty

logger: logging.Logger = logging.getLogger("polybus")


def receive(peer: PeerParty, message: Message) -> None:
    """Handle a publication, subscription or unsubscription if `authorize` allows it. During an asynchronous answer, the peer's
    next messages wait in order.
    """
    services = peer.link.services
    if services.authorize is None:
        _act(peer, message)
        return
    # `authorize` sees the granted spelling.
    subscribes = message.kind is Kind.SUBSCRIBE
    message.subject = canonical_pattern(message.subject) if subscribes else canonical_subject(message.subject)
    if peer.undecided is not None:
        peer.undecided.add(message)
        return
    if message.kind is Kind.UNSUBSCRIBE:
        _act(peer, message)  # a peer may always unsubscribe
        return
    allowed = services.access.asks(peer, _verb(message), message.subject, message)
    if inspect.isawaitable(allowed):
        if peer.hold(message):
            peer.undecided = InboundAuthorization(peer)
            peer.spawn(peer.undecided.run, message, allowed)
        else:
            getattr(allowed, "close", lambda: None)()
            services.counters.dropped += 1
    elif allowed:
        _act(peer, message)
    else:
        _refuse(peer, message)


def hello(peer: PeerParty, message: Message) -> None:
    """Answer a request to a reserved subject. A hello is a barrier: earlier messages are decided first."""
    if message.subject != HELLO:
        send_error(peer, message, Code.UNIMPLEMENTED, f"{message.subject!r} is not known to this version of polybus")
    elif peer.undecided is not None:
        peer.undecided.add(message)
    else:
        peer.negotiation.asked(message)


def _verb(message: Message) -> str:
    return "publish" if message.kind is Kind.PUBLISH else "subscribe"


def _act(peer: PeerParty, message: Message) -> None:
    host = peer.host
    if message.kind is Kind.PUBLISH:
        host.deliver(message, peer)
    elif message.kind is Kind.SUBSCRIBE:
        peer.subscriptions.add(canonical_pattern(message.subject))
        host.pubsub.recipients.count_subscription(peer)
    else:
        peer.subscriptions.remove(canonical_pattern(message.subject))


def _refuse(peer: PeerParty, message: Message) -> None:
    services = peer.link.services
    services.counters.refused += 1
    services.access.denied(peer, _verb(message), message.subject)
    if message.kind is Kind.SUBSCRIBE:
        peer.host.pubsub.recipients.count_subscription(peer)


@define(eq=False)
class InboundAuthorization:
    """Messages of a peer behind the one that `authorize` is deciding. Lasts, with one task, until the last answer."""

    _peer: PeerParty
    _waiting: deque[Message] = field(factory=deque)

    def add(self, message: Message) -> None:
        """Queue a message, or drop it."""
        peer = self._peer
        if len(self._waiting) < peer.link.runtime.limits.waiting and peer.hold(message):
            self._waiting.append(message)
        else:
            peer.link.services.counters.dropped += 1

    async def run(self, message: Message | None, allowed: Any) -> None:
        """Wait for `authorize`, then handle the queue, asking again where needed.

        Ends with the peer. This method releases the memory of the current message, `lost` the rest.
        """
        peer, waiting = self._peer, self._waiting
        services = peer.link.services
        try:
            while message is not None:
                if message.kind is Kind.REQUEST:
                    peer.negotiation.asked(message)
                elif message.kind is Kind.UNSUBSCRIBE:
                    _act(peer, message)
                else:
                    if allowed is None:
                        allowed = services.access.asks(peer, _verb(message), message.subject, message)
                    granted, allowed = await services.access.answer(allowed), None
                    if peer.undecided is not self:
                        return  # the peer has left
                    self._decided(message, granted)
                peer.release(message)
                message = waiting.popleft() if waiting else None
        finally:
            if message is not None:
                peer.release(message)
            # A cancellation that escapes from `authorize` refuses the queue and must not block later messages.
            if peer.undecided is self:
                services.counters.refused += len(waiting)
                self.lost()

    def _decided(self, message: Message, granted: bool) -> None:
        if granted:
            try:
                _act(self._peer, message)
            except BusError:
                fields = log_fields(self._peer, message=message)
                logger.exception("%r from %r was dropped", message, self._peer, extra=fields)
        else:
            _refuse(self._peer, message)

    def lost(self) -> None:
        """End: the peer has left, or no answer will come."""
        for message in self._waiting:
            self._peer.release(message)
        self._peer.undecided = None


class OutboundAuthorization:
    """Publications to a peer behind the one that `authorize` is deciding, up to the size of an outbox; then the listener's
    `when_full` applies. Lasts, with one task, until the last answer.
    """

    __slots__ = ("_box", "_changed", "_deciding", "_entry", "_peer")

    def __init__(self, peer: PeerParty) -> None:
        link = peer.link
        self._peer = peer
        self._box = SendQueue(link)
        self._deciding = MemoryBudget(link.runtime, share=link.share)
        self._entry: WaitingMessage | None = None
        self._changed = Notifier(link.runtime.loop)
        """Signalled when a publication is sent or refused, or none will be."""

    def begin(self, message: Message, deadline: float, allowed: Awaitable[bool]) -> WaitingMessage:
        """Queue the first publication, after the call of `authorize`."""
        peer = self._peer
        entry = self._entry = self._box.entry(message, peer, deadline)
        peer.undelivered = self
        peer.spawn(self._run, entry, allowed)
        return entry

    def add(self, message: Message, deadline: float) -> WaitingMessage:
        entry = self._box.entry(message, self._peer, deadline)
        if self._box.make_room(entry):
            self._box.add(entry)
        else:
            entry.waits = False  # dropped by the policy, and counted
        return entry

    async def settled(self, entry: WaitingMessage, deadline: float) -> None:
        """Wait until a publication is sent or refused, or until the deadline."""
        with anyio.move_on_at(deadline):
            await self._changed.until(lambda: not entry.waits or self._peer.undelivered is not self)

    async def _run(self, entry: WaitingMessage | None, allowed: bool | Awaitable[bool]) -> None:
        peer = self._peer
        link = peer.link
        try:
            while entry is not None:
                self._deciding.charge(entry.size)
                granted = await allowed if inspect.isawaitable(allowed) else bool(allowed)
                if peer.undelivered is not self:
                    return  # the peer has left
                self._decided(entry, granted)
                self._deciding.release(entry.size)
                entry = self._entry = self._box.pop()
                if entry is not None:
                    assert entry.message is not None
                    entry.waits = True  # for its publisher
                    allowed = link.services.access.may_receive(peer, entry.message.subject)
        finally:
            self._deciding.release(self._deciding.held)
            # A cancellation that escapes from `authorize` refuses the queue and must not block later publications.
            if peer.undelivered is self:
                self.lost()

    def _decided(self, entry: WaitingMessage, granted: bool) -> None:
        link, message = self._peer.link, entry.message
        assert message is not None
        entry.waits = False
        if granted and entry.deadline <= link.runtime.time():
            link.services.counters.dropped += 1
        elif granted:
            try:
                link.publish(message, self._peer, entry.deadline)
            except BusError as error:
                self._peer.host.pubsub.publisher.unsent(message, self._peer, "published", error)
        self._changed.signal()

    def take(self) -> list[Message]:
        """End, and return the queue for another sender."""
        first, self._entry = self._entry, None
        waiting = [entry for entry in (first, *self._box.clear()) if entry is not None]
        self._peer.undelivered = None
        for entry in waiting:
            entry.waits = False
        self._changed.signal()
        return [entry.message for entry in waiting if entry.message is not None]

    def lost(self) -> None:
        """End: the peer has left, or no answer will come."""
        self._peer.link.services.counters.dropped += len(self._box.clear())
        self._peer.undelivered = None
        self._changed.signal()
