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
    from anyio.abc import TaskGroup

    from ..link.send_queue import WaitingMessage
    from ..runtime.access import AccessControl
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
            peer.spawn(peer.undecided.run, message, allowed)
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
    else:
        peer.subscriptions.remove(wire_pattern(message.subject))


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
    _allowed: Awaitable[bool] | bool
    _answered: anyio.Event | None = None

    async def granted(self, access: AccessControl) -> bool:
        """Wait for the decision. Several tasks can wait at the same time."""
        if self._answered is None:
            return await access.answer(self._allowed)
        if not self._answered.is_set():
            await self._answered.wait()
        return bool(self._allowed)

    def ask_now(self, access: AccessControl, group: TaskGroup) -> None:
        if inspect.isawaitable(self._allowed):
            self._answered = anyio.Event()
            group.start_soon(self._ask, access, self._answered)

    async def _ask(self, access: AccessControl, answered: anyio.Event) -> None:
        self._allowed = await access.answer(self._allowed)
        answered.set()


class InboundAuthorization(Struct, eq=False):
    """A peer's messages that are waiting for `authorize`, in order. This object and its task exist until the last decision."""

    _peer: PeerCore
    _waiting: deque[Message] = field(default_factory=deque)
    _asked: deque[_Question] = field(default_factory=deque)
    _looks_ahead: bool = False

    def add(self, message: Message) -> None:
        peer = self._peer
        if len(self._waiting) < peer.link.runtime.limits.waiting and peer.hold(message):
            self._waiting.append(message)
        else:
            peer.link.services.counters.dropped += 1

    async def run(self, message: Message, allowed: Awaitable[bool]) -> None:
        """Handle the first message if it is allowed, then the queue, until the queue is empty or the peer leaves.

        This method releases the memory of messages that it takes from the queue. `lost` does so for the other messages.
        """
        peer, asked = self._peer, self._asked
        services = peer.link.services
        asked.append(_Question(message, allowed))
        try:
            async with anyio.create_task_group() as group:
                while asked:
                    if self._waiting and not self._looks_ahead:
                        self._looks_ahead = True
                        group.start_soon(self._ask_ahead, group)  # runs when this task waits for a decision
                    question = asked[0]
                    granted = await question.granted(services.access)
                    if peer.undecided is not self:  # the peer has left
                        group.cancel_scope.cancel()
                        return
                    self._do(question.message, granted)
                    peer.release(asked.popleft().message)
                    if not asked and self._waiting:
                        asked.append(self._next())
                self.lost()  # leaving the task group yields, and messages that arrive then start a new queue
        finally:
            for question in asked:
                peer.release(question.message)
            # If `authorize` raises a cancellation, reject the queue, so that later messages aren't blocked.
            if peer.undecided is self:
                services.counters.refused += len(asked) + len(self._waiting)
                self.lost()

    async def _ask_ahead(self, group: TaskGroup) -> None:
        while self._waiting and len(self._asked) < _AT_ONCE:
            question = self._next()
            self._asked.append(question)
            question.ask_now(self._peer.link.services.access, group)
        self._looks_ahead = False

    def _next(self) -> _Question:
        """Take the next message from the queue. If it is a publication or subscription, call `authorize`."""
        message = self._waiting.popleft()
        if message.kind not in (Kind.PUBLISH, Kind.SUBSCRIBE):
            return _Question(message, True)
        access = self._peer.link.services.access
        return _Question(message, access.asks(self._peer, _verb(message), message.subject, message))

    def _do(self, message: Message, granted: bool) -> None:
        if message.kind is Kind.REQUEST:
            self._peer.negotiation.asked(message)
        elif message.kind is Kind.UNSUBSCRIBE:
            _act(self._peer, message)
        else:
            self._decided(message, granted)

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
        while self._waiting:
            self._peer.release(self._waiting.popleft())
        self._peer.undecided = None


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
        """Queue the first publication, for which `authorize` has already been called."""
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
                    assert entry.message is not None
                    entry.waits = True  # for its publisher
                    allowed = link.services.access.may_receive(peer, entry.message.subject)
        finally:
            self._deciding.release(self._deciding.held)
            # If `authorize` raises a cancellation, drop the queue, so that later publications aren't blocked.
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
        first, self._entry = self._entry, None
        waiting = [entry for entry in (first, *self._box.clear()) if entry is not None]
        self._peer.undelivered = None
        for entry in waiting:
            entry.waits = False
        self._changed.signal()
        return [entry.message for entry in waiting if entry.message is not None]

    def lost(self) -> None:
        """Drop the queue, because the peer has left or `authorize` will not decide."""
        self._peer.link.services.counters.dropped += len(self._box.clear())
        self._peer.undelivered = None
        self._changed.signal()
