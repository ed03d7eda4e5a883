"""Queues messages from and to a peer while an asynchronous `authorize` is deciding about them."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import anyio
from msgspec import Struct, field

from ..._util.event_loop import Notifier
from ..._util.logs import log_fields
from ...errors import BusError, Code
from ...message import Kind, Message
from ...plugins.hello import HELLO
from ...subjects import canonical, wire_pattern
from ..link.send_queue import SendQueue
from ..runtime.memory_budgets import MemoryBudget
from .responses import send_error

if TYPE_CHECKING:
    from ..link.send_queue import WaitingMessage
    from .peer_core import PeerCore

logger: logging.Logger = logging.getLogger("polybus")


def receive(peer: PeerCore, message: Message) -> None:
    """Handle a peer's publication, subscription or unsubscription if `authorize` allows it.

    While an asynchronous `authorize` is deciding, later messages of the peer wait in order.
    """
    services = peer.link.services
    if services.authorize is None:
        _act(peer, message)
        return
    # Normalise first, so that `authorize` decides about the spelling that is used.
    if message.kind is Kind.SUBSCRIBE:
        message.subject = wire_pattern(message.subject)
    elif isinstance(message.subject, str):
        message.subject = canonical(message.subject)
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
            peer.undecided.begin(message, allowed)
        else:
            getattr(allowed, "close", lambda: None)()
            services.counters.dropped += 1
    elif allowed:
        _act(peer, message)
    else:
        _refuse(peer, message)


def hello(peer: PeerCore, message: Message) -> None:
    """Answer a request to a reserved subject. Hellos are answered once all earlier messages have been decided."""
    if message.subject != HELLO:
        send_error(peer, message, Code.UNIMPLEMENTED, f"{message.subject!r} is not known to this version of polybus")
    elif peer.undecided is not None:
        peer.undecided.add(message)
    else:
        peer.negotiation.asked(message)


def _verb(message: Message) -> str:
    return "publish" if message.kind is Kind.PUBLISH else "subscribe"


def _act(peer: PeerCore, message: Message) -> None:
    host = peer.host
    if message.kind is Kind.PUBLISH:
        host.deliver(message, peer)
    elif message.kind is Kind.SUBSCRIBE:
        peer.subscriptions.add(wire_pattern(message.subject))
        host.pubsub.recipients.count_subscription(peer)
    elif message.kind is Kind.UNSUBSCRIBE:
        peer.subscriptions.remove(wire_pattern(message.subject))
    else:
        peer.negotiation.asked(message)


def _refuse(peer: PeerCore, message: Message) -> None:
    services = peer.link.services
    services.counters.refused += 1
    services.access.denied(peer, _verb(message), message.subject)
    if message.kind is Kind.SUBSCRIBE:
        peer.host.pubsub.recipients.count_subscription(peer)


_AT_ONCE: Final = 32
"""Maximum number of messages per peer that `authorize` decides concurrently."""


class _Question(Struct, eq=False):
    message: Message
    granted: bool | None = None
    """Decision of `authorize`. None while it is deciding."""


class InboundAuthorization(Struct, eq=False):
    """A peer's messages that are waiting for `authorize`, in order. This object exists until the last decision."""

    _peer: PeerCore
    _asked: deque[_Question] = field(default_factory=deque)
    _waiting: deque[Message] = field(default_factory=deque)
    """Messages that have not been passed to `authorize` yet."""

    def add(self, message: Message) -> None:
        peer = self._peer
        if len(self._asked) + len(self._waiting) <= peer.link.runtime.limits.waiting and peer.hold(message):
            self._waiting.append(message)
            self._go_on()
        else:
            peer.link.services.counters.dropped += 1

    def begin(self, message: Message, allowed: Awaitable[bool]) -> None:
        """Wait for the decision about the first message. `authorize` has already been called for it."""
        question = _Question(message)
        self._asked.append(question)
        self._wait_for(question, allowed)

    def _wait_for(self, question: _Question, allowed: bool | Awaitable[bool]) -> None:
        if inspect.isawaitable(allowed):
            self._peer.spawn(self._answered, question, allowed)
        else:
            question.granted = bool(allowed)

    async def _answered(self, question: _Question, allowed: Awaitable[bool]) -> None:
        peer = self._peer
        services = peer.link.services
        try:
            question.granted = await services.access.answer(allowed)
            if peer.undecided is self:  # otherwise the peer has left
                self._go_on()
        except BaseException:
            # If `authorize` raises a cancellation, reject the queue, so that later messages aren't blocked.
            if peer.undecided is self:
                services.counters.refused += len(self._asked) + len(self._waiting)
                self.lost()
            raise

    def _go_on(self) -> None:
        """Handle decided messages in order, up to the first undecided one, and call `authorize` for messages that wait."""
        asked, waiting = self._asked, self._waiting
        while True:
            while asked and (granted := asked[0].granted) is not None:
                message = asked.popleft().message
                self._peer.release(message)
                self._decided(message, granted)
            if not waiting or len(asked) >= _AT_ONCE:
                break
            question = _Question(waiting.popleft())
            asked.append(question)  # before `authorize` is called, which may end the peer
            self._wait_for(question, self._asks(question.message))
        if not asked and self._peer.undecided is self:
            self._peer.undecided = None

    def _asks(self, message: Message) -> bool | Awaitable[bool]:
        if message.kind not in (Kind.PUBLISH, Kind.SUBSCRIBE):
            return True
        return self._peer.link.services.access.asks(self._peer, _verb(message), message.subject, message)

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
        """Drop the queue, because the peer has left or `authorize` will not decide."""
        self._peer.undecided = None
        for message in (*(question.message for question in self._asked), *self._waiting):
            self._peer.release(message)
        self._asked.clear()
        self._waiting.clear()


class OutboundAuthorization:
    """A queue of publications to a peer that are waiting for `authorize`. It has the limits and overflow policy of an outbox.

    This object and its task exist until the last decision.
    """

    __slots__ = ("_box", "_changed", "_deciding", "_entry", "_peer")

    def __init__(self, peer: PeerCore) -> None:
        link = peer.link
        self._peer = peer
        self._box = SendQueue(link)
        self._deciding = MemoryBudget(link.runtime, share=link.share)
        self._entry: WaitingMessage | None = None
        self._changed = Notifier(link.runtime.loop.waiter, link.runtime.loop.wake)
        """Signalled when a publication is sent or rejected, and at the end."""

    def begin(self, message: Message, deadline: float, allowed: Awaitable[bool]) -> WaitingMessage:
        """Queue the first publication. `authorize` has already been called for it."""
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
            entry.waits = False  # the policy has dropped and counted it
        return entry

    async def settled(self, entry: WaitingMessage, deadline: float) -> None:
        """Wait until a publication is sent or rejected, or the deadline passes."""
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
                    entry.waits = True  # for its publisher
                    allowed = link.services.access.may_receive(peer, entry.message.subject)
        finally:
            self._deciding.release(self._deciding.held)
            # If `authorize` raises a cancellation, drop the queue, so that later publications aren't blocked.
            if peer.undelivered is self:
                self.lost()

    def _decided(self, entry: WaitingMessage, granted: bool) -> None:
        link, message = self._peer.link, entry.message
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
        first, self._entry = self._entry, None
        waiting = [entry for entry in (first, *self._box.clear()) if entry is not None]
        self._peer.undelivered = None
        for entry in waiting:
            entry.waits = False
        self._changed.signal()
        return [entry.message for entry in waiting]

    def lost(self) -> None:
        """Drop the queue, because the peer has left or `authorize` will not decide."""
        self._peer.link.services.counters.dropped += len(self._box.clear())
        self._peer.undelivered = None
        self._changed.signal()
