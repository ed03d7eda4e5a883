"""A peer and a listener as threads see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from .blocking_items import BlockingChannel, BlockingSubscription, BlockingTunnel, Run
from .subjects import AnySubject, Subject

if TYPE_CHECKING:
    from datetime import datetime

    from .peer import Peer
    from .router import WhenFull
    from .serving import Listener

__all__ = ["AnyPeer", "BlockingListener", "BlockingPeer", "asynchronous", "called"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")

AnyPeer: TypeAlias = "Peer | BlockingPeer"


async def called(function: Callable[..., T], *args: Any) -> T:
    """What a plain function gives, on the event loop."""
    return function(*args)


def asynchronous(to: Any) -> Any:
    """The peers that the asynchronous verbs know."""
    if isinstance(to, BlockingPeer):
        return to._peer
    return [asynchronous(peer) for peer in to] if isinstance(to, Iterable) else to


class BlockingPeer:
    """A `Peer` whose verbs block the calling thread."""

    def __init__(self, peer: Peer, run: Run) -> None:
        self._peer = peer
        self._run = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockingPeer) and self._peer is other._peer

    def __hash__(self) -> int:
        return hash(self._peer)

    def __repr__(self) -> str:
        return repr(self._peer)

    @property
    def id(self) -> str:
        """Random text that tells peers apart."""
        return self._peer.id

    @property
    def identity(self) -> Any:
        """What `authenticate` gave."""
        return self._peer.identity

    @property
    def identity_key(self) -> str | None:
        """The key under which `BlockingBus.peers_of` finds it."""
        return self._peer.identity_key

    @property
    def address(self) -> str:
        """Network address, as far as the transport knows it."""
        return self._peer.address

    @property
    def protocol(self) -> str:
        """The protocol's name."""
        return self._peer.protocol

    @property
    def transport(self) -> str:
        """The transport's name."""
        return self._peer.transport

    @property
    def connected_at(self) -> datetime:
        """When the link came up (aware, UTC)."""
        return self._peer.connected_at

    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Out: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        headers: Mapping[str, str] | None = ...,
    ) -> T: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: Any = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Any: ...
    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Ask this peer, and wait for the answer.

        Raises:
            BusError: As `Peer.request` and its `Reply`.
        """

        async def ask() -> Any:
            return await self._peer.request(subject, body, timeout=timeout, returns=returns, headers=headers)  # type: ignore[arg-type]

        return self._run(ask)

    def publish(
        self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None, timeout: float = 30.0
    ) -> None:
        """Publish to this peer alone.

        Raises:
            BusError: As `Peer.publish`.
        """
        self._run(lambda: self._peer.publish(subject, body, headers=headers, timeout=timeout))

    @overload
    def subscribe(
        self, pattern: Subject[In, Any], *, queue: int = ..., when_full: WhenFull = ...
    ) -> BlockingSubscription[In]: ...
    @overload
    def subscribe(
        self, pattern: str | int, *, returns: type[T], queue: int = ..., when_full: WhenFull = ...
    ) -> BlockingSubscription[T]: ...
    @overload
    def subscribe(
        self, pattern: AnySubject, *, returns: Any = ..., queue: int = ..., when_full: WhenFull = ...
    ) -> BlockingSubscription[Any]: ...
    def subscribe(
        self, pattern: AnySubject, *, returns: Any = Any, queue: int = 1000, when_full: WhenFull = "drop_oldest"
    ) -> BlockingSubscription[Any]:
        """Receive what this peer publishes: ``with peer.subscribe("news.*") as news: for message in news: ...``

        Raises:
            BusError, ValueError: As `Peer.subscribe`.
        """
        made = self._peer.subscribe(pattern, returns=returns, queue=queue, when_full=when_full)
        return BlockingSubscription(made, self._run)

    def notify(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Tell this peer's handler, without an answer.

        Raises:
            BusError: As `Peer.notify`.
        """
        self._run(lambda: self._peer.notify(subject, body, headers=headers))

    def stream(
        self, subject: AnySubject, body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> BlockingChannel[Any, Any]:
        """Ask this peer for a stream. See `BlockingBus.stream`."""
        return BlockingChannel(self._peer.stream(subject, body, returns=returns, timeout=timeout), self._run)

    def channel(
        self, subject: AnySubject, *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> BlockingChannel[Any, Any]:
        """Open a channel to this peer. See `BlockingBus.channel`."""
        return BlockingChannel(self._peer.channel(subject, sends=sends, receives=receives, timeout=timeout), self._run)

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
        """A connection to this peer that runs inside its link. See `BlockingBus.tunnel`."""
        return BlockingTunnel(self._peer.tunnel(name, params=params), self._run)

    def close(self, reason: str = "") -> None:
        """End the connection, as `Peer.aclose`."""
        self._run(self._peer.aclose, reason)


class BlockingListener:
    """A `Listener`, seen from a thread."""

    def __init__(self, listener: Listener, run: Run) -> None:
        self._listener = listener
        self._run = run

    @property
    def url(self) -> str:
        """The real, connectable URL."""
        return self._listener.url

    @property
    def peers(self) -> list[BlockingPeer]:
        """Who is connected here."""
        peers = self._run(called, lambda: self._listener.peers)
        return [BlockingPeer(peer, self._run) for peer in peers]
