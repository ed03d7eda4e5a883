"""A peer and a listener for threads. Made by ``python scripts/make_blocking.py``: change the originals, or the script."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from .items import BlockingChannel, BlockingSubscription, BlockingTunnel, Run, awaited, called

if TYPE_CHECKING:
    import datetime
    from collections.abc import Mapping

    from .._bus.acceptor import Listener
    from .._handlers.subscriber import WhenFull
    from .._peer.peer import Peer
    from ..subjects import AnySubject, Subject

__all__ = ["AnyPeer", "BlockingListener", "BlockingPeer", "asynchronous"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")


AnyPeer: TypeAlias = "Peer | BlockingPeer"


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
        """The value that `authenticate` gave."""
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
        """Name of the protocol."""
        return self._peer.protocol

    @property
    def transport(self) -> str:
        """Name of the transport; empty while there is no connection."""
        return self._peer.transport

    @property
    def connected_at(self) -> datetime.datetime:
        """Time at which the link came up (aware, UTC)."""
        return self._peer.connected_at

    @overload
    def request(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float = ..., headers: Mapping[str, str] | None = ...
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
        subject: str | int | Subject[Any, Any],
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

        Raises:
            EncodeError: The body cannot be written; the error names the path.
            Unsupported: The wire cannot carry this.
            ReservedSubject, LocalProtocolError: The subject or a header is not the application's to use.
            TypeError, ValueError: `timeout` or `headers` are of a wrong type, or cannot be.
        """
        request: Any = self._peer.request
        return self._run(awaited, lambda: request(subject, body, timeout=timeout, returns=returns, headers=headers))

    def publish(
        self,
        subject: str | int | Subject[Any, Any],
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Publish to this peer alone. See `BlockingBus.publish`.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: There was no room in the outbox for `timeout` seconds.
            Disconnected: The peer has gone.
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

        This peer alone is asked, also one that dialled in. Entering returns when it knows. On a link that this bus opened the
        subscription is restored when the link comes back; otherwise iterating raises `Disconnected` when the peer has gone.

        Args:
            pattern: ``*`` one token, ``>`` the rest.
            returns: The type that bodies are converted to; those that do not fit are skipped and counted.
            queue: Publications that wait to be read.
            when_full: What happens to one more; see `WhenFull`.

        Raises:
            LocalProtocolError: The pattern is not valid; (on entering) the bus does not run, or this thread runs its event
                loop.
            ReservedSubject: It begins with ``_polybus.``.
            ValueError: The queue or the policy is not possible.
            TypeError: `returns` is no type, or none that a body can be read as.
            Unsupported: (on entering) The wire or a bare peer cannot carry it.
            Forbidden: (on entering) The peer refused.
            Disconnected: (on entering, by iterating) The peer has gone.
        """
        subscribe: Any = self._peer.subscribe
        return BlockingSubscription(subscribe(pattern, returns=returns, queue=queue, when_full=when_full), self._run)

    def notify(
        self, subject: str | int | Subject[Any, Any], body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell this peer's handler, without an answer. See `BlockingBus.notify`.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
        """
        self._run(lambda: self._peer.notify(subject, body, headers=headers))

    def stream(
        self, subject: str | int | Subject[Any, Any], body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> BlockingChannel[Any, Any]:
        """Ask this peer for a stream. See `BlockingBus.stream`."""
        return BlockingChannel(self._peer.stream(subject, body, returns=returns, timeout=timeout), self._run)

    def channel(
        self, subject: str | int | Subject[Any, Any], *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> BlockingChannel[Any, Any]:
        """Open a channel to this peer. See `BlockingBus.channel`."""
        return BlockingChannel(self._peer.channel(subject, sends=sends, receives=receives, timeout=timeout), self._run)

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
        """A connection to this peer that runs inside its link. See `BlockingBus.tunnel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError: As `BlockingBus.tunnel`.
        """
        return BlockingTunnel(self._peer.tunnel(name, params=params), self._run)

    def close(self, reason: str = "") -> None:
        """Send the peer away. Returns when it has been told, without waiting for it.

        Args:
            reason: Shown to the peer where the wire can.

        Raises:
            LocalProtocolError: The bus does not run, or this thread runs its event loop.
        """
        self._run(lambda: self._peer.aclose(reason))


class BlockingListener:
    """A `Listener`, seen from a thread."""

    def __init__(self, listener: Listener, run: Run) -> None:
        self._listener = listener
        self._run = run

    @property
    def url(self) -> str:
        """The real, connectable URL, with its options."""
        return self._listener.url

    @property
    def peers(self) -> list[BlockingPeer]:
        """The peers that are connected through this listener."""
        return [BlockingPeer(made, self._run) for made in self._run(called, lambda: self._listener.peers)]
