"""The public `Peer`: its properties and verbs."""

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
    from .party import PeerParty
    from .subscription import Subscription

In = TypeVar("In")
T = TypeVar("T")


@injected_as("peer")
class Peer(PartyVerbs):
    """A program at the other end of a connection, or one of several behind a broker.

    Attributes:
        id: A random string for logs and for telling peers apart.
        connected_at: Time at which the link came up (aware, UTC).
    """

    __context_part__: ClassVar[ContextPart]
    __slots__ = ("__weakref__", "_party")

    def __init__(self, party: PeerParty) -> None:
        self._party: PeerParty = party  # pyright: ignore[reportIncompatibleVariableOverride]  # never set again

    def __repr__(self) -> str:
        return repr(self._party)

    @property
    def id(self) -> str:
        """A random string that identifies the peer."""
        return self._party.id

    @property
    def connected_at(self) -> datetime.datetime:
        """Time at which the link came up (aware, UTC)."""
        return self._party.connected_at

    @property
    def identity(self) -> Any:
        """The value that `authenticate` returned."""
        return self._party.identity

    @property
    def identity_key(self) -> str | None:
        """The key for `Bus.peers_of`."""
        return self._party.identity_key

    @property
    def address(self) -> str:
        """The network address, as far as the transport knows it."""
        return self._party.address

    @property
    def protocol(self) -> str:
        return self._party.protocol

    @property
    def transport(self) -> str:
        """The name of the transport; empty while there is no connection."""
        return self._party.transport

    @property
    def connected(self) -> bool:
        """True while the link is up and the peer is present."""
        return self._party.connected

    async def extended(self) -> bool:
        """Check whether the peer runs polybus and so supports the extensions. The bus asks the peer on first use.

        An answer or a refusal is final. If the peer does not answer in time, the result is False, because the peer may be busy.
        The next call asks again, and a late answer also counts.

        Raises:
            Disconnected: The link broke while waiting.
        """
        return await self._party.extended()

    async def aclose(self, reason: str = "") -> None:
        """Disconnect the peer. The call sends a goodbye and returns without waiting for the peer.

        Args:
            reason: Shown to the peer if the wire carries it.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
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
            id: Over a link to a NATS network: wait until a stream there has stored the publication, once per id.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox or the stream had no room for `timeout` seconds.
            Disconnected: The peer has left.
            LocalProtocolError: With `id`, no stream stores the subject.
            DeadlineExceeded: With `id`, no stream has confirmed in time that it stored the publication; it may have done so.
            Unsupported: With `id`, the link does not lead to streams.
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

        The subscription is sent only to this peer, which may also be one that connected to this bus. The block is entered once
        the peer knows the subscription. On a link that this bus opened, the subscription is restored after a reconnect;
        otherwise iterating raises `Disconnected` when the peer has left.

        Args: as for `Bus.subscribe`. `durable`, or `start` without it, reads an external stream over links to NATS networks.

        Raises:
            LocalProtocolError, ReservedSubject, ValueError, TypeError, Forbidden: As for `Bus.subscribe`.
            Unsupported: (on entering) The wire or a bare peer cannot carry the subscription.
            Disconnected: (on entering, while iterating) The peer has left.
        """
        reading = reading_of(durable, retry, ack_wait, start, ordered)
        party = self._party
        return party.host.pubsub.subscription(pattern, returns, queue, when_full, peer=party, reading=reading)

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> Connector:
        """Return a connection to this peer that runs inside its link. See `Bus.tunnel`.

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
        """Send a notification to one handler, which does not answer. See `Bus.notify`.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            headers: A mapping of strings to strings.
            to: An address behind this peer, if its link leads to several: ``//phone/CD/4`` with `protocols.Up`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The peer has left.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `Bus.notify`.
        """
        party = self._party
        await party.send_notify(*notification(party.services, subject, body, headers), to)
