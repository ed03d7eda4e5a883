"""A bus from inside, for those who add a part to it: a mesh, a store, a recorder, instrumentation, a blocking twin.

`parts_of` gives the parts of a bus, and an `Extension` is handed them when it is made. Here is what such a part needs; the
classes behind have more, which may change from release to release.
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
    """A bus while it is entered: its event loop, clock and tasks."""

    @property
    def notifier(self) -> Notifier:
        """Wakes what waits for a change of the bus."""
        ...

    @property
    def warnings(self) -> Warnings:
        """Keeps peers from filling the log."""
        ...

    @property
    def workers(self) -> Any:
        """Runs jobs of handlers: ``submit(job)``."""
        ...

    def check_here(self) -> None:
        """Raise `LocalProtocolError` in another event loop."""


class RegisteredHandler(Protocol):
    """A handler as it was registered."""

    @property
    def name(self) -> str: ...
    @property
    def subject(self) -> str | int: ...


class RegisteredSubscriber(Protocol):
    """An `on` handler as it was registered."""

    @property
    def handler(self) -> Any:
        """The `RegisteredHandler`, for `HandlerRunner.run`."""
        ...

    @property
    def concurrency(self) -> int: ...
    @property
    def reading(self) -> Any:
        """Its `plugins.extensions.Reading`, where it reads what is kept."""
        ...


class HandlerRunner(Protocol):
    """Runs handlers, with the middleware around them."""

    def run(self, handler: Any, message: Message, deadline: float | None) -> Awaitable[Any]:
        """Run a handler.

        Raises:
            Exception: (here or by awaiting) As the handler or a middleware raises it.
        """
        ...

    def is_own_cancellation(self, error: BaseException, scope: anyio.CancelScope | None) -> bool:
        """Tell whether the bus itself stopped it."""
        ...

    def must_propagate(self, error: BaseException, scope: anyio.CancelScope | None) -> bool:
        """Tell whether what it raised ends more than the handler."""
        ...

    def publication_failed(self, message: Message, error: BaseException) -> str:
        """Log and count a failure, and give the id of the error."""
        ...


class BusServices(Protocol):
    """Limits, counters, events and life of a bus."""

    id: str
    """Random text that tells buses apart."""
    bus: Any
    """The `Bus`."""
    limits: Limits
    counters: Counters
    ready: bool
    """True from the lifespan's yield to the beginning of a drain."""
    leaving: bool
    """True from the beginning of a drain to the end."""

    @property
    def executor(self) -> HandlerRunner: ...
    @property
    def runtime(self) -> BusRuntime | None:
        """Present while the bus is entered."""
        ...

    @property
    def running(self) -> BusRuntime:
        """The same; `LocalProtocolError` where it is not entered."""
        ...

    def emit(self, event: BusEvent, /) -> None:
        """Tell readers of `Bus.events`."""

    def signal(self) -> None:
        """Tell a drain that something has ended which it may wait for."""

    def dead_letter(self, peer: Any, message: Message, code: Code, reason: str) -> None:
        """Tell readers of events that a message could not be delivered."""


class BusLink(Protocol):
    """A link of a bus."""

    inner: bool
    """True where the buses beyond are this very one."""
    opened: bool
    """True where this bus has opened it."""
    url: str
    session: Session | None
    adapter: ProtocolAdapter
    multiplexed: Any
    """Present where it leads to many peers, behind a broker."""
    peer: Any
    """The `BusPeer` at its other end; None before it was up, and where there are many."""
    reader: LinkReader | None
    """Takes what its session says to be for somebody else than its one peer."""
    most_running: int | None
    """Requests of this link that run at the same time, where that is not `Limits.running`."""
    most_waiting: int | None

    @property
    def serves(self) -> Sequence[str | int]:
        """Patterns of the requests that belong to it; none where it takes all."""
        ...

    @property
    def runtime(self) -> BusRuntime: ...
    def answer(self, message: Message, peer: Any) -> None:
        """Write what a peer waits for, or the session itself asks for.

        Raises:
            BusError: It cannot be written.
        """

    def publish(self, message: Message, peer: Any, deadline: float) -> bool:
        """Write a publication. False where there is no room for it now.

        Raises:
            BusError: It cannot be written.
        """
        ...

    async def room(self, deadline: float) -> bool:
        """Wait for room. False where there was none until then."""
        ...

    def hold(self) -> None:
        """Keep what this bus sends until `release`."""

    def release(self) -> None:
        """Send what was kept."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Write what was sent, and close."""

    def disconnected(self, *, sent: bool) -> BusError:
        """Make the error of what cannot be sent because it is down."""
        ...

    def absence(self, longest: float = 0.0) -> str:
        """Say since when it is down, if that is longer; else empty."""
        ...

    def silence(self, longest: float = 0.0) -> str:
        """Say since when nothing has come, if that is longer; else empty."""
        ...


class BusPeer(Protocol):
    """The other end of a link, as the parts of a bus know it."""

    link: Any
    """Its `BusLink`."""
    public: Any
    """The `Peer` that the application knows."""
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
        """True where it does not come back."""
        ...

    @property
    def patterns(self) -> Collection[str | int]:
        """The patterns that it has subscribed to."""
        ...

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a task for as long as it is there."""

    def pass_on(self, message: Message, timeout: float) -> Awaitable[Any]:
        """Ask it what somebody else has asked, and await its answer; the body goes as it is.

        Raises:
            BusError: (here or by awaiting) As `Peer.request`.
        """
        ...


class PublicationQueue(Protocol):
    """The queue of a subscription: publications that match a pattern are offered to it."""

    @property
    def pattern(self) -> str | int: ...
    @property
    def group(self) -> str | None: ...
    @property
    def queue(self) -> int:
        """The most that it takes."""
        ...

    @property
    def local(self) -> bool:
        """True where it takes what this bus publishes."""
        ...

    @property
    def peers(self) -> bool:
        """True where it takes what peers publish."""
        ...

    @property
    def leads_on(self) -> bool:
        """True where it leads to another bus."""
        ...

    @property
    def full(self) -> bool: ...
    async def room(self, deadline: float) -> bool:
        """Wait for room. False where there was none until then."""
        ...

    def offer(self, message: Message) -> None:
        """Take a publication."""

    def offer_shared(self, message: Message) -> None:
        """Take a publication that others are given too."""


class BusSubscription(Protocol):
    """A subscription that is handed what is kept."""

    @property
    def pattern(self) -> str | int: ...
    @property
    def peer(self) -> Any:
        """The `BusPeer` that it is to; None where it is to all."""
        ...

    @property
    def queue(self) -> int:
        """The most that it takes."""
        ...

    @property
    def full(self) -> bool: ...
    def offer(self, message: Message) -> None:
        """Queue a publication."""

    def skip(self, message: Message, by: str, why: str) -> None:
        """Count and log a publication that cannot be read."""

    def end(self, error: BusError | None) -> None:
        """End the iteration after what has come; with an error by that."""


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
        """The functions that are registered by `Bus.on`."""
        ...

    @property
    def opened(self) -> Sequence[BusLink]:
        """The links that the bus has opened."""
        ...

    @property
    def peers(self) -> Sequence[BusPeer]:
        """The peers on all links."""
        ...

    @property
    def clients(self) -> Sequence[BusPeer]:
        """The peers that have dialled in and are connected."""
        ...

    def is_inside(self) -> bool:
        """Tell whether the caller is a handler of this bus, or its lifespan."""
        ...

    def clients_of(self, key: str) -> Sequence[BusPeer]:
        """The clients that are one user."""
        ...

    async def gone(self, peer: Any) -> BusError:
        """Wait until a `Peer` has left that does not come back, and give the reason."""
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
        """Open the link behind which the other buses of a mesh are.

        Args:
            connector: Where to.
            adapter: The protocol.
            reader: Takes what is for this bus or a client of it.
            tls: A context for clients.
            backoff: Pauses between attempts.
            wait: Seconds in which the first attempt is repeated.
            beyond: What is there, for the texts of errors.
        """
        ...

    # -- answers -----------------------------------------------------------------------------------------------------------

    def answer(self, message: Message, value: Any) -> None:
        """Answer what another bus of the mesh has asked this one itself.

        Raises:
            BusError: It cannot be written.
        """

    def refuse(self, message: Message, code: Code, text: str, reason: str | None = None, *, kind: Kind = ...) -> None:
        """Answer with an error; `kind` is that of the answer, `Kind.ERROR` where nothing is said."""

    def ask_inside(
        self, to: Any, subject: str, body: Any, timeout: float, ended: Callable[[], None] | None = None
    ) -> Awaitable[Any]:
        """Ask another bus of the mesh itself, as `plugins.ToNode` names it.

        Args:
            to: Whom.
            subject: What.
            body: Of the question, written as JSON.
            timeout: Seconds for the answer.
            ended: Is called where the answer comes among what else comes, or where there will be none.

        Raises:
            BusError: (here or by awaiting) As `Peer.request`.
        """
        ...

    def tell_inside(self, to: Any, subject: str, body: bytes | None = None) -> None:
        """Tell another bus of the mesh something, in JSON.

        Raises:
            BusError: It cannot be written.
        """

    def pass_to(self, message: Message, client: Any, now: float) -> None:
        """Have a client asked what another bus of the mesh asks it."""

    def pass_on(self, pattern: str | int, choose: Callable[[], Any]) -> None:
        """Have what clients ask, and nobody here handles, asked of a peer that is chosen each time."""

    def remote(self, id: str, node: str, key: str | None, protocol: str) -> Any:
        """Make the `RemotePeer` for a client of another bus of the mesh."""
        ...

    # -- publications ------------------------------------------------------------------------------------------------------

    def publication(self, subject: str | int, body: Any) -> Message:
        """Make a publication with its body encoded.

        Raises:
            EncodeError: The body cannot be written.
            LocalProtocolError, ReservedSubject: The subject is not the application's to use.
        """
        ...

    def send(self, message: Message, peer: Any, how: str = "published") -> None:
        """Send a publication to one peer; what cannot be is counted and logged as not `how`."""

    def unsent(self, message: Message, peer: Any, how: str, error: BusError) -> None:
        """Count and log a publication that cannot be sent."""

    @property
    def deliver_to_all(self) -> Callable[[Message, Any], Iterable[Any]]:
        """Deliver what came over the mesh to the subscriptions of this bus and of its clients, and give the queues."""
        ...

    def deliver_to_group(self, message: Message, peer: Any, group: str, pattern: str | int) -> None:
        """Deliver what came over the mesh for one member of a group here."""

    def is_of_this_bus(self, message: Message) -> bool:
        """Tell whether a publication begins here: it has not come over the mesh, and is not from a client for itself."""
        ...

    def keep(self, keeps: Callable[[str | int], bool] | None) -> None:
        """Have publications kept of which this is true, until it is taken back by None."""

    # -- interest ----------------------------------------------------------------------------------------------------------

    def joined(self, peer: Any, in_net: Callable[[], None]) -> None:
        """Tell the mesh, which is this peer, what this bus and its clients want.

        Args:
            peer: All other buses together.
            in_net: Is called when what this bus publishes may come back over a peer.
        """

    def parted(self) -> None:
        """Tell the mesh nothing: it is away."""

    @property
    def in_net(self) -> bool:
        """True where what this bus publishes may come back over a peer."""
        ...

    def join_net(self) -> None:
        """Take note that it may: over another bus of the mesh."""

    async def announce_handlers(self) -> None:
        """Have this bus asked what it handles."""

    def add_interest(self, interest: Any) -> None:
        """Tell the mesh of a pattern, or of a `plugins.ToUser`, until `remove_interest`."""

    def remove_interest(self, interest: Any) -> None:
        """Take that back."""

    async def interest_known(self) -> None:
        """Return when the mesh knows of all."""

    # -- clients whose publications wait -----------------------------------------------------------------------------------

    def withhold(self, peer: Any) -> bool:
        """Send a client on a wire without subscriptions nothing for now. False where it would not be sent everything."""
        ...

    def send_all(self, peer: Any) -> None:
        """Send it everything, until it has shown to be ours."""

    def queue_for(self, peer: Any, queue: PublicationQueue | None) -> None:
        """Offer what a client has subscribed to, and will, to a queue in its place; None ends that."""

    def take_over(self, peer: Any, queue: PublicationQueue) -> tuple[Sequence[str | int], Sequence[Message]]:
        """Offer what a client has subscribed to to a queue that outlasts it: gives the patterns, and what has not left."""
        ...

    def weigh(self, message: Message) -> int:
        """Tell what a message costs that is to wait, in bytes; what its encoder has left over is given back."""
        ...

    def add_queue(self, pattern: str | int, queue: PublicationQueue) -> None:
        """Offer publications to a queue."""

    def remove_queue(self, pattern: str | int, queue: PublicationQueue) -> None:
        """Offer it no more."""

    def queues(self, subject: str | int) -> Collection[Any]:
        """Find the queues that are offered a publication."""
        ...


parts_of: Callable[[Any], BusPort] = attrgetter("_parts")
"""Gives the parts of a `Bus`."""
