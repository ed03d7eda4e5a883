"""A bus's own handlers, asked in somebody's name: `Bus.as_`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._handlers.handler import Handler
from .._rpc.channel import Channel, ChannelContext
from .._rpc.reply import Reply
from .._validation import seconds
from ..errors import NoHandler
from ..headers import check_headers
from ..subjects import AnySubject, Subject, check_subject, resolve

if TYPE_CHECKING:
    from .parts import BusParts

T = TypeVar("T")
Out = TypeVar("Out")


class Caller:
    """The handlers of a bus, as a program in the same process asks them for a user: ``bus.as_(user).request(...)``

    They see the identity as `Context.identity`, as if the user had asked over a link; `Context.peer` is None, and `authorize`
    is not asked: who calls this has let the user in.

    Attributes:
        identity: Whoever asks, as `authenticate` would have given it.
    """

    __slots__ = ("_parts", "identity")

    def __init__(self, parts: BusParts, identity: Any) -> None:
        self._parts = parts
        self.identity: Any = identity

    def __repr__(self) -> str:
        return f"<Caller {self.identity!r}>"

    @overload
    def request(
        self,
        subject: Subject[Any, Out],
        body: Any = ...,
        *,
        timeout: float = ...,
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
        headers: Mapping[str, str] | None = ...,
    ) -> Reply[Any]: ...
    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        headers: Mapping[str, str] | None = None,
    ) -> Reply[Any]:
        """Ask one of the bus's own handlers. See `Bus.request`.

        Raises:
            NoHandler: This bus has no handler for the subject.
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.request`.
            BusError: (by awaiting) As `Reply` says.
        """
        name, returns = resolve(subject, returns)
        body = subject.given(body) if isinstance(subject, Subject) else body
        checked = None if headers is None else check_headers(headers, self._parts.services.limits.headers)
        own = self._own(name)
        return self._parts.loopback.request(own, name, body, seconds(timeout), returns, checked, self._facts())

    async def notify(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Tell one of the bus's own handlers, without an answer. See `Bus.notify`.

        Raises:
            NoHandler: This bus has no handler for the subject.
            EncodeError, QueueFull, BadRequest, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.notify`.
        """
        name, _ = resolve(subject, Any)
        body = subject.given(body) if isinstance(subject, Subject) else body
        checked = None if headers is None else check_headers(headers, self._parts.services.limits.headers)
        self._parts.loopback.notify(self._own(name), body, checked, self._facts())

    def stream(
        self, subject: AnySubject, body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> ChannelContext[Any, Any]:
        """Ask one of the bus's own handlers for a stream. See `Bus.stream`.

        Raises:
            NoHandler: (on entering) This bus has no handler for the subject.
            BusError: (on entering, by iterating) As `Bus.stream`.
        """
        name, returns = resolve(subject, returns)
        return ChannelContext(lambda: self._open(name, body, "stream", timeout, returns), half_closed=True, receives=returns)

    def channel(
        self, subject: AnySubject, *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> ChannelContext[Any, Any]:
        """Open a channel to one of the bus's own handlers. See `Bus.channel`.

        Raises:
            NoHandler: (on entering) This bus has no handler for the subject.
            BusError: (on entering, by iterating) As `Bus.channel`.
        """
        name, receives = resolve(subject, receives)
        return ChannelContext(
            lambda: self._open(name, None, "channel", timeout, receives), half_closed=False, receives=receives
        )

    async def _open(self, subject: str | int, body: Any, mode: str, timeout: float | None, receives: Any) -> Channel[Any, Any]:
        self._parts.services.running.check_here()
        return self._parts.loopback.open(self._own(subject), body, mode, timeout, receives, self._facts())

    def _own(self, subject: str | int) -> Handler:
        check_subject(subject)
        own = self._parts.lookup.find(subject)
        if own is None:
            raise NoHandler(f"this bus has no handler for {subject!r}, and as_() asks its own alone")
        return own

    def _facts(self) -> dict[str, Any]:
        return {"identity": self.identity}
