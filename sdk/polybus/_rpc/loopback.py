"""Requests and channels whose handler is on the same bus: no link, but the same rules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._core.memory import OVERHEAD, Account, cost
from ..body import JSON, OCTETS, BodyFormat
from ..errors import Code, DeadlineExceeded, Disconnected, QueueFull, RequestError, TooManyRequests
from ..message import Kind, Message
from .call import Answer, Call
from .channel import CREDIT, Channel
from .reply import Reply
from .stream_call import ChannelCall

if TYPE_CHECKING:
    from .._core.services import Services
    from .._handlers.handler import Handler
    from .._util.event_loop import Loop

__all__ = ["Loopback", "encode_local"]


class Loopback:
    """The bus asking itself. Bodies are encoded all the same, so that a handler sees what a wire would give."""

    def __init__(self, services: Services) -> None:
        self.services: Services = services
        self.calls: dict[Reply[Any], Call] = {}

    def request(
        self, handler: Handler, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        """Ask one of the bus's own handlers.

        Args:
            subject: As who asks has written it; the handler sees its own spelling, as it does of what comes over a wire.
        """
        runtime = self.services.running
        now = runtime.time()
        deadline = now + timeout
        reply: Reply[Any] = Reply(runtime.loop, subject, returns, now, deadline)
        raw, body_format = encode_local(body) if body is not None else (None, JSON)
        ttl = runtime.ttl(now, deadline)
        if ttl is not None:
            deadline = now + ttl  # what the enclosing scope and the handler that asks leave
        message = Message(Kind.REQUEST, handler.subject, reply, raw, body_format, headers, ttl)
        if handler.style in ("stream", "channel"):
            reply._fail(RequestError(Code.INVALID_ARGUMENT, f"{subject!r} is a {handler.style}: use bus.{handler.style}()"))
            return reply
        if len(self.calls) >= runtime.limits.pending:
            reply._fail(QueueFull(f"{len(self.calls)} requests of this bus to itself already run (Limits.pending)"))
            return reply
        call = Call(self.services, LocalAnswer(self, reply), None, handler, message, deadline)
        reply._abandon = lambda _: call.stop()
        reply.sent = True
        self.calls[reply] = call
        runtime.workers.submit(call)
        runtime.watch(self, deadline)
        return reply

    def notify(self, handler: Handler, body: Any, headers: dict[str, str] | None) -> None:
        """Tell the handler; nobody waits for it.

        Raises:
            BadRequest: It answers a stream or channel.
            EncodeError: The body cannot be written.
            QueueFull: Too many run already.
        """
        runtime, subject = self.services.running, handler.subject
        if handler.style in ("stream", "channel"):
            raise RequestError(Code.INVALID_ARGUMENT, f"{subject!r} is a {handler.style}: use bus.{handler.style}()")
        if len(self.calls) >= runtime.limits.pending:
            raise QueueFull(f"{len(self.calls)} requests of this bus to itself already run (Limits.pending)")
        raw, body_format = encode_local(body) if body is not None else (None, JSON)
        now = runtime.time()
        reply: Reply[Any] = Reply(runtime.loop, subject, Any, now, math.inf)
        message = Message(Kind.NOTIFY, subject, reply, raw, body_format, headers)
        call = self.calls[reply] = Call(self.services, LocalAnswer(self, reply), None, handler, message, math.inf)
        runtime.workers.submit(call)

    @property
    def running(self) -> int:
        """Requests whose handlers run."""
        return sum(call.started for call in self.calls.values())

    def _expire(self, now: float) -> float:
        """The local requests' part of `Runtime._sweep`."""
        due = math.inf
        for call in list(self.calls.values()):
            if call.deadline <= now and isinstance(call, ChannelCall):
                call.message.id.expire(now)  # the opener's end: the handler's is told
                call.stop()
            elif call.deadline <= now:
                reply = call.message.id
                reply._fail(DeadlineExceeded(reply.subject, now - reply.started, "local"))
                call.stop()
            else:
                due = min(due, call.deadline)
        return due

    def open(self, handler: Handler, body: Any, mode: str, timeout: float | None, receives: Any) -> Channel[Any, Any]:
        if handler.style != mode:
            raise RequestError(Code.INVALID_ARGUMENT, f"{handler.subject!r} does not answer {mode}")
        return self.converse(handler, handler.subject, body, timeout, 0).typed(receives, Any)

    def converse(self, handler: Handler, subject: str | int, body: Any, timeout: float | None, hops: int) -> Channel[Any, Any]:
        """A stream or channel with a handler: the opener's end.

        Args:
            hops: Bridges and tunnels that it has come through.

        Raises:
            TooManyRequests: Too many are open already.
        """
        runtime = self.services.running
        now = runtime.time()
        limit = 2 * runtime.limits.channels
        if sum(isinstance(call, ChannelCall) for call in self.calls.values()) >= limit:
            raise TooManyRequests(f"{limit} channels of this bus to itself are open (Limits.channels)")
        port = LocalPort(runtime.loop, Account(runtime))
        near: Channel[Any, Any] = Channel(runtime.loop, port, subject, CREDIT)
        far: Channel[Any, Any] = Channel(runtime.loop, port, subject, CREDIT)
        port.ends = (near, far)
        far._receiving = handler.style != "stream"
        raw, body_format = encode_local(body) if body is not None else (None, JSON)
        near.started = now
        near.deadline = math.inf if timeout is None else now + timeout
        ttl = runtime.ttl(now, near.deadline)
        deadline = math.inf if ttl is None else now + ttl
        message = Message(Kind.OPEN, subject, near, raw, body_format, None, ttl, attributes={"hops": hops})
        reply: Reply[Any] = Reply(runtime.loop, subject, Any, now, math.inf)
        reply._state = 1
        call = ChannelCall(self.services, LocalAnswer(self, reply), None, handler, message, deadline, far)
        self.calls[reply] = call
        runtime.workers.submit(call)
        if deadline != math.inf:
            runtime.watch(self, deadline)
        return near

    def stop(self) -> None:
        """The bus is left."""
        for call in list(self.calls.values()):
            call.stop()


class LocalAnswer(Answer):
    """The asker is on the same bus."""

    __slots__ = ("_loopback", "reply")

    def __init__(self, loopback: Loopback, reply: Reply[Any]) -> None:
        self._loopback = loopback
        self.reply: Reply[Any] = reply

    def answer(self, call: Call, value: Any) -> None:
        raw, body_format = encode_local(value)
        self.reply._resolve(Message(Kind.RESPONSE, call.message.subject, None, raw, body_format))

    def refuse(self, call: Call, code: Code, text: str, reason: str | None, detail: Any) -> None:
        message = Message(
            Kind.ERROR, call.message.subject, code=code, attributes={"text": text, "reason": reason, "detail": detail}
        )
        self.reply._reject(message, self._loopback.services.running.time())

    def stopped(self, call: Call) -> None:
        self.finished(call)

    def returned(self, call: Call) -> None:
        """There is no limit for what a bus asks itself, so nothing is given back."""

    def finished(self, call: Call) -> None:
        self._loopback.calls.pop(self.reply, None)
        call.services.ring()
        if not self.reply.done():
            self.reply._fail(Disconnected("the bus was left", "this bus", True))


class LocalPort:
    """Joins two channels of one process; items are encoded all the same, so that both ends see what a wire would give."""

    def __init__(self, loop: Loop, account: Account) -> None:
        self._loop = loop
        self.account: Account = account
        self.ends: tuple[Channel[Any, Any], ...] = ()

    def channel_send(self, channel: Channel[Any, Any], kind: Kind, value: Any, code: Code | None, facts: dict[str, Any]) -> int:
        other = self.ends[1] if channel is self.ends[0] else self.ends[0]
        if kind is Kind.CREDIT:
            count = facts["credit"]
            self._loop.call_soon(lambda: other.received_credit(count))
            return OVERHEAD
        raw, body_format = encode_local(value) if kind is Kind.ITEM else (None, JSON)
        message = Message(kind, channel.subject, None, raw, body_format, code=code, attributes=facts)
        receive = other.received_item if kind is Kind.ITEM else other.received_end
        self._loop.call_soon(lambda: receive(message))
        return cost(message)

    def channel_room(self) -> None:
        """There is always room: credit bounds what waits."""

    def channel_done(self, channel: Channel[Any, Any]) -> None:
        """Nothing is kept for local channels."""


def encode_local(value: Any) -> tuple[bytes, BodyFormat]:
    """A body for a handler in the same process: bytes stay bytes, the rest is JSON."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return OCTETS.encode(value), OCTETS
    return JSON.encode(value), JSON
