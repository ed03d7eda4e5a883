"""The public `Peer` class, with its properties and verbs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from ...subjects import AnySubject, Subject
from ..handlers.handler import reading_of
from ..handlers.signature import ContextPart, injected_as
from .party_verbs import PartyVerbs, notification

if TYPE_CHECKING:
    from ...nodes import Start
    from ...plugins import Connector
    from ...retry import Retry
    from ..handlers.handler import WhenFull
    from .peer_core import PeerCore
    from .subscription import Subscription

In = TypeVar("In")
T = TypeVar("T")


@injected_as("peer")
class Peer(PartyVerbs):
    """A program at the other end of a connection. Behind a broker, several peers share a connection."""

    __context_part__: ClassVar[ContextPart]
    __slots__ = ("__weakref__", "_party")

    def __init__(self, core: PeerCore) -> None:
        self._party: PeerCore = core  # pyright: ignore[reportIncompatibleVariableOverride]  # never set again

    def __repr__(self) -> str:
        return repr(self._party)

    @property
    def id(self) -> str:
        """Random string that identifies the peer, for example in logs."""
        return self._party.id

    @property
    def connected_at(self) -> datetime.datetime:
        """Time at which the link came up, as an aware datetime in UTC."""
        return self._party.connected_at

    @property
    def identity(self) -> Any:
        """Identity that `authenticate` returned for the peer."""
        return self._party.identity

    @property
    def identity_key(self) -> str | None:
        """Key of the user, which you can pass to `Bus.peers_of`."""
        return self._party.identity_key

    @property
    def address(self) -> str:
        """Network address of the peer, if the transport knows it."""
        return self._party.address

    @property
    def protocol(self) -> str:
        """Name of the protocol."""
        return self._party.protocol

    @property
    def transport(self) -> str:
        """Name of the transport, or an empty string while the link is down."""
        return self._party.transport

    @property
    def connected(self) -> bool:
        """True while the peer is connected."""
        return self._party.connected

    async def extended(self) -> bool:
        """Return True if the peer runs polybus and supports its extensions.

        The first call sends a request to the peer. If the peer doesn't answer within a second, this method returns False, and
        the next call sends another request, because the peer may just be busy. Any answer is final, even if it is late.

        Raises:
            Disconnected: If the link goes down before the peer answers.
        """
        return await self._party.extended()

    async def aclose(self, reason: str = "") -> None:
        """Disconnect the peer. This method doesn't wait until the connection is closed.

        Args:
            reason: Reason to send to the peer, if the protocol supports that.

        Raises:
            LocalProtocolError: If the bus runs in another event loop.
        """
        self._party.send_away(reason)

    @overload
    async def publish(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        timeout: float = ...,
        id: str | None = ...,
    ) -> None: ...
    @overload
    async def publish(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        timeout: float = ...,
        id: str | None = ...,
    ) -> None: ...
    async def publish(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        id: str | None = None,
    ) -> None:
        """Publish to this peer only. See `Bus.publish`.

        Args:
            id: Identifier of the publication, for links to a NATS network. The call then waits until a stream has stored the
                publication. A stream stores only one publication per id.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox or the stream has no room within `timeout` seconds.
            Disconnected: If the peer has left.
            LocalProtocolError: As for `Bus.publish`, or if you pass `id` but no stream stores the subject.
            ReservedSubject, TypeError, ValueError: As for `Bus.publish`.
            DeadlineExceeded: If you pass `id` and no stream confirms the publication in time. The publication may be stored
                nevertheless.
            Unsupported: If the protocol or the peer cannot carry the message, or if you pass `id` but the link doesn't lead to
                streams.
        """
        await self._party.services.bus.publish(subject, body, headers=headers, to=self, timeout=timeout, id=id)

    @overload
    def subscribe(
        self,
        pattern: Subject[In, Any],
        *,
        queue: int | None = ...,
        when_full: WhenFull = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> Subscription[In]: ...
    @overload
    def subscribe(
        self,
        pattern: str | int,
        *,
        returns: type[T],
        queue: int | None = ...,
        when_full: WhenFull = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> Subscription[T]: ...
    @overload
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = ...,
        queue: int | None = ...,
        when_full: WhenFull = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> Subscription[Any]: ...
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = Any,
        queue: int | None = None,
        when_full: WhenFull = "drop_oldest",
        durable: str | None = None,
        retry: Retry | None = None,
        ack_wait: float | None = None,
        start: Start | None = None,
        ordered: bool = False,
    ) -> Subscription[Any]:
        """Receive publications of this peer: ``async with peer.subscribe("news.*") as news: async for message in news: ...``

        The bus sends the subscription to this peer only, no matter which side opened the connection. The block is entered once
        the peer has confirmed the subscription. After a reconnect, the subscription is restored. If the peer is a client that
        has left, iterating raises `Disconnected`.

        See `Bus.subscribe` for the arguments. On links to NATS networks, `durable` and `start` read a stream.

        Raises:
            LocalProtocolError, ReservedSubject, ValueError, TypeError, Forbidden: As for `Bus.subscribe`.
            Unsupported: On entry, if the protocol or the peer doesn't support the subscription.
            Disconnected: On entry or while iterating, if the peer has left.
        """
        reading = reading_of(durable, retry, ack_wait, start, ordered)
        core = self._party
        return core.host.pubsub.subscription(pattern, returns, queue, when_full, peer=core, reading=reading)

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> Connector:
        """Return a connector for a connection to this peer through the existing link. See `Bus.tunnel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError: As for `Bus.tunnel`.
        """
        return self._party.host.tunnel(name, params, self._party)

    @overload
    async def notify(
        self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ..., to: str | None = ...
    ) -> None: ...
    @overload
    async def notify(
        self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ..., to: str | None = ...
    ) -> None: ...
    async def notify(
        self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None, to: str | None = None
    ) -> None:
        """Send a notification to a handler, without an answer. See `Bus.notify`.

        Args:
            subject: Subject of the handler.
            body: Any value that the protocol can encode.
            headers: Headers to send, as a mapping of strings to strings.
            to: Address behind this peer, if the protocol supports addresses, such as ``//phone/CD/4`` with `protocols.Up`.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox is full.
            Disconnected: If the peer has left.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `Bus.notify`.
        """
        core = self._party
        await core.send_notify(*notification(core.services, subject, body, headers), to)
