"""What a bus asks of others: requests, notifications, streams and channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from .._peer.peer import Peer
from .._rpc.channel import Channel, Opening
from .._rpc.reply import Reply
from .._validation import seconds
from ..errors import Disconnected, Forbidden, NoHandler, QueueFull, Unauthorized
from ..message import Kind, Message
from ..subjects import AnySubject, Subject, check_subject, resolve
from .passages import Passages
from .routing import has_gone

__all__ = ["TIMEOUT", "Asking"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds, where nobody says how many: no need to check them for each message."""


class Asking(Passages):
    """The part of a `Bus` that asks."""

    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        to: Peer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Reply[Out]: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        to: Peer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Reply[T]: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: Any = ...,
        to: Peer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Reply[Any]: ...
    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        to: Peer | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply[Any]:
        """Ask for something. Queues the request at once, never waits; await the `Reply`.

        It goes to this bus's own handler if it has one for the subject, else to the only link that this bus opened, else to the
        opened link whose ``serves=`` matches.

        Args:
            subject: What is asked.
            body: Anything that the wire can carry.
            timeout: Seconds until `DeadlineExceeded`, finite; travels with the request where the wire can say it.
            returns: The type that the answer is converted to.
            to: The peer to ask.
            headers: Text to text.

        Raises:
            EncodeError: The body cannot be written; the error names the path.
            AmbiguousRoute: Several links could be asked.
            Unsupported: The wire cannot carry this.
            ReservedSubject, LocalProtocolError: The subject or a header is not the application's to use.
            TypeError, ValueError: `timeout`, `to` or `headers` are of a wrong type, or cannot be.
            NoHandler: (by awaiting) There is no link to ask, and no handler here.
            Disconnected, Unauthorized, Forbidden: (by awaiting) The only link is gone for good.
            BusError: (by awaiting) As `Reply` says.
        """
        name: str | int
        if isinstance(subject, Subject):
            name, returns = resolve(subject, returns)
            body = subject.given(body)
        else:
            name = subject
        try:
            if name not in self._checked:
                self._check_subject(name)
        except TypeError:  # not hashable, so certainly no subject
            check_subject(name)
        if timeout != TIMEOUT:
            timeout = seconds(timeout)
        checked = None if headers is None else self._headers(headers)
        if to is not None:
            self._check_peer(to)
        else:
            own = self._handlers.get(name) or (self._handler(name) if self._by_uri else None)
            if own is not None:
                return self._loopback.request(own, name, body, timeout, returns, checked)
            try:
                to = self._route(name)
            except (NoHandler, Disconnected, Unauthorized, Forbidden) as error:
                runtime = self._services.running
                now = runtime.time()
                failed: Reply[Any] = Reply(runtime.loop, name, returns, now, now + timeout)
                failed.fail(error)
                return failed
        return to.send_request(Kind.REQUEST, name, body, timeout, returns, checked)

    async def notify(
        self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None, to: Peer | None = None
    ) -> None:
        """Tell one handler, without an answer; routed like a request.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
            BadRequest: This bus's own handler answers a stream or channel.
            NoHandler, AmbiguousRoute, Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `request`.
        """
        name, _ = resolve(subject, Any)
        if isinstance(subject, Subject):
            body = subject.given(body)
        self._check_subject(name)
        self._services.running.check_here()
        checked = self._headers(headers)
        if to is None and (own := self._handler(name)) is not None:
            self._loopback.notify(own, body, checked)
            return
        if to is not None:
            self._check_peer(to)
        peer = to if to is not None else self._route(name)
        if peer.gone:
            raise has_gone(peer)
        link = peer.link
        message = Message(Kind.NOTIFY, name, None, None, link.format, checked)
        if body is not None:
            message.format = chosen = link.format_for(body, name)
            message.raw = chosen.encode(body)
        await self._tell(peer, message)

    async def _tell(self, peer: Peer, message: Message) -> None:
        """Write a notification as soon as there is room.

        Raises:
            QueueFull: There was none in time.
            EncodeError, Unsupported, TooLarge: The wire cannot carry it.
        """
        link, deadline = peer.link, self._services.running.time() + 30.0
        while True:
            if link.flowing:
                link.write(message, peer)  # not `publish`: a notification has an id of its own, its frame is not shared
                return
            if link.publish(message, peer, deadline):
                return
            if not await link.room(deadline):
                raise QueueFull(f"no room in the outbox to {peer.address}")

    # -- streams and channels --------------------------------------------------------------------------------------------

    @overload
    def stream(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ..., to: Peer | None = ...
    ) -> Opening[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ..., to: Peer | None = ...
    ) -> Opening[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ..., to: Peer | None = ...
    ) -> Opening[Any, Any]: ...
    def stream(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        returns: Any = Any,
        timeout: float | None = None,
        to: Peer | None = None,
    ) -> Opening[Any, Any]:
        """Ask for many answers: ``async with bus.stream("log.tail", {"n": 10}) as lines: async for line in lines: ...``

        Flow controlled by credits. Leaving the block stops the remote handler.

        Args:
            timeout: Seconds until `DeadlineExceeded`; None for as long as the block lasts.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `request`.
            NoHandler, AmbiguousRoute: (on entering) As `request`.
            Unsupported: (on entering) The peer is not one of ours.
            RequestError: (by iterating) The handler failed, or answers requests only (`BadRequest`).
            Disconnected: (by iterating) The link broke.
        """
        name, returns = resolve(subject, returns)
        self._check_opening(name, timeout, to)
        return Opening(lambda: self._open(name, body, "stream", timeout, returns, to), half_closed=True)

    @overload
    def channel(self, subject: Subject[In, Out], *, timeout: float | None = ..., to: Peer | None = ...) -> Opening[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: type[T], timeout: float | None = ..., to: Peer | None = ...
    ) -> Opening[T, Any]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: Any = ..., timeout: float | None = ..., to: Peer | None = ...
    ) -> Opening[Any, Any]: ...
    def channel(
        self,
        subject: AnySubject,
        *,
        sends: Any = Any,
        receives: Any = Any,
        timeout: float | None = None,
        to: Peer | None = None,
    ) -> Opening[Any, Any]:
        """Open a conversation: ``async with bus.channel("chat") as ch: await ch.send(...); async for item in ch: ...``

        Raises:
            BusError: As `stream`.
        """
        name, receives = resolve(subject, receives)
        self._check_opening(name, timeout, to)
        return Opening(lambda: self._open(name, None, "channel", timeout, receives, to), half_closed=False)

    async def _open(
        self,
        subject: str | int,
        body: Any,
        mode: str,
        timeout: float | None,
        receives: Any,
        to: Peer | None,
        hops: int = 0,
    ) -> Channel[Any, Any]:
        self._services.running.check_here()
        if to is None and (own := self._handler(subject)) is not None:
            return self._loopback.open(own, body, mode, timeout, receives)
        peer = to if to is not None else self._route(subject)
        return (await peer.streams.open(subject, body, mode, timeout, hops)).typed(receives, Any)
