# Made by `python scripts/make_blocking.py` from the originals.

import datetime
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, overload

from typing_extensions import TypeForm

from .. import Survey
from .._core.bus.acceptor import Listener
from .._core.bus.bus import Bus, Recording
from .._core.bus.dialer import Headers
from .._core.bus.lifecycle import DRAIN
from .._core.bus.remote_peer import Caller, RemotePeer, User
from .._core.handlers.signature import ContextPart
from .._core.handlers.subscriber import WhenFull
from .._core.peer.peer import Peer
from ..backoff import Backoff
from ..events import BusEvent
from ..nodes import Node, Start
from ..plugins import Connector, ProtocolAdapter
from ..retry import Retry
from ..stats import Stats
from ..subjects import AnySubject, Subject
from .items import BlockingBlock, BlockingChannel, BlockingItems, BlockingSubscription, BlockingTunnel, Run
from .twin import Twin

__all__ = ["BlockingBus", "BlockingCaller", "BlockingListener", "BlockingPeer", "BlockingRemotePeer", "BlockingUser"]

In = TypeVar("In")
Out = TypeVar("Out")
P = TypeVar("P")
T = TypeVar("T")

AnyPeer: TypeAlias = Peer | RemotePeer | BlockingPeer | BlockingRemotePeer

class BlockingPeer(Twin):
    """A `Peer` whose verbs block the calling thread."""

    __context_part__: ClassVar[ContextPart]
    _original: Peer
    def __init__(self, original: Peer, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, plain ones, each of which waits for its answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` asks for ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods of one body, which for streams return ``Iterator[T]``. One with
                ``async def`` methods is for `Bus.client`: it would say to type checkers that its answers are to be awaited.
            prefix: Subjects are this, a dot, and the name of the method.

        Raises:
            TypeError: It is no contract, or makes no subjects; the text names class and method, and what to write.
        """
    @property
    def id(self) -> str:
        """Random text that identifies the peer."""
    @property
    def identity(self) -> Any:
        """The value that `authenticate` returned."""
    @property
    def identity_key(self) -> str | None:
        """The key for `BlockingBus.peers_of`."""
    @property
    def address(self) -> str:
        """Network address, as far as the transport knows it."""
    @property
    def protocol(self) -> str:
        """"""
    @property
    def transport(self) -> str:
        """Name of the transport; empty while there is no connection."""
    @property
    def connected(self) -> bool:
        """True while the link is up and the peer is present."""
    @property
    def connected_at(self) -> datetime.datetime:
        """Time at which the link came up (aware, UTC)."""
    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Out: ...
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
    ) -> T: ...
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
        retry: Retry | None = ...,
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            Unsupported: The wire cannot carry this.
            NoHandler: Under `BlockingBus.as_`: this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: The subject or a header is not for applications.
            TypeError, ValueError: An argument has a wrong type or value.
            Disconnected: The receiver has left, or is not connected: then with ``sent=False``.
            BusError: As `Reply` says.
        """
    @overload
    def publish(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        timeout: float = ...,
        id: str | None = ...,
    ) -> None: ...
    @overload
    def publish(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        timeout: float = ...,
        id: str | None = ...,
    ) -> None:
        """Publish to this peer only. See `BlockingBus.publish`.

        Args:
            id: Over a link to a NATS network: wait until a stream there has stored the publication, once per id.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox or the stream had no room for `timeout` seconds.
            Disconnected: The peer has left.
            LocalProtocolError: With `id`: no stream stores the subject.
            DeadlineExceeded: With `id`: no stream has confirmed it in time; it may be stored.
            Unsupported: With `id`: the link does not lead to streams.
        """
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
    ) -> BlockingSubscription[In]: ...
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
    ) -> BlockingSubscription[T]: ...
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
    ) -> BlockingSubscription[Any]:
        """Receive publications of this peer: ``with peer.subscribe("news.*") as news: for message in news: ...``

        Only this peer is asked, even one that dialled in. Entering returns once the peer knows the subscription. On a link that
        this bus opened the subscription is restored after a reconnect; otherwise iterating raises `Disconnected` when the peer
        has left.

        Args: as `BlockingBus.subscribe`. `durable`, or `start` without it, reads an external stream, over links to NATS
        networks.

        Raises:
            LocalProtocolError, ReservedSubject, ValueError, TypeError, Forbidden: As `BlockingBus.subscribe`.
            Unsupported: (on entering) The wire or a bare peer cannot carry it.
            Disconnected: (on entering, by iterating) The peer has left.
        """
    @overload
    def notify(
        self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ..., to: str | None = ...
    ) -> None: ...
    @overload
    def notify(
        self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ..., to: str | None = ...
    ) -> None:
        """Send a notification to one handler, which sends no answer. See `BlockingBus.notify`.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            headers: Text to text.
            to: An address behind this peer, if its link leads to several: ``//phone/CD/4`` of `protocols.Up`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The peer has left.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.notify`.
        """
    @overload
    def stream(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ...
    ) -> BlockingChannel[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ...
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ...
    ) -> BlockingChannel[Any, Any]:
        """Request a stream. See `BlockingBus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.stream`.
            BusError: (on entering, by iterating) As `BlockingBus.stream`.
        """
    @overload
    def channel(self, subject: Subject[In, Out], *, timeout: float | None = ...) -> BlockingChannel[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], receives: type[T], timeout: float | None = ...
    ) -> BlockingChannel[T, In]: ...
    @overload
    def channel(self, subject: str | int, *, receives: type[T], timeout: float | None = ...) -> BlockingChannel[T, Any]: ...
    @overload
    def channel(self, subject: str | int, *, sends: type[In], timeout: float | None = ...) -> BlockingChannel[Any, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: Any = ..., timeout: float | None = ...
    ) -> BlockingChannel[Any, Any]:
        """Open a channel. See `BlockingBus.channel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.channel`.
            BusError: (on entering, by iterating) As `BlockingBus.channel`.
        """
    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
        """A connection to this peer that runs inside its link. See `BlockingBus.tunnel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError: As `BlockingBus.tunnel`.
        """
    def close(self, reason: str = "") -> None:
        """Disconnect the peer. Sends the goodbye and returns without waiting for the peer.

        Args:
            reason: Shown to the peer if the wire carries it.

        Raises:
            LocalProtocolError: The bus does not run, or this thread runs its event loop.
        """

class BlockingRemotePeer(Twin):
    """A `RemotePeer` whose verbs block the calling thread."""

    _original: RemotePeer
    def __init__(self, original: RemotePeer, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, plain ones, each of which waits for its answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` asks for ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods of one body, which for streams return ``Iterator[T]``. One with
                ``async def`` methods is for `Bus.client`: it would say to type checkers that its answers are to be awaited.
            prefix: Subjects are this, a dot, and the name of the method.

        Raises:
            TypeError: It is no contract, or makes no subjects; the text names class and method, and what to write.
        """
    @property
    def id(self) -> str:
        """As its `Peer.id` there."""
    @property
    def node(self) -> str:
        """The node, as `Node.id`."""
    @property
    def identity_key(self) -> str | None:
        """The key of its identity, or None."""
    @property
    def protocol(self) -> str:
        """The name of its protocol."""
    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Out: ...
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
    ) -> T: ...
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
        retry: Retry | None = ...,
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            Unsupported: The wire cannot carry this.
            NoHandler: Under `BlockingBus.as_`: this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: The subject or a header is not for applications.
            TypeError, ValueError: An argument has a wrong type or value.
            Disconnected: The receiver has left, or is not connected: then with ``sent=False``.
            BusError: As `Reply` says.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to one handler, which sends no answer. See `BlockingBus.notify`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The receiver has left, or is not connected.
            BadRequest, NoHandler: Under `BlockingBus.as_`: the handler answers a stream or channel, or there is no handler.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.notify`.
        """
    @overload
    def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Publish to this client alone, or to all connections of the user, whatever they have subscribed to. See
        `BlockingBus.publish`.

        A user who is connected nowhere does not hear it; that is no error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.publish`.
            QueueFull: An outbox is full, that to the engine for example.
            Disconnected: This bus is no node of the cluster any more, in which the client is.
        """
    @overload
    def stream(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ...
    ) -> BlockingChannel[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ...
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ...
    ) -> BlockingChannel[Any, Any]:
        """Request a stream. See `BlockingBus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.stream`.
            BusError: (on entering, by iterating) As `BlockingBus.stream`.
        """
    @overload
    def channel(self, subject: Subject[In, Out], *, timeout: float | None = ...) -> BlockingChannel[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], receives: type[T], timeout: float | None = ...
    ) -> BlockingChannel[T, In]: ...
    @overload
    def channel(self, subject: str | int, *, receives: type[T], timeout: float | None = ...) -> BlockingChannel[T, Any]: ...
    @overload
    def channel(self, subject: str | int, *, sends: type[In], timeout: float | None = ...) -> BlockingChannel[Any, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: Any = ..., timeout: float | None = ...
    ) -> BlockingChannel[Any, Any]:
        """Open a channel. See `BlockingBus.channel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.channel`.
            BusError: (on entering, by iterating) As `BlockingBus.channel`.
        """

class BlockingUser(Twin):
    """A `User` whose verbs block the calling thread."""

    _original: User
    def __init__(self, original: User, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, plain ones, each of which waits for its answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` asks for ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods of one body, which for streams return ``Iterator[T]``. One with
                ``async def`` methods is for `Bus.client`: it would say to type checkers that its answers are to be awaited.
            prefix: Subjects are this, a dot, and the name of the method.

        Raises:
            TypeError: It is no contract, or makes no subjects; the text names class and method, and what to write.
        """
    @property
    def key(self) -> str:
        """The key of the identity that `authenticate` gave; see `plugins.Identity`."""
    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Out: ...
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
    ) -> T: ...
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
        retry: Retry | None = ...,
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            Unsupported: The wire cannot carry this.
            NoHandler: Under `BlockingBus.as_`: this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: The subject or a header is not for applications.
            TypeError, ValueError: An argument has a wrong type or value.
            Disconnected: The receiver has left, or is not connected: then with ``sent=False``.
            BusError: As `Reply` says.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to one handler, which sends no answer. See `BlockingBus.notify`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The receiver has left, or is not connected.
            BadRequest, NoHandler: Under `BlockingBus.as_`: the handler answers a stream or channel, or there is no handler.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.notify`.
        """
    @overload
    def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Publish to this client alone, or to all connections of the user, whatever they have subscribed to. See
        `BlockingBus.publish`.

        A user who is connected nowhere does not hear it; that is no error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.publish`.
            QueueFull: An outbox is full, that to the engine for example.
            Disconnected: This bus is no node of the cluster any more, in which the client is.
        """
    @overload
    def stream(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ...
    ) -> BlockingChannel[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ...
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ...
    ) -> BlockingChannel[Any, Any]:
        """Request a stream. See `BlockingBus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.stream`.
            BusError: (on entering, by iterating) As `BlockingBus.stream`.
        """
    @overload
    def channel(self, subject: Subject[In, Out], *, timeout: float | None = ...) -> BlockingChannel[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], receives: type[T], timeout: float | None = ...
    ) -> BlockingChannel[T, In]: ...
    @overload
    def channel(self, subject: str | int, *, receives: type[T], timeout: float | None = ...) -> BlockingChannel[T, Any]: ...
    @overload
    def channel(self, subject: str | int, *, sends: type[In], timeout: float | None = ...) -> BlockingChannel[Any, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: Any = ..., timeout: float | None = ...
    ) -> BlockingChannel[Any, Any]:
        """Open a channel. See `BlockingBus.channel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.channel`.
            BusError: (on entering, by iterating) As `BlockingBus.channel`.
        """
    def online(self) -> bool:
        """Ask whether the user is connected, here or to another node; one round trip, and nothing is remembered.

        A user who is online here is one whom all other nodes can ask, too: the engine knows, or is not there, or does not
        answer within 2 s.

        Raises:
            Disconnected: The user is not here, and the engine of the cluster is not there.
            DeadlineExceeded: The node that has the user does not answer within 2 s.
        """
    def peers(self) -> Survey[Any]:
        """Find all connections of the user: a `Survey` of `BlockingPeer` here, and `BlockingRemotePeer` at other nodes.

        Raises:
            Disconnected: The engine of the cluster is not there.
        """

class BlockingCaller(Twin):
    """A `Caller` whose verbs block the calling thread."""

    _original: Caller
    def __init__(self, original: Caller, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, plain ones, each of which waits for its answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` asks for ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods of one body, which for streams return ``Iterator[T]``. One with
                ``async def`` methods is for `Bus.client`: it would say to type checkers that its answers are to be awaited.
            prefix: Subjects are this, a dot, and the name of the method.

        Raises:
            TypeError: It is no contract, or makes no subjects; the text names class and method, and what to write.
        """
    @property
    def identity(self) -> Any:
        """Whoever asks, as `authenticate` would have given it."""
    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Out: ...
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
    ) -> T: ...
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
        retry: Retry | None = ...,
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            Unsupported: The wire cannot carry this.
            NoHandler: Under `BlockingBus.as_`: this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: The subject or a header is not for applications.
            TypeError, ValueError: An argument has a wrong type or value.
            Disconnected: The receiver has left, or is not connected: then with ``sent=False``.
            BusError: As `Reply` says.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to one handler, which sends no answer. See `BlockingBus.notify`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The receiver has left, or is not connected.
            BadRequest, NoHandler: Under `BlockingBus.as_`: the handler answers a stream or channel, or there is no handler.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.notify`.
        """
    @overload
    def stream(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ...
    ) -> BlockingChannel[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ...
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ...
    ) -> BlockingChannel[Any, Any]:
        """Request a stream. See `BlockingBus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.stream`.
            BusError: (on entering, by iterating) As `BlockingBus.stream`.
        """
    @overload
    def channel(self, subject: Subject[In, Out], *, timeout: float | None = ...) -> BlockingChannel[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], receives: type[T], timeout: float | None = ...
    ) -> BlockingChannel[T, In]: ...
    @overload
    def channel(self, subject: str | int, *, receives: type[T], timeout: float | None = ...) -> BlockingChannel[T, Any]: ...
    @overload
    def channel(self, subject: str | int, *, sends: type[In], timeout: float | None = ...) -> BlockingChannel[Any, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: Any = ..., timeout: float | None = ...
    ) -> BlockingChannel[Any, Any]:
        """Open a channel. See `BlockingBus.channel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `BlockingBus.channel`.
            BusError: (on entering, by iterating) As `BlockingBus.channel`.
        """

class BlockingListener(Twin):
    """A `Listener`, seen from a thread."""

    _original: Listener
    def __init__(self, original: Listener, run: Run) -> None: ...
    @property
    def url(self) -> str:
        """"""
    @property
    def peers(self) -> list[BlockingPeer]:
        """The peers that are connected through this listener."""

class BlockingBus(Twin):
    """A `Bus` whose verbs block the calling thread. Safe to use from several threads at once.

    A request gives its answer, not a `Reply`: for several at a time use several threads.
    """

    __context_part__: ClassVar[ContextPart]
    _original: Bus
    def __init__(self, original: Bus, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, plain ones, each of which waits for its answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` asks for ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods of one body, which for streams return ``Iterator[T]``. One with
                ``async def`` methods is for `Bus.client`: it would say to type checkers that its answers are to be awaited.
            prefix: Subjects are this, a dot, and the name of the method.

        Raises:
            TypeError: It is no contract, or makes no subjects; the text names class and method, and what to write.
        """
    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Out: ...
    @overload
    def request(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> T: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> T: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: Any = ...,
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
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
            retry: Ask again after failures that may pass, within `timeout`; see `Retry`.

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
    def as_(self, identity: Any) -> BlockingCaller:
        """Ask this bus's own handlers in somebody's name, for example that of the user of an HTTP endpoint.

        Args:
            identity: The value that the handlers see as `Context.identity`.
        """
    @overload
    def notify(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: AnyPeer | str | None = ...,
    ) -> None: ...
    @overload
    def notify(
        self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ..., to: AnyPeer | str | None = ...
    ) -> None:
        """Tell one handler, without an answer; routed like a request.

        Args:
            subject: What it is about.
            body: Anything that the wire can carry.
            headers: Text to text.
            to: The peer to tell. Or an address, where many are reached over one link (``//phone/CD/4`` of `protocols.Up`); the
                link is then chosen as for a request without ``to``, or, where this bus serves alone, its only peer is meant.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
            BadRequest: This bus's own handler answers a stream or channel.
            Unsupported: As `request`; and the wire has no addresses, so that ``to`` is a peer.
            LocalProtocolError: As `request`; and ``to`` is no address.
            NoHandler, AmbiguousRoute, ReservedSubject, TypeError, ValueError: As `request`.
        """
    @overload
    def publish(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: AnyPeer | Iterable[AnyPeer] | None = ...,
        timeout: float = ...,
        id: str | None = ...,
    ) -> None: ...
    @overload
    def publish(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: AnyPeer | Iterable[AnyPeer] | None = ...,
        timeout: float = ...,
        id: str | None = ...,
    ) -> None:
        """Publish: every matching subscription gets it once, the bus's own and those of every linked peer.

        On links that this bus opened it is always sent. When this returns, it has been handed to the transports or waits in an
        outbox: that is no receipt. What a `Store` of the cluster keeps is stored when this returns; and so is what is published
        with `id` to a stream of others, over the link to their NATS network.

        Args:
            to: One peer or several: only they get it, and no store of the cluster keeps it; an empty list is none.
            timeout: Seconds to wait for room, to live in the outbox of a link that is down, and until it is stored.
            id: Of a publication that a `Store` keeps, or a stream of others: it is stored once, however often it is published
                under this id.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: No room in time, in some queue or outbox, or in the store; the others got it.
            DeadlineExceeded: The engine has not said in time that it is stored: it may be, and may not.
            Disconnected: A peer of `to` has gone; the others got it.
            ReservedSubject, LocalProtocolError: The subject or a header is not the application's to use.
            TypeError, ValueError: `timeout`, `to` or `headers` are of a wrong type, or cannot be.
        """
    @overload
    def publish_nowait(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: AnyPeer | Iterable[AnyPeer] | None = ...,
        timeout: float = ...,
    ) -> None: ...
    @overload
    def publish_nowait(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: AnyPeer | Iterable[AnyPeer] | None = ...,
        timeout: float = ...,
    ) -> None:
        """`publish` without waiting.

        Raises:
            QueueFull: No room in some queue or outbox; the others got it.
            LocalProtocolError: Also where a `Store` keeps the subject: that is waited for.
            Disconnected, EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `publish`.
        """
    @overload
    def subscribe(
        self,
        pattern: Subject[In, Any],
        *,
        queue: int | None = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> BlockingSubscription[In]: ...
    @overload
    def subscribe(
        self,
        pattern: str | int,
        *,
        returns: type[T],
        queue: int | None = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> BlockingSubscription[T]: ...
    @overload
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = ...,
        queue: int | None = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> BlockingSubscription[Any]:
        """Receive publications: ``with bus.subscribe("news.*") as news: for message in news: ...``

        Entering returns when the links that are up know of it.

        With ``durable="audit"`` it gives what a `Store` of the cluster keeps, and goes on where it was when it is entered
        again: each publication to one reader of those that name the same, until `Message.ack`. With ``start=`` alone it reads
        what is stored and then what comes, in the order of the store, and leaves no trace of that. A bus that is in no cluster
        reads the stream of others that keeps the pattern, behind its link to their NATS network.

        Args:
            pattern: ``*`` one token, ``>`` the rest.
            returns: The type that bodies are converted to; those that do not fit are skipped and counted.
            queue: Publications that may wait to be read: as of `on`; with ``start=`` alone 64. With `durable` those that this
                reader has at once, read and not settled ones included: 1, and more is faster.
            when_full: What happens to one more; see `WhenFull`.
            local: Take the bus's own publications too. A member of a `group` takes what it is chosen for, whoever published it.
            group: Each publication is for one subscription of those that name the same group and pattern; see `on`.
            durable: As of `on`, with which it shares what is stored where both name the same.
            retry: With `durable`: how often a publication comes, and after which pauses where `Message.retry` says none.
            ack_wait: With `durable`, as of `on`.
            start: As of `on`; alone: where to begin.
            ordered: With `durable`, as of `on`.

        Raises:
            LocalProtocolError: The pattern is not valid; (on entering) the bus does not run, or this thread runs its event
                loop, or no store keeps
                that.
            AmbiguousRoute: (on entering) What is stored could be behind several links: connect with ``serves=``.
            ReservedSubject: It begins with ``_polybus.``.
            ValueError: The queue, the policy or the group is not possible, or an argument goes with `durable` alone, or not
                with it.
            TypeError: `returns` is no type, or none that a body can be read as.
            Unsupported: (on entering) A bare peer matches exact subjects only, or no link carries such a subject (a number).
            Forbidden: (on entering) The peer refused.
        """
    @overload
    def stream(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> BlockingChannel[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ..., to: AnyPeer | None = ...
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
    @overload
    def channel(
        self, subject: Subject[In, Out], *, timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> BlockingChannel[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], receives: type[T], timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> BlockingChannel[T, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, receives: type[T], timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> BlockingChannel[Any, In]: ...
    @overload
    def channel(
        self,
        subject: str | int,
        *,
        sends: Any = ...,
        receives: Any = ...,
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> BlockingChannel[Any, Any]:
        """Open a conversation: ``with bus.channel("chat") as ch: ch.send(...); for item in ch: ...``

        Raises:
            BusError: As `stream`.
        """
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
            origins: Web origins whose pages may connect. Pages of the same host and port always may.
            hosts: Further ``Host`` values of a loopback server, behind a proxy.
            tls: For ``tls`` and ``wss``: a server-side context.
            when_full: What happens to publications for a peer whose outbox is full: ``drop_oldest``, ``drop_newest``,
                ``disconnect``.
            insecure: Allow an address that other machines can reach, and clients from there that a proxy brings, although every
                connection is accepted.

        Raises:
            ValueError: The URL or an option is wrong.
            LocalProtocolError: An open address without `authenticate`.
            OSError: (on entering) The address cannot be bound.
        """
    def record(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 10 << 30,
        max_age: float | timedelta = timedelta(days=7),
        bodies: bool = True,
        redact: Callable[[str, bytes], bytes] | Literal["default"] | None = "default",
        decode: bool = False,
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
            decode: Whether what is sealed (after 64 MiB or a minute) is decoded meanwhile, once for all who read it, by a
                process of the lowest priority. What is not decoded in the end is decoded by those who read it.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is not what it should be.
            CaptureError: (on entering) The folder cannot be made or written.
        """
    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
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
    @property
    def peers(self) -> list[BlockingPeer]:
        """The peers of all links."""
    def peers_of(self, key: str) -> list[BlockingPeer]:
        """The peers of one identity (its `Identity.key`), without those on their way out: for ``publish(..., to=...)``."""
    def user(self, key: str) -> BlockingUser:
        """A user by the key of the identity, connected here or to another node of the cluster.

        Raises:
            TypeError: `key` is no text.
        """
    def nodes(self) -> Survey[Node]:
        """Ask all nodes of the cluster for what they are, this one included; within 2 s.

        Raises:
            LocalProtocolError: The bus is not entered, or this thread runs its event loop.
        """
    def present(self, pattern: str | int) -> Survey[BlockingPeer | BlockingRemotePeer]:
        """Find the clients that have subscribed to this very pattern, here and at all other nodes; within 2 s.

        Nothing is remembered: a node that was killed has no clients.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus is not entered.
        """
    def stats(self) -> Stats:
        """A snapshot of what the bus has done and has to do."""
    def events(self) -> BlockingItems[BusEvent]:
        """Iterate over events from now on, as they happen; the oldest of 1,000 unread events give way to new ones.

        Raises:
            LocalProtocolError: (here or by iterating) The bus does not run, or this thread runs its event loop.
        """
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
    def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: It is not entered, or this thread runs its event loop.
        """
