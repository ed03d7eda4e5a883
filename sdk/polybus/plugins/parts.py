"""Internals of a bus for extensions: meshes, stores, recorders, instrumentation, blocking twins.

`parts_of` returns the parts of a bus, which an `Extension` receives at its creation. The Protocols here contain what
extensions need; the classes behind them have more, which may change between releases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from .transports import Host

if TYPE_CHECKING:
    import datetime
    import ssl

    import anyio

    from .._util.event_loop import Notifier
    from .._util.repeated_warnings import Warnings
    from ..backoff import Backoff
    from ..errors import BusError, Code
    from ..events import BusEvent
    from ..limits import Limits
    from ..message import Kind, Message
    from ..stats import Counters
    from .extensions import LinkReader, Mesh, Storage
    from .protocols import ProtocolAdapter, Session
    from .transports import Connector


class BusRuntime(Host, Protocol):
    """An entered bus: its event loop, clock and tasks."""

    @property
    def notifier(self) -> Notifier:
        """Wakes waiters for changes of the bus."""
        ...

    @property
    def warnings(self) -> Warnings:
        """Log warnings about peers at a limited rate."""
        ...

    @property
    def workers(self) -> Any:
        """Runs jobs of handlers: ``submit(job)``."""
        ...

    def check_here(self) -> None:
        """Raise `LocalProtocolError` in another event loop."""


class RegisteredHandler(Protocol):
    """A registered handler."""

    @property
    def name(self) -> str: ...
    @property
    def subject(self) -> str | int: ...


class RegisteredSubscriber(Protocol):
    """A registered `on` handler."""

    @property
    def handler(self) -> Any:
        """The `RegisteredHandler`, for `HandlerRunner.run`."""
        ...

    @property
    def concurrency(self) -> int: ...
    @property
    def reading(self) -> Any:
        """Its `plugins.extensions.Reading` if it reads a store."""
        ...


class HandlerRunner(Protocol):
    """Runs handlers with their middleware."""

    def run(self, handler: Any, message: Message, deadline: float | None) -> Awaitable[Any]:
        """Run a handler.

        Raises:
            Exception: (from the call or the await) Any error of the handler or a middleware.
        """
        ...

    def is_own_cancellation(self, error: BaseException, scope: anyio.CancelScope | None) -> bool:
        """True if the bus itself cancelled the handler."""
        ...

    def must_propagate(self, error: BaseException, scope: anyio.CancelScope | None) -> bool:
        """True if the error ends more than the handler."""
        ...

    def publication_failed(self, message: Message, error: BaseException) -> str:
        """Log and count a failure; returns the id of the error."""
        ...


class BusServices(Protocol):
    """Limits, counters, events and state of a bus."""

    id: str
    """Random text that identifies the bus."""
    bus: Any
    """The `Bus`."""
    limits: Limits
    counters: Counters
    ready: bool
    """True from the lifespan's yield to the start of a drain."""
    leaving: bool
    """True from the start of a drain to the end."""

    @property
    def executor(self) -> HandlerRunner: ...
    @property
    def runtime(self) -> BusRuntime | None:
        """None while the bus is not entered."""
        ...

    @property
    def running(self) -> BusRuntime:
        """The runtime; raises `LocalProtocolError` if the bus is not entered."""
        ...

    def emit(self, event: BusEvent, /) -> None:
        """Send an event to readers of `Bus.events`."""

    def signal(self) -> None:
        """Notify a drain that something ended."""

    def dead_letter(self, peer: Any, message: Message, code: Code, reason: str) -> None:
        """Report an undelivered message to readers of events."""


class BusLink(Protocol):
    """A link of a bus."""

    inner: bool
    """True if the link leads to other nodes of this bus."""
    opened: bool
    """True if this bus opened it."""
    url: str
    session: Session | None
    adapter: ProtocolAdapter
    multiplexed: Any
    """Set if it leads to many peers, behind a broker."""
    peer: Any
    """The `BusPeer` at its other end; None before the first connect, and on a link with many peers."""
    reader: LinkReader | None
    """Takes messages that the session addresses to others than its one peer."""
    most_running: int | None
    """Limit for concurrent requests of this link instead of `Limits.running`."""
    most_waiting: int | None

    @property
    def serves(self) -> Sequence[str | int]:
        """Patterns of the requests for this link; empty if it takes all."""
        ...

    @property
    def runtime(self) -> BusRuntime: ...
    def answer(self, message: Message, peer: Any) -> None:
        """Send an answer, or a message that the session asks for.

        Raises:
            BusError: It cannot be written.
        """

    def publish(self, message: Message, peer: Any, deadline: float) -> bool:
        """Send a publication. Returns False if there is no room now.

        Raises:
            BusError: It cannot be written.
        """
        ...

    async def room(self, deadline: float) -> bool:
        """Wait for room; False at the deadline."""
        ...

    def hold(self) -> None:
        """Hold back outgoing messages until `release`."""

    def release(self) -> None:
        """Send the messages that `hold` held back."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Send the queue, then close."""

    def disconnected(self, *, sent: bool) -> BusError:
        """Error for a message that cannot be sent because the link is down."""
        ...

    def absence(self, longest: float = 0.0) -> str:
        """Duration of the outage as text, if over `longest` seconds; else empty."""
        ...

    def silence(self, longest: float = 0.0) -> str:
        """Duration of the silence as text, if over `longest` seconds; else empty."""
        ...


class BusPeer(Protocol):
    """The other end of a link."""

    link: Any
    """Its `BusLink`."""
    public: Any
    """The `Peer` for the application."""
    connected_at: datetime.datetime

    @property
    def id(self) -> str: ...
    @property
    def identity_key(self) -> str | None: ...
    @property
    def address(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def connected(self) -> bool: ...
    @property
    def gone(self) -> bool:
        """True if it does not come back."""
        ...

    @property
    def patterns(self) -> Collection[str | int]:
        """Patterns that it has subscribed to."""
        ...

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a task for the lifetime of the peer."""

    def pass_on(self, message: Message, timeout: float) -> Awaitable[Any]:
        """Forward a request and await its answer; the body stays as it is.

        Raises:
            BusError: (from the call or the await) As `Peer.request`.
        """
        ...


class PublicationQueue(Protocol):
    """Queue of a subscription, which is offered the publications that match a pattern."""

    @property
    def pattern(self) -> str | int: ...
    @property
    def group(self) -> str | None: ...
    @property
    def queue(self) -> int:
        """Maximum number of publications."""
        ...

    @property
    def local(self) -> bool:
        """True if it takes publications of this bus."""
        ...

    @property
    def peers(self) -> bool:
        """True if it takes publications of peers."""
        ...

    @property
    def leads_on(self) -> bool:
        """True if it leads to another bus."""
        ...

    @property
    def full(self) -> bool: ...
    async def room(self, deadline: float) -> bool:
        """Wait for room; False at the deadline."""
        ...

    def offer(self, message: Message) -> None:
        """Take a publication."""

    def offer_shared(self, message: Message) -> None:
        """Take a publication that other queues share."""


class BusSubscription(Protocol):
    """Subscription to a store."""

    @property
    def pattern(self) -> str | int: ...
    @property
    def peer(self) -> Any:
        """The `BusPeer` that it is limited to; None for all."""
        ...

    @property
    def queue(self) -> int:
        """Maximum number of publications."""
        ...

    @property
    def full(self) -> bool: ...
    def offer(self, message: Message) -> None:
        """Queue a publication."""

    def skip(self, message: Message, by: str, why: str) -> None:
        """Count and log a publication that cannot be read."""

    def end(self, error: BusError | None) -> None:
        """End the iteration after the queued publications, with an error if given."""


class BusPort(Protocol):
    """The parts of a bus."""

    @property
    def services(self) -> BusServices: ...
    @property
    def mesh(self) -> Mesh | None: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def subscribers(self) -> Sequence[RegisteredSubscriber]:
        """Functions registered by `Bus.on`."""
        ...

    @property
    def opened(self) -> Sequence[BusLink]:
        """Links that the bus has opened."""
        ...

    @property
    def peers(self) -> Sequence[BusPeer]:
        """Peers on all links."""
        ...

    @property
    def clients(self) -> Sequence[BusPeer]:
        """Connected peers that have dialled in."""
        ...

    def is_inside(self) -> bool:
        """True if the caller is a handler of this bus, or its lifespan."""
        ...

    def clients_of(self, key: str) -> Sequence[BusPeer]:
        """Connections of one user."""
        ...

    async def gone(self, peer: Any) -> BusError:
        """Wait until a `Peer` is gone for good; returns the reason."""
        ...

    def connecting(
        self,
        connector: Connector,
        adapter: ProtocolAdapter,
        *,
        reader: LinkReader,
        tls: ssl.SSLContext | None,
        backoff: Backoff,
        wait: float,
        beyond: str,
    ) -> AbstractAsyncContextManager[Any]:
        """Open the link to the other buses of a mesh.

        Args:
            connector: The address.
            adapter: The protocol.
            reader: Receives messages for this bus or one of its clients.
            tls: TLS context for clients.
            backoff: Pauses between attempts.
            wait: Seconds during which the first attempt is repeated.
            beyond: Name of the other end for error texts.
        """
        ...

    # -- answers -----------------------------------------------------------------------------------------------------------

    def answer(self, message: Message, value: Any) -> None:
        """Answer a request of another bus of the mesh to this bus itself.

        Raises:
            BusError: It cannot be written.
        """

    def refuse(self, message: Message, code: Code, text: str, reason: str | None = None, *, kind: Kind = ...) -> None:
        """Answer with an error; `kind` is the kind of the answer, by default `Kind.ERROR`."""

    def ask_inside(
        self, to: Any, subject: str, body: Any, timeout: float, ended: Callable[[], None] | None = None
    ) -> Awaitable[Any]:
        """Send a request to another bus of the mesh itself, addressed as in `plugins.mesh`.

        Args:
            to: The address.
            subject: The subject.
            body: Value, written as JSON.
            timeout: Seconds for the answer.
            ended: Called if the answer arrives among other messages, or if there will be none.

        Raises:
            BusError: (from the call or the await) As `Peer.request`.
        """
        ...

    def tell_inside(self, to: Any, subject: str, body: bytes | None = None) -> None:
        """Send a notification in JSON to another bus of the mesh.

        Raises:
            BusError: It cannot be written.
        """

    def pass_to(self, message: Message, client: Any, now: float) -> None:
        """Pass a request from another bus of the mesh to a client."""

    def pass_on(self, pattern: str | int, choose: Callable[[], Any]) -> None:
        """Forward clients' requests without a handler here to a peer chosen for each."""

    def remote(self, id: str, node: str, key: str | None, protocol: str) -> Any:
        """`RemotePeer` for a client of another bus of the mesh."""
        ...

    # -- publications ------------------------------------------------------------------------------------------------------

    def publication(self, subject: str | int, body: Any) -> Message:
        """Publication with its body encoded.

        Raises:
            EncodeError: The body cannot be written.
            LocalProtocolError, ReservedSubject: The application may not use the subject.
        """
        ...

    def send(self, message: Message, peer: Any, how: str = "published") -> None:
        """Send a publication to one peer; a failure is counted and logged as "not `how`"."""

    def unsent(self, message: Message, peer: Any, how: str, error: BusError) -> None:
        """Count and log a publication that cannot be sent."""

    @property
    def deliver_to_all(self) -> Callable[[Message, Any], Iterable[Any]]:
        """Deliver a publication from the mesh to the subscriptions of this bus and its clients; returns the queues."""
        ...

    def deliver_to_group(self, message: Message, peer: Any, group: str, pattern: str | int) -> None:
        """Deliver a publication from the mesh to one member of a queue group here."""

    def is_of_this_bus(self, message: Message) -> bool:
        """True if a publication starts here: not from the mesh, and not from a client for itself."""
        ...

    def keep(self, keeps: Callable[[str | int], bool] | None) -> None:
        """Store the publications that `keeps` accepts; None ends that."""

    # -- interest ----------------------------------------------------------------------------------------------------------

    def joined(self, peer: Any, in_net: Callable[[], None]) -> None:
        """Announce the interests of this bus and its clients to the mesh.

        Args:
            peer: All other buses together.
            in_net: Called when this bus's publications may come back over a peer.
        """

    def parted(self) -> None:
        """The mesh is away: stop announcing."""

    @property
    def in_net(self) -> bool:
        """True if this bus's publications may come back over a peer."""
        ...

    def join_net(self) -> None:
        """From now on they may, over another bus of the mesh."""

    async def announce_handlers(self) -> None:
        """Announce the handlers of this bus, so that requests reach it."""

    def add_interest(self, interest: Any) -> None:
        """Announce a pattern, or a `plugins.ToUser`, until `remove_interest`."""

    def remove_interest(self, interest: Any) -> None:
        """Withdraw the announcement."""

    async def interest_known(self) -> None:
        """Return when the mesh knows all interests."""

    # -- clients whose publications wait -----------------------------------------------------------------------------------

    def withhold(self, peer: Any) -> bool:
        """Stop sending to a client on a wire without subscriptions. False if it does not get every publication anyway."""
        ...

    def send_all(self, peer: Any) -> None:
        """Send every publication, until the client proves to be polybus."""

    def queue_for(self, peer: Any, queue: PublicationQueue | None) -> None:
        """Offer the client's present and future subscriptions to a queue instead; None ends that."""

    def take_over(self, peer: Any, queue: PublicationQueue) -> tuple[Sequence[str | int], Sequence[Message]]:
        """Offer the client's subscriptions to a queue that outlives it; returns the patterns, and the unsent messages."""
        ...

    def weigh(self, message: Message) -> int:
        """Cost in bytes of a message that has to wait; frees spare memory of its encoder."""
        ...

    def add_queue(self, pattern: str | int, queue: PublicationQueue) -> None:
        """Offer matching publications to a queue."""

    def remove_queue(self, pattern: str | int, queue: PublicationQueue) -> None:
        """Stop offering them."""

    def queues(self, subject: str | int) -> Collection[Any]:
        """Queues for a publication."""
        ...


parts_of: Callable[[Any], BusPort] = attrgetter("_parts")
"""Returns the parts of a `Bus`."""
