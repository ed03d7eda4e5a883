"""What a peer has asked: its answers, the places that its requests take, and what they make the bus keep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from .._core.answer_sizes import LARGE
from .._core.memory import Account, cost
from ..errors import BusError, Code
from ..message import Kind, Message
from . import concurrency
from .known_peer import KnownPeer

if TYPE_CHECKING:
    from .._rpc.call import Call

__all__ = ["AnsweredPeer"]


class AnsweredPeer(KnownPeer):
    """The part of a `Peer` that answers it: a `calls.Answer`."""

    __slots__ = ()

    # Declared in `KnownPeer`; again here for type checkers.
    scopes: set[anyio.CancelScope] | None
    stopping: int
    expected: dict[Call, int] | None
    large: dict[Call, int] | None

    def answer(self, call: Call, value: Any) -> None:
        if call.message.kind is Kind.REQUEST:
            self.link.answer(self._response(call.message, value, call), self)  # type: ignore[arg-type]  # every one is a Peer

    def respond(self, message: Message, value: Any) -> None:
        """Answer what needs no handler."""
        self.link.answer(self._response(message, value), self)  # type: ignore[arg-type]  # every one is a Peer

    async def answer_later(self, call: Call, value: Any) -> None:
        """`answer`, when less waits for the peer. Until then it is charged, and keeps its place among those of this peer.

        Raises:
            EncodeError: It cannot be written.
        """
        if call.ended or call.message.kind is not Kind.REQUEST:
            return
        response = self._response(call.message, value, call)
        del value
        link = self.link
        held, size = Account(link.runtime, share=link.share), cost(response)
        if not held.hold(size):
            link.too_slow(self, "answers wait for it, and the bus keeps too much already (Limits.total_bytes)")  # type: ignore[arg-type]  # every one is a Peer
            return
        runtime = link.runtime
        self._count(-1)  # the handler is over, and its place among all is another's: many peers may stop reading
        runtime.answering += 1
        try:
            if runtime.crowded:
                concurrency.next_call(self)  # type: ignore[arg-type]  # every one is a Peer
            await link.room_for_answer()
        finally:
            self._count(1)
            runtime.answering -= 1
            held.release(size)
        if not call.ended:
            link.answer(response, self)  # type: ignore[arg-type]  # every one is a Peer

    def _response(self, message: Message, value: Any, call: Call | None = None) -> Message:
        link = self.link
        response = Message(Kind.RESPONSE, message.subject, message.id, None, link.format)
        response.reply_to = message.reply_to
        if (
            call is not None and call.away and isinstance(value, Message)
        ):  # over a bridge: as it came, where this wire can carry that
            response.raw, response.format, response.decoded = value.raw, value.format, value.decoded
            if value.raw is None and value.has_body:
                response.format = chosen = link.format_for(value.body, message.subject)
                response.raw = chosen.encode(value.body)
        elif value is not None:
            response.format = chosen = link.format_for(value, message.subject)
            response.raw = chosen.encode(value)
        if call is not None:
            answers, raw = call.handler.answers, response.raw
            if answers.weight or (raw is not None and len(raw) > LARGE):
                answers.learn(len(raw or b""), link.runtime.time())
        return response

    def refuse(self, call: Call, code: Code, text: str, reason: str | None, detail: Any) -> None:
        kind = call.message.kind
        if kind is Kind.REQUEST:
            self.send_error(call.message, code, text, reason, detail, delivered=call.delivered)
        elif kind is Kind.OPEN:
            self.send_error(call.message, code, text, reason, detail, kind=Kind.END, delivered=call.delivered)
            if self.channels is not None:
                self.channels.pop(call.message.id, None)

    def send_error(
        self,
        message: Message,
        code: Code,
        text: str,
        reason: str | None = None,
        detail: Any = None,
        kind: Kind = Kind.ERROR,
        *,
        delivered: bool = False,
    ) -> None:
        """Answer a message with an error.

        Args:
            delivered: A handler had the message, and this is what it says; otherwise the bus itself refuses it.
        """
        if not delivered:
            self.link.services.dead_letter(self, message, code, text)
        text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
        alternatives: tuple[dict[str, Any], ...] = (
            {"text": text, "reason": reason, "detail": detail},
            {"text": text, "reason": reason, "detail": None},
            {"text": text[:200], "reason": None, "detail": None},
            {"text": "", "reason": None, "detail": None},
        )
        # Some answer must go out: without its detail, with less text, and at last with hardly anything.
        for facts in alternatives:
            if not delivered:
                facts["undelivered"] = True
            error = Message(kind, message.subject, message.id, code=code, attributes=facts)
            error.reply_to = message.reply_to
            try:
                self.link.answer(error, self)  # type: ignore[arg-type]  # every one is a Peer
            except BusError:
                continue
            return
        self.link.services.counters.dropped += 1

    def finished(self, call: Call) -> None:
        if self.calls is not None and self.calls.get(call.message.id) is call:
            del self.calls[call.message.id]
        if not call.started and self.waiting and call in self.waiting:
            self.waiting.remove(call)
            self.release(call.message)
        else:
            self.place_free(call)

    def stopped(self, call: Call) -> None:
        if self.calls is not None and self.calls.get(call.message.id) is call:
            del self.calls[call.message.id]
        self.stopping += 1
        self.link.runtime.stopping += 1
        self.link.runtime.bell.ring()

    def returned(self, call: Call) -> None:
        self.stopping -= 1
        self.link.runtime.stopping -= 1
        self.place_free(call)

    def turn_again(self) -> None:
        """Let requests begin that had to wait, where it is their turn."""
        if self.waiting:
            concurrency.next_call(self)  # type: ignore[arg-type]  # every one is a Peer

    def may_begin(self) -> bool:
        """Whether its requests may begin. If not, they do as soon as its connection takes answers again."""
        link = self.link
        if link.takes_answers:
            return True
        link.stuck[self] = None  # type: ignore[index]  # every one is a Peer
        return False

    def set_aside(self, call: Call) -> bool:
        """Set aside for the answer that a call is expected to have. False where the peer has too much to read already.

        It is not charged: it may be much less in the end.
        """
        if call.message.kind is not Kind.REQUEST:
            return True
        link = self.link
        runtime = link.runtime
        most = 2 * runtime.limits.outbox_bytes
        size, until = call.handler.answers.expect(most, runtime.time())
        if not size:
            return True
        expected = self.expected = self.expected if self.expected is not None else {}
        held = link.unread + sum(expected.values())
        if held and held + size > most:
            link.stuck[self] = None  # type: ignore[index]  # every one is a Peer
            if until < self._due:
                self._watch(until)
            return False
        expected[call] = size
        return True

    def keep(self, call: Call, *, surely: bool = False) -> bool:
        """Charge a large body that a handler keeps. False if the bus keeps too much already."""
        size, bodies = cost(call.message), self.link.bodies
        if surely:
            bodies.charge(size)
        elif not bodies.hold(size):
            return False
        large = self.large = self.large if self.large is not None else {}
        large[call] = size
        return True

    def put_off(self, call: Call) -> bool:
        """Let a call wait again, that has a place and has not begun, if this peer reads no answers."""
        return concurrency.put_off(self, call, self.link.urgency)  # type: ignore[arg-type]  # every one is a Peer

    def place_free(self, call: Call) -> None:
        """A call does not run any more."""
        runtime = self.link.runtime
        runtime.running -= 1
        if (share := self.share) is not None:
            share.address.running -= 1
        if self.expected:
            self.expected.pop(call, None)
        if self.large and (size := self.large.pop(call, 0)):
            self.link.bodies.release(size)
        if self.waiting or runtime.crowded:
            concurrency.next_call(self)  # type: ignore[arg-type]  # every one is a Peer
        runtime.bell.ring()

    def _count(self, places: int) -> None:
        self.link.runtime.running += places
        if self.share is not None:
            self.share.address.running += places

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a task of the bus for as long as this peer is there."""
        scope = anyio.CancelScope()
        scopes = self.scopes = self.scopes if self.scopes is not None else set()
        scopes.add(scope)
        self.link.runtime.spawn(_within, scopes, scope, function, args)

    def hold(self, message: Message) -> bool:
        """Take account of a message of this peer that has to wait. False if too much waits already."""
        if not self.account.hold(cost(message)):
            return False
        message.forget_value()
        return True

    def release(self, message: Message) -> None:
        """It waits no more."""
        self.account.release(cost(message))


async def _within(
    scopes: set[anyio.CancelScope], scope: anyio.CancelScope, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
) -> None:
    try:
        with scope:
            await function(*args)
    finally:
        scopes.discard(scope)
