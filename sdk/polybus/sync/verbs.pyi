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
from .._core.handlers.handler import WhenFull
from .._core.handlers.signature import ContextPart
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
    """A `Peer` that blocks the calling thread."""

    __context_part__: ClassVar[ContextPart]
    _original: Peer
    def __init__(self, original: Peer, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create an object with the methods of a Protocol class. Each method sends a request and waits for the answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` requests ``user.get``.

        Args:
            contract: A `typing.Protocol` whose ``def`` methods accept one body. A stream returns ``Iterator[T]``. Pass a
                contract with ``async def`` methods to `Bus.client` instead: type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A subject consists of the prefix, a dot, and the name of the method.

        Raises:
            TypeError: The class is not a contract, or does not form valid subjects. The error text names the class and the
                method, and says what to write.
        """
    @property
    def id(self) -> str:
        """A random string that identifies the peer."""
    @property
    def identity(self) -> Any:
        """The value that `authenticate` returned."""
    @property
    def identity_key(self) -> str | None:
        """The key for `BlockingBus.peers_of`."""
    @property
    def address(self) -> str:
        """The network address, as far as the transport knows it."""
    @property
    def protocol(self) -> str:
        """"""
    @property
    def transport(self) -> str:
        """The name of the transport; empty while there is no connection."""
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
        """Send a request and return its answer. Ctrl-C cancels it, also at the other side if the wire can.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            Unsupported: The wire cannot carry this.
            NoHandler: Under `BlockingBus.as_`, this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: Applications may not use the subject or a header.
            TypeError, ValueError: An argument has a wrong type or value.
            Disconnected: (on awaiting) The receiver has left, or is not connected (then with ``sent=False``).
            BusError: (on awaiting) See `Reply`.
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
            LocalProtocolError: With `id`, no stream stores the subject.
            DeadlineExceeded: With `id`, no stream has confirmed in time that it stored the publication; it may have done so.
            Unsupported: With `id`, the link does not lead to streams.
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

        The subscription is sent only to this peer, which may also be one that connected to this bus. The block is entered once
        the peer knows the subscription. On a link that this bus opened, the subscription is restored after a reconnect;
        otherwise iterating raises `Disconnected` when the peer has left.

        Args: as for `BlockingBus.subscribe`. `durable`, or `start` without it, reads an external stream over links to NATS
        networks.

        Raises:
            LocalProtocolError, ReservedSubject, ValueError, TypeError, Forbidden: As for `BlockingBus.subscribe`.
            Unsupported: (on entering) The wire or a bare peer cannot carry the subscription.
            Disconnected: (on entering, while iterating) The peer has left.
        """
    @overload
    def notify(
        self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ..., to: str | None = ...
    ) -> None: ...
    @overload
    def notify(
        self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ..., to: str | None = ...
    ) -> None:
        """Send a notification to one handler, which does not answer. See `BlockingBus.notify`.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            headers: A mapping of strings to strings.
            to: An address behind this peer, if its link leads to several: ``//phone/CD/4`` with `protocols.Up`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The peer has left.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.notify`.
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
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.stream`.
            BusError: (on entering, while iterating) As for `BlockingBus.stream`.
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
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.channel`.
            BusError: (on entering, while iterating) As for `BlockingBus.channel`.
        """
    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
        """Return a connection to this peer that runs inside its link. See `BlockingBus.tunnel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError: As for `BlockingBus.tunnel`.
        """
    def close(self, reason: str = "") -> None:
        """Disconnect the peer. The call sends a goodbye and returns without waiting for the peer.

        Args:
            reason: Shown to the peer if the wire carries it.

        Raises:
            LocalProtocolError: The bus does not run, or this thread runs its event loop.
        """

class BlockingRemotePeer(Twin):
    """A `RemotePeer` that blocks the calling thread."""

    _original: RemotePeer
    def __init__(self, original: RemotePeer, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create an object with the methods of a Protocol class. Each method sends a request and waits for the answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` requests ``user.get``.

        Args:
            contract: A `typing.Protocol` whose ``def`` methods accept one body. A stream returns ``Iterator[T]``. Pass a
                contract with ``async def`` methods to `Bus.client` instead: type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A subject consists of the prefix, a dot, and the name of the method.

        Raises:
            TypeError: The class is not a contract, or does not form valid subjects. The error text names the class and the
                method, and says what to write.
        """
    @property
    def id(self) -> str:
        """Its `Peer.id` on that node."""
    @property
    def node(self) -> str:
        """The `Node.id` of that node."""
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
        """Send a request and return its answer. Ctrl-C cancels it, also at the other side if the wire can.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            Unsupported: The wire cannot carry this.
            NoHandler: Under `BlockingBus.as_`, this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: Applications may not use the subject or a header.
            TypeError, ValueError: An argument has a wrong type or value.
            Disconnected: (on awaiting) The receiver has left, or is not connected (then with ``sent=False``).
            BusError: (on awaiting) See `Reply`.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to one handler, which does not answer. See `BlockingBus.notify`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The receiver has left, or is not connected.
            BadRequest, NoHandler: Under `BlockingBus.as_`, the handler is for streams or channels, or there is no handler.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.notify`.
        """
    @overload
    def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Publish only to this client, or to all connections of the user, regardless of subscriptions.

        See `BlockingBus.publish`. Publishing to a user without a connection is not an error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.publish`.
            QueueFull: An outbox is full, for example to the engine.
            Disconnected: This bus has left the cluster of the client.
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
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.stream`.
            BusError: (on entering, while iterating) As for `BlockingBus.stream`.
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
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.channel`.
            BusError: (on entering, while iterating) As for `BlockingBus.channel`.
        """

class BlockingUser(Twin):
    """A `User` that blocks the calling thread."""

    _original: User
    def __init__(self, original: User, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create an object with the methods of a Protocol class. Each method sends a request and waits for the answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` requests ``user.get``.

        Args:
            contract: A `typing.Protocol` whose ``def`` methods accept one body. A stream returns ``Iterator[T]``. Pass a
                contract with ``async def`` methods to `Bus.client` instead: type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A subject consists of the prefix, a dot, and the name of the method.

        Raises:
            TypeError: The class is not a contract, or does not form valid subjects. The error text names the class and the
                method, and says what to write.
        """
    @property
    def key(self) -> str:
        """The key of the identity that `authenticate` returned; see `plugins.Identity`."""
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
        """Send a request and return its answer. Ctrl-C cancels it, also at the other side if the wire can.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            Unsupported: The wire cannot carry this.
            NoHandler: Under `BlockingBus.as_`, this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: Applications may not use the subject or a header.
            TypeError, ValueError: An argument has a wrong type or value.
            Disconnected: (on awaiting) The receiver has left, or is not connected (then with ``sent=False``).
            BusError: (on awaiting) See `Reply`.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to one handler, which does not answer. See `BlockingBus.notify`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The receiver has left, or is not connected.
            BadRequest, NoHandler: Under `BlockingBus.as_`, the handler is for streams or channels, or there is no handler.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.notify`.
        """
    @overload
    def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Publish only to this client, or to all connections of the user, regardless of subscriptions.

        See `BlockingBus.publish`. Publishing to a user without a connection is not an error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.publish`.
            QueueFull: An outbox is full, for example to the engine.
            Disconnected: This bus has left the cluster of the client.
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
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.stream`.
            BusError: (on entering, while iterating) As for `BlockingBus.stream`.
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
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.channel`.
            BusError: (on entering, while iterating) As for `BlockingBus.channel`.
        """
    def online(self) -> bool:
        """Check whether the user is connected, here or to another node. This takes one round trip; nothing is cached.

        If the user is connected here and the result is True, all other nodes can reach the user too, unless the engine is down
        or does not confirm within 2 s.

        Raises:
            Disconnected: The user is not connected here, and the engine of the cluster is down.
            DeadlineExceeded: The node of the user does not answer within 2 s.
        """
    def peers(self) -> Survey[Any]:
        """Find all connections of the user: a `Survey` of `BlockingPeer` here, and `BlockingRemotePeer` at other nodes.

        Raises:
            Disconnected: The engine of the cluster is down.
        """

class BlockingCaller(Twin):
    """A `Caller` that blocks the calling thread."""

    _original: Caller
    def __init__(self, original: Caller, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create an object with the methods of a Protocol class. Each method sends a request and waits for the answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` requests ``user.get``.

        Args:
            contract: A `typing.Protocol` whose ``def`` methods accept one body. A stream returns ``Iterator[T]``. Pass a
                contract with ``async def`` methods to `Bus.client` instead: type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A subject consists of the prefix, a dot, and the name of the method.

        Raises:
            TypeError: The class is not a contract, or does not form valid subjects. The error text names the class and the
                method, and says what to write.
        """
    @property
    def identity(self) -> Any:
        """The identity of the user, as `authenticate` would return it."""
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
        """Send a request and return its answer. Ctrl-C cancels it, also at the other side if the wire can.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            Unsupported: The wire cannot carry this.
            NoHandler: Under `BlockingBus.as_`, this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: Applications may not use the subject or a header.
            TypeError, ValueError: An argument has a wrong type or value.
            Disconnected: (on awaiting) The receiver has left, or is not connected (then with ``sent=False``).
            BusError: (on awaiting) See `Reply`.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to one handler, which does not answer. See `BlockingBus.notify`.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The receiver has left, or is not connected.
            BadRequest, NoHandler: Under `BlockingBus.as_`, the handler is for streams or channels, or there is no handler.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.notify`.
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
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.stream`.
            BusError: (on entering, while iterating) As for `BlockingBus.stream`.
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
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.channel`.
            BusError: (on entering, while iterating) As for `BlockingBus.channel`.
        """

class BlockingListener(Twin):
    """A `Listener` for threads."""

    _original: Listener
    def __init__(self, original: Listener, run: Run) -> None: ...
    @property
    def url(self) -> str:
        """"""
    @property
    def peers(self) -> list[BlockingPeer]:
        """The peers that are connected through this listener."""

class BlockingBus(Twin):
    """A `Bus` that blocks the calling thread. Several threads may use it at once.

    A request returns its answer, not a `Reply`: use several threads for concurrent requests.
    """

    __context_part__: ClassVar[ContextPart]
    _original: Bus
    def __init__(self, original: Bus, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create an object with the methods of a Protocol class. Each method sends a request and waits for the answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` requests ``user.get``.

        Args:
            contract: A `typing.Protocol` whose ``def`` methods accept one body. A stream returns ``Iterator[T]``. Pass a
                contract with ``async def`` methods to `Bus.client` instead: type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A subject consists of the prefix, a dot, and the name of the method.

        Raises:
            TypeError: The class is not a contract, or does not form valid subjects. The error text names the class and the
                method, and says what to write.
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
        """Send a request and return its answer. Ctrl-C cancels it, also at the other side if the wire can.

        If this bus has a handler for the subject, that handler answers. Otherwise the request is sent over the only link that
        this bus opened, or over the opened link with a matching ``serves=``.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            timeout: Finite number of seconds until `DeadlineExceeded`. The peer is told, if the wire can carry it.
            returns: The type to convert the answer to.
            to: The peer to send to.
            headers: A mapping of strings to strings.
            retry: Retry after temporary failures, within `timeout`; see `Retry`.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            AmbiguousRoute: Several links could take the request.
            Unsupported: The wire cannot carry this.
            ReservedSubject, LocalProtocolError: Applications may not use the subject or a header.
            TypeError, ValueError: `timeout`, `to` or `headers` has a wrong type or value.
            NoHandler: (on awaiting) This bus has neither a link nor a handler for it.
            Disconnected, Unauthorized, Forbidden: (on awaiting) The only link has ended and will not reconnect.
            BusError: (on awaiting) See `Reply`.
        """
    def as_(self, identity: Any) -> BlockingCaller:
        """Call handlers of this bus on behalf of a user, for example from an HTTP endpoint.

        Args:
            identity: The value that handlers see as `Context.identity`.
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
        """Send a notification to one handler, which does not answer. It is routed like a request.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            headers: A mapping of strings to strings.
            to: The peer to notify, or an address behind a link (``//phone/CD/4`` with `protocols.Up`). For an address, the link
                is chosen as for a request without ``to``; a bus that only serves uses its only peer.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The peer has left.
            BadRequest: The handler of this bus is for streams or channels.
            Unsupported: As for `request`; or the wire has no addresses, so that ``to`` must be a peer.
            LocalProtocolError: As for `request`; or ``to`` is not an address.
            NoHandler, AmbiguousRoute, ReservedSubject, TypeError, ValueError: As for `request`.
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
        """Publish a value. Each matching subscription of this bus and of its peers receives it once.

        Links that this bus opened always receive it. When the call returns, the publication has been passed to the transports
        or waits in an outbox; that is not an acknowledgement. The publication is also stored if a `Store` of the cluster covers
        the subject, or if you pass `id` and a NATS link leads to an external stream.

        Args:
            to: One or several peers. Only they receive the publication, and no store of the cluster stores it. An empty list
                means no peer.
            timeout: Seconds to wait for room in the outbox of a link that is down, and for the store.
            id: For a `Store` or an external stream. A publication with this id is stored once, however often you publish it.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: A queue, an outbox or the store had no room in time. The other receivers have the publication.
            DeadlineExceeded: The engine has not confirmed in time that it stored the publication; it may have done so.
            Disconnected: A peer in `to` has left. The others have the publication.
            ReservedSubject, LocalProtocolError: Applications may not use the subject or a header.
            TypeError, ValueError: `timeout`, `to` or `headers` has a wrong type or value.
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
        """Publish like `publish`, but without waiting.

        Raises:
            QueueFull: A queue or outbox has no room. The other receivers have the publication.
            LocalProtocolError: As for `publish`; or a `Store` stores the subject, which requires waiting.
            Disconnected, EncodeError, ReservedSubject, TypeError, ValueError: As for `publish`.
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

        The block is entered once the connected links know the subscription.

        With ``durable="audit"`` the subscription consumes a `Store` of the cluster and resumes where it stopped: the readers
        with that name share the publications, and each is redelivered until a reader calls `Message.ack`. With only ``start=``
        it reads stored and then new publications, in the order of the store, and keeps no position. A bus without a cluster
        reads the external stream that stores the pattern, over a link to a NATS network.

        Args:
            pattern: ``*`` matches one token, ``>`` the rest.
            returns: The type to convert bodies to. Publications that do not fit are skipped and counted.
            queue: Number of publications that may wait to be read, as for `on`; 64 with only ``start=``. With `durable`, the
                number that this reader may hold unsettled: 1 by default; a larger number is faster.
            when_full: Policy for a full queue; see `WhenFull`.
            local: Also receive publications of this bus. A member of a `group` receives its share from every publisher.
            group: Name of a queue group. One of the subscriptions with the same group and pattern receives each publication;
                see `on`.
            durable: As for `on`. A handler and a reader with the same name share the publications of the store.
            retry: With `durable`: the number of deliveries, and the pauses between them unless `Message.retry` sets one.
            ack_wait: With `durable`, as for `on`.
            start: As for `on`; without `durable`, where to begin.
            ordered: With `durable`, as for `on`.

        Raises:
            LocalProtocolError: The pattern is invalid; (on entering) no store covers it, or the bus does not run, or this
                thread runs its event loop.
            AmbiguousRoute: (on entering) Several links could lead to the stream: connect with ``serves=``.
            ReservedSubject: The pattern begins with ``_polybus.``.
            ValueError: The queue, the policy or the group is invalid, or an argument requires `durable` or excludes it.
            TypeError: `returns` is not a type, or bodies cannot be read as that type.
            Unsupported: (on entering) A bare peer matches only exact subjects, or no link can carry the subject (an integer).
            Forbidden: (on entering) The peer refused the subscription.
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
        """Request many answers: ``with bus.stream("log.tail", {"n": 10}) as lines: for line in lines: ...``

        The flow is controlled by credits. Leaving the block stops the remote handler.

        Args:
            timeout: Seconds until `DeadlineExceeded`; None means that only the block limits the time.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `request`.
            NoHandler, AmbiguousRoute: (on entering) As for `request`.
            Unsupported: (on entering) The peer is not a polybus peer.
            RequestError: (while iterating) The handler failed, or it answers only requests (`BadRequest`).
            Disconnected: (while iterating) The link broke.
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
            BusError: As for `stream`.
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
        """Add a link to this bus. The context manager yields the `BlockingPeer` at the other end.

        Args: as `polybus.connect`.

        Raises:
            ValueError: The URL or an option is invalid.
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
        retry: Backoff | None = None,
    ) -> BlockingBlock[BlockingListener]:
        """Accept links at an address. The context manager yields the `BlockingListener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 picks a free port.
            protocol: The protocol of a transport object, by name or as an adapter.
            origins: Web origins whose pages may connect. Pages from the same host and port may always connect.
            hosts: Additional ``Host`` values that a loopback server accepts, for use behind a proxy.
            tls: A server-side context for ``tls`` and ``wss``.
            when_full: Policy for publications to a peer whose outbox is full: ``drop_oldest``, ``drop_newest`` or
                ``disconnect``.
            insecure: Allow other machines to connect, directly or through a proxy, although every connection is accepted.

        Raises:
            ValueError: The URL or an option is invalid.
            LocalProtocolError: Other machines can reach the address, and the bus has no `authenticate`.
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
        """Record every frame of every link, in both directions: ``with bus.record("captures/"): ...``

        The bus never waits for the disk. If the disk is too slow, frames are dropped and counted, and the capture marks the
        gap. Needs ``pip install 'polybus[capture]'``.

        Args:
            path: The folder to write to; it is created if necessary. Several recordings may share it.
            max_bytes: Maximum size of the folder. Beyond it, the oldest segments are removed.
            max_age: Maximum age of segments, in seconds or as a `timedelta`.
            bodies: Record bodies, not only the kind and target of each message.
            redact: ``redact(protocol, frame)`` returns the bytes to write. The default blanks tokens, cookies and members that
                are named like secrets; None writes everything unchanged.
            decode: Decode each segment once for all readers when it is sealed (after 64 MiB or a minute), in a process with
                the lowest priority. Readers decode the rest themselves.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is invalid.
            CaptureError: (on entering) The folder cannot be created or written to.
        """
    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
        """Return a connection that runs inside a link of this bus: ``sync.connect(bus.tunnel("plant.7"), protocol="csb")``.

        The tunnel leads to the peer that requests to `name` are sent to. It reconnects once the outer link is back.

        Args:
            name: A name that the other side serves with `handle_tunnels`.
            params: Strings that the other side finds in `Handshake.params`.

        Raises:
            ReservedSubject, LocalProtocolError: The name is not valid.
            TypeError: `params` does not map strings to strings.
        """
    @property
    def peers(self) -> list[BlockingPeer]:
        """The peers on all links."""
    def peers_of(self, key: str) -> list[BlockingPeer]:
        """The peers of one identity (by its `Identity.key`), for ``publish(..., to=...)``. Excludes peers that are leaving."""
    def user(self, key: str) -> BlockingUser:
        """Return the user with an identity key, who may be connected here or to another node of the cluster.

        Raises:
            TypeError: `key` is not a string.
        """
    def nodes(self) -> Survey[Node]:
        """Ask all nodes of the cluster, including this one, to report within 2 s.

        Raises:
            LocalProtocolError: The bus is not entered, or this thread runs its event loop.
        """
    def present(self, pattern: str | int) -> Survey[BlockingPeer | BlockingRemotePeer]:
        """Find the clients on all nodes that are subscribed to this exact pattern, within 2 s. Nothing is cached, so clients of
        a killed node are not reported.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus is not entered.
        """
    def stats(self) -> Stats:
        """Return a snapshot of the counters and queues of the bus."""
    def events(self) -> BlockingItems[BusEvent]:
        """Iterate over the events that happen after this call. If more than 1,000 are unread, the oldest are dropped.

        Raises:
            LocalProtocolError: (here or while iterating) The bus does not run, or this thread runs its event loop.
        """
    def drain(self, timeout: float = DRAIN) -> None:
        """Stop accepting requests, let running handlers finish, notify the peers, write the outboxes and close the links.

        Streams and channels have a quarter of the time; then they end with `Unavailable`. If a handler, a middleware or the
        lifespan of this bus makes this call, it returns at once, since the drain waits for them. Cancelling the call cancels
        the running handlers; the peers are still notified.

        Args:
            timeout: Seconds for the whole drain. What is not finished by then is cancelled. The lifespan then has the same
                time again for its end.

        Raises:
            TypeError, ValueError: `timeout` is not a number of seconds.
            LocalProtocolError: The bus does not run, or this thread runs its event loop.
        """
    def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: The bus is not entered, or this thread runs its event loop.
        """
