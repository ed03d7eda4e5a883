"""Verbs that peers, remote clients, users and the bus itself have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from msgspec import Struct

from ..._util.typed_body import check_returns
from ..._validation import seconds
from ...headers import check_headers
from ...subjects import AnySubject, Subject, resolve
from ..rpc.channel import Channel, ChannelContext
from ..rpc.reply import Reply, retried

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from ...retry import Retry
    from ..runtime.services import Services

In = TypeVar("In")
Out = TypeVar("Out")
P = TypeVar("P")
T = TypeVar("T")


class Party(Protocol):
    """A receiver of requests. Its methods don't check their arguments."""

    @property
    def services(self) -> Services: ...

    def send_request(
        self, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        """Send a request. Raises the errors of `PartyVerbs.request`."""
        ...

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        """Send a notification. Raises the errors of `PartyVerbs.notify`."""

    async def open_channel(self, subject: str | int, body: Any, mode: str, timeout: float | None) -> Channel[Any, Any]:
        """Open a stream or channel. Raises the errors of `PartyVerbs.stream`."""
        ...


class ChosenParty(Struct, frozen=True, eq=False):
    """A party that chooses the receiver of each message by its subject."""

    services: Services
    _choose: Callable[[str | int], Party]

    def send_request(
        self, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        return self._choose(subject).send_request(subject, body, timeout, returns, headers)

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        await self._choose(subject).send_notify(subject, body, headers)

    async def open_channel(self, subject: str | int, body: Any, mode: str, timeout: float | None) -> Channel[Any, Any]:
        self.services.running.check_here()
        return await self._choose(subject).open_channel(subject, body, mode, timeout)


class PartyVerbs:
    """Sends requests and notifications to a single receiver, and opens streams and channels."""

    __slots__ = ()
    _party: Party

    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Reply[Out]: ...
    @overload
    def request(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Reply[T]: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
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
        retry: Retry | None = ...,
    ) -> Reply[Any]: ...
    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        headers: Mapping[str, str] | None = None,
        retry: Retry | None = None,
    ) -> Reply[Any]:
        """Send a request. See `Bus.request`.

        Raises:
            EncodeError: If the body cannot be encoded. The message names the path.
            Unsupported: If the protocol doesn't support the request.
            NoHandler: With `Bus.as_`, if this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: If the subject or a header is invalid or reserved.
            TypeError, ValueError: If an argument has a wrong type or value.
            Disconnected: When awaited, if the receiver has left or, with ``sent=False``, isn't connected.
            BusError: See `Reply`.
        """
        name, returns = resolve(subject, returns)
        if isinstance(subject, Subject):
            body = subject.given(body)
        timeout = seconds(timeout)
        if returns is not Any:
            check_returns(returns, whole=True)
        party = self._party
        services = party.services
        services.subjects.check(name)
        checked = None if headers is None else check_headers(headers, services.limits.headers)
        if retry is None:
            return party.send_request(name, body, timeout, returns, checked)
        return retried(
            services.running,
            retry,
            name,
            timeout,
            returns,
            lambda timeout: party.send_request(name, body, timeout, Any, checked),
        )

    @overload
    async def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    async def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    async def notify(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Send a notification to a handler, without an answer. See `Bus.notify`.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox is full.
            Disconnected: If the receiver has left or isn't connected.
            BadRequest, NoHandler: With `Bus.as_`, if the handler is for streams or channels, or doesn't exist.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `Bus.notify`.
        """
        await self._party.send_notify(*notification(self._party.services, subject, body, headers))

    @overload
    def stream(self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ...) -> ChannelContext[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ...
    ) -> ChannelContext[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ...
    ) -> ChannelContext[Any, Any]: ...
    def stream(
        self, subject: AnySubject, body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> ChannelContext[Any, Any]:
        """Open a stream. See `Bus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `Bus.stream`.
            BusError: On entry or while iterating, as for `Bus.stream`.
        """
        name, returns = resolve(subject, returns)
        if isinstance(subject, Subject):
            body = subject.given(body)
        return opening(self._party.services, self._party.open_channel, name, body, "stream", timeout, returns)

    @overload
    def channel(self, subject: Subject[In, Out], *, timeout: float | None = ...) -> ChannelContext[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], receives: type[T], timeout: float | None = ...
    ) -> ChannelContext[T, In]: ...
    @overload
    def channel(self, subject: str | int, *, receives: type[T], timeout: float | None = ...) -> ChannelContext[T, Any]: ...
    @overload
    def channel(self, subject: str | int, *, sends: type[In], timeout: float | None = ...) -> ChannelContext[Any, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: Any = ..., timeout: float | None = ...
    ) -> ChannelContext[Any, Any]: ...
    def channel(
        self, subject: AnySubject, *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> ChannelContext[Any, Any]:
        """Open a channel. See `Bus.channel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `Bus.channel`.
            BusError: On entry or while iterating, as for `Bus.channel`.
        """
        name, receives = resolve(subject, receives)
        return opening(self._party.services, self._party.open_channel, name, None, "channel", timeout, receives)

    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create a client for a Protocol class. See `Bus.client`.

        Raises:
            TypeError: As for `Bus.client`.
        """
        from ...contracts.client import client_of  # few programs have contracts

        return client_of(self, contract, prefix)


def opening(
    services: Services,
    open_channel: Callable[[str | int, Any, str, float | None], Awaitable[Channel[Any, Any]]],
    subject: Any,
    body: Any,
    mode: str,
    timeout: Any,
    receives: Any,
) -> ChannelContext[Any, Any]:
    """Check the arguments of a stream or channel, and return its context manager. Raises the errors of `PartyVerbs.stream`."""
    services.subjects.check(subject)
    if timeout is not None:
        seconds(timeout)
    return ChannelContext(lambda: open_channel(subject, body, mode, timeout), half_closed=mode == "stream", receives=receives)


def notification(
    services: Services, subject: AnySubject, body: Any, headers: Mapping[str, str] | None
) -> tuple[str | int, Any, dict[str, str] | None]:
    """Check the arguments of a notification, and return its subject, body and headers.

    Raises the errors of `PartyVerbs.notify`.
    """
    name, _ = resolve(subject, Any)
    if isinstance(subject, Subject):
        body = subject.given(body)
    services.subjects.check(name)
    services.running.check_here()
    return name, body, None if headers is None else check_headers(headers, services.limits.headers)
