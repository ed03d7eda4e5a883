"""The verbs of a bus, a peer and a listener for threads, made by ``python scripts/make_blocking.py`` from the originals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from .._bus.cluster import Survey
from .._bus.lifecycle import DRAIN
from .._bus.remote_peer import RemotePeer
from .._peer.peer import Peer
from .items import BlockingBlock, BlockingChannel, BlockingItems, BlockingSubscription, BlockingTunnel, Run, awaited, called

if TYPE_CHECKING:
    import datetime
    import os
    import ssl
    from collections.abc import Mapping
    from typing import Literal

    from .._bus.acceptor import Listener
    from .._bus.bus import Bus
    from .._bus.cluster import Node
    from .._bus.dialer import Headers
    from .._bus.recording import Recording
    from .._bus.remote_peer import User
    from .._handlers.subscriber import WhenFull
    from ..backoff import Backoff
    from ..events import BusEvent
    from ..plugins import Connector, ProtocolAdapter
    from ..stats import Stats
    from ..subjects import AnySubject, Subject

__all__ = ["BlockingBus", "BlockingListener", "BlockingPeer", "BlockingRemotePeer", "BlockingUser"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")


AnyPeer: TypeAlias = "Peer | BlockingPeer"
Recipient: TypeAlias = "AnyPeer | None"
Texts: TypeAlias = "Mapping[str, str] | None"
"""Text to text: headers, or the parameters of a tunnel."""


def asynchronous(to: Any) -> Any:
    """The peers that the asynchronous verbs know."""
    if isinstance(to, BlockingPeer):
        return to._peer
    if isinstance(to, BlockingRemotePeer):
        return to._remote_peer
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
    def request(self, subject: Subject[In, Out], body: In = ..., *, timeout: float = ..., headers: Texts = ...) -> Out: ...
    @overload
    def request(
        self, subject: str | int, body: Any = ..., *, timeout: float = ..., returns: type[T], headers: Texts = ...
    ) -> T: ...
    @overload
    def request(
        self, subject: str | int, body: Any = ..., *, timeout: float = ..., returns: Any = ..., headers: Texts = ...
    ) -> Any: ...
    def request(
        self, subject: AnySubject, body: Any = None, *, timeout: float = 30.0, returns: Any = Any, headers: Texts = None
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

    def publish(self, subject: AnySubject, body: Any = None, *, headers: Texts = None, timeout: float = 30.0) -> None:
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

        Args: as `BlockingBus.subscribe`.

        Raises:
            LocalProtocolError, ReservedSubject, ValueError, TypeError, Forbidden: As `BlockingBus.subscribe`.
            Unsupported: (on entering) The wire or a bare peer cannot carry it.
            Disconnected: (on entering, by iterating) The peer has gone.
        """
        subscribe: Any = self._peer.subscribe
        return BlockingSubscription(subscribe(pattern, returns=returns, queue=queue, when_full=when_full), self._run)

    def notify(self, subject: AnySubject, body: Any = None, *, headers: Texts = None) -> None:
        """Tell this peer's handler, without an answer. See `BlockingBus.notify`.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
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

    def tunnel(self, name: str, *, params: Texts = None) -> BlockingTunnel:
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


def surveyed(run: Run, asked: Callable[[], Awaitable[Survey[Any]]]) -> Survey[Any]:
    """The answers of the nodes of a cluster, with peers whose verbs block."""
    twins: dict[type, Any] = {Peer: BlockingPeer, RemotePeer: BlockingRemotePeer}
    given: Survey[Any] = run(asked)
    return Survey(tuple(twins[type(one)](one, run) if type(one) in twins else one for one in given), given.complete)


class BlockingRemotePeer:
    """A `RemotePeer` whose verbs block the calling thread."""

    def __init__(self, remote_peer: RemotePeer, run: Run) -> None:
        self._remote_peer = remote_peer
        self._run = run

    def __repr__(self) -> str:
        return repr(self._remote_peer)

    @property
    def id(self) -> str:
        """As its `Peer.id` there."""
        return self._remote_peer.id

    @property
    def node(self) -> str:
        """The node, as `Node.id`."""
        return self._remote_peer.node

    @property
    def identity_key(self) -> str | None:
        """The key of its identity, or None."""
        return self._remote_peer.identity_key

    @property
    def protocol(self) -> str:
        """The name of its protocol."""
        return self._remote_peer.protocol

    def request(
        self, subject: AnySubject, body: Any = None, *, timeout: float = 30.0, returns: Any = Any, headers: Texts = None
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.request`.
            Disconnected: It is not there any more.
        """
        return self._run(
            awaited, lambda: self._remote_peer.request(subject, body, timeout=timeout, returns=returns, headers=headers)
        )

    def notify(self, subject: AnySubject, body: Any = None, *, headers: Texts = None) -> None:
        """Tell a handler of this client, without an answer. See `BlockingBus.notify`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.notify`.
            QueueFull: The outbox to the engine is full.
            Disconnected: This bus is no node of a cluster any more.
        """
        self._run(lambda: self._remote_peer.notify(subject, body, headers=headers))

    def publish(self, subject: AnySubject, body: Any = None, *, headers: Texts = None) -> None:
        """Publish to this client alone. See `BlockingBus.publish`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.publish`.
            QueueFull: The outbox to the engine is full.
            Disconnected: This bus is no node of a cluster any more.
        """
        self._run(lambda: self._remote_peer.publish(subject, body, headers=headers))

    def stream(
        self, subject: AnySubject, body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> BlockingChannel[Any, Any]:
        """Ask this client for a stream. See `BlockingBus.stream`.

        Raises:
            BusError: (on entering, by iterating) As `BlockingBus.stream`.
        """
        return BlockingChannel(self._remote_peer.stream(subject, body, returns=returns, timeout=timeout), self._run)

    def channel(
        self, subject: AnySubject, *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> BlockingChannel[Any, Any]:
        """Open a channel to this client. See `BlockingBus.channel`.

        Raises:
            BusError: (on entering, by iterating) As `BlockingBus.channel`.
        """
        return BlockingChannel(self._remote_peer.channel(subject, sends=sends, receives=receives, timeout=timeout), self._run)


class BlockingUser:
    """A `User` whose verbs block the calling thread."""

    def __init__(self, user: User, run: Run) -> None:
        self._user = user
        self._run = run

    def __repr__(self) -> str:
        return repr(self._user)

    @property
    def key(self) -> str:
        """The key of the identity that `authenticate` gave; see `plugins.Identity`."""
        return self._user.key

    def request(
        self, subject: AnySubject, body: Any = None, *, timeout: float = 30.0, returns: Any = Any, headers: Texts = None
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.request`.
            Disconnected: The user is not connected: then with ``sent=False``; or has gone meanwhile.
        """
        return self._run(awaited, lambda: self._user.request(subject, body, timeout=timeout, returns=returns, headers=headers))

    def notify(self, subject: AnySubject, body: Any = None, *, headers: Texts = None) -> None:
        """Tell one connection of the user, without an answer. See `BlockingBus.notify`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.notify`.
            QueueFull: An outbox is full.
            Disconnected: The user is not connected here, and this bus is no node of a cluster.
        """
        self._run(lambda: self._user.notify(subject, body, headers=headers))

    def publish(self, subject: AnySubject, body: Any = None, *, headers: Texts = None) -> None:
        """Publish to all connections of the user, whatever they have subscribed to. See `BlockingBus.publish`.

        A user who is connected nowhere does not hear it; that is no error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.publish`.
            QueueFull: An outbox is full.
        """
        self._run(lambda: self._user.publish(subject, body, headers=headers))

    def stream(
        self, subject: AnySubject, body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> BlockingChannel[Any, Any]:
        """Ask one connection of the user for a stream. See `BlockingBus.stream`.

        Raises:
            BusError: (on entering, by iterating) As `BlockingBus.stream`.
        """
        return BlockingChannel(self._user.stream(subject, body, returns=returns, timeout=timeout), self._run)

    def channel(
        self, subject: AnySubject, *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> BlockingChannel[Any, Any]:
        """Open a channel to one connection of the user. See `BlockingBus.channel`.

        Raises:
            BusError: (on entering, by iterating) As `BlockingBus.channel`.
        """
        return BlockingChannel(self._user.channel(subject, sends=sends, receives=receives, timeout=timeout), self._run)

    def online(self) -> bool:
        """Ask whether the user is connected, here or to another node; one round trip, and nothing is remembered.

        Raises:
            Disconnected: The engine of the cluster is not there.
            DeadlineExceeded: The node that has the user does not answer within 2 s.
        """
        return bool(self._run(lambda: self._user.online()))

    def peers(self) -> Survey[Any]:
        """Find all connections of the user: a `Survey` of `BlockingPeer` here, and `BlockingRemotePeer` at other nodes.

        Raises:
            Disconnected: The engine of the cluster is not there.
        """
        return surveyed(self._run, lambda: self._user.peers())


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


class BlockingBus:
    """A `Bus` whose verbs block the calling thread. Safe to use from several threads at once.

    A request gives its answer, not a `Reply`: for several at a time use several threads.
    """

    def __init__(self, bus: Bus, run: Run) -> None:
        self._bus = bus
        self._runs = run

    @property
    def _run(self) -> Run:
        return self._runs

    def __reduce__(self) -> Any:
        raise TypeError("a bus cannot be pickled, it lives in one process: open one in the function that runs in the other")

    @overload
    def request(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float = ..., to: Recipient = ..., headers: Texts = ...
    ) -> Out: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        to: Recipient = ...,
        headers: Texts = ...,
    ) -> T: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: Any = ...,
        to: Recipient = ...,
        headers: Texts = ...,
    ) -> Any: ...
    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        to: Recipient = None,
        headers: Texts = None,
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

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
            NoHandler: There is no link to ask, and no handler here.
            Disconnected, Unauthorized, Forbidden: The only link is gone for good.
            BusError: As `Reply` says.
        """
        request: Any = self._bus.request
        return self._run(
            awaited, lambda: request(subject, body, timeout=timeout, returns=returns, to=asynchronous(to), headers=headers)
        )

    def notify(self, subject: AnySubject, body: Any = None, *, headers: Texts = None, to: Recipient = None) -> None:
        """Tell one handler, without an answer; routed like a request.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
            BadRequest: This bus's own handler answers a stream or channel.
            NoHandler, AmbiguousRoute, Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `request`.
        """
        self._run(lambda: self._bus.notify(subject, body, headers=headers, to=asynchronous(to)))

    def publish(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Texts = None,
        to: AnyPeer | Iterable[AnyPeer] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Publish: every matching subscription gets it once, the bus's own and those of every linked peer.

        On links that this bus opened it is always sent. When this returns, it has been handed to the transports or waits in an
        outbox: that is no receipt.

        Args:
            to: One peer or several: only they get it; an empty list is none.
            timeout: Seconds to wait for room, and to live in the outbox of a link that is down.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: No room in time, in some queue or outbox; the others got it.
            Disconnected: A peer of `to` has gone; the others got it.
            ReservedSubject, LocalProtocolError: The subject or a header is not the application's to use.
            TypeError, ValueError: `timeout`, `to` or `headers` are of a wrong type, or cannot be.
        """
        self._run(lambda: self._bus.publish(subject, body, headers=headers, to=asynchronous(to), timeout=timeout))

    def publish_nowait(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Texts = None,
        to: AnyPeer | Iterable[AnyPeer] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """`publish` without waiting.

        Raises:
            QueueFull: No room in some queue or outbox; the others got it.
            Disconnected, EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `publish`.
        """
        self._run(
            called, lambda: self._bus.publish_nowait(subject, body, headers=headers, to=asynchronous(to), timeout=timeout)
        )

    @overload
    def subscribe(
        self,
        pattern: Subject[In, Any],
        *,
        queue: int = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
    ) -> BlockingSubscription[In]: ...
    @overload
    def subscribe(
        self,
        pattern: str | int,
        *,
        returns: type[T],
        queue: int = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
    ) -> BlockingSubscription[T]: ...
    @overload
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = ...,
        queue: int = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
    ) -> BlockingSubscription[Any]: ...
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = Any,
        queue: int = 1000,
        when_full: WhenFull = "drop_oldest",
        local: bool = True,
        group: str | None = None,
    ) -> BlockingSubscription[Any]:
        """Receive publications: ``with bus.subscribe("news.*") as news: for message in news: ...``

        Entering returns when the links that are up know of it.

        Args:
            pattern: ``*`` one token, ``>`` the rest.
            returns: The type that bodies are converted to; those that do not fit are skipped and counted.
            queue: Publications that wait to be read.
            when_full: What happens to one more; see `WhenFull`.
            local: Take the bus's own publications too.
            group: Each publication is for one subscription of those that name the same group and pattern; see `on`.

        Raises:
            LocalProtocolError: The pattern is not valid; (on entering) the bus does not run, or this thread runs its event
                loop.
            ReservedSubject: It begins with ``_polybus.``.
            ValueError: The queue, the policy or the group is not possible.
            TypeError: `returns` is no type, or none that a body can be read as.
            Unsupported: (on entering) A bare peer matches exact subjects only, or no link carries such a subject (a number).
            Forbidden: (on entering) The peer refused.
        """
        subscribe: Any = self._bus.subscribe
        return BlockingSubscription(
            subscribe(pattern, returns=returns, queue=queue, when_full=when_full, local=local, group=group), self._run
        )

    @overload
    def stream(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ..., to: Recipient = ...
    ) -> BlockingChannel[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ..., to: Recipient = ...
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ..., to: Recipient = ...
    ) -> BlockingChannel[Any, Any]: ...
    def stream(
        self, subject: AnySubject, body: Any = None, *, returns: Any = Any, timeout: float | None = None, to: Recipient = None
    ) -> BlockingChannel[Any, Any]:
        """Ask for many answers: ``with bus.stream("log.tail", {"n": 10}) as lines: for line in lines: ...``

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
        stream: Any = self._bus.stream
        return BlockingChannel(stream(subject, body, returns=returns, timeout=timeout, to=asynchronous(to)), self._run)

    @overload
    def channel(
        self, subject: Subject[In, Out], *, timeout: float | None = ..., to: Recipient = ...
    ) -> BlockingChannel[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: type[T], timeout: float | None = ..., to: Recipient = ...
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: Any = ..., timeout: float | None = ..., to: Recipient = ...
    ) -> BlockingChannel[Any, Any]: ...
    def channel(
        self, subject: AnySubject, *, sends: Any = Any, receives: Any = Any, timeout: float | None = None, to: Recipient = None
    ) -> BlockingChannel[Any, Any]:
        """Open a conversation: ``with bus.channel("chat") as ch: ch.send(...); for item in ch: ...``

        Raises:
            BusError: As `stream`.
        """
        channel: Any = self._bus.channel
        return BlockingChannel(
            channel(subject, sends=sends, receives=receives, timeout=timeout, to=asynchronous(to)), self._run
        )

    def connect(
        self,
        target: str | Connector,
        *,
        protocol: str | ProtocolAdapter | None = None,
        serves: Iterable[str | int] = (),
        headers: Headers = None,
        tls: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
        wait: float = 0.0,
        record: str | os.PathLike[str] | None = None,
    ) -> BlockingBlock[BlockingPeer]:
        """Add a link to this bus; the context manager yields the `BlockingPeer` at the other end.

        Args: as `polybus.connect`.

        Raises:
            ValueError: The URL or an option is wrong.
            ConnectFailed: (on entering) With the address and the reason.
            Unauthorized, Forbidden: (on entering) The server refuses us.
        """
        return BlockingBlock(
            self._run,
            self._bus.connect(
                target, protocol=protocol, serves=serves, headers=headers, tls=tls, backoff=backoff, wait=wait, record=record
            ),
            lambda made: BlockingPeer(made, self._run),
        )

    def serve(
        self,
        target: str | Any,
        *,
        protocol: str | ProtocolAdapter | None = None,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        when_full: str = "drop_oldest",
        insecure: bool = False,
    ) -> BlockingBlock[BlockingListener]:
        """Accept links at an address; the context manager yields the `BlockingListener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 takes a free port.
            protocol: For a transport object: name or adapter.
            origins: Web origins whose pages may connect, besides those of the same host and port.
            hosts: Further ``Host`` values of a loopback server, behind a proxy.
            tls: For ``tls`` and ``wss``: a server-side context.
            when_full: What happens to publications for a peer whose outbox is full: ``drop_oldest``, ``drop_newest``,
                ``disconnect``.
            insecure: Allow an address that other machines can reach although every connection is accepted.

        Raises:
            ValueError: The URL or an option is wrong.
            LocalProtocolError: An open address without `authenticate`.
            OSError: (on entering) The address cannot be bound.
        """
        return BlockingBlock(
            self._run,
            self._bus.serve(
                target, protocol=protocol, origins=origins, hosts=hosts, tls=tls, when_full=when_full, insecure=insecure
            ),
            lambda made: BlockingListener(made, self._run),
        )

    def record(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 10 << 30,
        max_age: float | timedelta = timedelta(days=7),
        bodies: bool = True,
        redact: Callable[[str, bytes], bytes] | Literal["default"] | None = "default",
    ) -> BlockingBlock[Recording]:
        """Write every frame of every link, in both directions, to a capture: ``with bus.record("captures/"): ...``

        The bus never waits for it: what the disk does not take is dropped and counted, and the capture says where. Needs ``pip
        install 'polybus[capture]'``.

        Args:
            path: A folder; it is made where there is none. Several recordings may share it.
            max_bytes: Of the folder: the oldest segments beyond that are removed.
            max_age: After which segments are removed; seconds or a `timedelta`.
            bodies: Whether bodies are written; without them, what each message is for.
            redact: ``redact(protocol, frame)`` gives what is written in place of a frame. The default blanks tokens, cookies
                and members named like secrets; None writes all as it is.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is not what it should be.
            CaptureError: (on entering) The folder cannot be made or written.
        """
        return BlockingBlock(
            self._run,
            self._bus.record(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact),
            lambda made: made,
        )

    def tunnel(self, name: str, *, params: Texts = None) -> BlockingTunnel:
        """A connection that runs inside a link of this bus: ``sync.connect(bus.tunnel("plant.7"), protocol="csb")``.

        It goes to the peer that a request to `name` would go to. It comes back after a loss as any connection does, once the
        outer link is back.

        Args:
            name: What the other side serves by `handle_tunnels`.
            params: Shown there in `Handshake.params`.

        Raises:
            ReservedSubject, LocalProtocolError: The name cannot be.
            TypeError: `params` are not text to text.
        """
        return BlockingTunnel(self._bus.tunnel(name, params=params), self._run)

    @property
    def peers(self) -> list[BlockingPeer]:
        """The peers of all links."""
        return [BlockingPeer(made, self._run) for made in self._run(called, lambda: self._bus.peers)]

    def peers_of(self, key: str) -> list[BlockingPeer]:
        """The peers of one identity (its `Identity.key`), without those on their way out: for ``publish(..., to=...)``."""
        return [BlockingPeer(made, self._run) for made in self._run(called, lambda: self._bus.peers_of(key))]

    def user(self, key: str) -> BlockingUser:
        """A user by the key of the identity, connected here or to another node of the cluster.

        Raises:
            TypeError: `key` is no text.
        """
        return BlockingUser(self._bus.user(key), self._run)

    def nodes(self) -> Survey[Node]:
        """Ask all nodes of the cluster for what they are, this one included; within 2 s.

        Raises:
            LocalProtocolError: The bus is not entered, or this thread runs its event loop.
        """
        return surveyed(self._run, lambda: self._bus.nodes())

    def present(self, pattern: str | int) -> Survey[BlockingPeer | BlockingRemotePeer]:
        """Find the clients that have subscribed to this very pattern, here and at all other nodes; within 2 s.

        Nothing is remembered: a node that was killed has no clients.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus is not entered.
        """
        return surveyed(self._run, lambda: self._bus.present(pattern))

    def stats(self) -> Stats:
        """A snapshot of what the bus has done and has to do."""
        given: Stats = self._run(called, lambda: self._bus.stats())
        return given

    def events(self) -> BlockingItems[BusEvent]:
        """Iterate over events from now on, as they happen; the oldest of 1,000 unread events give way to new ones.

        Raises:
            LocalProtocolError: (here or by iterating) The bus does not run, or this thread runs its event loop.
        """
        return BlockingItems(self._run(called, lambda: self._bus.events()), self._run)

    def drain(self, timeout: float = DRAIN) -> None:
        """Stop taking requests, let running handlers finish, tell the peers, write what waits, close the links.

        Streams and channels get a quarter of the time to come to their end by themselves; then they are ended as `Unavailable`.

        In a handler, a middleware or the lifespan of this very bus it returns at once, while the bus drains: they are among
        those that the drain waits for.

        Who cancels it gives it no more time: what still runs then is cut, the peers are told, and the bus is drained.

        Args:
            timeout: Seconds for all of it; what still runs then is cut. The end of the lifespan then gets as many.

        Raises:
            TypeError, ValueError: `timeout` is no number of seconds.
            LocalProtocolError: The bus does not run, or this thread runs its event loop.
        """
        self._run(lambda: self._bus.drain(timeout))

    def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: It is not entered, or this thread runs its event loop.
        """
        self._run(lambda: self._bus.wait_closed())
