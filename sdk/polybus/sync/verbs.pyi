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
from .._core.bus.cluster_clients import RemotePeer, User
from .._core.bus.dialer import Headers
from .._core.bus.lifecycle import DRAIN
from .._core.bus.message_routing import Caller
from .._core.handlers.handler import WhenFull
from .._core.handlers.signature import ContextPart
from .._core.peer.peer import Peer
from ..events import BusEvent
from ..nodes import Node, Start
from ..plugins import Connector, ProtocolAdapter
from ..retry import Backoff, Retry
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
        """Create a client for a Protocol class. Each method sends a request and waits for the answer.

        After ``users = bus.client(Users, "user")``, ``users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods that accept one body. A stream returns ``Iterator[T]``. For a
                contract with ``async def`` methods, use `Bus.client`, because type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A dot and the name of the method follow it.

        Raises:
            TypeError: If `contract` is not a contract or leads to invalid subjects. The text names the class and the method,
                and says what to write.
        """
    @property
    def id(self) -> str:
        """Random string that identifies the peer, for example in logs."""
    @property
    def identity(self) -> Any:
        """Identity that `authenticate` returned for the peer."""
    @property
    def identity_key(self) -> str | None:
        """Key of the user, which you can pass to `BlockingBus.peers_of`."""
    @property
    def address(self) -> str:
        """Network address of the peer, if the transport knows it."""
    @property
    def protocol(self) -> str:
        """Name of the protocol."""
    @property
    def transport(self) -> str:
        """Name of the transport, or an empty string while the link is down."""
    @property
    def connected(self) -> bool:
        """True while the peer is connected."""
    @property
    def connected_at(self) -> datetime.datetime:
        """Time at which the link came up, as an aware datetime in UTC."""
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
        """Send a request and return its answer. Ctrl-C cancels it, on the other side too if the protocol supports that.

        Raises:
            EncodeError: If the body cannot be encoded. The message names the path.
            Unsupported: If the protocol doesn't support the request.
            NoHandler: With `BlockingBus.as_`, if this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: If the subject or a header is invalid or reserved.
            TypeError, ValueError: If an argument has a wrong type or value.
            Disconnected: If the receiver has left or, with ``sent=False``, isn't connected.
            BusError: See `Reply`.
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
            id: Identifier of the publication, for links to a NATS network. The call then waits until a stream has stored the
                publication. A stream stores only one publication per id.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox or the stream has no room within `timeout` seconds.
            Disconnected: If the peer has left.
            LocalProtocolError: As for `BlockingBus.publish`, or if you pass `id` but no stream stores the subject.
            ReservedSubject, TypeError, ValueError: As for `BlockingBus.publish`.
            DeadlineExceeded: If you pass `id` and no stream confirms the publication in time. The publication may be stored
                nevertheless.
            Unsupported: If the protocol or the peer cannot carry the message, or if you pass `id` but the link doesn't lead to
                streams.
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

        The bus sends the subscription to this peer only, no matter which side opened the connection. The block is entered once
        the peer has confirmed the subscription. After a reconnect, the subscription is restored. If the peer is a client that
        has left, iterating raises `Disconnected`.

        See `BlockingBus.subscribe` for the arguments. On links to NATS networks, `durable` and `start` read a stream.

        Raises:
            LocalProtocolError, ReservedSubject, ValueError, TypeError, Forbidden: As for `BlockingBus.subscribe`.
            Unsupported: On entry, if the protocol or the peer doesn't support the subscription.
            Disconnected: On entry or while iterating, if the peer has left.
        """
    @overload
    def notify(
        self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ..., to: str | None = ...
    ) -> None: ...
    @overload
    def notify(
        self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ..., to: str | None = ...
    ) -> None:
        """Send a notification to a handler, without an answer. See `BlockingBus.notify`.

        Args:
            subject: Subject of the handler.
            body: Any value that the protocol can encode.
            headers: Headers to send, as a mapping of strings to strings.
            to: Address behind this peer, if the protocol supports addresses, such as ``//phone/CD/4`` with `protocols.Up`.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox is full.
            Disconnected: If the peer has left.
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
        """Open a stream. See `BlockingBus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.stream`.
            BusError: On entry or while iterating, as for `BlockingBus.stream`.
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
            BusError: On entry or while iterating, as for `BlockingBus.channel`.
        """
    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
        """Return a connector for a connection to this peer through the existing link. See `BlockingBus.tunnel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError: As for `BlockingBus.tunnel`.
        """
    def close(self, reason: str = "") -> None:
        """Disconnect the peer. This method doesn't wait until the connection is closed.

        Args:
            reason: Reason to send to the peer, if the protocol supports that.

        Raises:
            LocalProtocolError: If the bus does not run, or this thread runs its event loop.
        """

class BlockingRemotePeer(Twin):
    """A `RemotePeer` that blocks the calling thread."""

    _original: RemotePeer
    def __init__(self, original: RemotePeer, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create a client for a Protocol class. Each method sends a request and waits for the answer.

        After ``users = bus.client(Users, "user")``, ``users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods that accept one body. A stream returns ``Iterator[T]``. For a
                contract with ``async def`` methods, use `Bus.client`, because type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A dot and the name of the method follow it.

        Raises:
            TypeError: If `contract` is not a contract or leads to invalid subjects. The text names the class and the method,
                and says what to write.
        """
    @property
    def id(self) -> str:
        """The client's `Peer.id` on its node."""
    @property
    def node(self) -> str:
        """The `Node.id` of the client's node."""
    @property
    def identity_key(self) -> str | None:
        """Key of the client's identity, or `None`."""
    @property
    def protocol(self) -> str:
        """Name of the client's protocol."""
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
        """Send a request and return its answer. Ctrl-C cancels it, on the other side too if the protocol supports that.

        Raises:
            EncodeError: If the body cannot be encoded. The message names the path.
            Unsupported: If the protocol doesn't support the request.
            NoHandler: With `BlockingBus.as_`, if this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: If the subject or a header is invalid or reserved.
            TypeError, ValueError: If an argument has a wrong type or value.
            Disconnected: If the receiver has left or, with ``sent=False``, isn't connected.
            BusError: See `Reply`.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to a handler, without an answer. See `BlockingBus.notify`.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox is full.
            Disconnected: If the receiver has left or isn't connected.
            BadRequest, NoHandler: With `BlockingBus.as_`, if the handler is for streams or channels, or doesn't exist.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.notify`.
        """
    @overload
    def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Publish only to this client, or to all connections of this user, even if they have no matching subscription.

        See `BlockingBus.publish`. Publishing to a user who is not connected is not an error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.publish`.
            QueueFull: If an outbox is full, for example the one to the engine.
            Disconnected: If this bus has left the client's cluster.
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
        """Open a stream. See `BlockingBus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.stream`.
            BusError: On entry or while iterating, as for `BlockingBus.stream`.
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
            BusError: On entry or while iterating, as for `BlockingBus.channel`.
        """

class BlockingUser(Twin):
    """A `User` that blocks the calling thread."""

    _original: User
    def __init__(self, original: User, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create a client for a Protocol class. Each method sends a request and waits for the answer.

        After ``users = bus.client(Users, "user")``, ``users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods that accept one body. A stream returns ``Iterator[T]``. For a
                contract with ``async def`` methods, use `Bus.client`, because type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A dot and the name of the method follow it.

        Raises:
            TypeError: If `contract` is not a contract or leads to invalid subjects. The text names the class and the method,
                and says what to write.
        """
    @property
    def key(self) -> str:
        """The `Identity.key` that `authenticate` returned for the user."""
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
        """Send a request and return its answer. Ctrl-C cancels it, on the other side too if the protocol supports that.

        Raises:
            EncodeError: If the body cannot be encoded. The message names the path.
            Unsupported: If the protocol doesn't support the request.
            NoHandler: With `BlockingBus.as_`, if this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: If the subject or a header is invalid or reserved.
            TypeError, ValueError: If an argument has a wrong type or value.
            Disconnected: If the receiver has left or, with ``sent=False``, isn't connected.
            BusError: See `Reply`.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to a handler, without an answer. See `BlockingBus.notify`.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox is full.
            Disconnected: If the receiver has left or isn't connected.
            BadRequest, NoHandler: With `BlockingBus.as_`, if the handler is for streams or channels, or doesn't exist.
            Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.notify`.
        """
    @overload
    def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Publish only to this client, or to all connections of this user, even if they have no matching subscription.

        See `BlockingBus.publish`. Publishing to a user who is not connected is not an error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.publish`.
            QueueFull: If an outbox is full, for example the one to the engine.
            Disconnected: If this bus has left the client's cluster.
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
        """Open a stream. See `BlockingBus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.stream`.
            BusError: On entry or while iterating, as for `BlockingBus.stream`.
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
            BusError: On entry or while iterating, as for `BlockingBus.channel`.
        """
    def online(self) -> bool:
        """Return True if the user is connected to any node of the cluster. This takes a round trip, because nothing is cached.

        If the user is connected to this bus, the other nodes can also reach the user once this returns, unless the engine is
        down or does not confirm within 2 s.

        Raises:
            Disconnected: If the user is not connected to this bus, and the engine of the cluster is down.
            DeadlineExceeded: If the user's node does not answer within 2 s.
        """
    def peers(self) -> Survey[Any]:
        """Find all connections of the user. Each result is either a `BlockingPeer` of this bus or a `BlockingRemotePeer`."""

class BlockingCaller(Twin):
    """A `Caller` that blocks the calling thread."""

    _original: Caller
    def __init__(self, original: Caller, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create a client for a Protocol class. Each method sends a request and waits for the answer.

        After ``users = bus.client(Users, "user")``, ``users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods that accept one body. A stream returns ``Iterator[T]``. For a
                contract with ``async def`` methods, use `Bus.client`, because type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A dot and the name of the method follow it.

        Raises:
            TypeError: If `contract` is not a contract or leads to invalid subjects. The text names the class and the method,
                and says what to write.
        """
    @property
    def identity(self) -> Any:
        """Identity of the user, as `authenticate` would return it."""
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
        """Send a request and return its answer. Ctrl-C cancels it, on the other side too if the protocol supports that.

        Raises:
            EncodeError: If the body cannot be encoded. The message names the path.
            Unsupported: If the protocol doesn't support the request.
            NoHandler: With `BlockingBus.as_`, if this bus has no handler for the subject.
            ReservedSubject, LocalProtocolError: If the subject or a header is invalid or reserved.
            TypeError, ValueError: If an argument has a wrong type or value.
            Disconnected: If the receiver has left or, with ``sent=False``, isn't connected.
            BusError: See `Reply`.
        """
    @overload
    def notify(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    def notify(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None:
        """Send a notification to a handler, without an answer. See `BlockingBus.notify`.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox is full.
            Disconnected: If the receiver has left or isn't connected.
            BadRequest, NoHandler: With `BlockingBus.as_`, if the handler is for streams or channels, or doesn't exist.
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
        """Open a stream. See `BlockingBus.stream`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `BlockingBus.stream`.
            BusError: On entry or while iterating, as for `BlockingBus.stream`.
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
            BusError: On entry or while iterating, as for `BlockingBus.channel`.
        """

class BlockingListener(Twin):
    """A `Listener` for threads."""

    _original: Listener
    def __init__(self, original: Listener, run: Run) -> None: ...
    @property
    def url(self) -> str:
        """URL for clients, including the options and the actual port."""
    @property
    def peers(self) -> list[BlockingPeer]:
        """Peers that connected through this listener."""

class BlockingBus(Twin):
    """A `Bus` that blocks the calling thread. Several threads can use it at once.

    A request returns its answer instead of a `Reply`, so concurrent requests require several threads.
    """

    __context_part__: ClassVar[ContextPart]
    _original: Bus
    def __init__(self, original: Bus, run: Run) -> None: ...
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create a client for a Protocol class. Each method sends a request and waits for the answer.

        After ``users = bus.client(Users, "user")``, ``users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods that accept one body. A stream returns ``Iterator[T]``. For a
                contract with ``async def`` methods, use `Bus.client`, because type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A dot and the name of the method follow it.

        Raises:
            TypeError: If `contract` is not a contract or leads to invalid subjects. The text names the class and the method,
                and says what to write.
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
        """Send a request and return its answer. Ctrl-C cancels it, on the other side too if the protocol supports that.

        If this bus has a handler for the subject, that handler answers. Otherwise the request goes over the only link that this
        bus has opened, or the link with a matching ``serves=`` if there are several.

        Args:
            subject: Subject of the handler.
            body: Any value that the protocol can encode.
            timeout: Seconds until `DeadlineExceeded`. The peer receives the deadline too if the protocol supports it.
            returns: Type to convert the answer to.
            to: Peer to send the request to.
            headers: Headers to send, as a mapping of strings to strings.
            retry: Retry temporary failures within `timeout`. See `Retry`.

        Raises:
            EncodeError: If the body cannot be encoded. The error names the path of the value.
            AmbiguousRoute: If several links could carry the request.
            Unsupported: If the protocol cannot carry the request.
            ReservedSubject, LocalProtocolError: If applications may not use the subject or a header.
            TypeError, ValueError: If an argument has the wrong type or an invalid value.
            NoHandler: If this bus has neither a handler for the subject nor a link.
            Disconnected, Unauthorized, Forbidden: If the only link is gone for good.
            BusError: See `Reply`.
        """
    def as_(self, identity: Any) -> BlockingCaller:
        """Call handlers of this bus on behalf of a user, for example from an HTTP endpoint.

        Args:
            identity: Identity of the user. Handlers see it as `Context.identity`.
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
        """Send a notification to one handler, without an answer. Notifications are routed like requests.

        `subject`, `body` and `headers` are as for `request`.

        Args:
            to: A peer or, with `protocols.Up`, an address behind a link such as ``//phone/CD/4``. The link to an address is
                chosen as for a request. A bus that has not opened any links uses its only peer.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox is full.
            Disconnected: If the peer has left.
            BadRequest: If this bus answers the subject with a stream or channel.
            Unsupported: As for `request`, or if `to` is an address and the protocol does not support addresses.
            LocalProtocolError: As for `request`, or if `to` is a string but not an address.
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
        """Publish a message once to each matching subscription of this bus and its peers.

        The message is also sent over every link that this bus opened. The call returns as soon as the message has been passed
        to the transports or is waiting in an outbox. Subscribers do not acknowledge messages. The message is also stored if a
        `Store` of the cluster covers the subject, or if you pass `id` and a NATS link leads to an external stream.

        `subject`, `body` and `headers` are as for `request`.

        Args:
            to: One or more peers. The message is sent only to these peers and is not stored in the cluster. An empty list is
                allowed.
            timeout: Seconds to wait for the store and for space in a full outbox. After that, a message that is still in an
                outbox expires.
            id: Identifier for a `Store` or an external stream, which stores messages with the same id only once.

        Raises:
            EncodeError: If the body cannot be encoded.
            TooLarge, Unsupported: If the message exceeds `Limits.message`, or if a protocol or peer cannot carry it. Other
                receivers still get the message.
            QueueFull: If a queue, an outbox or the store stays full. Other receivers still get the message.
            DeadlineExceeded: If the NATS server does not confirm in time that it has stored the message. The message may be
                stored nevertheless.
            Disconnected: If a peer in `to` has left. The other peers still get the message.
            ReservedSubject, LocalProtocolError: If applications may not use the subject or a header.
            TypeError, ValueError: If an argument has the wrong type or an invalid value.
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
        """Publish a message without waiting. See `publish`.

        Args:
            timeout: Seconds after which a message that is still in an outbox expires.

        Raises:
            QueueFull: If a queue or outbox is full. Other receivers still get the message.
            LocalProtocolError: As for `publish`. Also if a `Store` covers the subject, because storing a message requires
                waiting.
            Disconnected, EncodeError, TooLarge, Unsupported, ReservedSubject, TypeError, ValueError: As for `publish`.
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
        """Subscribe to the subjects that match a pattern.

        Use the result as a context manager and iterate: ``with bus.subscribe("news.*") as news: for message
        in news: ...`` The block is entered once the connected peers know the subscription.

        With ``durable="audit"``, the subscription reads a `Store` of the cluster and resumes where it stopped. All readers that
        use this name share the messages, and each message is redelivered until a reader calls `Message.ack`. If you pass
        `start` without `durable`, the subscription reads stored messages and then new messages, in order, and does not store
        its position. A bus without a cluster reads the external stream that stores the pattern, over a link to a NATS network.

        Args:
            pattern: Subject or pattern. ``*`` matches one token and ``>`` matches the rest.
            returns: Type to convert bodies to. Messages with an invalid body are skipped and counted.
            queue: Maximum number of unread messages; see `on`. The default is 64 if you pass only `start`. With `durable`, it
                is the number of messages that this reader may leave unacknowledged. The default is then 1, and a larger value
                is faster.
            when_full: Policy for a full queue; see `WhenFull`.
            local: Also receive messages that this bus publishes. Members of a `group` always receive them.
            group: Name of a queue group. Each message goes to only one member; see `on`.
            durable: Name of a durable subscription; see `on`. Handlers and readers with the same name share the messages.
            retry: With `durable`, the maximum number of deliveries and the pauses between them. `Message.retry` can set another
                pause.
            ack_wait: With `durable`; see `on`.
            start: Where to start reading; see `on`.
            ordered: With `durable`; see `on`.

        Raises:
            LocalProtocolError: If the pattern is invalid. On entry, if no store covers the pattern or the bus runs in another
                event loop.
            AmbiguousRoute: On entry, if several links could lead to the stream. Pass ``serves=`` to `connect`.
            ReservedSubject: If the pattern begins with ``_polybus.``.
            ValueError: If an argument is invalid, requires `durable`, or cannot be combined with it.
            TypeError: If `returns` is not a type that bodies can be converted to.
            Unsupported: On entry, if no link can carry the subject, or a peer that does not run polybus supports only exact
                subjects.
            Forbidden: On entry, if the peer rejects the subscription.
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
        """Request a stream of answers.

        Use the result as a context manager and iterate: ``with bus.stream("log.tail") as lines: for line in
        lines: ...`` Flow control is credit-based. Leaving the block stops the remote handler.

        `subject`, `body` and `to` are as for `request`.

        Args:
            returns: Type to convert each item to.
            timeout: Seconds until `DeadlineExceeded`, or `None` for no limit.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `request`.
            EncodeError, NoHandler, AmbiguousRoute: On entry, as for `request`.
            Unsupported: On entry, if the protocol has no streams, or the peer does not run polybus.
            TooLarge: On entry, if the message exceeds `Limits.message`.
            TooManyRequests: On entry or while iterating, if too many streams and channels are open (`Limits.channels`).
            RequestError: While iterating, if the handler fails. `BadRequest` if it answers only requests.
            DeadlineExceeded: While iterating, if the timeout has passed.
            Disconnected: On entry or while iterating, if the link is lost.
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
        """Open a bidirectional channel to a handler.

        Use the result as a context manager: ``with bus.channel("chat") as ch: ch.send("hello")``. Iterate
        over the channel to receive items. `timeout` and `to` are as for `stream`.

        Args:
            sends: Type of the items to send, for type checkers.
            receives: Type to convert each received item to.

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
        """Connect this bus to a server.

        Use the result as a context manager that yields the `BlockingPeer` at the other end. See `polybus.connect` for the
        arguments.

        Raises:
            ValueError: If the URL or an option is invalid.
            ConnectFailed: On entry, if the server cannot be reached.
            Unauthorized, Forbidden: On entry, if the server rejects the connection.
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
        """Start accepting connections at an address.

        Use the result as a context manager that yields a `BlockingListener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 picks a free port.
            protocol: Protocol of a transport object, by name or as an adapter.
            origins: Web origins that may connect, in addition to the same host and port.
            hosts: Additional ``Host`` values that a server on a loopback address accepts, for use behind a proxy.
            tls: Server-side context for ``tls``, ``wss`` and ``https``.
            when_full: Policy for publications when a peer's outbox is full: ``drop_oldest``, ``drop_newest`` or ``disconnect``.
            insecure: Accept connections from other machines, directly or through a proxy, without an `authenticate` hook.
            retry: Pauses before polybus clients reconnect. Its `initial` and `maximum` override the clients' settings.

        Raises:
            ValueError: If the URL or an option is invalid.
            LocalProtocolError: If other machines can reach the address and the bus has no `authenticate` hook.
            OSError: On entry, if the address cannot be bound.
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
        """Record every frame on every link, in both directions.

        Use the result as a context manager: ``with bus.record("captures/"): ...`` The bus never waits for the
        disk. If the disk is too slow, frames are dropped and counted, and the capture shows the gap. Requires ``pip install
        'polybus[capture]'``.

        Args:
            path: Folder to write to, which is created if necessary. Several recordings may share it.
            max_bytes: Maximum size of the folder in bytes. The oldest segments are removed to stay below it.
            max_age: Maximum age of segments, in seconds or as a `timedelta`.
            bodies: Record the body of each message in addition to its kind and subject.
            redact: ``redact(protocol, frame)`` returns the bytes to write. The default masks tokens, cookies and members that
                are named like secrets. With `None`, everything is written unchanged.
            decode: Decode each segment in a process with the lowest priority once it is complete, after 64 MiB or a minute.
                Otherwise, each reader has to decode it.

        Raises:
            ImportError: If pyarrow is not installed.
            TypeError, ValueError: If an argument is invalid.
            CaptureError: On entry, if the folder cannot be created or written to.
        """
    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
        """Return a connector for a connection through one of this bus's links.

        Pass the connector to `connect`, as in ``sync.connect(bus.tunnel("plant.7"), protocol="csb")``. The tunnel leads to the
        peer
        that would receive requests to `name`, and it reconnects whenever the outer link does.

        Args:
            name: Name that matches the pattern that the other side passed to `handle_tunnels`.
            params: Strings for `Handshake.params` on the other side.

        Raises:
            ReservedSubject, LocalProtocolError: If the name is invalid.
            TypeError: If `params` does not map strings to strings.
        """
    @property
    def peers(self) -> list[BlockingPeer]:
        """Peers on all links."""
    def peers_of(self, key: str) -> list[BlockingPeer]:
        """Return the connected peers with this `Identity.key`, for example for ``publish(..., to=...)``."""
    def user(self, key: str) -> BlockingUser:
        """Return a handle to a user. The user may be connected to any node of the cluster.

        Args:
            key: The `Identity.key` of the user.

        Raises:
            TypeError: If `key` is not a string.
        """
    def nodes(self) -> Survey[Node]:
        """Query all nodes of the cluster, including this one, with a timeout of 2 s.

        Raises:
            LocalProtocolError: If the bus is not entered, or this thread runs its event loop.
        """
    def present(self, pattern: str | int) -> Survey[BlockingPeer | BlockingRemotePeer]:
        """Find the clients on all nodes that have subscribed to exactly this pattern, with a timeout of 2 s.

        Results are never cached, so that clients of a killed node are not included.

        Raises:
            LocalProtocolError, ReservedSubject: If the pattern is invalid, or the bus is not entered.
        """
    def stats(self) -> Stats:
        """Return a snapshot of the counters and queues."""
    def events(self) -> BlockingItems[BusEvent]:
        """Iterate over the events of the bus from now on. The oldest are dropped if more than 1,000 are unread.

        Raises:
            LocalProtocolError: If the bus does not run, or this thread runs its event loop.
        """
    def drain(self, timeout: float = DRAIN) -> None:
        """Drain the bus: stop accepting requests, finish running handlers, notify the peers and close the links.

        Streams and channels end with `Unavailable` after a quarter of the time. If you call this from a handler, a middleware
        or the lifespan of this bus, it returns immediately, because the drain itself waits for them. Cancelling the call
        cancels running handlers, but peers are still notified.

        Args:
            timeout: Seconds after which everything that is still running is cancelled. The lifespan then has the same time to
                exit.

        Raises:
            TypeError, ValueError: If `timeout` is not a number of seconds.
            LocalProtocolError: If the bus does not run, or this thread runs its event loop.
        """
    def wait_closed(self) -> None:
        """Wait until the bus has stopped.

        Raises:
            LocalProtocolError: If the bus is not entered, or this thread runs its event loop.
        """
